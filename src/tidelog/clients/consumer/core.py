"""ConsumerCore: connects the parts of a consumer: fetches, positions, group membership, commits.

They run on the loop that started the consumer. Only `take` and `take_columns` run in the polling thread, so
that the loop of a blocking consumer has no work per record.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tidelog.clients.consumer.check_settings import check_settings
from tidelog.clients.consumer.classic_group import ClassicGroup
from tidelog.clients.consumer.commits import Coordinator, GroupOffsets
from tidelog.clients.consumer.consumer_group import ConsumerGroup
from tidelog.clients.consumer.fetcher import Fetcher
from tidelog.clients.consumer.interceptors import Interceptors
from tidelog.clients.consumer.listener import ConsumerRebalanceListener, RebalanceCallback
from tidelog.clients.consumer.membership import ASSIGNED, LOST, REVOKED, GroupMembership, MembershipContext
from tidelog.clients.consumer.metrics import ConsumerMetrics
from tidelog.clients.consumer.offset_fetcher import OffsetFetcher
from tidelog.clients.consumer.partitions import PartitionState, SubscriptionState, name_of, named
from tidelog.clients.consumer.positions import Positions, reset_policy
from tidelog.clients.errors import (
    ClientClosedException,
    IllegalStateException,
    SerializationException,
    TimeoutException,
    WakeupException,
)
from tidelog.clients.fair_turns import FairTurns
from tidelog.clients.network import REFUSED, NetworkClient
from tidelog.clients.offsets import (
    OffsetAndMetadata,
    OffsetCommitCallback,
    Offsets,
    checked_offset,
    known_epoch,
)
from tidelog.clients.repeated_warnings import RepeatedWarnings
from tidelog.clients.serialization import Deserialize, deserializer
from tidelog.clients.settings import ConsumerSettings
from tidelog.clients.telemetry import Telemetry
from tidelog.clients.type_parameters import K_co, V_co
from tidelog.errors import KafkaError, error_class
from tidelog.partitions import PartitionKey, TopicPartition
from tidelog.records.loops import ConsumerRecord

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("tidelog.clients")

T = TypeVar("T")

NEVER = float("inf")
CLOSE_SECONDS = 30.0
LARGE_PIECE = 8 << 20


class ConsumerCore(Generic[K_co, V_co]):
    """Connects the parts of a consumer; `AsyncConsumer` and `Consumer` call it."""

    def __init__(self, settings: ConsumerSettings) -> None:
        self.settings = settings
        check_settings(settings)
        _keep_freed_memory()
        self.client = NetworkClient(self.settings, allow_auto_create=self.settings.allow_auto_create_topics)
        self.telemetry = Telemetry(self.client)
        self.subscriptions = SubscriptionState()
        self.metrics_of = ConsumerMetrics()
        self.interceptors = Interceptors(self.settings.interceptor_classes)
        self.offset_fetcher = OffsetFetcher(self.client, self.settings)
        self.closed = False
        self.group: GroupMembership | None = None
        self.offsets: GroupOffsets | None = None
        self._group_client: NetworkClient | None = None
        if self.settings.group_id is not None:
            self._set_up_group(self.settings.group_id)
        policy = reset_policy(self.settings.auto_offset_reset)
        self.positions = Positions(
            self.client,
            self.subscriptions,
            self.offset_fetcher,
            policy,
            self._committed_for_positions if self.offsets is not None else None,
            self._positions_found,
        )
        self.fetcher = Fetcher(
            self.client, self.settings, self.subscriptions, self.metrics_of, self.wake, self.positions.look
        )
        self.fetcher.reset_policy = policy
        self.run_callback: Callable[[RebalanceCallback, list[TopicPartition]], Awaitable[None]] = _call
        """Calls a method of the rebalance listener."""
        self.ask_for_more: Callable[[], None] = self.fetcher.send
        """Called by the polling thread when there is room for another fetch."""
        self.on_loop: Callable[[Callable[[], None]], None] = _at_once
        """Runs a function on the loop, called by the polling thread."""
        self.on_news: Callable[[], None] | None = None
        """Called on the loop when a poll may have something to return."""
        self.listener: ConsumerRebalanceListener | None = None
        self._key: Deserialize | None = deserializer("key.deserializer", self.settings.key_deserializer)
        self._value: Deserialize | None = deserializer("value.deserializer", self.settings.value_deserializer)
        self._plain = not (self._key or self._value or self.interceptors)
        self.started = False
        self.news = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.woken_up = False
        self._auto_commit_at = NEVER
        self.committing: set[asyncio.Task[None]] = set()
        self._known_at = -1
        self.turns = FairTurns()
        self._warnings = RepeatedWarnings()

    def _set_up_group(self, group_id: str) -> None:
        # Joins and heartbeats have connections of their own: they must not wait behind a fetch.
        self._group_client = NetworkClient(self.settings)
        coordinator = Coordinator(self._group_client, group_id)
        context = MembershipContext(
            self.client,
            coordinator,
            self.settings,
            self.subscriptions,
            self.metrics_of,
            self.wake,
            self._call_listener,
            self._commit_owned,
            self.reassigned,
        )
        newer = self.settings.group_protocol.upper() == "CONSUMER"
        group: GroupMembership = ConsumerGroup(context) if newer else ClassicGroup(context)
        self.group = group
        self.offsets = GroupOffsets(
            coordinator, group.identity, group.refused, self.metrics_of, self.interceptors
        )

    async def start(self) -> None:
        """Connect, and join the group. Does nothing when called again."""
        self.check_open()
        if self.started:
            return
        self.started = True
        self.loop = asyncio.get_running_loop()
        await self.client.start()
        if self._group_client is not None:
            await self._group_client.start()
        self.client.on_change.append(self._metadata_changed)
        self.subscription_changed("it subscribed")
        if self.settings.enable_auto_commit and self.offsets is not None:
            self._auto_commit_at = self.loop.time() + self.settings.auto_commit_interval_ms / 1000

    def check_open(self) -> None:
        if self.closed:
            raise ClientClosedException("the consumer is closed")

    def subscription_changed(self, reason: str) -> None:
        subscription = self.subscriptions
        self._known_at = self.client.view.version
        self.client.all_topics = subscription.pattern is not None
        if subscription.pattern is not None:
            self.client.request_refresh()
        self.client.want(subscription.topics)
        self._find_topics()
        if self.group is not None:
            self.group.subscription_changed(reason)
        elif subscription.is_subscribed:
            self._assign_everything()
        self.wake()

    def states(self, partitions: Iterable[PartitionKey]) -> list[PartitionState]:
        """The states of assigned partitions."""
        self.check_open()
        wanted = named(partitions)
        states = self.subscriptions.states
        missing = [name for name in wanted if name not in states]
        if missing:
            raise IllegalStateException(f"{missing[0]} is not assigned to this consumer; {_shown(states)}")
        return [states[name] for name in wanted]

    # Polling

    def needs_no_loop(self) -> bool:
        """Whether a poll can return fetched records without any work on the loop."""
        if not self.started or self.closed or self.woken_up:
            return False
        if self.fetcher.errors or self.positions.errors:
            return False
        if self.group is not None:
            now = time.monotonic()
            if now >= self._auto_commit_at:
                return False
            if not self.subscriptions.by_hand:
                if not self.group.quiet:
                    return False
                self.group.last_poll = now
        return True

    def take_ready(self, limit: int) -> list[ConsumerRecord[K_co, V_co]]:
        """Fetched records, if the poll needs no work on the loop; otherwise none."""
        return self.take(limit) if self.fetcher.ready and self.needs_no_loop() else []

    def take(self, limit: int) -> list[ConsumerRecord[K_co, V_co]]:
        """At most `limit` fetched records, deserialized and intercepted."""
        self.metrics_of.poll_total += 1
        records = self.fetcher.take(limit)
        self._make_use_of_room()
        if self._plain or not records:
            return records
        if self._key is not None or self._value is not None:
            records = self._deserialized(records)
        return self.interceptors.on_consume(records)

    def take_columns(self, limit: int) -> pa.Table | None:
        """At most `limit` fetched records as a table; None without records."""
        self.metrics_of.poll_total += 1
        table = self.fetcher.take_columns(limit)
        self._make_use_of_room()
        return table if table.num_rows else None

    def _make_use_of_room(self) -> None:
        """Fetch more if the records taken made room."""
        if self.fetcher.used_up:
            self.fetcher.used_up = False
            if self.fetcher.held_back:  # otherwise the next response is followed by a fetch
                self.ask_for_more()

    def _deserialized(self, records: list[ConsumerRecord[Any, Any]]) -> list[ConsumerRecord[Any, Any]]:
        """The records with deserialized keys and values, up to the first that fails."""
        for index, record in enumerate(records):
            key, value = record.key, record.value
            part = "key"
            try:
                if self._key is not None:
                    key = self._key(record.topic, record.headers, key)
                part = "value"
                if self._value is not None:
                    value = self._value(record.topic, record.headers, value)
            except Exception as error:
                self._go_back(records[index:])
                if index:
                    return records[:index]
                raise SerializationException(
                    f"{record.topic}-{record.partition}: the {part} of the record at offset {record.offset} "
                    f"cannot be deserialized: {error}; seek past it to go on"
                ) from error
            record.replace(key, value)
        return records

    def _go_back(self, records: list[ConsumerRecord[Any, Any]]) -> None:
        """Move the positions back, so that these records are returned again."""
        self.metrics_of.records_consumed_total -= len(records)
        first: dict[TopicPartition, ConsumerRecord[Any, Any]] = {}
        for record in records:
            first.setdefault(TopicPartition(record.topic, record.partition), record)

        def go_back() -> None:
            for name, record in first.items():
                state = self.subscriptions.states.get(name)
                if state is not None:
                    state.seek(record.offset, state.position_epoch)
            self.fetcher.send()

        self.on_loop(go_back)  # the loop may be reading a response for the old position

    async def poll_for(self, timeout: float | None, take: Callable[[], T], nothing: T) -> T:
        """Do the work of a poll until `take` returns something or the time is over."""
        await self.start()
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + max(timeout, 0.0)
        group = self.group if self.subscriptions.is_subscribed else None
        if group is not None:
            group.polling += 1
        try:
            while True:
                self.news.clear()
                await self._prepare_poll(group, deadline)
                before = self.metrics_of.records_consumed_total
                records = take()
                if records:
                    return records
                if self.metrics_of.records_consumed_total != before:
                    # Interceptors dropped all records. There may be more, and nothing else wakes this poll.
                    self.wake()
                try:
                    async with asyncio.timeout_at(deadline):
                        await self.news.wait()
                except TimeoutError:
                    return nothing
                self.turns.restart()
        finally:
            if group is not None:
                group.polling -= 1
                group.last_poll = loop.time()

    async def _prepare_poll(self, group: GroupMembership | None, deadline: float | None) -> None:
        """The work of a poll before it returns records: rebalance, errors, commits, positions, fetches."""
        self.check_open()
        if self.woken_up:
            self.woken_up = False
            raise WakeupException("the poll was ended by wakeup()")
        if not self.subscriptions.is_subscribed and not self.subscriptions.by_hand:
            raise IllegalStateException("nothing to poll: subscribe to topics or assign partitions first")
        if group is not None:
            if self.subscriptions.pattern is not None and self.client.view.version <= self._known_at:
                await self._first_topics(deadline)
            await group.poll(deadline)
        self.raise_errors()
        self._auto_commit()
        self.positions.look()
        self.fetcher.send()

    async def _first_topics(self, deadline: float | None) -> None:
        """Wait for the names of all topics, for the pattern to match."""
        remaining = None if deadline is None else deadline - asyncio.get_running_loop().time()
        with contextlib.suppress(TimeoutException):
            await self.client.refresh(timeout=remaining)

    def raise_errors(self) -> None:
        if self.fetcher.errors:
            raise self.fetcher.errors.popleft()
        if self.positions.errors:
            raise self.positions.errors.pop(0)
        if isinstance(self.client.last_error, REFUSED):
            raise self.client.last_error
        for topic, code in self.client.view.errors.items():
            kind = error_class(code)
            if not kind.retriable and (topic in self.subscriptions.wanted or self._reads(topic)):
                raise kind(f"topic {topic!r}: {kind()}")

    def _reads(self, topic: str) -> bool:
        return any(name.topic == topic for name in self.subscriptions.states)

    # Changes in the background

    def wake(self) -> None:
        self.news.set()
        if self.on_news is not None:
            self.on_news()

    def _metadata_changed(self) -> None:
        if self.closed:
            return
        self._warn_of_missing_partitions()
        self._find_topics()
        if self.group is not None:
            self.group.metadata_changed()
        elif self.subscriptions.is_subscribed:
            self._assign_everything()
        self.fetcher.send()
        if isinstance(self.client.last_error, REFUSED):
            self.wake()  # a poll that waits raises it

    def _warn_of_missing_partitions(self) -> None:
        """Warn of partitions that `assign` was called with and that do not exist."""
        if not self.subscriptions.by_hand:
            return
        view = self.client.view
        missing = [
            name
            for name in self.subscriptions.states
            if name.topic in view.topics and name.partition not in view.topics[name.topic].partitions
        ]
        for name in missing:
            count = view.partition_count(name.topic)
            self._warnings.say(name, f"{name} does not exist: its topic has {count} partitions; asking again")
        self._warnings.keep(missing)

    def _find_topics(self) -> None:
        """Match the pattern against the names of all topics."""
        subscription = self.subscriptions
        if subscription.pattern is None or self.client.view.version <= self._known_at:
            return
        topics = self.client.view.topics.values()
        found = subscription.matches(
            ((topic.name, topic.is_internal) for topic in topics), self.settings.exclude_internal_topics
        )
        if found != subscription.wanted:
            subscription.wanted = found
            if self.group is not None:
                self.group.subscription_changed(f"its pattern matches {len(found)} topics now")

    def _assign_everything(self) -> None:
        """Assign every partition of the topics: a subscription without a group."""
        view = self.client.view
        partitions = {
            TopicPartition(topic, index)
            for topic in self.subscriptions.wanted
            if topic in view.topics
            for index in view.topics[topic].partitions
        }
        if not partitions <= set(self.subscriptions.states):
            self.subscriptions.assign(partitions)
            self.reassigned()

    def reassigned(self) -> None:
        self.client.want({name.topic for name in self.subscriptions.states})
        self.positions.look()
        self.fetcher.send()
        self.wake()

    def _positions_found(self) -> None:
        for state in self.subscriptions.states.values():
            if state.parked and not state.at_rest:
                self.fetcher.unpark(state)
        self.fetcher.send()
        self.wake()

    def sought(self) -> None:
        self.positions.errors.clear()
        self.fetcher.errors.clear()
        if self.started:
            self.positions.look()
            self.fetcher.send()
            self.wake()

    async def _call_listener(self, kind: str, partitions: list[TopicPartition]) -> None:
        listener = self.listener
        if listener is None or (kind != ASSIGNED and not partitions):
            return
        function: RebalanceCallback
        if kind == ASSIGNED:
            function = listener.on_partitions_assigned
        elif kind == REVOKED:
            function = listener.on_partitions_revoked
        else:
            assert kind == LOST
            function = listener.on_partitions_lost
        await self.run_callback(function, partitions)

    # Commits

    def commit_in_background(
        self,
        store: GroupOffsets,
        chosen: Mapping[TopicPartition, OffsetAndMetadata],
        callback: OffsetCommitCallback | None,
    ) -> None:
        async def commit() -> None:
            problem: KafkaError | None = None
            try:
                await store.commit(chosen, self.limit(None), once=True)
            except KafkaError as error:
                problem = error
                if callback is None:
                    log.warning("%s", error)
            if callback is not None:
                try:
                    callback(chosen, problem)
                except Exception:
                    log.exception("the callback of a commit failed")

        task = asyncio.get_running_loop().create_task(commit(), name="commit")
        self.committing.add(task)
        task.add_done_callback(self.committing.discard)

    def _auto_commit(self) -> None:
        """Commit the positions if auto.commit.interval.ms has passed."""
        now = asyncio.get_running_loop().time()
        if now < self._auto_commit_at or self.offsets is None:
            return
        self._auto_commit_at = now + self.settings.auto_commit_interval_ms / 1000
        chosen = self._positions()
        try:
            self._check_member()
        except KafkaError:
            return
        if chosen:
            self.commit_in_background(self.offsets, chosen, None)

    async def _commit_owned(self) -> None:
        """Commit the positions before partitions are revoked.

        The records before the positions are processed: the application has come back to `poll`.
        """
        if not self.settings.enable_auto_commit or self.offsets is None:
            return
        chosen = self._positions()
        limit = min(self.limit(None), self.settings.max_poll_interval_ms / 2000)
        try:
            if chosen:
                self._check_member()
                await self.offsets.commit(chosen, limit)
        except KafkaError as error:
            log.warning("the positions could not be committed before the rebalance: %s", error)

    def store(self) -> GroupOffsets:
        self.check_open()
        if self.offsets is None:
            raise IllegalStateException("committed offsets belong to a group: give the setting group.id")
        return self.offsets

    def _check_member(self) -> None:
        if self.group is not None and self.subscriptions.is_subscribed:
            self.group.check_commit()

    def _positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return {
            name: OffsetAndMetadata(offset, "", known_epoch(epoch))
            for name, (offset, epoch) in self.subscriptions.positions().items()
        }

    def to_commit(
        self, offsets: Offsets | ConsumerRecord[Any, Any] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        self._check_member()
        if offsets is None:
            return self._positions()
        if isinstance(offsets, Mapping):
            return {name_of(key): checked_offset(name_of(key), entry) for key, entry in offsets.items()}
        name = TopicPartition(offsets.topic, offsets.partition)
        return {name: OffsetAndMetadata(offsets.offset + 1, "", known_epoch(offsets.leader_epoch))}

    async def _committed_for_positions(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        return await self.store().fetch(partitions, self.limit(None))

    def limit(self, timeout: float | None) -> float:
        return self.settings.default_api_timeout_ms / 1000 if timeout is None else timeout

    # The end

    async def close(self, timeout: float | None = None) -> None:
        """Commit if enable.auto.commit is set, leave the group and end, within `timeout` seconds."""
        if self.closed:
            return
        self.wake()
        limit = CLOSE_SECONDS if timeout is None else timeout
        try:
            if self.started:
                await self._leave_group(limit)
        finally:
            self.closed = True
            self.wake()
            if self.group is not None:
                await self.group.close()
            await self.positions.close()
            if self.started:
                await self.fetcher.close(limit)
            await self.client.close()
            if self._group_client is not None:
                await self._group_client.close()
            self.interceptors.close()

    async def _leave_group(self, limit: float) -> None:
        """Commit and leave the group, within `limit` seconds."""
        try:
            async with asyncio.timeout(limit):
                if self.committing:
                    await asyncio.wait(set(self.committing))
                if self.group is None:
                    return
                if self.subscriptions.is_subscribed:
                    await self.group.leave("it was closed")
                elif self.subscriptions.by_hand:
                    await self._commit_owned()
        except TimeoutError:
            log.warning("the consumer was closed before it had left its group, after %.1f s", limit)


def _keep_freed_memory() -> None:
    """Raise the threshold above which the C library returns free memory to the system.

    It starts at 128 KB and grows when a larger block is freed. Below it, values of 1,000 bytes that are made
    and dropped with each poll took twice the CPU: their pages were returned and requested again.
    """
    bytes(LARGE_PIECE)


def _at_once(function: Callable[[], None]) -> None:
    function()


async def _call(function: RebalanceCallback, partitions: list[TopicPartition]) -> None:
    result = function(partitions)
    if inspect.isawaitable(result):
        await result


def _shown(states: Mapping[TopicPartition, PartitionState]) -> str:
    if not states:
        return "nothing is"
    names = ", ".join(str(name) for name in sorted(states)[:5])
    return f"{names} {'are' if len(states) > 1 else 'is'}"
