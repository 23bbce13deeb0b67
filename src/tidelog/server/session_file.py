"""SessionFile: the ZooKeeper session of the broker that uses the log folder.

A broker that was killed leaves its session, whose nodes stay until the session expires. The next start holds
the lock of the folder, so that the old process is gone: it closes the old session and need not wait.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
from pathlib import Path

from tidelog.metadata.zookeeper import ZooKeeperSettings, ZooKeeperTree, close_session

log = logging.getLogger("tidelog.server")

FILE_NAME = "__zookeeper-session.json"

AGAIN_SECONDS = 1.0
"""When a session that could not be noted, because the disk was full, is noted."""


class SessionFile:
    def __init__(self, folder: str) -> None:
        self._path = Path(folder) / FILE_NAME
        self._again: asyncio.TimerHandle | None = None

    async def close_old_session(self, hosts: str, settings: ZooKeeperSettings, rng: random.Random) -> None:
        """End the session of the last process, if it was killed. Raises TreeUnavailable."""
        try:
            found = json.loads(self._path.read_text())
            session_id, password = int(found["id"]), bytes.fromhex(found["password"])
        except (OSError, ValueError, KeyError, TypeError):
            return
        if await close_session(
            hosts, session_id, password, rng=rng, tls=settings.tls, timeout=settings.connect_timeout
        ):
            log.info("closed the ZooKeeper session %#x of the last process", session_id)

    def write(self, tree: ZooKeeperTree) -> None:
        """Keep the present session. Only the owner may read the file: it has the session's password.

        A write that fails is repeated until the tree is closed: the file would name a session of the past.
        """
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if tree.is_closed:
            return
        text = json.dumps({"id": tree.session_id, "password": tree.session_password.hex()})
        partial = self._path.with_suffix(".tmp")
        try:
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
            partial.replace(self._path)
        except OSError as error:
            log.warning("the ZooKeeper session could not be noted in %s: %s", self._path, error)
            self._again = asyncio.get_running_loop().call_later(AGAIN_SECONDS, self.write, tree)
