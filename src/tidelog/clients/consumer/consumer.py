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
from typing import TYPE_CHECKING, Any, Generic, Self, Unpack

from tidelog.clients.consumer.classic_group import ClassicGroup
from tidelog.clients.consumer.consumer_group import ConsumerGroup
from tidelog.clients.consumer.core import ConsumerCore
from tidelog.clients.consumer.fetcher import EVERYTHING
from tidelog.clients.consumer.listener import ConsumerRebalanceListener
from tidelog.clients.consumer.partitions import PartitionState, name_of, named
from tidelog.clients.errors import ClientClosedException, IllegalStateException, TimeoutException
from tidelog.clients.offsets import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    OffsetCommitCallback,
    Offsets,
    checked_offset,
    epoch_number,
)
from tidelog.clients.partition_info import PartitionInfo, partition_infos
from tidelog.clients.serialization import given
from tidelog.clients.settings import consumer_settings
from tidelog.clients.type_parameters import K_co, V_co
from tidelog.partitions import PartitionKey, TopicPartition
from tidelog.protocol.offset_specs import EARLIEST, LATEST
from tidelog.records.loops import ConsumerRecord

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from tidelog.clients.serialization import DeserializerSetting
    from tidelog.clients.typed_settings import ConsumerConfig

log = logging.getLogger("tidelog.clients")


