"""Guardian: a small process that ends the ZooKeeper session of this broker if the broker is killed.

Without it, the nodes of a killed broker stay until its session expires, and its partitions have no leader
meanwhile. The guardian has its own POSIX session, so that it does not get signals to the broker's process
group. It runs tidelog.server.guardian_process and reads all values from a pipe, so that no secret is in its
arguments.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.metadata.async_tree import SessionEvent
from tidelog.metadata.zookeeper import ZooKeeperTree
from tidelog.metadata.zookeeper.connect_string import ConnectString
from tidelog.server.config.cluster import ClusterConfig

if TYPE_CHECKING:
    from tidelog.security.tls import TlsSettings

log = logging.getLogger("tidelog.server")

SCRIPT = Path(__file__).with_name("guardian_process.py")

STOP_SECONDS = 1.0
"""How long a stop waits for the end of the guardian."""

STOP_POLL_SECONDS = 0.01


class Guardian:
    def __init__(self, config: ClusterConfig, tree: ZooKeeperTree) -> None:
        self._config = config
        self._tree = tree
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process. A failure is logged: the broker runs without it."""
        # Isolated and without site-packages: it starts quickly and takes little memory.
        command = [sys.executable, "-I", "-S", str(SCRIPT)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            log.warning("no guardian: if this broker is killed, its session has to expire first: %s", error)
            return
        orders = _orders(self._config, self._tree.session_timeout)
        self._write([*orders, self._session(), f"watch {os.getpid()}"])
        self._tree.listen(self._session_changed)

    def _session(self) -> str:
        return f"session {self._tree.session_id} {self._tree.session_password.hex()}"

    def _session_changed(self, event: SessionEvent) -> None:
        if event is SessionEvent.CONNECTED:
            self._write([self._session()])

    def _write(self, lines: list[str]) -> None:
        process = self._process
        if process is None or process.stdin is None or process.stdin.closed:
            return
        try:
            process.stdin.write("".join(f"{line}\n" for line in lines).encode())
            process.stdin.flush()
        except OSError as error:
            log.warning("the guardian is gone: %s", error)
            process.stdin = None

    async def stop(self) -> None:
        """End the process; the session stays as it is."""
        process = self._process
        if process is None:
            return
        self._write(["stop"])
        self._process = None

        async def ended() -> None:
            while process.poll() is None:
                await asyncio.sleep(STOP_POLL_SECONDS)

        try:
            async with asyncio.timeout(STOP_SECONDS):
                await ended()
        except TimeoutError:
            process.kill()
            process.wait()
        if process.stdin is not None:
            process.stdin.close()


def _orders(config: ClusterConfig, session_timeout: float) -> Iterator[str]:
    addresses = ConnectString.parse(config.zookeeper_connect).addresses
    yield "hosts " + " ".join(f"{host} {port}" for host, port in addresses)
    yield f"timeout {session_timeout}"
    if config.zookeeper_digest is not None:
        yield f"auth digest {config.zookeeper_digest.secret.encode().hex()}"
    if config.zookeeper_tls is not None:
        for name, value in _tls(config.zookeeper_tls).items():
            yield f"tls {name} {value.encode().hex()}"


def _tls(settings: TlsSettings) -> dict[str, str]:
    """The TLS settings for the guardian. It cannot read key stores, so it gets their contents."""
    from tidelog.security.cipher_suites import TLS13_SUITES, openssl_name
    from tidelog.security.key_stores import load_identities, load_trusted
    from tidelog.security.private_file import is_in_memory
    from tidelog.security.private_keys import encrypted_key
    from tidelog.security.tls import client_context

    context = client_context(settings)
    orders = {
        "check_host": str(context.check_hostname).lower(),
        "minimum_version": context.minimum_version.name,
        "maximum_version": context.maximum_version.name,
    }
    if suites := [openssl_name(suite) for suite in settings.cipher_suites if suite not in TLS13_SUITES]:
        orders["ciphers"] = ":".join(suites)
    if (trusted := load_trusted(settings.trust_store)) is not None:
        orders["trusted"] = trusted
    for identity in load_identities(settings.key_store)[:1]:
        key, password = identity.key, "" if identity.password is None else identity.password.secret
        if identity.password is None and not is_in_memory():
            key, password = encrypted_key(key)
        orders |= {"key": key + identity.chain, "key_password": password}
    return orders
