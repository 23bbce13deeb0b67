"""The connections of a client to the brokers of a cluster: opened when needed, kept, and closed.

Failed attempts are repeated with growing, jittered pauses. The view of the cluster names the brokers. While
it names none, or none can be reached, the bootstrap servers are used.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import Callable, Iterator, Sequence

from tidelog.clients.async_connection import AsyncConnection
from tidelog.clients.backoff import Backoff
from tidelog.clients.connection import split_address
from tidelog.clients.errors import REFUSED, ClientClosedException, ConfigError, NoBrokersAvailableException
from tidelog.clients.metadata import BrokerNode, ClusterView
from tidelog.clients.network_metrics import NetworkMetrics
from tidelog.clients.security import Security
from tidelog.clients.settings import ClientSettings
from tidelog.errors import KafkaError, NetworkException

log = logging.getLogger("tidelog.clients")


class Link:
    """A broker, its connection or the attempt to connect, and the time of the next attempt."""

    __slots__ = ("attempt", "connection", "error", "failures", "node", "retry_at")

    def __init__(self, node: BrokerNode) -> None:
        self.node = node
        self.connection: AsyncConnection | None = None
        self.attempt: asyncio.Task[None] | None = None
        self.failures = 0
        self.retry_at = 0.0
        self.error: KafkaError | None = None


class Links:
    """One `Link` for every broker in use, on the loop that `start` was called on.

    `changed` is called when a connection was made or lost, or when a pause before a new attempt is over.
    `lost` is called when a connection ended that this client did not close on purpose.
    """

    def __init__(
        self,
        settings: ClientSettings,
        bootstrap: Sequence[str],
        view: ClusterView,
        metrics: NetworkMetrics,
        *,
        changed: Callable[[], None],
        lost: Callable[[], None],
    ) -> None:
        self.closed = False
        self.may_rebootstrap = settings.metadata_recovery_strategy.upper() == "REBOOTSTRAP"
        """Whether to use the bootstrap servers again if no known broker can be reached."""
        self._settings = settings
        self._view = view
        self._metrics = metrics
        self._changed = changed
        self._lost = lost
        self._security = Security(settings)
        self._reconnect = Backoff(settings.reconnect_backoff_ms, settings.reconnect_backoff_max_ms)
        self._setup = Backoff(
            settings.socket_connection_setup_timeout_ms, settings.socket_connection_setup_timeout_max_ms
        )
        self._bootstrap = [
            BrokerNode(-1 - index, *_bootstrap_address(address)) for index, address in enumerate(bootstrap)
        ]
        self._links: dict[int, Link] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    def __iter__(self) -> Iterator[Link]:
        return iter(self._links.values())

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        if self._settings.client_dns_lookup == "resolve_canonical_bootstrap_servers_only":
            self._bootstrap = await self._canonical_bootstrap()

    async def close(self) -> None:
        """Close every connection. Unanswered requests fail."""
        self.closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        attempts = [link.attempt for link in self if link.attempt is not None]
        for attempt in attempts:
            attempt.cancel()
        self.close_connections("the client was closed")
        await asyncio.gather(*attempts, return_exceptions=True)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise ClientClosedException("the client was not started")
        return self._loop

    def now(self) -> float:
        return self.loop.time()

    def connection_if_ready(self, node_id: int) -> AsyncConnection | None:
        """An open connection that is ready for a request. Otherwise None, and a connection is being made.

        It is None, too, while the broker throttles the client.
        """
        link = self._link(node_id)
        connection = link.connection
        if connection is not None and not connection.closed:
            now = self.now()
            if connection.throttled_until > now:
                self.loop.call_later(connection.throttled_until - now, self._changed)
                return None
            return connection
        self._connect_soon(link)
        return None

    def is_unreachable(self, node_id: int) -> bool:
        """Whether the last attempt to connect to a broker failed."""
        link = self._links.get(node_id)
        return link is not None and link.failures > 0

    async def connection(self, node_id: int, *, timeout: float | None = None) -> AsyncConnection:
        """A connection to a broker, made if there is none. Raises NetworkException if an attempt fails."""
        link = self._link(node_id)
        try:
            async with asyncio.timeout(timeout):
                while True:
                    if self.closed:
                        raise ClientClosedException("the client is closed")
                    connection = link.connection
                    if connection is not None and not connection.closed:
                        if (wait := connection.throttled_until - self.now()) > 0:
                            await asyncio.sleep(wait)
                            continue
                        return connection
                    self._connect_soon(link)
                    if link.attempt is not None:
                        await asyncio.wait((link.attempt,))
                        if link.connection is None:
                            raise link.error or NetworkException(f"cannot connect to {link.node.address}")
        except TimeoutError:
            # The error of the last complete attempt says more than that the time is over.
            late = NetworkException(f"cannot connect to {link.node.address} within {timeout:.1f} s")
            raise link.error or late from None

    async def any_connection(self, *, timeout: float | None = None) -> AsyncConnection:
        """The least busy open connection, or a new one to any broker."""
        current = set(self._view.nodes) | {node.id for node in self._bootstrap}
        ready = [
            link.connection
            for link in self._links.values()
            if link.connection is not None and not link.connection.closed and link.node.id in current
        ]
        if ready:
            return min(ready, key=lambda connection: connection.in_flight)
        return await self._first_to_connect(timeout)

    async def _first_to_connect(self, timeout: float | None) -> AsyncConnection:
        """Try the brokers in random order, then the bootstrap servers.

        Brokers that did not answer the last attempt, or do not answer this one, come after the others.
        """
        nodes = list(self._view.nodes.values())
        random.shuffle(nodes)
        nodes.sort(key=lambda node: self._doubt(node.id))
        if not nodes or self.may_rebootstrap:
            again = list(self._bootstrap)
            random.shuffle(again)
            known = {(node.host, node.port) for node in nodes}
            nodes += [node for node in again if (node.host, node.port) not in known]
        last: KafkaError | None = None
        for node in nodes:
            try:
                return await self.connection(node.id, timeout=timeout)
            except REFUSED:
                raise
            except NetworkException as error:
                last = error
        names = ", ".join(node.address for node in nodes)
        raise NoBrokersAvailableException(f"no broker can be reached at {names}: {last}") from last

    def _doubt(self, node_id: int) -> tuple[bool, bool]:
        """Whether the last attempt to connect failed, and whether one is under way."""
        link = self._links.get(node_id)
        return (False, False) if link is None else (link.failures > 0, link.attempt is not None)

    def _link(self, node_id: int) -> Link:
        node = self._view.nodes.get(node_id)
        if node is None:
            node = next((node for node in self._bootstrap if node.id == node_id), None)
        link = self._links.get(node_id)
        if node is None:
            if link is not None:
                return link
            raise NetworkException(f"broker {node_id} is not among {sorted(self._view.nodes)}")
        if link is None or (link.node.host, link.node.port) != (node.host, node.port):
            # A broker with another address is another process.
            if link is not None and link.connection is not None:
                link.connection.close("the broker moved")
            link = self._links[node_id] = Link(node)
        return link

    def _connect_soon(self, link: Link) -> None:
        if link.attempt is None and not self.closed:
            link.attempt = self.loop.create_task(self._connect(link), name=f"connect {link.node.address}")

    async def _connect(self, link: Link) -> None:
        try:
            await asyncio.sleep(max(0.0, link.retry_at - self.now()))
            limit = self._setup.delay(link.failures)
            connection = await AsyncConnection.open(
                link.node, self._settings, self._security, timeout=limit, metrics=self._metrics
            )
        except (KafkaError, ConfigError) as error:
            link.failures += 1
            link.retry_at = self.now() + self._reconnect.delay(link.failures - 1)
            link.error = error if isinstance(error, KafkaError) else NetworkException(str(error))
            log.debug("%s", error)
        else:
            link.failures = 0
            link.error = None
            link.connection = connection
            connection.on_close = lambda closed: self._ended(link, closed)
            if self.closed:
                connection.close("the client was closed")
        finally:
            link.attempt = None
            if link.failures and link.node.id >= 0 and not self.closed:
                self._lost()  # the metadata may still name a leader that is gone
            else:
                self._changed()

    def _ended(self, link: Link, connection: AsyncConnection) -> None:
        if link.connection is connection:
            link.connection = None
        if not self.closed:
            self._lost()

    def sweep_idle(self) -> None:
        """Close connections that were idle for connections.max.idle.ms."""
        idle = self._settings.connections_max_idle_ms / 1000
        if idle < 0:
            return
        now = self.now()
        for link in list(self._links.values()):
            connection = link.connection
            if connection is not None and not connection.in_flight and now - connection.last_used > idle:
                connection.on_close = None
                link.connection = None
                connection.close("it was idle")
        self._sweeper = self.loop.call_later(max(1.0, min(idle / 2, 30.0)), self.sweep_idle)

    def close_connections(self, reason: str) -> None:
        for link in list(self):
            if link.connection is not None:
                link.connection.close(reason)

    def drop_gone(self) -> None:
        """Close connections to bootstrap servers that are known as brokers, and to brokers that left."""
        named = {(node.host, node.port) for node in self._view.nodes.values()}
        for node_id, link in list(self._links.items()):
            gone = node_id >= 0 and node_id not in self._view.nodes
            replaced = node_id < 0 and (link.node.host, link.node.port) in named
            if (gone or replaced) and link.connection is not None and not link.connection.in_flight:
                link.connection.on_close = None
                link.connection.close("the broker is not in the cluster")
                link.connection = None
            if gone and link.connection is None and link.attempt is None:
                del self._links[node_id]

    async def _canonical_bootstrap(self) -> list[BrokerNode]:
        """All addresses of all bootstrap servers, with their canonical names."""
        loop = self.loop
        found: dict[tuple[str, int], None] = {}
        for node in self._bootstrap:
            try:
                for *_, address in await loop.getaddrinfo(node.host, node.port, type=socket.SOCK_STREAM):
                    name = await loop.run_in_executor(None, socket.getfqdn, str(address[0]))
                    found[name, node.port] = None
            except OSError as error:
                log.warning("%s: %s", node.address, error.strerror or error)
        return [BrokerNode(-1 - index, *address) for index, address in enumerate(found)] or self._bootstrap


def _bootstrap_address(address: str) -> tuple[str, int]:
    try:
        return split_address(address)
    except ValueError as error:
        raise ConfigError("bootstrap.servers", address, str(error)) from None
