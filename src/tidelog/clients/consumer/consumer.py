"""The asynchronous consumer: reads partitions that are assigned to it, by a group or by hand.

>>> from tidelog.clients.consumer.consumer import AsyncConsumer
>>> from tidelog.clients.producer.producer import AsyncProducer
>>> import asyncio
>>> async def main():
...     async with AsyncProducer(bootstrap_servers=bootstrap) as producer:
...         await producer.send("letters", b"a")
...         await producer.flush()
...     settings = {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest"}
...     async with AsyncConsumer("letters", settings) as consumer:
...         async for record in consumer:
...             return record.topic, record.offset, record.value
>>> asyncio.run(main())
('letters', 0, b'a')
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tidelog.clients.consumer.core import EVERYTHING, Committed, ConsumerCore, Offsets
from tidelog.clients.consumer.group import ClassicGroup
from tidelog.clients.consumer.group_next import NextGroup
from tidelog.clients.consumer.listener import RebalanceListener
from tidelog.clients.consumer.partitions import OffsetAndTime, PartitionState, name_of, named
from tidelog.clients.errors import Closed, InvalidState, Timeout
from tidelog.clients.producer.transaction_values import GroupMember, OffsetToCommit, checked_offset
from tidelog.clients.settings import consumer_settings
from tidelog.partitions import PartitionKey, TopicPartition
from tidelog.protocol.offset_specs import EARLIEST, LATEST
from tidelog.records.loops import Record

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

log = logging.getLogger("tidelog.clients")


class AsyncConsumer(ConsumerCore):
    """Settings are Kafka's, with underscores or as a dict; topics to subscribe to may come first.

    With group.id the partitions are shared with the other members of the group. Without it a subscription
    means all partitions of the topics, and nothing is committed. Not for use by several tasks at once.
    """

    def __init__(self, *topics: str | Mapping[str, object], **settings: object) -> None:
        config, names = split_arguments(topics)
        super().__init__(consumer_settings(config, **settings))
        if names:
            self.subscribe(names)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # What is read

    def subscribe(
        self,
        topics: str | Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Read these topics, or those whose names a pattern matches, instead of what was read before.

        A pattern has to match from the start of a name to its end, as in Kafka. With group.protocol=consumer
        a text is matched by the broker (RE2), a compiled pattern here. Topics of Kafka itself are left out.
        """
        self.check_open()
        names = frozenset((topics,) if isinstance(topics, str) else topics)
        if bool(names) == (pattern is not None):
            raise InvalidState("subscribe to topics or to a pattern, to one of the two")
        if self.subscription.by_hand and self.subscription.states:
            raise InvalidState("partitions are assigned by hand; unsubscribe before subscribing to topics")
        self._listener = listener
        if isinstance(pattern, str) and isinstance(self.group, NextGroup):
            self.subscription.subscribe((), server_pattern=pattern)
        elif pattern is not None:
            self.subscription.subscribe((), pattern=whole(pattern))
        else:
            self.subscription.subscribe(names)
        if self._started:
            self._subscription_changed("its subscription changed")

    def assign(self, partitions: Iterable[PartitionKey]) -> None:
        """Read these partitions, whatever a group may say; those that were read keep their positions."""
        self.check_open()
        if self.subscription.is_subscribed:
            raise InvalidState("topics are subscribed to; unsubscribe before assigning partitions by hand")
        self.subscription.by_hand = True
        self.subscription.assign(partitions)
        if self._started:
            self.client.want({name.topic for name in self.subscription.states})
            self._reassigned()

    async def unsubscribe(self) -> None:
        """Read nothing any more, and leave the group."""
        self.check_open()
        try:
            if self._started and self.group is not None and self.subscription.is_subscribed:
                await self.group.leave("it unsubscribed")
        finally:
            self.subscription.clear()
            self.client.all_topics = False

    def assignment(self) -> set[TopicPartition]:
        return set(self.subscription.states)

    def subscribed(self) -> frozenset[str]:
        """The topics subscribed to, or found by the pattern."""
        return self.subscription.wanted

    def pause(self, *partitions: PartitionKey) -> None:
        """Hand out nothing of these partitions until they are resumed; a rebalance forgets it.

        Without a name it does nothing, as in Kafka's clients.
        """
        for state in self._states(partitions):
            state.paused = True

    def resume(self, *partitions: PartitionKey) -> None:
        for state in self._states(partitions):
            state.paused = False
            self.fetcher.unpark(state)
        if self._started:
            self.fetcher.send()
            self._wake()

    def paused(self) -> set[TopicPartition]:
        return {name for name, state in self.subscription.states.items() if state.paused}

    # Polling

    async def poll(self, timeout: float | None = 1.0, max_records: int | None = None) -> list[Record]:
        """Records that have come, at most max.poll.records; waits for the first at most `timeout` seconds.

        None waits as long as it takes. Rebalances, their listeners and automatic commits happen in here.
        """
        limit = limit_of(max_records, self.settings.max_poll_records)
        await self._turns.pass_on()  # before anything is taken: here it may be cancelled
        return self.take_ready(limit) or await self.poll_for(timeout, lambda: self.take(limit), [])

    async def poll_arrow(self, timeout: float | None = 1.0, max_records: int | None = None) -> pa.Table:
        """What has come as columns (see `tidelog.clients.consumer.columns`), at most `max_records` rows.

        Deserializers and interceptors are for records one by one: here keys and values stay bytes.
        """
        from tidelog.clients.consumer.columns import load_arrow, load_off_the_loop, no_rows

        await load_off_the_loop(load_arrow, "pyarrow")
        limit = limit_of(max_records, EVERYTHING)
        await self._turns.pass_on()
        table = await self.poll_for(timeout, lambda: self.take_columns(limit), None)
        return no_rows() if table is None else table

    async def poll_pandas(self, timeout: float | None = 1.0, max_records: int | None = None) -> pd.DataFrame:
        """The same as a data frame of pandas."""
        from tidelog.clients.consumer.columns import load_frames, load_off_the_loop, to_pandas

        await load_off_the_loop(lambda: load_frames("pandas"), "pyarrow", "pandas")
        return to_pandas(await self.poll_arrow(timeout, max_records))

    async def poll_polars(self, timeout: float | None = 1.0, max_records: int | None = None) -> pl.DataFrame:
        """The same as a data frame of polars."""
        from tidelog.clients.consumer.columns import load_frames, load_off_the_loop, to_polars

        await load_off_the_loop(lambda: load_frames("polars"), "pyarrow", "polars")
        return to_polars(await self.poll_arrow(timeout, max_records))

    def __aiter__(self) -> AsyncIterator[Record]:
        """Every record as it comes, until the consumer is closed.

        Records are taken one by one, so that a commit inside the loop, or one that close makes after `break`,
        covers those that the loop has seen and no others.
        """
        return self._each()

    async def _each(self) -> AsyncIterator[Record]:
        while not self.closed:
            try:
                records = await self.poll(None, 1)
            except Closed:
                return
            for record in records:
                yield record

    def wakeup(self) -> None:
        """End a poll that waits, now or the next time, with Interrupted; may be called by any thread."""
        self._interrupted = True
        if self._loop is not None and not self.closed:
            with contextlib.suppress(RuntimeError):  # the loop ended meanwhile
                self._loop.call_soon_threadsafe(self._wake)

    # Positions

    def seek(self, partition: PartitionKey, offset: int | OffsetToCommit) -> None:
        """Go on from an offset of a partition that is assigned."""
        entry = checked_offset(name_of(partition), offset)
        (state,) = self._states((partition,))
        state.seek(entry.offset, entry.leader_epoch)
        self._sought()

    def seek_to_beginning(self, *partitions: PartitionKey) -> None:
        """Go on from the first record of these partitions, or of all that are assigned."""
        self.seek_to_time(EARLIEST, *partitions)

    def seek_to_end(self, *partitions: PartitionKey) -> None:
        """Go on with what is written from now on."""
        self.seek_to_time(LATEST, *partitions)

    def seek_to_time(self, timestamp_ms: int, *partitions: PartitionKey) -> None:
        """Go on from the first record of that time or later; from the end where there is none."""
        for state in self._states(partitions or self.subscription.states):
            state.seek_time(timestamp_ms)
        self._sought()

    async def position(self, partition: PartitionKey, timeout: float | None = None) -> int:
        """The offset of the next record that a poll hands out; looked up where it is not known yet."""
        await self.start()
        name = TopicPartition(*partition)
        limit = self._limit(timeout)
        try:
            async with asyncio.timeout(limit):
                while True:
                    (state,) = self._states((name,))
                    if state.position is not None:
                        return state.position
                    self._news.clear()
                    self.positions.look()
                    self._raise_errors()
                    await self._news.wait()
        except TimeoutError:
            raise Timeout(f"{name}: its position was not found within {round(limit * 1000)} ms") from None

    async def beginning_offsets(
        self, partitions: Iterable[PartitionKey], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        return await self._ends(partitions, EARLIEST, timeout)

    async def end_offsets(
        self, partitions: Iterable[PartitionKey], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset behind the last record of each partition that this consumer may read."""
        return await self._ends(partitions, LATEST, timeout)

    async def _ends(
        self, partitions: Iterable[PartitionKey], end: int, timeout: float | None
    ) -> dict[TopicPartition, int]:
        await self.start()
        found = await self.lookups.offsets(dict.fromkeys(named(partitions), end), self._limit(timeout))
        return {name: entry.offset for name, entry in found.items() if entry is not None}

    async def offsets_for_times(
        self, times: Mapping[PartitionKey, int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTime | None]:
        """The first record at or after a time (in milliseconds) of each partition; None for none."""
        await self.start()
        for partition, timestamp in times.items():
            if timestamp < 0:
                raise ValueError(f"time {timestamp} of {TopicPartition(*partition)}: expected 0 or more")
        asked = {TopicPartition(*partition): timestamp for partition, timestamp in times.items()}
        return await self.lookups.offsets(asked, self._limit(timeout))

    def lag(self, partition: PartitionKey) -> int | None:
        """How many offsets the position is behind the end; None before the first fetch tells the end."""
        (state,) = self._states((partition,))
        return self._lag(state)

    def _lag(self, state: PartitionState) -> int | None:
        end = state.high_watermark
        if self.settings.isolation_level == "read_committed":
            end = state.last_stable_offset
        position = state.position
        return None if end < 0 or position is None else max(0, end - position)

    # Commits

    async def commit(self, offsets: Offsets | Record | None = None, timeout: float | None = None) -> None:
        """Keep what was read: all positions, the offsets given, or everything up to a record.

        CommitFailed where the partitions belong to others by now.
        """
        await self.start()
        store = self._store()
        chosen = self._to_commit(offsets)
        if self._committing:
            await asyncio.wait(set(self._committing), timeout=self._limit(timeout))
        await store.commit(chosen, self._limit(timeout))

    def commit_async(
        self, offsets: Offsets | Record | None = None, callback: Committed | None = None
    ) -> None:
        """The same without waiting for it; `callback(offsets, error)` is told on the consumer's loop."""
        self.check_open()
        store = self._store()
        chosen = self._to_commit(offsets)
        self._commit_in_background(store, chosen, callback)

    async def committed(
        self, partitions: Iterable[PartitionKey], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetToCommit | None]:
        """What the group committed of partitions, None where it is nothing."""
        await self.start()
        return await self._store().fetch(named(partitions), self._limit(timeout))

    def group_metadata(self) -> GroupMember:
        """Who this consumer is in its group, for `Producer.send_offsets_to_transaction`."""
        self._store()
        assert self.group is not None
        member = self.group.identity()
        return GroupMember(self.group.group_id, member.epoch, member.member_id, member.instance_id)

    def enforce_rebalance(self, reason: str = "the user asked for it") -> None:
        """Have the group rebalance with the next poll."""
        self._store()
        if isinstance(self.group, ClassicGroup):
            self.group.request_rejoin(reason)

    # The cluster

    async def partitions_for(self, topic: str, timeout: float | None = None) -> list[int]:
        """The partitions of a topic."""
        await self.start()
        view = await self.client.topic(topic, timeout=self._limit(timeout))
        return sorted(view.partitions)

    async def topics(self, timeout: float | None = None) -> set[str]:
        """Every topic that this consumer may see, without Kafka's own."""
        await self.start()
        before, self.client.all_topics = self.client.all_topics, True
        try:
            await self.client.refresh(timeout=self._limit(timeout))
            return {topic.name for topic in self.client.view.topics.values() if not topic.is_internal}
        finally:
            self.client.all_topics = before

    async def client_instance_id(self, timeout: float | None = None) -> str:
        """The id under which the broker knows this client, as Kafka writes ids.

        UnsupportedVersion where the broker does not collect metrics of clients.
        """
        await self.start()
        return await self.telemetry.client_instance_id(self._limit(timeout))

    def metrics(self) -> dict[str, float]:
        """Numbers under Kafka's names, such as records-consumed-total; times in milliseconds."""
        numbers = self.client.metrics.snapshot() | self.metrics_of.snapshot()
        # Any thread may ask: what the loop may change meanwhile is copied first.
        states = [] if self.closed else list(self.subscription.states.values())
        lags = [self._lag(state) for state in states]
        numbers["records-lag-max"] = max((lag for lag in lags if lag is not None), default=0)
        numbers["assigned-partitions"] = len(states)
        return numbers


def limit_of(max_records: int | None, otherwise: int) -> int:
    """How many records a poll may give."""
    if max_records is None:
        return otherwise
    if max_records < 1:
        raise ValueError(f"max_records is {max_records}; at least 1 is right")
    return max_records


def whole(pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    """A pattern that matches whole names."""
    text = pattern if isinstance(pattern, str) else pattern.pattern
    flags = 0 if isinstance(pattern, str) else pattern.flags
    try:
        return re.compile(rf"(?:{text})\Z", flags)
    except re.error as error:
        raise InvalidState(f"the pattern {text!r} cannot be read: {error}") from None


def split_arguments(given: Iterable[str | Mapping[str, object]]) -> tuple[dict[str, object], list[str]]:
    """Settings and topics among positional arguments."""
    config: dict[str, object] = {}
    names: list[str] = []
    for entry in given:
        if isinstance(entry, str):
            names.append(entry)
        elif isinstance(entry, Mapping):
            config |= entry
        else:
            raise TypeError(f"expected the name of a topic or a dict of settings, not {entry!r}")
    return config, names
