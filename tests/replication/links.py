"""BrokerLinks: proxies between brokers, which cut and hold the connections of one broker to another.

A broker advertises its proxy on the listener for other brokers. A proxy finds out which broker has connected
by the owner of the connection's other end.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from pathlib import Path

Pair = tuple[int, int]
"""The broker that connects, and the broker that it connects to."""


class LinkState(Enum):
    OPEN = "open"
    CUT = "cut"
    """Connections are reset, and new ones too."""
    HELD = "held"
    """Nothing passes, in either direction, until the link is open again."""


class _Connection:
    """One connection through a proxy."""

    def __init__(self, near: asyncio.StreamWriter) -> None:
        self.may_pass = asyncio.Event()
        self.writers = [near]

    def take(self, state: LinkState) -> None:
        if state is LinkState.CUT:
            self.abort()
        elif state is LinkState.HELD:
            self.may_pass.clear()
        else:
            self.may_pass.set()

    def abort(self) -> None:
        self.may_pass.set()
        for writer in self.writers:
            writer.transport.abort()

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 18):
                await self.may_pass.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            self.abort()


class BrokerLinks:
    """`ports` has the listener of each broker for other brokers, `pids` the processes that run."""

    def __init__(self, ports: Mapping[int, int], pids: Callable[[], Mapping[int, int]]) -> None:
        self._ports = ports
        self._pids = pids
        self._servers: dict[int, asyncio.Server] = {}
        self._states: dict[Pair, LinkState] = {}
        self._connections: dict[Pair, set[_Connection]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> dict[int, int]:
        """Listen; returns the port to advertise for each broker."""
        for broker_id in self._ports:
            self._servers[broker_id] = await asyncio.start_server(
                lambda reader, writer, target=broker_id: self._accept(target, reader, writer),  # type: ignore[misc]
                "127.0.0.1",
                0,
            )
        return {id: server.sockets[0].getsockname()[1] for id, server in self._servers.items()}

    async def close(self) -> None:
        for server in self._servers.values():
            server.close()
        for connections in self._connections.values():
            for connection in tuple(connections):
                connection.abort()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def set(self, source: int, target: int, state: LinkState) -> None:
        self._states[source, target] = state
        for connection in tuple(self._connections.get((source, target), ())):
            connection.take(state)

    def heal(self) -> None:
        for pair in list(self._states):
            self.set(*pair, LinkState.OPEN)

    async def _accept(self, target: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        source = self._source(writer.get_extra_info("peername")[1])
        state = self._states.get((source, target), LinkState.OPEN)
        connection = _Connection(writer)
        connection.take(state)
        if state is LinkState.CUT:
            return
        connections = self._connections.setdefault((source, target), set())
        connections.add(connection)
        try:
            await self._pass_on(connection, target, reader, writer)
        finally:
            connections.discard(connection)

    async def _pass_on(
        self,
        connection: _Connection,
        target: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        await connection.may_pass.wait()
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._ports[target])
        except OSError:
            connection.abort()
            return
        connection.writers.append(far_writer)
        await asyncio.gather(connection.pump(reader, far_writer), connection.pump(far_reader, writer))

    def _source(self, port: int) -> int:
        """The broker whose process has the socket with this local port; 0 if it is none."""
        inode = _socket_inode(port)
        for broker_id, pid in self._pids().items():
            if inode is not None and _has_socket(pid, inode):
                return broker_id
        return 0


def _socket_inode(port: int) -> str | None:
    """The inode of the connected socket on 127.0.0.1 with this local port."""
    wanted = f"0100007F:{port:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1] == wanted and fields[9] != "0":
            return fields[9]
    return None


def _has_socket(pid: int, inode: str) -> bool:
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):
        for name in os.listdir(folder):
            with suppress(OSError):
                if os.readlink(f"{folder}/{name}") == f"socket:[{inode}]":
                    return True
    return False
