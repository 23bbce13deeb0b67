"""What a consumer does behind its calls: polls, rebalances, positions and commits, from open to closed.

Everything happens on the loop that it was started on, apart from handing out what has come: that is done by
whoever polls, so that a thread of its own costs a blocking consumer nothing per record.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from tidelog.clients.consumer.commits import Coordinator, GroupOffsets
from tidelog.clients.consumer.fetcher import EVERYTHING as EVERYTHING
from tidelog.clients.consumer.fetcher import Fetcher
from tidelog.clients.consumer.group import ClassicGroup
from tidelog.clients.consumer.group_next import NextGroup
from tidelog.clients.consumer.interceptors import Interceptors
from tidelog.clients.consumer.listener import RebalanceCallback, RebalanceListener
from tidelog.clients.consumer.lookups import Lookups
from tidelog.clients.consumer.membership import ASSIGNED, LOST, REVOKED, GroupMembership, MembershipContext
from tidelog.clients.consumer.metrics import ConsumerMetrics
from tidelog.clients.consumer.partitions import PartitionState, Subscription, name_of, named
from tidelog.clients.consumer.positions import Positions, reset_policy
from tidelog.clients.errors import Closed, ConfigError, Interrupted, InvalidState, SerializationError, Timeout
from tidelog.clients.fair_turns import FairTurns
from tidelog.clients.network import REFUSED, NetworkClient
from tidelog.clients.producer.transaction_values import OffsetToCommit, checked_offset
from tidelog.clients.repeated_warnings import RepeatedWarnings
from tidelog.clients.serialization import Deserialize, deserializer
from tidelog.clients.settings import ConsumerSettings
from tidelog.clients.telemetry import Telemetry
from tidelog.errors import KafkaError, error_class
from tidelog.partitions import PartitionKey, TopicPartition
from tidelog.records.loops import Record

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("tidelog.clients")

T = TypeVar("T")
Offsets: TypeAlias = "Mapping[PartitionKey, int | OffsetToCommit]"
Committed: TypeAlias = Callable[["Mapping[TopicPartition, OffsetToCommit]", "KafkaError | None"], object]

NEVER = float("inf")
CLOSE_SECONDS = 30.0
LARGE_PIECE = 8 << 20


class ConsumerCore:
    """The parts of a consumer and what they tell each other."""

    def __init__(self, settings: ConsumerSettings) -> None:
        self.settings = settings
        check_settings(settings)
        _keep_freed_memory()
        self.client = NetworkClient(self.settings, allow_auto_create=self.settings.allow_auto_create_topics)
        self.telemetry = Telemetry(self.client)
        self.subscription = Subscription()
        self.metrics_of = ConsumerMetrics()
        self.interceptors = Interceptors(self.settings.interceptor_classes)
        self.lookups = Lookups(self.client, self.settings)
        self.closed = False
        self.group: GroupMembership | None = None
        self.offsets: GroupOffsets | None = None
        self._group_client: NetworkClient | None = None
        if self.settings.group_id is not None:
            self._set_up_group(self.settings.group_id)
        policy = reset_policy(self.settings.auto_offset_reset)
        self.positions = Positions(
            self.client,
            self.subscription,
            self.lookups,
            policy,
            self._committed_for_positions if self.offsets is not None else None,
            self._positions_found,
        )
        self.fetcher = Fetcher(
            self.client, self.settings, self.subscription, self.metrics_of, self._wake, self.positions.look
        )
        self.fetcher.reset_policy = policy
        self.run_callback: Callable[[RebalanceCallback, list[TopicPartition]], Awaitable[None]] = _call
        """How the rebalance listener is called."""
        self.ask_for_more: Callable[[], None] = self.fetcher.send
        """Called, by whoever polls, when there is room for more."""
        self.on_loop: Callable[[Callable[[], None]], None] = _at_once
        """Runs, for whoever polls, what may be done on the loop only."""
        self.on_news: Callable[[], None] | None = None
        """Called, on the loop, when there is something to poll for."""
        self._listener: RebalanceListener | None = None
        self._key: Deserialize | None = deserializer("key.deserializer", self.settings.key_deserializer)
        self._value: Deserialize | None = deserializer("value.deserializer", self.settings.value_deserializer)
        self._plain = not (self._key or self._value or self.interceptors)
        self._started = False
        self._news = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._interrupted = False
        self._auto_commit_at = NEVER
        self._committing: set[asyncio.Task[None]] = set()
        self._known_at = -1
        self._turns = FairTurns()
        self._warnings = RepeatedWarnings()

    def _set_up_group(self, group_id: str) -> None:
        # Joins and heartbeats have connections of their own: they must not wait behind a fetch.
        self._group_client = NetworkClient(self.settings)
        coordinator = Coordinator(self._group_client, group_id)
        around = MembershipContext(
            self.client,
            coordinator,
            self.settings,
            self.subscription,
            self.metrics_of,
            self._wake,
            self._tell,
            self._commit_owned,
            self._reassigned,
        )
        newer = self.settings.group_protocol.upper() == "CONSUMER"
        group: GroupMembership = NextGroup(around) if newer else ClassicGroup(around)
        self.group = group
        self.offsets = GroupOffsets(
            coordinator, group.identity, group.refused, self.metrics_of, self.interceptors
        )

    async def start(self) -> None:
        """Begin; the first poll does it, and `async with`."""
        self.check_open()
        if self._started:
            return
        self._started = True
        self._loop = asyncio.get_running_loop()
        await self.client.start()
        if self._group_client is not None:
            await self._group_client.start()
        self.client.on_change.append(self._metadata_changed)
        self._subscription_changed("it subscribed")
        if self.settings.enable_auto_commit and self.offsets is not None:
            self._auto_commit_at = self._loop.time() + self.settings.auto_commit_interval_ms / 1000

    def check_open(self) -> None:
        if self.closed:
            raise Closed("the consumer is closed")

    def _subscription_changed(self, reason: str) -> None:
        subscription = self.subscription
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
        self._wake()

    def _states(self, partitions: Iterable[PartitionKey]) -> list[PartitionState]:
        """The states of assigned partitions."""
        self.check_open()
        wanted = named(partitions)
        states = self.subscription.states
        missing = [name for name in wanted if name not in states]
        if missing:
            raise InvalidState(f"{missing[0]} is not assigned to this consumer; {_shown(states)}")
        return [states[name] for name in wanted]

    # Polling

    def is_calm(self) -> bool:
        """Whether a poll has nothing else to do than to hand out what has come."""
        if not self._started or self.closed or self._interrupted:
            return False
        if self.fetcher.errors or self.positions.errors:
            return False
        if self.group is not None:
            now = time.monotonic()
            if now >= self._auto_commit_at:
                return False
            if not self.subscription.by_hand:
                if not self.group.quiet:
                    return False
                self.group.last_poll = now
        return True

    def take_ready(self, limit: int) -> list[Record]:
        """Records that have come, where nothing else is to be done; otherwise none."""
        return self.take(limit) if self.fetcher.ready and self.is_calm() else []

    def take(self, limit: int) -> list[Record]:
        """At most so many records of what has come."""
        self.metrics_of.poll_total += 1
        records = self.fetcher.take(limit)
        self._make_use_of_room()
        if self._plain or not records:
            return records
        if self._key is not None or self._value is not None:
            records = self._deserialized(records)
        return self.interceptors.on_consume(records)

    def take_columns(self, limit: int) -> pa.Table | None:
        """The same in columns; None where there is nothing."""
        self.metrics_of.poll_total += 1
        table = self.fetcher.take_columns(limit)
        self._make_use_of_room()
        return table if table.num_rows else None

    def _make_use_of_room(self) -> None:
        """Have more fetched, where what was handed out made room for it."""
        if self.fetcher.used_up:
            self.fetcher.used_up = False
            if self.fetcher.held_back:  # otherwise the next answer is followed by a question anyway
                self.ask_for_more()

    def _deserialized(self, records: list[Record]) -> list[Record]:
        """The records with what their bytes stand for, up to the first that cannot be understood."""
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
                raise SerializationError(
                    f"{record.topic}-{record.partition}: the {part} of the record at offset {record.offset} "
                    f"cannot be deserialized: {error}; seek past it to go on"
                ) from error
            record.replace(key, value)
        return records

    def _go_back(self, records: list[Record]) -> None:
        """Hand these records out again."""
        self.metrics_of.records_consumed_total -= len(records)
        first: dict[TopicPartition, Record] = {}
        for record in records:
            first.setdefault(TopicPartition(record.topic, record.partition), record)

        def go_back() -> None:
            for name, record in first.items():
                state = self.subscription.states.get(name)
                if state is not None:
                    state.seek(record.offset, state.position_epoch)
            self.fetcher.send()

        self.on_loop(go_back)  # which may be taking an answer for the old position at this moment

    async def poll_for(self, timeout: float | None, take: Callable[[], T], nothing: T) -> T:
        """Do what a poll has to do until `take` gives something or the time is over."""
        await self.start()
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + max(timeout, 0.0)
        group = self.group if self.subscription.is_subscribed else None
        if group is not None:
            group.polling += 1
        try:
            while True:
                self._news.clear()
                await self._attend(group, deadline)
                before = self.metrics_of.records_consumed_total
                taken = take()
                if taken:
                    return taken
                if self.metrics_of.records_consumed_total != before:
                    # Interceptors dropped all of it; more may be waiting, of which nobody tells once more.
                    self._wake()
                try:
                    async with asyncio.timeout_at(deadline):
                        await self._news.wait()
                except TimeoutError:
                    return nothing
                self._turns.restart()
        finally:
            if group is not None:
                group.polling -= 1
                group.last_poll = loop.time()

    async def _attend(self, group: GroupMembership | None, deadline: float | None) -> None:
        """Everything that a poll has to see to before it hands out records."""
        self.check_open()
        if self._interrupted:
            self._interrupted = False
            raise Interrupted("the poll was ended by wakeup()")
        if not self.subscription.is_subscribed and not self.subscription.by_hand:
            raise InvalidState("nothing to poll: subscribe to topics or assign partitions first")
        if group is not None:
            if self.subscription.pattern is not None and self.client.view.version <= self._known_at:
                await self._first_topics(deadline)
            await group.poll(deadline)
        self._raise_errors()
        self._auto_commit()
        self.positions.look()
        self.fetcher.send()

    async def _first_topics(self, deadline: float | None) -> None:
        """Wait for the names that the pattern is matched against."""
        left = None if deadline is None else deadline - asyncio.get_running_loop().time()
        with contextlib.suppress(Timeout):
            await self.client.refresh(timeout=left)

    def _raise_errors(self) -> None:
        if self.fetcher.errors:
            raise self.fetcher.errors.popleft()
        if self.positions.errors:
            raise self.positions.errors.pop(0)
        if isinstance(self.client.last_error, REFUSED):
            raise self.client.last_error
        for topic, code in self.client.view.errors.items():
            kind = error_class(code)
            if not kind.retriable and (topic in self.subscription.wanted or self._reads(topic)):
                raise kind(f"topic {topic!r}: {kind()}")

    def _reads(self, topic: str) -> bool:
        return any(name.topic == topic for name in self.subscription.states)

    # What changes in the background

    def _wake(self) -> None:
        self._news.set()
        if self.on_news is not None:
            self.on_news()

    def _metadata_changed(self) -> None:
        if self.closed:
            return
        self._warn_of_missing_partitions()
        self._find_topics()
        if self.group is not None:
            self.group.metadata_changed()
        elif self.subscription.is_subscribed:
            self._assign_everything()
        self.fetcher.send()

    def _warn_of_missing_partitions(self) -> None:
        """Partitions that were assigned by hand may not exist; a group assigns only existing ones."""
        if not self.subscription.by_hand:
            return
        view = self.client.view
        missing = [
            name
            for name in self.subscription.states
            if name.topic in view.topics and name.partition not in view.topics[name.topic].partitions
        ]
        for name in missing:
            count = view.partition_count(name.topic)
            self._warnings.say(name, f"{name} does not exist: its topic has {count} partitions; asking again")
        self._warnings.keep(missing)

    def _find_topics(self) -> None:
        """Match the pattern against the topics that are known."""
        subscription = self.subscription
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
        """Without a group, a subscription means every partition of its topics."""
        view = self.client.view
        partitions = {
            TopicPartition(topic, index)
            for topic in self.subscription.wanted
            if topic in view.topics
            for index in view.topics[topic].partitions
        }
        if not partitions <= set(self.subscription.states):
            self.subscription.assign(partitions)
            self._reassigned()

    def _reassigned(self) -> None:
        self.client.want({name.topic for name in self.subscription.states})
        self.positions.look()
        self.fetcher.send()
        self._wake()

    def _positions_found(self) -> None:
        for state in self.subscription.states.values():
            if state.parked and not state.at_rest:
                self.fetcher.unpark(state)
        self.fetcher.send()
        self._wake()

    def _sought(self) -> None:
        self.positions.errors.clear()
        self.fetcher.errors.clear()
        if self._started:
            self.positions.look()
            self.fetcher.send()
            self._wake()

    async def _tell(self, kind: str, partitions: list[TopicPartition]) -> None:
        listener = self._listener
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

    def _commit_in_background(
        self, store: GroupOffsets, chosen: Mapping[TopicPartition, OffsetToCommit], callback: Committed | None
    ) -> None:
        async def commit() -> None:
            problem: KafkaError | None = None
            try:
                await store.commit(chosen, self._limit(None), once=True)
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
        self._committing.add(task)
        task.add_done_callback(self._committing.discard)

    def _auto_commit(self) -> None:
        """Commit what earlier polls handed out, when it is time."""
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
            self._commit_in_background(self.offsets, chosen, None)

    async def _commit_owned(self) -> None:
        """Before partitions go: what was handed out of them was used, since somebody polls again."""
        if not self.settings.enable_auto_commit or self.offsets is None:
            return
        chosen = self._positions()
        limit = min(self._limit(None), self.settings.max_poll_interval_ms / 2000)
        try:
            if chosen:
                self._check_member()
                await self.offsets.commit(chosen, limit)
        except KafkaError as error:
            log.warning("what was read before the rebalance could not be committed: %s", error)

    def _store(self) -> GroupOffsets:
        self.check_open()
        if self.offsets is None:
            raise InvalidState("committed offsets belong to a group: give the setting group.id")
        return self.offsets

    def _check_member(self) -> None:
        if self.group is not None and self.subscription.is_subscribed:
            self.group.check_commit()

    def _positions(self) -> dict[TopicPartition, OffsetToCommit]:
        return {
            name: OffsetToCommit(offset, "", epoch)
            for name, (offset, epoch) in self.subscription.positions().items()
        }

    def _to_commit(self, offsets: Offsets | Record | None) -> dict[TopicPartition, OffsetToCommit]:
        self._check_member()
        if offsets is None:
            return self._positions()
        if isinstance(offsets, Mapping):
            return {name_of(key): checked_offset(name_of(key), entry) for key, entry in offsets.items()}
        name = TopicPartition(offsets.topic, offsets.partition)
        return {name: OffsetToCommit(offsets.offset + 1, "", offsets.leader_epoch)}

    async def _committed_for_positions(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, OffsetToCommit | None]:
        return await self._store().fetch(partitions, self._limit(None))

    def _limit(self, timeout: float | None) -> float:
        return self.settings.default_api_timeout_ms / 1000 if timeout is None else timeout

    # The end

    async def close(self, timeout: float | None = None) -> None:
        """Commit, where that is automatic, leave the group and end; takes at most `timeout` seconds."""
        if self.closed:
            return
        self._wake()
        limit = CLOSE_SECONDS if timeout is None else timeout
        try:
            if self._started:
                await self._part(limit)
        finally:
            self.closed = True
            self._wake()
            if self.group is not None:
                await self.group.close()
            await self.positions.close()
            if self._started:
                await self.fetcher.close(limit)
            await self.client.close()
            if self._group_client is not None:
                await self._group_client.close()
            self.interceptors.close()

    async def _part(self, limit: float) -> None:
        """Settle with the group, in so many seconds."""
        try:
            async with asyncio.timeout(limit):
                if self._committing:
                    await asyncio.wait(set(self._committing))
                if self.group is None:
                    return
                if self.subscription.is_subscribed:
                    await self.group.leave("it was closed")
                elif self.subscription.by_hand:
                    await self._commit_owned()
        except TimeoutError:
            log.warning("the consumer was closed before its group let it go: %.1f s were over", limit)


def _keep_freed_memory() -> None:
    """Have the C library keep what is freed for what is made next.

    It gives memory back to the system as soon as 128 KB are free behind the last piece in use, until it has
    seen a larger one come and go. Values of 1,000 bytes that are made and dropped poll after poll took twice
    the CPU where they lay there, for pages that were given back and asked for again.
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


def check_settings(settings: ConsumerSettings) -> None:
    """The rules between settings."""
    reset_policy(settings.auto_offset_reset)
    if settings.group_id == "":
        raise ConfigError("group.id", "", "expected a name")
    if settings.group_protocol.upper() == "CLASSIC":
        if settings.heartbeat_interval_ms >= settings.session_timeout_ms:
            raise ConfigError(
                "heartbeat.interval.ms",
                str(settings.heartbeat_interval_ms),
                f"expected below session.timeout.ms={settings.session_timeout_ms}",
            )
        return
    for name in ("partition.assignment.strategy", "session.timeout.ms", "heartbeat.interval.ms"):
        if name in settings.given:
            raise ConfigError(
                name, None, "expected not to be set with group.protocol=consumer: the broker decides"
            )
