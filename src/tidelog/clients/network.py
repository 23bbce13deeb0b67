"""Every connection of a client to a cluster, and what it knows of it.

A broker is connected to when first needed; failed attempts are repeated with growing, jittered pauses. The
metadata is refreshed when something is missing or wrong, and at least every metadata.max.age.ms. Where no
known broker can be reached, or none gives metadata for metadata.recovery.rebootstrap.trigger.ms, the
bootstrap servers are asked again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from tidelog.clients.async_connection import AsyncConnection, Done
from tidelog.clients.connection import api_name, split_address
from tidelog.clients.controllers import learn_controllers
from tidelog.clients.errors import Closed, ConfigError, NoBroker, Timeout, TlsFailed
from tidelog.clients.metadata import BrokerNode, ClusterView, TopicView
from tidelog.clients.network_metrics import NetworkMetrics
from tidelog.clients.security import Security
from tidelog.clients.settings import ClientSettings
from tidelog.errors import (
    CoordinatorNotAvailable,
    KafkaError,
    MismatchedEndpointType,
    NetworkException,
    RebootstrapRequired,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanism,
    UnsupportedVersion,
    error_class,
)
from tidelog.protocol.message import Message
from tidelog.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse

__all__ = ["AsyncConnection", "Backoff", "Done", "NetworkClient"]

log = logging.getLogger("tidelog.clients")

R = TypeVar("R", bound=Message)

GROUP = 0
TRANSACTION = 1
# Errors that no other broker and no later attempt will answer differently.
REFUSED = (
    SaslAuthenticationFailed,
    UnsupportedSaslMechanism,
    TlsFailed,
    MismatchedEndpointType,
    UnsupportedVersion,
)
FOREVER = 365 * 86400.0


class Backoff:
    """Pauses that double from `initial` to `longest`, each a fifth shorter or longer by chance."""

    __slots__ = ("_initial", "_longest")

    def __init__(self, initial_ms: int, longest_ms: int) -> None:
        self._initial = min(initial_ms, longest_ms) / 1000
        self._longest = longest_ms / 1000

    def delay(self, attempt: int) -> float:
        """Seconds before attempt number `attempt` + 1, the first being 0."""
        pause = min(self._initial * (1 << min(attempt, 30)), self._longest)
        return min(pause * random.uniform(0.8, 1.2), self._longest)


class _Link:
    """A broker, the connection to it or the attempt to make one, and when the next attempt may start."""

    __slots__ = ("attempt", "connection", "error", "failures", "node", "retry_at")

    def __init__(self, node: BrokerNode) -> None:
        self.node = node
        self.connection: AsyncConnection | None = None
        self.attempt: asyncio.Task[None] | None = None
        self.failures = 0
        self.retry_at = 0.0
        self.error: KafkaError | None = None


class NetworkClient:
    """`await client.start()`, then `call`, `call_any`, `topic`, `coordinator`; `close` ends it.

    Everything runs on the loop that `start` was called on. `on_change` functions are called after the
    metadata changed, a connection was made or lost, or a pause before a new attempt is over. With the
    addresses of `controllers`, those are the nodes that are spoken with, and topics are not known.
    """

    def __init__(
        self, settings: ClientSettings, *, allow_auto_create: bool = False, controllers: Sequence[str] = ()
    ) -> None:
        self.settings = settings
        self.view = ClusterView()
        self.metrics = NetworkMetrics()
        self.speaks_with_controllers = bool(controllers)
        self.all_topics = False
        """Whether the metadata of every topic is kept, not only of those in `topics`."""
        self.topics: dict[str, float] = {}
        """The topics whose metadata is kept, and when each was last asked for."""
        self.topic_idle_ms: int | None = None
        self.allow_auto_create = allow_auto_create
        self.on_change: list[Callable[[], None]] = []
        self.last_error: KafkaError | None = None
        """Why the last attempt to refresh the metadata failed, None when it did not."""
        self.security = Security(settings)
        self.retry_backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        self._reconnect = Backoff(settings.reconnect_backoff_ms, settings.reconnect_backoff_max_ms)
        self._setup = Backoff(
            settings.socket_connection_setup_timeout_ms, settings.socket_connection_setup_timeout_max_ms
        )
        self._bootstrap = [
            BrokerNode(-1 - index, *_bootstrap_address(address))
            for index, address in enumerate(controllers or settings.bootstrap_servers)
        ]
        self._links: dict[int, _Link] = {}
        self._coordinators: dict[tuple[int, str], int] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._refresher: asyncio.Task[None] | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._refresh_wanted = asyncio.Event()
        self._hurry = asyncio.Event()
        self._waiters: list[asyncio.Future[None]] = []
        self._unreachable = False
        self._trying_since: float | None = None
        self.closed = False

    async def start(self) -> None:
        """Begin to keep the metadata; needs a running loop and connects to nobody yet."""
        if self._refresher is None:
            self._loop = asyncio.get_running_loop()
            if self.settings.client_dns_lookup == "resolve_canonical_bootstrap_servers_only":
                self._bootstrap = await self._canonical_bootstrap()
            self._refresher = self._loop.create_task(self._keep_fresh(), name="metadata")
            self._sweep_idle()

    async def close(self) -> None:
        """End every connection; what waits for an answer fails."""
        if self.closed:
            return
        self.closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        tasks = [link.attempt for link in self._links.values() if link.attempt is not None]
        if self._refresher is not None:
            tasks.append(self._refresher)
        for task in tasks:
            task.cancel()
        for link in self._links.values():
            if link.connection is not None:
                link.connection.close("the client was closed")
        await asyncio.gather(*tasks, return_exceptions=True)
        self._wake_waiters()

    # Connections

    def nodes(self) -> list[BrokerNode]:
        """The brokers of the cluster, or the bootstrap servers as long as it did not name them."""
        return list(self.view.nodes.values()) or list(self._bootstrap)

    def links(self) -> list[_Link]:
        """Every broker that was connected to, for those who count."""
        return list(self._links.values())

    def connection_if_ready(self, node_id: int) -> AsyncConnection | None:
        """An open connection that may be used now; otherwise None, and one is being made.

        None as well while the broker asked to be left alone.
        """
        link = self._link(node_id)
        connection = link.connection
        if connection is not None and not connection.closed:
            now = self._now()
            if connection.reauthenticate_at is not None and connection.reauthenticate_at <= now:
                self._outlived(connection)  # and where answers are due, it is left alone until they are here
                return None
            if connection.throttled_until > now:
                self._call_later(connection.throttled_until - now, self._changed)
                return None
            return connection
        self._connect_soon(link)
        return None

    def _outlived(self, connection: AsyncConnection) -> bool:
        """Whether its session ends soon and it was closed: a new session takes a new connection."""
        if connection.reauthenticate_at is None or connection.reauthenticate_at > self._now():
            return False
        if not connection.in_flight:
            connection.close("its session ends")
            return True
        return False

    def is_unreachable(self, node_id: int) -> bool:
        """Whether the last attempt to connect to a broker failed and none has succeeded since."""
        link = self._links.get(node_id)
        return link is not None and link.failures > 0

    async def connection(self, node_id: int, *, timeout: float | None = None) -> AsyncConnection:
        """A connection to a broker, made if there is none; NetworkException where one attempt fails."""
        link = self._link(node_id)
        try:
            async with asyncio.timeout(timeout):
                while True:
                    if self.closed:
                        raise Closed("the client is closed")
                    connection = link.connection
                    if connection is not None and not connection.closed and not self._outlived(connection):
                        if (wait := connection.throttled_until - self._now()) > 0:
                            await asyncio.sleep(wait)
                            continue
                        return connection
                    self._connect_soon(link)
                    if link.attempt is not None:
                        await asyncio.wait((link.attempt,))
                        if link.connection is None:
                            raise link.error or NetworkException(f"cannot connect to {link.node.address}")
        except TimeoutError:
            raise NetworkException(f"cannot connect to {link.node.address} within {timeout:.1f} s") from None

    async def call(
        self,
        node_id: int,
        request: Message,
        answer: type[R],
        *,
        version: int | None = None,
        timeout: float | None = None,
    ) -> R:
        """Ask one broker; raises NetworkException where it cannot be reached or does not answer."""
        connection = await self.connection(node_id, timeout=timeout)
        return await connection.call(request, answer, version=version, timeout=timeout)

    async def call_any(self, request: Message, answer: type[R], *, timeout: float | None = None) -> R:
        """Ask the broker that has least to do; the next one where it cannot be reached."""
        connection = await self.any_connection(timeout=timeout)
        return await connection.call(request, answer, timeout=timeout)

    async def call_controller(self, request: Message, answer: type[R], *, timeout: float | None = None) -> R:
        """Ask the broker that the cluster names as its controller."""
        if self.view.controller_id not in self.view.nodes:
            await self.refresh(timeout=timeout)
        if self.view.controller_id not in self.view.nodes:
            raise NetworkException(f"{api_name(type(request))}: the cluster has no controller at present")
        return await self.call(self.view.controller_id, request, answer, timeout=timeout)

    async def any_connection(self, *, timeout: float | None = None) -> AsyncConnection:
        """A connection to some broker, the least busy of those that are open."""
        current = set(self.view.nodes) | {node.id for node in self._bootstrap}
        ready = [
            link.connection
            for link in self._links.values()
            if link.connection is not None and not link.connection.closed and link.node.id in current
        ]
        if ready:
            return min(ready, key=lambda connection: connection.in_flight)
        return await self._first_to_connect(timeout)

    async def _first_to_connect(self, timeout: float | None) -> AsyncConnection:
        """Try the brokers in a random order, and the bootstrap servers after them."""
        nodes = list(self.view.nodes.values())
        random.shuffle(nodes)
        if not nodes or self._may_rebootstrap:
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
        raise NoBroker(f"no broker can be reached at {names}: {last}") from last

    def _link(self, node_id: int) -> _Link:
        node = self.view.nodes.get(node_id)
        if node is None:
            node = next((node for node in self._bootstrap if node.id == node_id), None)
        link = self._links.get(node_id)
        if node is None:
            if link is not None:
                return link
            raise NetworkException(f"broker {node_id} is not among {sorted(self.view.nodes)}")
        if link is None or (link.node.host, link.node.port) != (node.host, node.port):
            # The same id at another address is another process.
            if link is not None and link.connection is not None:
                link.connection.close("the broker moved")
            link = self._links[node_id] = _Link(node)
        return link

    def _connect_soon(self, link: _Link) -> None:
        if link.attempt is None and not self.closed:
            link.attempt = self._running_loop().create_task(
                self._connect(link), name=f"connect {link.node.address}"
            )

    async def _connect(self, link: _Link) -> None:
        try:
            await asyncio.sleep(max(0.0, link.retry_at - self._now()))
            limit = self._setup.delay(link.failures)
            connection = await AsyncConnection.open(
                link.node, self.settings, self.security, timeout=limit, metrics=self.metrics
            )
        except (KafkaError, ConfigError) as error:
            link.failures += 1
            link.retry_at = self._now() + self._reconnect.delay(link.failures - 1)
            link.error = error if isinstance(error, KafkaError) else NetworkException(str(error))
            log.debug("%s", error)
        else:
            link.failures = 0
            link.error = None
            link.connection = connection
            connection.on_close = lambda closed: self._lost(link, closed)
            if self.closed:
                connection.close("the client was closed")
        finally:
            link.attempt = None
            self._changed()

    def _lost(self, link: _Link, connection: AsyncConnection) -> None:
        if link.connection is connection:
            link.connection = None
        if not self.closed:
            # A leader that hangs up may lead no longer.
            self.request_refresh()
            self._changed()

    def _sweep_idle(self) -> None:
        """Close connections that nobody used for connections.max.idle.ms."""
        idle = self.settings.connections_max_idle_ms / 1000
        if idle < 0:
            return
        now = self._now()
        for link in list(self._links.values()):
            connection = link.connection
            if connection is not None and not connection.in_flight and now - connection.last_used > idle:
                connection.on_close = None
                link.connection = None
                connection.close("it was idle")
        self._sweeper = self._call_later(max(1.0, min(idle / 2, 30.0)), self._sweep_idle)

    # Metadata

    def want(self, topics: Iterable[str]) -> None:
        """Keep the metadata of these topics too."""
        now = self._now()
        for name in topics:
            if name not in self.topics and name not in self.view.topics:
                self._hurry.set()
                self._refresh_wanted.set()
            self.topics[name] = now

    def request_refresh(self) -> None:
        """Refresh the metadata soon; asking again before that happened changes nothing."""
        self._refresh_wanted.set()

    async def refresh(self, *, timeout: float | None = None) -> None:
        """Refresh the metadata and wait for it."""
        version = self.view.version
        self._hurry.set()
        self._refresh_wanted.set()
        await self.wait_for(lambda: self.view.version > version, timeout, "the metadata was not refreshed")

    async def topic(self, name: str, *, timeout: float | None = None) -> TopicView:
        """What is known of a topic, waited for where nothing is known yet."""
        self.want((name,))

        def known() -> bool:
            code = self.view.errors.get(name)
            if code is not None and not error_class(code).retriable:
                raise error_class(code)(f"topic {name!r}: {error_class(code)()}")
            return name in self.view.topics

        if not known():
            self._refresh_wanted.set()
            await self.wait_for(known, timeout, f"topic {name!r} is not in the metadata")
        return self.view.topics[name]

    async def wait_for(self, condition: Callable[[], bool], timeout: float | None, missing: str) -> None:
        """Wait until a condition on the metadata holds; Timeout, with what was missing, when it does not."""
        loop = self._running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while not condition():
            if self.closed:
                raise Closed("the client is closed")
            if isinstance(self.last_error, REFUSED):
                raise self.last_error
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.append(waiter)
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError:
                reason = f": {self.last_error}" if self.last_error is not None else ""
                raise Timeout(f"{missing} after {round((timeout or 0) * 1000)} ms{reason}") from None

    async def _keep_fresh(self) -> None:
        failures = 0
        oldest = self.settings.metadata_max_age_ms / 1000
        while True:
            try:
                async with asyncio.timeout(min(oldest, FOREVER)):
                    await self._refresh_wanted.wait()
            except TimeoutError:
                pass
            self._refresh_wanted.clear()
            self._hurry.clear()
            if self._trying_since is None:
                self._trying_since = self._now()
            try:
                await self._refresh_in_time()
            except KafkaError as error:
                failures += 1
                self._refresh_failed(error)
                self._refresh_wanted.set()
            else:
                unfinished = any(error_class(code).retriable for code in self.view.errors.values())
                failures = failures + 1 if unfinished else 0
                if unfinished:
                    self._refresh_wanted.set()
            await self._pause(self.retry_backoff.delay(max(0, failures - 1)))

    async def _pause(self, seconds: float) -> None:
        """Wait, unless something is wanted at once."""
        try:
            async with asyncio.timeout(seconds):
                await self._hurry.wait()
        except TimeoutError:
            pass

    async def _refresh_in_time(self) -> None:
        """Refresh, for no longer than the brokers that are known may take before they are given up."""
        assert self._trying_since is not None
        allowed = self.settings.metadata_recovery_rebootstrap_trigger_ms / 1000
        # Where nobody is known, the bootstrap servers are being asked as it is.
        limited = self._may_rebootstrap and bool(self.view.nodes)
        try:
            async with asyncio.timeout_at(self._trying_since + allowed if limited else None) as limit:
                await self._refresh_once()
        except TimeoutError:
            if not limit.expired():  # errors of ours may be of this class
                raise
            reason = f"no broker gave metadata for {round(allowed * 1000)} ms"
            self._rebootstrap(reason)
            raise NetworkException(f"{reason}; starting again from the bootstrap servers") from None

    async def _refresh_once(self) -> None:
        if self.speaks_with_controllers:
            await learn_controllers(await self.any_connection(), self.view)
        else:
            await self._refresh_topics()
        if self.last_error is not None and self._unreachable:
            log.warning("the cluster can be reached again")
        self.last_error = self._trying_since = None
        self._unreachable = False
        self._drop_gone_brokers()
        self._changed()

    async def _refresh_topics(self) -> None:
        asked: list[str] | None = None
        if not self.all_topics:
            self._drop_idle_topics()
            asked = list(self.topics)
        request = MetadataRequest(topics=None, allow_auto_topic_creation=self.allow_auto_create)
        if asked is not None:
            request.topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in asked]
        answer = await self.call_any(request, MetadataResponse)
        if answer.error_code == RebootstrapRequired.code:
            self._rebootstrap("the cluster asks clients to start again")
            raise RebootstrapRequired("the cluster asks clients to start again from the bootstrap servers")
        if not answer.brokers:
            raise NetworkException("the broker does not know of any broker yet")
        self.view.update(answer, asked=asked)

    def _refresh_failed(self, error: KafkaError) -> None:
        self.last_error = error
        if not self._unreachable:
            self._unreachable = True
            log.warning("%s" if isinstance(error, REFUSED) else "%s; trying again", error)
        self._wake_waiters()

    @property
    def _may_rebootstrap(self) -> bool:
        return self.settings.metadata_recovery_strategy.upper() == "REBOOTSTRAP"

    def _rebootstrap(self, reason: str) -> None:
        """Forget every broker, so that the bootstrap servers are asked who is there."""
        if not self._may_rebootstrap:
            return
        self._trying_since = None
        for link in list(self._links.values()):
            if link.connection is not None:
                link.connection.close(reason)
        self.view.nodes = {}

    def _drop_gone_brokers(self) -> None:
        """Connections to bootstrap servers whose address the cluster names, and to brokers that left it."""
        named = {(node.host, node.port) for node in self.view.nodes.values()}
        for node_id, link in list(self._links.items()):
            gone = node_id >= 0 and node_id not in self.view.nodes
            replaced = node_id < 0 and (link.node.host, link.node.port) in named
            if (gone or replaced) and link.connection is not None and not link.connection.in_flight:
                link.connection.on_close = None
                link.connection.close("the broker is not in the cluster")
                link.connection = None
            if gone and link.connection is None and link.attempt is None:
                del self._links[node_id]

    def _drop_idle_topics(self) -> None:
        if self.topic_idle_ms is None:
            return
        oldest = self._now() - self.topic_idle_ms / 1000
        idle = [name for name, used in self.topics.items() if used < oldest]
        for name in idle:
            del self.topics[name]
        self.view.forget_topics(idle)

    def _changed(self) -> None:
        self._wake_waiters()
        for listener in self.on_change:
            listener()

    def _wake_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # Coordinators

    async def coordinator(self, kind: int, key: str, *, timeout: float | None = None) -> int:
        """The broker that coordinates a group (kind 0) or a transactional id (1); kept until forgotten."""
        known = self._coordinators.get((kind, key))
        if known is not None and known in self.view.nodes:
            return known
        deadline = None if timeout is None else self._now() + timeout
        attempt = 0
        while True:
            try:
                node = await self._find_coordinator(kind, key)
            except KafkaError as error:
                if not error.retriable or isinstance(error, REFUSED):
                    raise
                pause = self.retry_backoff.delay(attempt)
                attempt += 1
                if deadline is not None and self._now() + pause > deadline:
                    raise Timeout(f"the coordinator of {key!r} was not found in time: {error}") from None
                await asyncio.sleep(pause)
                continue
            self._coordinators[kind, key] = node.id
            self.view.add_nodes((node,))
            return node.id

    def forget_coordinator(self, kind: int, key: str) -> None:
        self._coordinators.pop((kind, key), None)

    async def _find_coordinator(self, kind: int, key: str) -> BrokerNode:
        connection = await self.any_connection()
        version = connection.version_for(FindCoordinatorRequest)
        request = FindCoordinatorRequest(key_type=kind)
        if version >= 4:
            request.coordinator_keys = [key]
        else:
            request.key = key
        answer = await connection.call(request, FindCoordinatorResponse, version=version)
        if version < 4:
            code, text = answer.error_code, answer.error_message
            node = BrokerNode(answer.node_id, answer.host, answer.port)
        elif answer.coordinators:
            found = answer.coordinators[0]
            code, text = found.error_code, found.error_message
            node = BrokerNode(found.node_id, found.host, found.port)
        else:
            raise CoordinatorNotAvailable(f"the broker named no coordinator for {key!r}")
        if code:
            raise error_class(code)(text or f"the coordinator of {key!r}: {error_class(code)()}")
        return node

    # The loop

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise Closed("the client was not started")
        return self._loop

    def _now(self) -> float:
        return self._running_loop().time()

    def _call_later(self, delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self._running_loop().call_later(delay, callback)

    async def _canonical_bootstrap(self) -> list[BrokerNode]:
        """Every address of every bootstrap server, under its canonical name."""
        loop = self._running_loop()
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
