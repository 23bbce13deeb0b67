"""Session: a ZooKeeper session over changing connections.

It connects to one of several servers, pings, reconnects with the same session id and sets the watches again.
When ZooKeeper reports that the session has expired, it begins the next session.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from itertools import repeat
from math import inf

from tidelog.metadata.async_tree import ConnectionLost, SessionEvent, SessionExpired, SessionListener
from tidelog.metadata.tree import TreeUnavailable, WatchEvent
from tidelog.metadata.watches import Watches
from tidelog.metadata.zookeeper import jute
from tidelog.metadata.zookeeper.connect_string import ConnectString
from tidelog.metadata.zookeeper.connection import Connection, OpenConnection, Request
from tidelog.metadata.zookeeper.jute import ConnectResponse, Notification, Xid
from tidelog.metadata.zookeeper.settings import ZooKeeperSettings

log = logging.getLogger("tidelog.metadata.zookeeper")

NO_PASSWORD = bytes(16)
SET_WATCHES_BYTES = 128 * 1024
"""One SetWatches holds paths of about this size, as Java's client does: far below jute.maxbuffer."""

FIRST_BACKOFF, LONGEST_BACKOFF = 0.02, 1.0
SHORT_LIFE = 0.1
"""After a connection that ended sooner, the next attempt waits: the server may refuse what we send."""

UNREACHABLE_SECONDS = 10.0
"""How often the log tells that there is no connection."""

CLOSE_SECONDS = 2.0
"""How long `close` waits for ZooKeeper. The session expires later if it does not answer."""


class AuthenticationFailed(TreeUnavailable):
    """ZooKeeper refused the credentials of `ZooKeeperSettings.auth`."""

    reason = "ZooKeeper refused the credentials of this client"


class _State(Enum):
    CONNECTING = "connecting"
    CONNECTED = "connected"
    EXPIRED = "expired"
    """The listeners do not know of the expiry yet. A call now still belongs to the old session."""

    REFUSED = "refused"
    CLOSED = "closed"