class AsyncConsumer(Generic[K_co, V_co]):
    """Reads records from coroutines. Settings are Kafka's, as keywords with underscores or as a dict.

    Topics to subscribe to may come first. With group.id the members of the group share the partitions.
    Without it a subscription means all partitions of the topics, and nothing is committed. One task uses it
    at a time.
    """

    def __init__(
        self,
        *topics: str | Mapping[str, object],
        key_deserializer: DeserializerSetting[K_co] | None = None,
        value_deserializer: DeserializerSetting[V_co] | None = None,
        **settings: Unpack[ConsumerConfig],
    ) -> None:
        config, names = split_arguments(topics)
        deserializers = given(key_deserializer=key_deserializer, value_deserializer=value_deserializer)
        self._core: ConsumerCore[K_co, V_co] = ConsumerCore(
            consumer_settings(config, **settings, **deserializers)
        )
        if names:
            self.subscribe(names)

    async def start(self) -> None:
        """Connect, and join the group; the first poll does it, and `async with`."""
        await self._core.start()

    async def __aenter__(self) -> Self:
        await self._core.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # What is read

    def subscribe(
        self,
        topics: str | Iterable[str] = (),
        pattern: str | re.Pattern[str] | None = None,
        listener: ConsumerRebalanceListener | None = None,
    ) -> None:
        """Read these topics, or the topics that match a pattern; replaces the subscription before.

        A pattern matches whole names. With group.protocol=consumer the broker matches a text (RE2), and the
        client a compiled pattern. Internal topics are left out, unless exclude.internal.topics=false.
        """
        self._core.check_open()
        names = frozenset((topics,) if isinstance(topics, str) else topics)
        if bool(names) == (pattern is not None):
            raise IllegalStateException("subscribe expects topics or a pattern, one of the two")
        if self._core.subscriptions.by_hand and self._core.subscriptions.states:
            raise IllegalStateException(
                "partitions are assigned by hand; unsubscribe before subscribing to topics"
            )
        self._core.listener = listener
        if isinstance(pattern, str) and isinstance(self._core.group, ConsumerGroup):
            self._core.subscriptions.subscribe((), server_pattern=pattern)
        elif pattern is not None:
            self._core.subscriptions.subscribe((), pattern=whole(pattern))
        else:
            self._core.subscriptions.subscribe(names)
        if self._core.started:
            self._core.subscription_changed("its subscription changed")

    def assign(self, partitions: Iterable[PartitionKey]) -> None:
        """Read these partitions and no others; partitions that were assigned before keep their positions."""
        self._core.check_open()
        if self._core.subscriptions.is_subscribed:
            raise IllegalStateException(
                "topics are subscribed to; unsubscribe before assigning partitions by hand"
            )
        self._core.subscriptions.by_hand = True
        self._core.subscriptions.assign(partitions)
        if self._core.started:
            self._core.client.want({name.topic for name in self._core.subscriptions.states})
            self._core.reassigned()

    async def unsubscribe(self) -> None:
        """Give up all topics and partitions, and leave the group."""
        self._core.check_open()
        try:
            if self._core.started and self._core.group is not None and self._core.subscriptions.is_subscribed:
                await self._core.group.leave("it unsubscribed")
        finally:
            self._core.subscriptions.clear()
            self._core.client.all_topics = False

    def assignment(self) -> set[TopicPartition]:
        """The partitions assigned to this consumer, by its group or by `assign`."""
        return set(self._core.subscriptions.states)

    def subscription(self) -> frozenset[str]:
        """The topics subscribed to, or matched by the pattern."""
        return self._core.subscriptions.wanted

    def pause(self, *partitions: PartitionKey) -> None:
        """Return no records of these partitions from `poll` until `resume`, or until a rebalance."""
        for state in self._core.states(partitions):
            state.paused = True

    def resume(self, *partitions: PartitionKey) -> None:
        """Return records of paused partitions again."""
        for state in self._core.states(partitions):
            state.paused = False
            self._core.fetcher.unpark(state)
        if self._core.started:
            self._core.fetcher.send()
            self._core.wake()

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return {name for name, state in self._core.subscriptions.states.items() if state.paused}

    # Polling

    async def poll(
        self, timeout: float | None = 1.0, max_records: int | None = None
    ) -> list[ConsumerRecord[K_co, V_co]]:
        """The next records, at most max.poll.records; an empty list after `timeout` seconds without one.

        None waits without end. Rebalances, listeners and automatic commits run inside of `poll`.
        """
        limit = limit_of(max_records, self._core.settings.max_poll_records)
        await self._core.turns.pass_on()  # before records are taken, so that cancelling loses none
        return self._core.take_ready(limit) or await self._core.poll_for(
            timeout, lambda: self._core.take(limit), []
        )

    async def poll_arrow(self, timeout: float | None = 1.0, max_records: int | None = None) -> pa.Table:
        """The next records as a table (see `tidelog.clients.consumer.columns`), at most `max_records` rows.

        Deserializers and interceptors do not run: keys and values stay bytes.
        """
        from tidelog.clients.consumer.columns import load_arrow, load_off_the_loop, no_rows

        await load_off_the_loop(load_arrow, "pyarrow")
        limit = limit_of(max_records, EVERYTHING)
        await self._core.turns.pass_on()
        table = await self._core.poll_for(timeout, lambda: self._core.take_columns(limit), None)
        return no_rows() if table is None else table

    async def poll_pandas(self, timeout: float | None = 1.0, max_records: int | None = None) -> pd.DataFrame:
        """The table of `poll_arrow` as a data frame of pandas."""
        from tidelog.clients.consumer.columns import load_frames, load_off_the_loop, to_pandas

        await load_off_the_loop(lambda: load_frames("pandas"), "pyarrow", "pandas")
        return to_pandas(await self.poll_arrow(timeout, max_records))

    async def poll_polars(self, timeout: float | None = 1.0, max_records: int | None = None) -> pl.DataFrame:
        """The table of `poll_arrow` as a data frame of polars."""
        from tidelog.clients.consumer.columns import load_frames, load_off_the_loop, to_polars

        await load_off_the_loop(lambda: load_frames("polars"), "pyarrow", "polars")
        return to_polars(await self.poll_arrow(timeout, max_records))

    def __aiter__(self) -> AsyncIterator[ConsumerRecord[K_co, V_co]]:
        """Every record, until the consumer is closed.

        The position moves with each record: a commit inside the loop, or by `close` after `break`, covers the
        records that the loop has seen.
        """
        return self._each()

    async def _each(self) -> AsyncIterator[ConsumerRecord[K_co, V_co]]:
        while not self._core.closed:
            try:
                records = await self.poll(None, 1)
            except ClientClosedException:
                return
            for record in records:
                yield record

    def wakeup(self) -> None:
        """End the poll that waits, or the next one, with WakeupException. Any thread may call it."""
        self._core.woken_up = True
        if self._core.loop is not None and not self._core.closed:
            with contextlib.suppress(RuntimeError):  # the loop ended meanwhile
                self._core.loop.call_soon_threadsafe(self._core.wake)

    # Positions

    def seek(self, partition: PartitionKey, offset: int | OffsetAndMetadata) -> None:
        """Set the position of an assigned partition."""
        entry = checked_offset(name_of(partition), offset)
        (state,) = self._core.states((partition,))
        state.seek(entry.offset, epoch_number(entry.leader_epoch))
        self._core.sought()

    def seek_to_beginning(self, *partitions: PartitionKey) -> None:
        """Set the positions of these partitions, or of all that are assigned, to their first records."""
        self.seek_to_time(EARLIEST, *partitions)

    def seek_to_end(self, *partitions: PartitionKey) -> None:
        """Set the positions of these partitions, or of all that are assigned, behind their last records."""
        self.seek_to_time(LATEST, *partitions)

    def seek_to_time(self, timestamp_ms: int, *partitions: PartitionKey) -> None:
        """Set the positions to the first record of that time or later, to the end where there is none."""
        for state in self._core.states(partitions or self._core.subscriptions.states):
            state.seek_time(timestamp_ms)
        self._core.sought()

    async def position(self, partition: PartitionKey, timeout: float | None = None) -> int:
        """The offset of the next record that `poll` returns."""
        await self._core.start()
        name = TopicPartition(*partition)
        limit = self._core.limit(timeout)
        try:
            async with asyncio.timeout(limit):
                while True:
                    (state,) = self._core.states((name,))
                    if state.position is not None:
                        return state.position
                    self._core.news.clear()
                    self._core.positions.look()
                    self._core.raise_errors()
                    await self._core.news.wait()
        except TimeoutError:
            raise TimeoutException(
                f"{name}: its position was not found within {round(limit * 1000)} ms"
            ) from None

    async def beginning_offsets(
        self, partitions: Iterable[PartitionKey], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        return await self._ends(partitions, EARLIEST, timeout)

    async def end_offsets(
        self, partitions: Iterable[PartitionKey], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset behind the last record of each partition; with read_committed the last stable offset."""
        return await self._ends(partitions, LATEST, timeout)

    async def _ends(
        self, partitions: Iterable[PartitionKey], end: int, timeout: float | None
    ) -> dict[TopicPartition, int]:
        await self._core.start()
        found = await self._core.offset_fetcher.offsets(
            dict.fromkeys(named(partitions), end), self._core.limit(timeout)
        )
        return {name: entry.offset for name, entry in found.items() if entry is not None}

    async def offsets_for_times(
        self, timestamps: Mapping[PartitionKey, int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a timestamp in milliseconds, for each partition; None for none."""
        await self._core.start()
        for partition, timestamp in timestamps.items():
            if timestamp < 0:
                raise ValueError(f"time {timestamp} of {TopicPartition(*partition)}: expected 0 or more")
        times = {TopicPartition(*partition): timestamp for partition, timestamp in timestamps.items()}
        return await self._core.offset_fetcher.offsets(times, self._core.limit(timeout))

    def highwater(self, partition: PartitionKey) -> int | None:
        """The high watermark that the last fetch returned; None before the first fetch."""
        (state,) = self._core.states((partition,))
        return None if state.high_watermark < 0 else state.high_watermark

    def current_lag(self, partition: PartitionKey) -> int | None:
        """The number of offsets between the position and the end; None before the first fetch."""
        (state,) = self._core.states((partition,))
        return self._lag(state)

    def _lag(self, state: PartitionState) -> int | None:
        end = state.high_watermark
        if self._core.settings.isolation_level == "read_committed":
            end = state.last_stable_offset
        position = state.position
        return None if end < 0 or position is None else max(0, end - position)

    # Commits

    async def commit(
        self, offsets: Offsets | ConsumerRecord[Any, Any] | None = None, timeout: float | None = None
    ) -> None:
        """Commit all positions, the offsets given, or the offset behind a record.

        Raises CommitFailedException when the group has given the partitions to other members.
        """
        await self._core.start()
        store = self._core.store()
        chosen = self._core.to_commit(offsets)
        if self._core.committing:
            await asyncio.wait(set(self._core.committing), timeout=self._core.limit(timeout))
        await store.commit(chosen, self._core.limit(timeout))

    def commit_async(
        self,
        offsets: Offsets | ConsumerRecord[Any, Any] | None = None,
        callback: OffsetCommitCallback | None = None,
    ) -> None:
        """Commit without waiting. Calls `callback(offsets, error)` on the consumer's loop."""
        self._core.check_open()
        store = self._core.store()
        chosen = self._core.to_commit(offsets)
        self._core.commit_in_background(store, chosen, callback)

    async def committed(
        self, partitions: Iterable[PartitionKey], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed offset of each partition, None where the group has none."""
        await self._core.start()
        return await self._core.store().fetch(named(partitions), self._core.limit(timeout))

    def group_metadata(self) -> ConsumerGroupMetadata:
        """This consumer as a member of its group, for `Producer.send_offsets_to_transaction`."""
        self._core.store()
        assert self._core.group is not None
        member = self._core.group.owner_of_offsets()
        return ConsumerGroupMetadata(
            self._core.group.group_id, member.epoch, member.member_id, member.instance_id
        )

    def enforce_rebalance(self, reason: str = "the user asked for it") -> None:
        """Rebalance the group with the next poll."""
        self._core.store()
        if isinstance(self._core.group, ClassicGroup):
            self._core.group.request_rejoin(reason)

    # The cluster

    async def partitions_for(self, topic: str, timeout: float | None = None) -> list[PartitionInfo]:
        """The partitions of a topic. Raises TimeoutException after `timeout` seconds."""
        await self._core.start()
        return partition_infos(await self._core.client.topic(topic, timeout=self._core.limit(timeout)))

    async def topics(self, timeout: float | None = None) -> set[str]:
        """The topics that this consumer may describe, without internal ones."""
        await self._core.start()
        before, self._core.client.all_topics = self._core.client.all_topics, True
        try:
            await self._core.client.refresh(timeout=self._core.limit(timeout))
            return {topic.name for topic in self._core.client.view.topics.values() if not topic.is_internal}
        finally:
            self._core.client.all_topics = before

    async def client_instance_id(self, timeout: float | None = None) -> str:
        """The id that the broker gave this client for its metrics.

        Raises UnsupportedVersion when the broker does not collect metrics of clients.
        """
        await self._core.start()
        return await self._core.telemetry.client_instance_id(self._core.limit(timeout))

    def metrics(self) -> dict[str, float]:
        """Numbers under Kafka's names, such as records-consumed-total; times in milliseconds."""
        numbers = self._core.client.metrics.snapshot() | self._core.metrics_of.snapshot()
        # Any thread may ask: what the loop may change meanwhile is copied first.
        states = [] if self._core.closed else list(self._core.subscriptions.states.values())
        lags = [self._lag(state) for state in states]
        numbers["records-lag-max"] = max((lag for lag in lags if lag is not None), default=0)
        numbers["assigned-partitions"] = len(states)
        return numbers

    async def close(self, timeout: float | None = None) -> None:
        """Commit if enable.auto.commit is set, leave the group and end, within `timeout` seconds."""
        await self._core.close(timeout)


def limit_of(max_records: int | None, otherwise: int) -> int:
    """How many records a poll may give."""
    if max_records is None:
        return otherwise
    if max_records < 1:
        raise ValueError(f"max_records is {max_records}; expected at least 1")
    return max_records


def whole(pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    """A pattern that matches whole names."""
    text = pattern if isinstance(pattern, str) else pattern.pattern
    flags = 0 if isinstance(pattern, str) else pattern.flags
    try:
        return re.compile(rf"(?:{text})\Z", flags)
    except re.error as error:
        raise IllegalStateException(f"the pattern {text!r} cannot be read: {error}") from None


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
