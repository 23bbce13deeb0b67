"""SessionFile: a file with the ZooKeeper session of the broker that uses the log folder.

The nodes of a killed broker stay until its session expires. The next start closes that session instead of
waiting. It may do so because it has the lock of the folder, so the old process has ended.
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
        """Write the present session. Only the owner may read the file, which has the session's password.

        A failed write is repeated until the tree is closed, because the file would name an old session.
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
