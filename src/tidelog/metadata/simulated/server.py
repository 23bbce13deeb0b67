"""SimulatedZooKeeper: a ZooKeeper server in memory, for simulations and tests.

It has sessions with time-outs, ephemeral and sequential nodes, one-shot watches and multis, and speaks
ZooKeeper's protocol with the real client. Faults come from its random numbers or from a test: lost
connections, whose requests in flight are made or not, cut links, expired sessions, an outage.

A client has a name, for example of its broker. There are no ACLs.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from tidelog.metadata.simulated import requests
from tidelog.metadata.simulated.link import Pipe, SimulatedTransport, Timers
from tidelog.metadata.simulated.node_tree import NodeTree
from tidelog.metadata.simulated.requests import ConnectRequest
from tidelog.metadata.simulated.server_connection import ServerConnection
from tidelog.metadata.tree import Delete, Operation, Result, WatchEvent
from tidelog.metadata.zookeeper.connection import Connection, ConnectionListener

FIRST_SESSION = 0x100000000000000
PASSWORD_BYTES = 16
LOOK_AGAIN_SECONDS = 0.05


@dataclass(slots=True)
class SimulatedSession:
    """`client` is the name of the client that made it."""

    id: int
    password: bytes
    timeout: float
    client: str
    last_heard: float
    """When the server last last_heard of the client."""
    connection: ServerConnection | None = None
    watched: bool = False
    """Whether a timer waits for its time-out."""


Committed = Callable[[int, int, list[Operation]], None]
"""Called after each change with its zxid, the id of its session and its operations."""


class SimulatedZooKeeper:
    """`loop` gives the time of the server, `rng` its latencies and faults."""

    def __init__(
        self,
        loop: Timers,
        rng: random.Random,
        *,
        latency: tuple[float, float] = (0.0002, 0.002),
        loss: float = 0.0,
        session_timeouts: tuple[float, float] = (0.1, 60.0),
        epoch_ms: int = 1_700_000_000_000,
    ) -> None:
        """`loss` is the probability that a request loses its connection. Times are in seconds."""
        self.latency = latency
        self.loss = loss
        self.tree = NodeTree(epoch_ms)
        self.sessions: dict[int, SimulatedSession] = {}
        self.on_commit: Committed | None = None
        self._loop = loop
        self._rng = rng
        self._timeouts = session_timeouts
        self._epoch_ms = epoch_ms
        self._next_session = FIRST_SESSION
        self._connections: dict[ServerConnection, None] = {}
        self._cut_to_server: set[str] = set()
        self._cut_to_client: set[str] = set()
        self._up = True

    # --- faults

    def lose_connection(self, client: str) -> None:
        """Reset the connections of a client. The server handles some of the requests that travel."""
        for connection in self._connections_of(client):
            connection.to_server.keep_first(self._rng.randint(0, connection.to_server.travelling))
            connection.lose()

    def cut(self, client: str, *, to_server: bool = True, to_client: bool = True) -> None:
        """Hold back the bytes between a client and the server, in one or both directions."""
        if to_server:
            self._cut_to_server.add(client)
        if to_client:
            self._cut_to_client.add(client)

    def heal(self, client: str) -> None:
        """Deliver what was held back."""
        self._cut_to_server.discard(client)
        self._cut_to_client.discard(client)
        for connection in self._connections_of(client):
            connection.to_server.flush()
            connection.to_client.flush()

    def expire(self, client: str) -> None:
        """Let the sessions of a client expire now."""
        for session in [each for each in self.sessions.values() if each.client == client]:
            self._expire(session)

    def stop(self) -> None:
        """Lose all connections and refuse new ones. Sessions and nodes stay."""
        self._up = False
        for connection in tuple(self._connections):
            connection.lose()
            connection.close()

    def start(self) -> None:
        """Accept connections again. Every session has its whole time-out to come back."""
        self._up = True
        for session in self.sessions.values():
            session.last_heard = self._loop.time()
            self._await_timeout(session)

    # --- connections

    async def open(self, client: str, listener: ConnectionListener) -> Connection:
        """Connect a client, on its running loop. Raises ConnectionRefusedError while the server is down."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._delay())
        while client in self._cut_to_server or client in self._cut_to_client:
            await asyncio.sleep(LOOK_AGAIN_SECONDS)  # until the attempt times out or the link heals
        if not self._up:
            raise ConnectionRefusedError("the simulated ZooKeeper is down")
        protocol = Connection(loop, listener)
        connection = ServerConnection(self, client)
        to_server = Pipe(self._loop, self._delay, connection.receive, lambda: client in self._cut_to_server)
        transport = SimulatedTransport(to_server, protocol)
        to_client = Pipe(loop, self._delay, transport.receive, lambda: client in self._cut_to_client)
        connection.to_server, connection.to_client = to_server, to_client
        self._connections[connection] = None
        protocol.connection_made(transport)
        return protocol

    def forget(self, connection: ServerConnection) -> None:
        self._connections.pop(connection, None)
        session = self.sessions.get(connection.session_id)
        if session is not None and session.connection is connection:
            session.connection = None

    def loses_connection(self) -> bool:
        return self.loss > 0 and self._rng.random() < self.loss

    def makes_lost_request(self) -> bool:
        return self._rng.random() < 0.5

    def _connections_of(self, client: str) -> list[ServerConnection]:
        return [connection for connection in self._connections if connection.client == client]

    def _delay(self) -> float:
        return self._rng.uniform(*self.latency)

    # --- sessions

    def on_connect_request(self, connection: ServerConnection, request: ConnectRequest) -> None:
        """Begin or resume a session. One that is not known any longer has expired."""
        if request.last_zxid > self.tree.zxid:
            connection.close()
            return
        if request.session_id == 0:
            session = self._new_session(connection.client, request.timeout_ms / 1000)
        else:
            known = self.sessions.get(request.session_id)
            if known is None or known.password != request.password:
                connection.send(requests.connect_response(0, 0, bytes(PASSWORD_BYTES)))
                connection.close()
                return
            session = known
            if session.connection is not None:
                # What still travels on the old connection must not be made after what the new one sends.
                session.connection.close()
        session.connection = connection
        session.last_heard = self._loop.time()
        connection.session_id = session.id
        timeout_ms = round(session.timeout * 1000)
        connection.send(requests.connect_response(timeout_ms, session.id, session.password))

    def on_heard(self, connection: ServerConnection) -> None:
        session = self.sessions.get(connection.session_id)
        if session is not None:
            session.last_heard = self._loop.time()

    def end_session(self, session_id: int) -> None:
        """Delete the ephemeral nodes of a session, and forget it."""
        session = self.sessions.pop(session_id)
        session.connection = None
        doomed: list[Operation] = [Delete(path) for path in self.tree.ephemerals.pop(session_id, ())]
        self.change(session_id, doomed)

    def _new_session(self, client: str, timeout: float) -> SimulatedSession:
        shortest, longest = self._timeouts
        timeout = min(max(timeout, shortest), longest)
        password = self._rng.randbytes(PASSWORD_BYTES)
        session = SimulatedSession(self._next_session, password, timeout, client, self._loop.time())
        self._next_session += 1
        self.sessions[session.id] = session
        self._await_timeout(session)
        return session

    def _await_timeout(self, session: SimulatedSession) -> None:
        if not session.watched:
            session.watched = True
            due = session.last_heard + session.timeout
            self._loop.call_later(max(0.0, due - self._loop.time()), lambda: self._check_timeout(session))

    def _check_timeout(self, session: SimulatedSession) -> None:
        session.watched = False
        if session.id not in self.sessions or not self._up:
            return
        if self._loop.time() >= session.last_heard + session.timeout:
            self._expire(session)
        else:
            self._await_timeout(session)

    def _expire(self, session: SimulatedSession) -> None:
        connection = session.connection
        self.end_session(session.id)
        if connection is not None:
            connection.close()

    # --- changes

    def change(self, session_id: int, operations: list[Operation]) -> list[Result]:
        """Apply operations and trigger the watches. Raises OperationFailed."""
        now = self._epoch_ms + int(self._loop.time() * 1000)
        results, events = self.tree.apply(operations, session_id, now)
        for event in events:
            self._trigger(event)
        if self.on_commit is not None:
            self.on_commit(self.tree.zxid, session_id, operations)
        return results

    def _trigger(self, event: WatchEvent) -> None:
        for connection in tuple(self._connections):
            connection.notify(event)
