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
from typing import TYPE_CHECKING, Self, TypeVar

from tidelog.clients.blocking import Errand, LoopThread
from tidelog.clients.consumer.consumer import AsyncConsumer, limit_of
from tidelog.clients.consumer.core import EVERYTHING, Committed, Offsets
from tidelog.clients.consumer.listener import RebalanceCallback, RebalanceListener
from tidelog.clients.consumer.partitions import OffsetAndTime
from tidelog.clients.errors import Closed, InvalidState
from tidelog.clients.producer.transaction_values import GroupMember, OffsetToCommit
from tidelog.errors import KafkaError
from tidelog.partitions import PartitionKey, TopicPartition
from tidelog.records.loops import Record

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

T = TypeVar("T")

# What an interrupted program may take to leave its group.
INTERRUPTED_SECONDS = 3.0
# How long records are waited for here before the loop is asked to see to all that a poll has to do.
CALM_SECONDS = 0.05
IN_USE = "a consumer is for one thread at a time; another is using this one"


class Consumer:
    """Reads records. Settings are Kafka's, with underscores or as a dict; topics may come first.

    With group.id the partitions are shared with the other members of the group. Without it a subscription
    means all partitions of the topics, and nothing is committed. One thread uses it at a time; `wakeup` alone
    may be called by others.
    """

    def __init__(self, *topics: str | Mapping[str, object], **settings: object) -> None:
        self._inner = AsyncConsumer(*topics, **settings)
        self._limit = self._inner.settings.max_poll_records
        self._user = threading.RLock()
        self._inboxes: list[SimpleQueue[Callable[[], None] | None]] = []
        self._knocks: SimpleQueue[None] = SimpleQueue()
        self._listening = False
        self._wants_columns = False
        self._thread = LoopThread(f"consumer {self._inner.settings.client_id}".strip())
        self._inner.run_callback = self._in_caller
        self._inner.ask_for_more = self._ask_for_more
        self._inner.on_loop = self._on_loop
        self._inner.on_news = self._knock
        self._call(self._inner.start())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(INTERRUPTED_SECONDS if kind in (KeyboardInterrupt, SystemExit) else None)

    # The two threads

    def _call(self, work: Coroutine[object, object, T]) -> T:
        """The result of work on the loop; listeners that it wants to be called are called here meanwhile."""
        try:
            self._thread.check()
            if not self._user.acquire(blocking=False):
                raise InvalidState(IN_USE)
        except KafkaError:
            work.close()
            raise
        try:
            inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
            self._inboxes.append(inbox)  # before the work can want something of it
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
                    raise Closed("the consumer was closed meanwhile") from None
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
        """Have the thread that waits for the loop call a listener."""
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
                    raise InvalidState(
                        "a Consumer's listener has plain functions; coroutines are for AsyncConsumer"
                    )
            except Exception as error:
                problem = error
            with contextlib.suppress(RuntimeError):  # the listener closed the consumer, and with it the loop
                loop.call_soon_threadsafe(settle, problem)

        self._inboxes[-1].put(job)
        await done

    def _ask_for_more(self) -> None:
        self._thread.loop.call_soon_threadsafe(self._inner.fetcher.send)

    def _knock(self) -> None:
        """Wake the thread that listens; on the loop."""
        if self._listening:
            self._listening = False
            if self._wants_columns:
                with contextlib.suppress(Exception):  # it is for whoever takes them, and not for the loop
                    self._inner.fetcher.prepare_columns()
            self._knocks.put(None)

    def _listen(self, seconds: float) -> None:
        """Wait until something happens on the loop, which has asked for records, without waking it."""
        self._listening = True
        try:
            if not self._inner.fetcher.ready:
                self._knocks.get(timeout=seconds)
        except Empty:
            pass
        finally:
            self._listening = False
            while not self._knocks.empty():
                self._knocks.get()

    # Polling

    def _taken(self, take: Callable[[], T], timeout: float | None) -> tuple[T | None, float | None]:
        """What `take` gives of records that are there, or come soon, while a poll has nothing else to do; and
        how much of the time is left.
        """
        inner = self._inner
        self._thread.check_process()  # a child would hand out what its parent fetched, once more
        if not self._user.acquire(blocking=False):
            return None, timeout
        try:
            if not inner.is_calm():
                return None, timeout
            if not inner.fetcher.ready and inner.fetcher.is_asking and timeout != 0:
                began = time.monotonic()
                self._listen(CALM_SECONDS if timeout is None else min(CALM_SECONDS, max(timeout, 0.0)))
                if timeout is not None:
                    timeout = max(0.0, timeout - (time.monotonic() - began))
                if not inner.is_calm():
                    return None, timeout
            return (take() if inner.fetcher.ready else None), timeout
        finally:
            self._user.release()

    def _take_back(self, error: BaseException) -> None:
        """A poll ends with an error. Unless it is ours, which leaves nothing taken, it may be a
        Ctrl-C at any point: nobody gets what was taken, so that comes again.
        """
        if not isinstance(error, KafkaError):
            with contextlib.suppress(KafkaError):  # closed, or used by another thread
                self._do(self._inner.fetcher.take_back)

    def poll(self, timeout: float | None = 1.0, max_records: int | None = None) -> list[Record]:
        """Records that have come, at most max.poll.records; waits for the first at most `timeout` seconds.

        None waits as long as it takes. Rebalances, their listeners and automatic commits happen in here. A
        poll that ends with an error, be it Ctrl-C, leaves the positions where they were.
        """
        limit = limit_of(max_records, self._limit)
        self._inner.fetcher.marks.clear()  # what was taken before has arrived
        try:
            records, left = self._taken(lambda: self._inner.take(limit), timeout)
            return records or self._call(self._inner.poll(left, limit))
        except BaseException as error:
            self._take_back(error)
            raise

    def poll_arrow(self, timeout: float | None = 1.0, max_records: int | None = None) -> pa.Table:
        """What has come as columns (see `tidelog.clients.consumer.columns`), at most `max_records` rows.

        Deserializers and interceptors are for records one by one: here keys and values stay bytes.
        """
        from tidelog.clients.consumer.columns import load_arrow

        load_arrow()
        return self._columns(lambda table: table, timeout, max_records)

    def _columns(self, made: Callable[[pa.Table], T], timeout: float | None, max_records: int | None) -> T:
        """What is made of the columns of a poll."""
        limit = limit_of(max_records, EVERYTHING)
        self._inner.fetcher.marks.clear()  # what was taken before has arrived
        try:
            return made(self._table(timeout, limit))
        except BaseException as error:
            self._take_back(error)
            raise

    def _table(self, timeout: float | None, limit: int) -> pa.Table:
        from tidelog.clients.consumer.columns import no_rows

        inner = self._inner
        self._wants_columns = limit == EVERYTHING
        try:
            table, left = self._taken(lambda: inner.take_columns(limit), timeout)
        finally:
            self._wants_columns = False
        until = None if left is None else time.monotonic() + left
        while table is None:
            if not self._call(inner.poll_for(left, lambda: bool(inner.fetcher.ready), False)):
                return no_rows()
            table = inner.take_columns(limit)  # none, where only ends of transactions came
            left = None if until is None else max(0.0, until - time.monotonic())
        return table

    def poll_pandas(self, timeout: float | None = 1.0, max_records: int | None = None) -> pd.DataFrame:
        """The same as a data frame of pandas."""
        from tidelog.clients.consumer.columns import load_frames, to_pandas

        load_frames("pandas")
        return self._columns(to_pandas, timeout, max_records)

    def poll_polars(self, timeout: float | None = 1.0, max_records: int | None = None) -> pl.DataFrame:
        """The same as a data frame of polars."""
        from tidelog.clients.consumer.columns import load_frames, to_polars

        load_frames("polars")
        return self._columns(to_polars, timeout, max_records)

    def __iter__(self) -> Iterator[Record]:
        """Every record as it comes, until the consumer is closed.

        Records are taken one by one, so that a commit inside the loop, or one that close makes after `break`,
        covers those that the loop has seen and no others.
        """
        while not self._inner.closed:
            try:
                records = self.poll(None, 1)
            except Closed:
                return
            yield from records

    def wakeup(self) -> None:
        """End a poll that waits, now or the next time, with Interrupted; may be called by any thread."""
        self._inner.wakeup()

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
        self._do(lambda: self._inner.subscribe(topics, pattern=pattern, listener=listener))

    def assign(self, partitions: Iterable[PartitionKey]) -> None:
        """Read these partitions, whatever a group may say; those that were read keep their positions."""
        self._do(lambda: self._inner.assign(partitions))

    def unsubscribe(self) -> None:
        """Read nothing any more, and leave the group."""
        self._call(self._inner.unsubscribe())

    def assignment(self) -> set[TopicPartition]:
        return self._do(self._inner.assignment)

    def subscribed(self) -> frozenset[str]:
        """The topics subscribed to, or found by the pattern."""
        return self._do(self._inner.subscribed)

    def pause(self, *partitions: PartitionKey) -> None:
        """Hand out nothing of these partitions until they are resumed; a rebalance forgets it.

        Without a name it does nothing, as in Kafka's clients.
        """
        self._do(lambda: self._inner.pause(*partitions))

    def resume(self, *partitions: PartitionKey) -> None:
        self._do(lambda: self._inner.resume(*partitions))

    def paused(self) -> set[TopicPartition]:
        return self._do(self._inner.paused)

    # Positions

    def seek(self, partition: PartitionKey, offset: int | OffsetToCommit) -> None:
        """Go on from an offset of a partition that is assigned."""
        self._do(lambda: self._inner.seek(partition, offset))

    def seek_to_beginning(self, *partitions: PartitionKey) -> None:
        """Go on from the first record of these partitions, or of all that are assigned."""
        self._do(lambda: self._inner.seek_to_beginning(*partitions))

    def seek_to_end(self, *partitions: PartitionKey) -> None:
        """Go on with what is written from now on."""
        self._do(lambda: self._inner.seek_to_end(*partitions))

    def seek_to_time(self, timestamp_ms: int, *partitions: PartitionKey) -> None:
        """Go on from the first record of that time or later; from the end where there is none."""
        self._do(lambda: self._inner.seek_to_time(timestamp_ms, *partitions))

    def position(self, partition: PartitionKey, timeout: float | None = None) -> int:
        """The offset of the next record that a poll hands out; looked up where it is not known yet."""
        return self._call(self._inner.position(partition, timeout))

    def beginning_offsets(
        self, partitions: Iterable[PartitionKey], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        return self._call(self._inner.beginning_offsets(partitions, timeout))

    def end_offsets(
        self, partitions: Iterable[PartitionKey], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset behind the last record of each partition that this consumer may read."""
        return self._call(self._inner.end_offsets(partitions, timeout))

    def offsets_for_times(
        self, times: Mapping[PartitionKey, int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTime | None]:
        """The first record at or after a time (in milliseconds) of each partition; None for none."""
        return self._call(self._inner.offsets_for_times(times, timeout))

    def lag(self, partition: PartitionKey) -> int | None:
        """How many offsets the position is behind the end; None before the first fetch tells the end."""
        return self._do(lambda: self._inner.lag(partition))

    # Commits

    def commit(self, offsets: Offsets | Record | None = None, timeout: float | None = None) -> None:
        """Keep what was read: all positions, the offsets given, or everything up to a record.

        CommitFailed where the partitions belong to others by now.
        """
        self._call(self._inner.commit(offsets, timeout))

    def commit_async(
        self, offsets: Offsets | Record | None = None, callback: Committed | None = None
    ) -> None:
        """The same without waiting for it; `callback(offsets, error)` is told by the consumer's thread."""
        self._do(lambda: self._inner.commit_async(offsets, callback))

    def committed(
        self, partitions: Iterable[PartitionKey], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetToCommit | None]:
        """What the group committed of partitions, None where it is nothing."""
        return self._call(self._inner.committed(partitions, timeout))

    def group_metadata(self) -> GroupMember:
        """Who this consumer is in its group, for `Producer.send_offsets_to_transaction`."""
        return self._do(self._inner.group_metadata)

    def enforce_rebalance(self, reason: str = "the user asked for it") -> None:
        """Have the group rebalance with the next poll."""
        self._do(lambda: self._inner.enforce_rebalance(reason))

    # The cluster

    def partitions_for(self, topic: str, timeout: float | None = None) -> list[int]:
        """The partitions of a topic."""
        return self._call(self._inner.partitions_for(topic, timeout))

    def topics(self, timeout: float | None = None) -> set[str]:
        """Every topic that this consumer may see, without Kafka's own."""
        return self._call(self._inner.topics(timeout))

    def metrics(self) -> dict[str, float]:
        """Numbers under Kafka's names, such as records-consumed-total; times in milliseconds."""
        return self._inner.metrics()

    def client_instance_id(self, timeout: float | None = None) -> str:
        """The id under which the broker knows this client, as Kafka writes ids.

        UnsupportedVersion where the broker does not collect metrics of clients.
        """
        return self._call(self._inner.client_instance_id(timeout))

    def close(self, timeout: float | None = None) -> None:
        """Commit, where that is done automatically, leave the group and end; takes at most `timeout` seconds.

        Ctrl-C while it waits ends it at once. Where another thread polls, it raises and closes nothing: use
        `wakeup`, and have that thread close.
        """
        if self._thread.closed or self._thread.is_inherited:
            return  # what a child process inherited is the parent's to close
        self._thread.check()
        if not self._user.acquire(blocking=False):
            raise InvalidState(IN_USE)
        try:
            self._call(self._inner.close(timeout))
        except Closed:
            pass
        finally:
            self._thread.close()
            self._user.release()
