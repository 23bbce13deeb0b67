"""A client's requests to a cluster, and its metadata.

`links` has the connections, `coordinators` the coordinators, and `metadata_updates` chooses the topics to
request next. The client goes back to the bootstrap servers if no known broker can be reached, or if none
returns metadata for metadata.recovery.rebootstrap.trigger.ms.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from tidelog.clients.async_connection import AsyncConnection, Done
from tidelog.clients.backoff import Backoff
from tidelog.clients.connection import api_name
from tidelog.clients.controllers import learn_controllers
from tidelog.clients.coordinators import GROUP, TRANSACTION, KnownCoordinators
from tidelog.clients.errors import REFUSED, ClientClosedException, TimeoutException, UnknownTopicException
from tidelog.clients.links import Link, Links
from tidelog.clients.metadata import ClusterView, TopicView
from tidelog.clients.metadata_updates import MetadataUpdate, MetadataUpdates
from tidelog.clients.network_metrics import NetworkMetrics
from tidelog.clients.repeated_warnings import RepeatedWarnings
from tidelog.clients.settings import ClientSettings
from tidelog.errors import (
    KafkaError,
    NetworkException,
    RebootstrapRequired,
    UnknownTopicOrPartition,
    error_class,
    error_name,
)
from tidelog.protocol.message import Message
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse

__all__ = ["GROUP", "REFUSED", "TRANSACTION", "AsyncConnection", "Backoff", "Done", "NetworkClient"]

log = logging.getLogger("tidelog.clients")

R = TypeVar("R", bound=Message)

FOREVER = 365 * 86400.0


class NetworkClient:
    """`await client.start()`, then `call`, `call_any`, `topic`, `coordinator`; `close` ends it.

    Everything runs on the loop that `start` was called on. `on_change` functions are called after the
    metadata changed, a connection was made or lost, or a pause before a new attempt is over. With
    `controllers` the client connects to these addresses instead of brokers, and has no metadata of topics.
    """

    def __init__(
        self, settings: ClientSettings, *, allow_auto_create: bool = False, controllers: Sequence[str] = ()
    ) -> None:
        self.settings = settings
        self.view = ClusterView()
        self.metrics = NetworkMetrics()
        self.speaks_with_controllers = bool(controllers)
        self.all_topics = False
        """Whether to keep the metadata of every topic, not only of `topics`."""
        self.topics: dict[str, float] = {}
        """The topics whose metadata is kept, and when each was last used."""
        self.topic_idle_ms: int | None = None
        self.allow_auto_create = allow_auto_create
        self.on_change: list[Callable[[], None]] = []
        self.last_error: KafkaError | None = None
        """The error of the last metadata refresh, or None if it succeeded."""
        self.retry_backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        self._links = Links(
            settings,
            controllers or settings.bootstrap_servers,
            self.view,
            self.metrics,
            changed=self._changed,
            lost=self._lost,
        )
        self._coordinators = KnownCoordinators(self._links, self.view, self.retry_backoff)
        self._refresher: asyncio.Task[None] | None = None
        self._updates = MetadataUpdates(self.retry_backoff, min(settings.metadata_max_age_ms / 1000, FOREVER))
        self._update_wanted = asyncio.Event()
        self._warnings = RepeatedWarnings()
        self._missing: set[str] = set()
        self._waiters: list[asyncio.Future[None]] = []
        self._awaited: Counter[str] = Counter()  # topics and how many callers of `topic` wait for each
        self._unreachable = False
        self._trying_since: float | None = None
        self.closed = False

    async def start(self) -> None:
        """Start to refresh the metadata. Needs a running loop, and does not connect yet."""
        if self._refresher is None:
            await self._links.start()
            self._updates.start(self._links.now())
            self._refresher = asyncio.create_task(self._keep_fresh(), name="metadata")
            self._links.sweep_idle()

    async def close(self) -> None:
        """Close every connection. Unanswered requests fail."""
        if self.closed:
            return
        self.closed = True
        if self._refresher is not None:
            self._refresher.cancel()
        await self._links.close()
        if self._refresher is not None:
            await asyncio.gather(self._refresher, return_exceptions=True)
        self._wake_waiters()

    # Connections

    def links(self) -> list[Link]:
        """The links to all brokers in use, for metrics."""
        return list(self._links)

    def connection_if_ready(self, node_id: int) -> AsyncConnection | None:
        """An open connection that is ready for a request. Otherwise None, and a connection is being made.

        It is None, too, while the broker throttles the client.
        """
        return self._links.connection_if_ready(node_id)

    def is_unreachable(self, node_id: int) -> bool:
        """Whether the last attempt to connect to a broker failed."""
        return self._links.is_unreachable(node_id)

    async def connection(self, node_id: int, *, timeout: float | None = None) -> AsyncConnection:
        """A connection to a broker, made if there is none. Raises NetworkException if an attempt fails."""
        return await self._links.connection(node_id, timeout=timeout)

    async def any_connection(self, *, timeout: float | None = None) -> AsyncConnection:
        """The least busy open connection, or a new one to any broker."""
        return await self._links.any_connection(timeout=timeout)

    async def call(
        self,
        node_id: int,
        request: Message,
        answer: type[R],
        *,
        version: int | None = None,
        timeout: float | None = None,
    ) -> R:
        """Send a request to one broker. Raises NetworkException if it is unreachable or does not answer."""
        connection = await self.connection(node_id, timeout=timeout)
        return await connection.call(request, answer, version=version, timeout=timeout)

    async def call_any(self, request: Message, answer: type[R], *, timeout: float | None = None) -> R:
        """Send a request to the least busy broker, or to another one if it cannot be reached."""
        connection = await self.any_connection(timeout=timeout)
        return await connection.call(request, answer, timeout=timeout)

    async def call_controller(self, request: Message, answer: type[R], *, timeout: float | None = None) -> R:
        """Send a request to the controller of the cluster."""
        if self.view.controller_id not in self.view.nodes:
            await self.refresh(timeout=timeout)
        if self.view.controller_id not in self.view.nodes:
            raise NetworkException(f"{api_name(type(request))}: the cluster has no controller at present")
        return await self.call(self.view.controller_id, request, answer, timeout=timeout)

    # Metadata

    def want(self, topics: Iterable[str]) -> None:
        """Keep the metadata of these topics, too."""
        now = self._links.now()
        for name in topics:
            if name not in self.topics and name not in self.view.topics:
                self._updates.add(name)
                self._update_wanted.set()
            self.topics[name] = now

    def request_refresh(self, topics: Iterable[str] | None = None) -> None:
        """Refresh the metadata of topics, or of all, soon. Repeated calls before that change nothing."""
        if topics is None:
            self._updates.ask_all()
        else:
            self._updates.ask_again(topics)
        self._update_wanted.set()

    async def refresh(self, *, timeout: float | None = None) -> None:
        """Refresh all metadata of this client and wait for it."""
        begun = self._updates.number
        self._updates.ask_all(hurry=True)
        self._update_wanted.set()
        await self.wait_for(
            lambda: self._updates.full_update > begun, timeout, "the metadata was not refreshed"
        )

    async def topic(self, name: str, *, timeout: float | None = None) -> TopicView:
        """The metadata of a topic. Waits while it is unknown."""
        self.want((name,))

        def known() -> bool:
            code = self.view.errors.get(name)
            if code is not None and not error_class(code).retriable:
                raise error_class(code)(f"topic {name!r}: {error_class(code)()}")
            return name in self.view.topics

        if not known():
            self.request_refresh((name,))
            self._awaited[name] += 1
            try:
                await self.wait_for(known, timeout, f"topic {name!r} is not in the metadata")
            except TimeoutException as error:
                if self.view.errors.get(name) != UnknownTopicOrPartition.code or self.last_error is not None:
                    raise
                raise UnknownTopicException(f"{error}: {UnknownTopicOrPartition()}") from None
            finally:
                self._awaited[name] -= 1
                if not self._awaited[name]:
                    del self._awaited[name]
                self.topics[name] = self._links.now()
        return self.view.topics[name]

    async def wait_for(self, condition: Callable[[], bool], timeout: float | None, missing: str) -> None:
        """Wait until a condition on the metadata holds. TimeoutException names what is missing."""
        loop = self._links.loop
        deadline = None if timeout is None else loop.time() + timeout
        while not condition():
            if self.closed:
                raise ClientClosedException("the client is closed")
            if isinstance(self.last_error, REFUSED):
                raise self.last_error
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.append(waiter)
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError:
                reason = f": {self.last_error}" if self.last_error is not None else ""
                raise TimeoutException(f"{missing} after {round((timeout or 0) * 1000)} ms{reason}") from None

    async def _keep_fresh(self) -> None:
        updates = self._updates
        while True:
            await self._until_due()
            if self._trying_since is None:
                self._trying_since = self._links.now()
            everything = self.all_topics or self.speaks_with_controllers
            update = updates.take(self._links.now(), everything=everything)
            try:
                await self._refresh_in_time(update)
            except KafkaError as error:
                updates.failed(update, self._links.now())
                self._refresh_failed(error)
            else:
                unresolved = self._unresolved(update)
                updates.succeeded(update, unresolved, self._links.now())
                self._warn_of(unresolved)
                self._changed()

    async def _until_due(self) -> None:
        while (due := self._updates.due()) > self._links.now():
            try:
                async with asyncio.timeout_at(due):
                    await self._update_wanted.wait()
            except TimeoutError:
                pass
            self._update_wanted.clear()

    def _unresolved(self, update: MetadataUpdate) -> list[str]:
        """The requested topics that a later answer may describe."""
        view = self.view
        asked: Iterable[str] = self.topics if update.topics is None else update.topics
        if self.all_topics:
            asked = view.errors
        codes = {name: view.errors.get(name) for name in asked if name not in view.topics}
        return [name for name, code in codes.items() if code is None or error_class(code).retriable]

    def _warn_of(self, unresolved: Iterable[str]) -> None:
        """Warn of topics that cannot be used, unless they are just being created."""
        still = {name for name in self._missing | set(unresolved) if name not in self.view.topics}
        for name in still.intersection(self._missing, unresolved):
            code = self.view.errors.get(name)
            if code is not None:
                reason = "does not exist" if code == UnknownTopicOrPartition.code else "cannot be used yet"
                self._warnings.say(name, f"topic {name!r} {reason} ({error_name(code)}); asking again")
        self._missing = still
        self._warnings.keep(still)

    async def _refresh_in_time(self, update: MetadataUpdate) -> None:
        """Refresh, within the time after which the known brokers are given up."""
        assert self._trying_since is not None
        allowed = self.settings.metadata_recovery_rebootstrap_trigger_ms / 1000
        # If no broker is known, the bootstrap servers are used anyway.
        limited = self._links.may_rebootstrap and bool(self.view.nodes)
        try:
            async with asyncio.timeout_at(self._trying_since + allowed if limited else None) as limit:
                await self._refresh_once(update)
        except TimeoutError:
            if not limit.expired():  # our own errors may have the same class
                raise
            reason = f"no broker gave metadata for {round(allowed * 1000)} ms"
            self._rebootstrap(reason)
            raise NetworkException(f"{reason}; starting again from the bootstrap servers") from None

    async def _refresh_once(self, update: MetadataUpdate) -> None:
        if self.speaks_with_controllers:
            await learn_controllers(await self.any_connection(), self.view)
        else:
            await self._refresh_topics(update)
        if self.last_error is not None and self._unreachable:
            log.warning("the cluster can be reached again")
        self.last_error = self._trying_since = None
        self._unreachable = False
        self._links.drop_gone()

    async def _refresh_topics(self, update: MetadataUpdate) -> None:
        asked: list[str] | None = None
        if update.topics is not None:
            asked = sorted(update.topics)
        elif not self.all_topics:
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
        if isinstance(error, REFUSED):
            self._changed()  # whoever waits for anything has to learn of it
        else:
            self._wake_waiters()

    def _rebootstrap(self, reason: str) -> None:
        """Forget every broker, so that the bootstrap servers are used again."""
        if not self._links.may_rebootstrap:
            return
        self._trying_since = None
        self._links.close_connections(reason)
        self.view.nodes = {}

    def _drop_idle_topics(self) -> None:
        if self.topic_idle_ms is None:
            return
        oldest = self._links.now() - self.topic_idle_ms / 1000
        idle = [name for name, used in self.topics.items() if used < oldest and not self._awaited[name]]
        for name in idle:
            del self.topics[name]
        self.view.forget_topics(idle)

    def _lost(self) -> None:
        # A leader that closed the connection may not lead any more.
        self.request_refresh()
        self._changed()

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
        """The broker that coordinates a group (kind 0) or a transactional id (1), cached until forgotten."""
        return await self._coordinators.find(kind, key, timeout=timeout)

    def forget_coordinator(self, kind: int, key: str) -> None:
        self._coordinators.forget(kind, key)
