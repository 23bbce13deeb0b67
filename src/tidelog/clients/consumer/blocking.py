"""The blocking consumer: the same as the asynchronous one, on a loop in a thread of its own.

>>> from tidelog.clients.consumer.blocking import Consumer
>>> from tidelog.clients.producer.blocking import Producer
>>> with Producer(bootstrap_servers=bootstrap) as producer:
...     future = producer.send("fruits", b"one apple", key=b"alice")
>>> with Consumer("fruits", bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
...     for record in consumer:
...         print(record.offset, record.key, record.value)
...         break
0 b'alice' b'one apple'
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack

from tidelog.clients.blocking import Errand, LoopThread
from tidelog.clients.consumer.consumer import AsyncConsumer, limit_of
from tidelog.clients.consumer.fetcher import EVERYTHING
from tidelog.clients.consumer.listener import ConsumerRebalanceListener, RebalanceCallback
from tidelog.clients.errors import ClientClosedException, IllegalStateException
from tidelog.clients.offsets import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    OffsetCommitCallback,
    Offsets,
)
from tidelog.clients.partition_info import PartitionInfo
from tidelog.clients.type_parameters import K_co, V_co
from tidelog.errors import KafkaError
from tidelog.partitions import PartitionKey, TopicPartition
from tidelog.records.loops import ConsumerRecord

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from tidelog.clients.serialization import DeserializerSetting
    from tidelog.clients.typed_settings import ConsumerConfig

T = TypeVar("T")

# The time limit of leaving the group on Ctrl-C.
INTERRUPTED_SECONDS = 3.0
# A poll waits this long for records before it has the loop do the work of a poll.
DIRECT_WAIT_SECONDS = 0.05
IN_USE = "a consumer is for one thread at a time; another is using this one"


class Consumer(Generic[K_co, V_co]):
    """Reads records. Settings are Kafka's, as keywords with underscores or as a dict.

    Topics to subscribe to may come first. With group.id the members of the group share the partitions.
    Without it a subscription means all partitions of the topics, and nothing is committed. One thread uses it
    at a time; others may call `wakeup` only.
    """

    def __init__(
        self,
        *topics: str | Mapping[str, object],
        key_deserializer: DeserializerSetting[K_co] | None = None,
        value_deserializer: DeserializerSetting[V_co] | None = None,
        **settings: Unpack[ConsumerConfig],
    ) -> None:
        self._inner: AsyncConsumer[K_co, V_co] = AsyncConsumer(
            *topics, key_deserializer=key_deserializer, value_deserializer=value_deserializer, **settings
        )
        self._core = self._inner._core
        self._limit = self._core.settings.max_poll_records
        self._user = threading.RLock()
        self._inboxes: list[SimpleQueue[Callable[[], None] | None]] = []
        self._signals: SimpleQueue[None] = SimpleQueue()
        self._waits_for_signal = False
        self._wants_columns = False
        self._thread = LoopThread(f"consumer {self._core.settings.client_id}".strip())
        self._core.run_callback = self._in_caller
        self._core.ask_for_more = self._ask_for_more
        self._core.on_loop = self._on_loop
        self._core.on_news = self._signal
        self._call(self._inner.start())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(INTERRUPTED_SECONDS if kind in (KeyboardInterrupt, SystemExit) else None)

    # The two threads

    def _call(self, work: Coroutine[object, object, T]) -> T:
        """The result of a coroutine on the loop. Calls listeners in this thread meanwhile."""
        try:
            self._thread.check()
            if not self._user.acquire(blocking=False):
                raise IllegalStateException(IN_USE)
        except KafkaError:
            work.close()
            raise
        try:
            inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
            self._inboxes.append(inbox)  # before the coroutine calls a listener
            errand = Errand(work)
            errand.add_done_callback(lambda _: inbox.put(None))
            try:
                self._thread.start(errand)
                while True:
                    job = inbox.get()
                    if job is None:
                        return errand.result()
                    job()
            except CancelledError:
                if self._thread.closed:
                    raise ClientClosedException("the consumer was closed meanwhile") from None
                raise
            except BaseException:
                errand.cancel()
                raise
            finally:
                self._inboxes.remove(inbox)
        finally:
            self._user.release()

    def _do(self, function: Callable[[], T]) -> T:
        async def work() -> T:
            return function()

        return self._call(work())

    def _on_loop(self, function: Callable[[], None]) -> None:
        if self._thread.is_current:
            function()
        else:
            self._do(function)

    async def _in_caller(self, function: RebalanceCallback, partitions: list[TopicPartition]) -> None:
        """Call a listener in the thread that waits for the loop."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def settle(error: Exception | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        def job() -> None:
            problem: Exception | None = None
            try:
                if asyncio.iscoroutine(function(partitions)):
                    raise IllegalStateException(
                        "a Consumer's listener has plain functions; coroutines are for AsyncConsumer"
                    )
            except Exception as error:
                problem = error
            with contextlib.suppress(RuntimeError):  # the listener closed the consumer, and with it the loop
                loop.call_soon_threadsafe(settle, problem)

        self._inboxes[-1].put(job)
        await done

    def _ask_for_more(self) -> None:
        self._thread.loop.call_soon_threadsafe(self._core.fetcher.send)

    def _signal(self) -> None:
        """Wake up the polling thread. On the loop."""
        if self._waits_for_signal:
            self._waits_for_signal = False
            if self._wants_columns:
                with contextlib.suppress(Exception):  # the polling thread raises it again
                    self._core.fetcher.prepare_columns()
            self._signals.put(None)

    def _wait_for_signal(self, seconds: float) -> None:
        """Wait for a signal of the loop, without waking up the loop."""
        self._waits_for_signal = True
        try:
            if not self._core.fetcher.ready:
                self._signals.get(timeout=seconds)
        except Empty:
            pass
        finally:
            self._waits_for_signal = False
            while not self._signals.empty():
                self._signals.get()

    # Polling

    def _take_without_loop(
        self, take: Callable[[], T], timeout: float | None
    ) -> tuple[T | None, float | None]:
        """Call `take` if the poll needs no work on the loop; returns its result and the rest of the time.

        The result is None without fetched records. Waits up to DIRECT_WAIT_SECONDS for some.
        """
        core = self._core
        self._thread.check_process()  # a forked child would return its parent's records again
        if not self._user.acquire(blocking=False):
            return None, timeout
        try:
            if not core.needs_no_loop():
                return None, timeout
            if not core.fetcher.ready and core.fetcher.is_asking and timeout != 0:
                began = time.monotonic()
                self._wait_for_signal(
                    DIRECT_WAIT_SECONDS if timeout is None else min(DIRECT_WAIT_SECONDS, max(timeout, 0.0))
                )
                if timeout is not None:
                    timeout = max(0.0, timeout - (time.monotonic() - began))
                if not core.needs_no_loop():
                    return None, timeout
            return (take() if core.fetcher.ready else None), timeout
        finally:
            self._user.release()

    def _take_back(self, error: BaseException) -> None:
        """Move the positions back after a poll that Ctrl-C interrupted: nobody received its records.

        A KafkaError needs nothing: it is raised before records are taken.
        """
        if not isinstance(error, KafkaError):
            with contextlib.suppress(KafkaError):  # closed, or used by another thread
                self._do(self._core.fetcher.take_back)

    def poll(
        self, timeout: float | None = 1.0, max_records: int | None = None
    ) -> list[ConsumerRecord[K_co, V_co]]:
        """The next records, at most max.poll.records; an empty list after `timeout` seconds without one.

        None waits without end. Rebalances, listeners and automatic commits run inside of `poll`. A
        poll that raises, on Ctrl-C too, leaves the positions where they were.
        """
        limit = limit_of(max_records, self._limit)
        self._core.fetcher.marks.clear()  # the records of the last poll have been received
        try:
            records, remaining = self._take_without_loop(lambda: self._core.take(limit), timeout)
            return records or self._call(self._inner.poll(remaining, limit))
        except BaseException as error:
            self._take_back(error)
            raise

    def poll_arrow(self, timeout: float | None = 1.0, max_records: int | None = None) -> pa.Table:
        """The next records as a table (see `tidelog.clients.consumer.columns`), at most `max_records` rows.

        Deserializers and interceptors do not run: keys and values stay bytes.
        """
        from tidelog.clients.consumer.columns import load_arrow

        load_arrow()
        return self._columns(lambda table: table, timeout, max_records)

    def _columns(self, made: Callable[[pa.Table], T], timeout: float | None, max_records: int | None) -> T:
        """The result of `made` for the table of a poll."""
        limit = limit_of(max_records, EVERYTHING)
        self._core.fetcher.marks.clear()  # the records of the last poll have been received
        try:
            return made(self._table(timeout, limit))
        except BaseException as error:
            self._take_back(error)
            raise

    def _table(self, timeout: float | None, limit: int) -> pa.Table:
        from tidelog.clients.consumer.columns import no_rows

        core = self._core
        self._wants_columns = limit == EVERYTHING
        try:
            table, remaining = self._take_without_loop(lambda: core.take_columns(limit), timeout)
        finally:
            self._wants_columns = False
        deadline = None if remaining is None else time.monotonic() + remaining
        while table is None:
            if not self._call(core.poll_for(remaining, lambda: bool(core.fetcher.ready), False)):
                return no_rows()
            table = core.take_columns(limit)  # None if only transaction markers were fetched
            remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
        return table

    def poll_pandas(self, timeout: float | None = 1.0, max_records: int | None = None) -> pd.DataFrame:
        """The table of `poll_arrow` as a data frame of pandas."""
        from tidelog.clients.consumer.columns import load_frames, to_pandas

        load_frames("pandas")
        return self._columns(to_pandas, timeout, max_records)

    def poll_polars(self, timeout: float | None = 1.0, max_records: int | None = None) -> pl.DataFrame:
        """The table of `poll_arrow` as a data frame of polars."""
        from tidelog.clients.consumer.columns import load_frames, to_polars

        load_frames("polars")
        return self._columns(to_polars, timeout, max_records)

    def __iter__(self) -> Iterator[ConsumerRecord[K_co, V_co]]:
        """Every record, until the consumer is closed.

        The position moves with each record: a commit inside the loop, or by `close` after `break`, covers the
        records that the loop has seen.
        """
        while not self._core.closed:
            try:
                records = self.poll(None, 1)
            except ClientClosedException:
                return
            yield from records

    def wakeup(self) -> None:
        """End the poll that waits, or the next one, with WakeupException. Any thread may call it."""
        self._inner.wakeup()

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
        self._do(lambda: self._inner.subscribe(topics, pattern=pattern, listener=listener))

    def assign(self, partitions: Iterable[PartitionKey]) -> None:
        """Read these partitions and no others; partitions that were assigned before keep their positions."""
        self._do(lambda: self._inner.assign(partitions))

    def unsubscribe(self) -> None:
        """Give up all topics and partitions, and leave the group."""
        self._call(self._inner.unsubscribe())

    def assignment(self) -> set[TopicPartition]:
        """The partitions assigned to this consumer, by its group or by `assign`."""
        return self._do(self._inner.assignment)

    def subscription(self) -> frozenset[str]:
        """The topics subscribed to, or matched by the pattern."""
        return self._do(self._inner.subscription)

    def pause(self, *partitions: PartitionKey) -> None:
        """Return no records of these partitions from `poll` until `resume`, or until a rebalance."""
        self._do(lambda: self._inner.pause(*partitions))

    def resume(self, *partitions: PartitionKey) -> None:
        """Return records of paused partitions again."""
        self._do(lambda: self._inner.resume(*partitions))

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return self._do(self._inner.paused)

    # Positions

    def seek(self, partition: PartitionKey, offset: int | OffsetAndMetadata) -> None:
        """Set the position of an assigned partition."""
        self._do(lambda: self._inner.seek(partition, offset))

    def seek_to_beginning(self, *partitions: PartitionKey) -> None:
        """Set the positions of these partitions, or of all that are assigned, to their first records."""
        self._do(lambda: self._inner.seek_to_beginning(*partitions))

    def seek_to_end(self, *partitions: PartitionKey) -> None:
        """Set the positions of these partitions, or of all that are assigned, behind their last records."""
        self._do(lambda: self._inner.seek_to_end(*partitions))

    def seek_to_time(self, timestamp_ms: int, *partitions: PartitionKey) -> None:
        """Set the positions to the first record of that time or later, to the end where there is none."""
        self._do(lambda: self._inner.seek_to_time(timestamp_ms, *partitions))

    def position(self, partition: PartitionKey, timeout: float | None = None) -> int:
        """The offset of the next record that `poll` returns."""
        return self._call(self._inner.position(partition, timeout))

    def beginning_offsets(
        self, partitions: Iterable[PartitionKey], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        return self._call(self._inner.beginning_offsets(partitions, timeout))

    def end_offsets(
        self, partitions: Iterable[PartitionKey], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset behind the last record of each partition; with read_committed the last stable offset."""
        return self._call(self._inner.end_offsets(partitions, timeout))

    def offsets_for_times(
        self, timestamps: Mapping[PartitionKey, int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a timestamp in milliseconds, for each partition; None for none."""
        return self._call(self._inner.offsets_for_times(timestamps, timeout))

    def highwater(self, partition: PartitionKey) -> int | None:
        """The high watermark that the last fetch returned; None before the first fetch."""
        return self._do(lambda: self._inner.highwater(partition))

    def current_lag(self, partition: PartitionKey) -> int | None:
        """The number of offsets between the position and the end; None before the first fetch."""
        return self._do(lambda: self._inner.current_lag(partition))

    # Commits

    def commit(
        self, offsets: Offsets | ConsumerRecord[Any, Any] | None = None, timeout: float | None = None
    ) -> None:
        """Commit all positions, the offsets given, or the offset behind a record.

        Raises CommitFailedException when the group has given the partitions to other members.
        """
        self._call(self._inner.commit(offsets, timeout))

    def commit_async(
        self,
        offsets: Offsets | ConsumerRecord[Any, Any] | None = None,
        callback: OffsetCommitCallback | None = None,
    ) -> None:
        """Commit without waiting. Calls `callback(offsets, error)` on the consumer's thread."""
        self._do(lambda: self._inner.commit_async(offsets, callback))

    def committed(
        self, partitions: Iterable[PartitionKey], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed offset of each partition, None where the group has none."""
        return self._call(self._inner.committed(partitions, timeout))

    def group_metadata(self) -> ConsumerGroupMetadata:
        """This consumer as a member of its group, for `Producer.send_offsets_to_transaction`."""
        return self._do(self._inner.group_metadata)

    def enforce_rebalance(self, reason: str = "the user asked for it") -> None:
        """Rebalance the group with the next poll."""
        self._do(lambda: self._inner.enforce_rebalance(reason))

    # The cluster

    def partitions_for(self, topic: str, timeout: float | None = None) -> list[PartitionInfo]:
        """The partitions of a topic. Raises TimeoutException after `timeout` seconds."""
        return self._call(self._inner.partitions_for(topic, timeout))

    def topics(self, timeout: float | None = None) -> set[str]:
        """The topics that this consumer may describe, without internal ones."""
        return self._call(self._inner.topics(timeout))

    def metrics(self) -> dict[str, float]:
        """Numbers under Kafka's names, such as records-consumed-total; times in milliseconds."""
        return self._inner.metrics()

    def client_instance_id(self, timeout: float | None = None) -> str:
        """The id that the broker gave this client for its metrics.

        Raises UnsupportedVersion when the broker does not collect metrics of clients.
        """
        return self._call(self._inner.client_instance_id(timeout))

    def close(self, timeout: float | None = None) -> None:
        """Commit if enable.auto.commit is set, leave the group and end, within `timeout` seconds.

        Ctrl-C ends it at once. While another thread polls it raises IllegalStateException: call `wakeup`, and
        let that thread close the consumer.
        """
        if self._thread.closed or self._thread.is_inherited:
            return  # a forked child leaves the client of its parent open
        self._thread.check()
        if not self._user.acquire(blocking=False):
            raise IllegalStateException(IN_USE)
        try:
            self._call(self._inner.close(timeout))
        except ClientClosedException:
            pass
        finally:
            self._thread.close()
            self._user.release()
