"""Ends the session of another process, for example of a broker that was killed."""

from __future__ import annotations

import asyncio
import random
import ssl

from tidelog.metadata.tree import TreeUnavailable
from tidelog.metadata.zookeeper import jute
from tidelog.metadata.zookeeper.connect_string import ConnectString
from tidelog.metadata.zookeeper.connection import Connection, Request
from tidelog.metadata.zookeeper.jute import Notification

PAUSE = 0.1
RESUME_TIMEOUT_MS = 10_000


async def close_session(
    hosts: str,
    session_id: int,
    password: bytes,
    *,
    rng: random.Random,
    tls: ssl.SSLContext | None = None,
    timeout: float = 10.0,
) -> bool:
    """Resume a session and close it: ZooKeeper deletes its ephemeral nodes.

    Returns False if the session was over before, or if the password is not the session's. Raises
    TreeUnavailable if no server answers within `timeout` seconds. `hosts` may have a chroot.
    """
    connect = ConnectString.parse(hosts)
    addresses = rng.sample(connect.addresses, len(connect.addresses))
    failure = ""
    try:
        async with asyncio.timeout(timeout):
            while True:
                for address in addresses:
                    try:
                        async with asyncio.timeout(timeout / len(addresses)):
                            return await _close(address, session_id, password, tls)
                    except OSError as error:
                        failure = f" ({address[0]}:{address[1]}: {error})"
                await asyncio.sleep(PAUSE)
    except TimeoutError:
        reason = f"no ZooKeeper answered at {connect.hosts} within {timeout:g} s{failure}"
        raise TreeUnavailable("/", reason) from None


async def _close(
    address: tuple[str, int], session_id: int, password: bytes, tls: ssl.SSLContext | None
) -> bool:
    lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    connection = await Connection.open(address, tls, _Ending(lost))
    try:
        response = await connection.handshake(
            jute.connect_request(0, RESUME_TIMEOUT_MS, session_id, password)
        )
        if response.timeout_ms <= 0 or response.session_id != session_id:
            return False
        request = Request("/", jute.CLOSE_SESSION, True, lost, lambda code, frame: lost.set_result(None))
        connection.send(request)
        await lost
        return True
    finally:
        connection.abort()


class _Ending:
    """Fails the future if the connection ends before the answer."""

    def __init__(self, lost: asyncio.Future[None]) -> None:
        self._lost = lost

    def on_notification(self, notification: Notification) -> None: ...

    def on_control_answer(self, xid: int, code: int) -> None: ...

    def on_lost(self, reason: str) -> None:
        if not self._lost.done():
            self._lost.set_exception(ConnectionResetError(reason))