class Session:
    """`await session.start()`, then `submit`; `close` ends the session."""

    def __init__(
        self,
        connect: ConnectString,
        settings: ZooKeeperSettings,
        rng: random.Random,
        open_connection: OpenConnection = Connection.open,
    ) -> None:
        self.session_id = 0
        self.password = NO_PASSWORD
        self.timeout = settings.session_timeout
        """The session time-out in seconds; after the first connection the one that ZooKeeper chose."""
        self.watches = Watches()
        self.latency: Callable[[float], None] | None = None
        """Called with the seconds that each request takes, also while it waits for a connection."""
        self._connect_string = connect
        self._chroot = connect.chroot
        self._settings = settings
        self._rng = rng
        self._open = open_connection
        self._addresses = deque(rng.sample(connect.addresses, len(connect.addresses)))
        self._loop = asyncio.get_running_loop()
        self._state = _State.CONNECTING
        self._closing = False
        self._queue: deque[Request] = deque()
        self._listeners: list[SessionListener] = []
        self._connection: Connection | None = None
        self._connected_at = -inf
        self._control_answers = 0
        """How many answers to Auth and SetWatches are missing before calls may be sent."""
        self._last_zxid = 0
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._first: asyncio.Future[None] = self._loop.create_future()
        self._last_failure = ""
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def listen(self, listener: SessionListener) -> None:
        self._listeners.append(listener)

    async def start(self) -> None:
        """Connect. Raises TreeUnavailable if no server accepts the session within `connect_timeout`."""
        self._task = self._loop.create_task(self._run())
        limit = self._settings.connect_timeout
        try:
            async with asyncio.timeout(limit):
                await self._first
        except TimeoutError:
            reason = f"no ZooKeeper answered at {self._connect_string.hosts} within {limit:g} s"
            if self._last_failure:
                reason += f" ({self._last_failure})"
            raise TreeUnavailable("/", reason) from None

    def submit(self, request: Request) -> None:
        """Send a request, now or when there is a connection."""
        if self.latency is not None:
            request.measure(self._loop.time, self.latency)
        if self._closing:
            request.fail(_closed(request))
        elif self._state is _State.EXPIRED:
            # After the events for the listeners: a caller that repeats the call at once reaches the next
            # session.
            self._loop.call_soon(request.fail, SessionExpired(request.path))
        elif self._state is _State.REFUSED:
            request.fail(AuthenticationFailed(request.path))
        elif self._state is _State.CONNECTED and self._connection is not None:
            self._connection.send(request)
        else:
            self._queue.append(request)

    @property
    def is_closed(self) -> bool:
        return self._closing

    async def close(self) -> None:
        """End the session. Its ephemeral nodes are deleted, if ZooKeeper can be reached."""
        if self._closing:
            return
        if self._session_is_open():
            done: asyncio.Future[None] = self._loop.create_future()
            request = Request("/", jute.CLOSE_SESSION, True, done, lambda code, frame: done.set_result(None))
            self.submit(request)
            self._closing = True
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await done
            except SessionExpired:
                pass
            except (TimeoutError, TreeUnavailable):
                log.info("ZooKeeper did not confirm the end of session 0x%x", self.session_id)
        self._closing = True
        if self._task is not None:
            self._task.cancel()
        self._end(_State.CLOSED)

    def _session_is_open(self) -> bool:
        return self.session_id != 0 and self._state in (_State.CONNECTING, _State.CONNECTED)

    # --- connecting

    async def _run(self) -> None:
        """Keep the session connected until it is closed, also after unexpected errors."""
        while self._state in (_State.CONNECTING, _State.EXPIRED):
            try:
                await self._stay_connected()
                if self._state is _State.EXPIRED and self._closing:
                    return
            except Exception:
                log.exception("the connection to ZooKeeper failed unexpectedly: another one follows")
                self._drop("an unexpected error")
                await asyncio.sleep(LONGEST_BACKOFF)

    async def _stay_connected(self) -> None:
        """Connect, and return when the connection is lost or the session has expired."""
        connection, response = await self._connect()
        if response.timeout_ms > 0:
            self._begin(connection, response)
            await self._lost
            return
        connection.abort()
        self._expire()

    async def _connect(self) -> tuple[Connection, ConnectResponse]:
        """Connect to one of the servers, and return the answer to the ConnectRequest."""
        delays = self._delays()
        began = self._loop.time()
        tell_at = began + UNREACHABLE_SECONDS
        while True:
            delay = next(delays)
            if delay:
                await asyncio.sleep(delay)
            address = self._addresses[0]
            self._addresses.rotate(-1)
            try:
                return await self._attempt(address)
            except (OSError, ValueError) as error:  # ValueError: a host name that cannot be looked up
                reason = "no answer" if isinstance(error, TimeoutError) else str(error)
                self._last_failure = f"{address[0]}:{address[1]}: {reason}"
                log.debug("no connection to ZooKeeper at %s", self._last_failure)
            if (now := self._loop.time()) >= tell_at:
                tell_at = now + UNREACHABLE_SECONDS
                log.warning(
                    "there is no connection to ZooKeeper since %d s: %s", now - began, self._last_failure
                )

    def _delays(self) -> Iterator[float]:
        """Try every server once without a pause, then with growing ones."""
        servers = len(self._addresses)
        if self._loop.time() - self._connected_at >= SHORT_LIFE:
            yield from repeat(0.0, servers)
        pause = FIRST_BACKOFF
        while True:
            yield pause * self._rng.uniform(0.5, 1.0)
            yield from repeat(0.0, servers - 1)
            pause = min(pause * 2, LONGEST_BACKOFF)

    async def _attempt(self, address: tuple[str, int]) -> tuple[Connection, ConnectResponse]:
        # Every server gets a chance before the session times out.
        limit = min(self._settings.connect_timeout, self.timeout / len(self._addresses))
        request = jute.connect_request(
            self._last_zxid, round(self._settings.session_timeout * 1000), self.session_id, self.password
        )
        connection: Connection | None = None
        try:
            async with asyncio.timeout(limit):
                connection = await self._open(address, self._settings.tls, self)
                response = await connection.handshake(request)
        except BaseException:
            if connection is not None:
                connection.abort()
            raise
        if connection.closed and response.timeout_ms > 0:
            # After the answer that the session has expired, a server closes the connection at once.
            raise ConnectionResetError("the server closed the connection")
        return connection, response

    def _begin(self, connection: Connection, response: ConnectResponse) -> None:
        """Authenticate and set the watches again. Calls are sent when ZooKeeper has answered."""
        if response.session_id != self.session_id:
            log.info("ZooKeeper session 0x%x, time-out %d ms", response.session_id, response.timeout_ms)
        self.session_id, self.password = response.session_id, response.password
        self.timeout = response.timeout_ms / 1000
        connection.last_zxid = self._last_zxid
        self._connection = connection
        self._connected_at = self._loop.time()
        self._lost = self._loop.create_future()
        controls = [(Xid.AUTH, jute.auth_request(*identity)) for identity in self._settings.auth]
        controls += [(Xid.SET_WATCHES, payload) for payload in self._set_watches()]
        self._control_answers = len(controls)
        for xid, payload in controls:
            connection.send_control(xid, payload)
        self._tick()
        if not controls:
            self._ready()

    def _set_watches(self) -> Iterator[bytes]:
        """SetWatches requests for all watches."""
        watches = self.watches
        kinds = (list(watches.data), list(watches.exist), list(watches.child))
        chunk: tuple[list[str], list[str], list[str]] = ([], [], [])
        size = 0
        for kind, paths in enumerate(kinds):
            for path in paths:
                chunk[kind].append(path)
                size += len(path) + 4
                if size >= SET_WATCHES_BYTES:
                    yield jute.set_watches_request(self._last_zxid, *chunk)
                    chunk, size = ([], [], []), 0
        if size:
            yield jute.set_watches_request(self._last_zxid, *chunk)

    def _ready(self) -> None:
        self._state = _State.CONNECTED
        self._announce(SessionEvent.CONNECTED)
        if not self._first.done():
            self._first.set_result(None)
        assert self._connection is not None
        while self._queue:
            request = self._queue.popleft()
            if not request.future.done():
                self._connection.send(request)

    # --- events of the connection

    def on_notification(self, notification: Notification) -> None:
        if notification.type is None:
            return
        path = notification.path.removeprefix(self._chroot) or "/"
        for watch in self.watches.take(notification.type, notification.path):
            # Later, because the answer that set the watch must reach its caller first.
            self._loop.call_soon(watch, WatchEvent(notification.type, path))

    def on_control_answer(self, xid: int, code: int) -> None:
        if xid == Xid.AUTH and code:
            self._refuse()
        elif code:
            self._drop(f"ZooKeeper did not set the watches again: code {code}")
        else:
            self._control_answers -= 1
            if self._control_answers == 0:
                self._ready()

    def on_lost(self, reason: str) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._stop_timer()
        self._last_zxid = connection.last_zxid
        if self._state is _State.CONNECTED:
            self._state = _State.CONNECTING
            if not self._closing:
                log.warning("the connection to ZooKeeper is lost: %s", reason)
                self._announce(SessionEvent.DISCONNECTED)
        self._last_failure = reason
        unanswered = [request for _, request in connection.pending]
        for request in unanswered:
            if not request.repeatable:
                request.fail(ConnectionLost(request.path))
        self._queue.extendleft(reversed([request for request in unanswered if request.repeatable]))
        if not self._lost.done():
            self._lost.set_result(None)

    def _drop(self, reason: str) -> None:
        if self._connection is not None:
            self._connection.abort()
            self.on_lost(reason)

    def _tick(self) -> None:
        """Ping after a third of the time-out without a request.

        After two thirds without an answer, drop the connection.
        """
        connection = self._connection
        if connection is None:
            return
        now = self._loop.time()
        third = self.timeout / 3
        if now - connection.last_received >= 2 * third:
            self._drop(f"no answer in {2 * third:.1f} s")
            return
        next_ping = connection.last_sent + third
        if now >= next_ping:
            connection.send_control(Xid.PING, jute.PING)
            next_ping = now + third
        due = min(next_ping, connection.last_received + 2 * third)
        self._timer = self._loop.call_later(max(due - now, 0.001), self._tick)

    # --- ends

    def _expire(self) -> None:
        log.warning("ZooKeeper session 0x%x has expired", self.session_id)
        self._state = _State.EXPIRED
        self.session_id, self.password, self._last_zxid = 0, NO_PASSWORD, 0
        self.watches.clear()
        self._loop.call_soon(self._announce_expiry)
        self._fail_queue(SessionExpired)

    def _announce_expiry(self) -> None:
        if self._state is _State.EXPIRED:
            self._state = _State.CONNECTING
            self._notify(SessionEvent.EXPIRED)

    def _refuse(self) -> None:
        log.error("ZooKeeper refused the credentials of this client")
        self._announce(SessionEvent.AUTHENTICATION_FAILED)
        self._end(_State.REFUSED)
        if not self._first.done():
            self._first.set_exception(AuthenticationFailed("/"))

    def _end(self, state: _State) -> None:
        self._state = state
        self._stop_timer()
        self.watches.clear()
        failure = AuthenticationFailed if state is _State.REFUSED else None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
            self._queue.extendleft(reversed([request for _, request in connection.pending]))
        self._fail_queue(failure)
        if not self._lost.done():
            self._lost.set_result(None)

    def _fail_queue(self, failure: type[TreeUnavailable] | None) -> None:
        queue, self._queue = self._queue, deque()
        for request in queue:
            request.fail(_closed(request) if failure is None else failure(request.path))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _announce(self, event: SessionEvent) -> None:
        """Call the listeners, after earlier watches and answers."""
        self._loop.call_soon(self._notify, event)

    def _notify(self, event: SessionEvent) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception:  # the others have to know of it, too
                log.exception("a listener failed at the event that the session is %s", event.value)


def _closed(request: Request) -> TreeUnavailable:
    return TreeUnavailable(request.path, f"{request.path}: the tree is closed")
