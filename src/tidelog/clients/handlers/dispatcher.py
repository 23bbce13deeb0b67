"""The thread that polls for all streams: it hands records to the workers and commits what they handled.

- Polling goes on while handlers work, so a slow one costs no membership; a queue that is full pauses its
  partitions until there is room.
- Committed is what was handled, per partition in order: never the position, which is ahead of the handlers.
- Partitions that go to another member are let go when the record at hand is handled and committed.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Protocol

from tidelog.clients.consumer.listener import RebalanceListener
from tidelog.clients.errors import Interrupted
from tidelog.clients.handlers.worker import PartitionWork, StreamWorker, place, told
from tidelog.clients.producer.transaction_values import OffsetToCommit
from tidelog.errors import KafkaError
from tidelog.partitions import PartitionKey, TopicPartition
from tidelog.records.loops import Record

log = logging.getLogger("tidelog.clients")

# A poll returns this often even where nothing comes, since commits may be due.
POLL_SECONDS = 0.1
WATCH_SECONDS = 1.0
COMMIT_SECONDS = 10.0
RETRY_SECONDS = 0.5


class PolledConsumer(Protocol):
    """What is used of a Consumer, by one thread; `wakeup` by any."""

    def poll(self, timeout: float | None = ..., max_records: int | None = ...) -> list[Record]: ...
    def subscribe(self, topics: Iterable[str] = ..., *, listener: RebalanceListener | None = ...) -> None: ...
    def pause(self, *partitions: PartitionKey) -> None: ...
    def resume(self, *partitions: PartitionKey) -> None: ...
    def position(self, partition: PartitionKey, timeout: float | None = ...) -> int: ...
    def lag(self, partition: PartitionKey) -> int | None: ...
    def commit(
        self, offsets: Mapping[PartitionKey, int | OffsetToCommit], timeout: float | None = ...
    ) -> None: ...
    def commit_async(
        self,
        offsets: Mapping[PartitionKey, int | OffsetToCommit],
        callback: Callable[[Mapping[TopicPartition, OffsetToCommit], KafkaError | None], object],
    ) -> None: ...
    def committed(
        self, partitions: Iterable[PartitionKey], timeout: float | None = ...
    ) -> dict[TopicPartition, OffsetToCommit | None]: ...
    def wakeup(self) -> None: ...
    def close(self, timeout: float | None = ...) -> None: ...


@dataclass(slots=True, frozen=True)
class DispatcherSettings:
    commit_seconds: float
    queue_records: int
    slow_seconds: float
    let_go_seconds: float
    """How long a rebalance waits for handlers."""
    keep_start: bool
    """Whether to commit where reading begins, so that a restart does not begin elsewhere."""


class Dispatcher(RebalanceListener):
    """`run` is the body of its thread; `stop` and `fail` may be called by any other."""

    def __init__(
        self, consumer: PolledConsumer, workers: Sequence[StreamWorker], settings: DispatcherSettings
    ) -> None:
        self.consumer = consumer
        self.workers = workers
        self.settings = settings
        self.failure: BaseException | None = None
        self.lag: int | None = None
        self.works: dict[TopicPartition, PartitionWork] = {}
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._ends_at = float("inf")
        self._beginning: list[PartitionWork] = []
        self._commit_at = time.monotonic() + settings.commit_seconds
        self._committing = False
        self._watch_at = 0.0
        self._told_slow: dict[StreamWorker, Record] = {}
        self._told_full: set[StreamWorker] = set()

    def fail(self, error: BaseException) -> None:
        """End because of an error; the first one is kept."""
        if self.failure is None:
            self.failure = error
            # Here, since nobody may be waiting for the end to be told of it.
            log.error("%s", told(error), exc_info=error.__cause__)
        self.stop()

    def stop(self, seconds: float | None = None) -> None:
        """End soon; after so many seconds even where a handler is still busy."""
        if seconds is not None:
            self._ends_at = min(self._ends_at, time.monotonic() + seconds)
        self._stop.set()
        self.wake()

    @property
    def is_current(self) -> bool:
        """Whether it is the caller."""
        return threading.current_thread() is self._thread

    def wake(self) -> None:
        """End the wait for records, because something else is to be done."""
        with contextlib.suppress(RuntimeError):  # the consumer's loop has ended
            self.consumer.wakeup()

    def run(self, topics: Iterable[str], close_seconds: float) -> None:
        """Poll until told to stop; then finish what is being handled, commit and leave."""
        self._thread = threading.current_thread()
        try:
            self.consumer.subscribe(topics, listener=self)
            while not self._stop.is_set():
                self._turn()
        except BaseException as error:
            self.fail(error)
        finally:
            self._ends_at = min(self._ends_at, time.monotonic() + close_seconds)
            self._wind_down()

    def _turn(self) -> None:
        try:
            records = self.consumer.poll(min(POLL_SECONDS, max(self.settings.commit_seconds, 0.01)))
        except Interrupted:
            records = []
        except KafkaError as error:
            if not error.retriable:
                raise
            log.warning("%s; trying again", told(error))
            self._stop.wait(RETRY_SECONDS)
            records = []
        if self._beginning:
            self._keep_start(records)
        self._hand_out(records)
        self._hold_back()
        now = time.monotonic()
        if now >= self._commit_at and not self._committing:
            self._commit_at = now + self.settings.commit_seconds
            self._commit_soon()
        if now >= self._watch_at:
            self._watch_at = now + WATCH_SECONDS
            self._watch(now)

    # Records

    def _hand_out(self, records: list[Record]) -> None:
        for name, some in groupby(records, attrgetter("topic", "partition")):
            work = self.works.get(TopicPartition(*name))
            if work is not None:
                work.worker.offer(work, list(some))

    def _hold_back(self) -> None:
        """Pause the partitions of full queues, and resume those of queues that have room."""
        high = self.settings.queue_records
        for worker in self.workers:
            if worker.full and worker.waiting <= high // 2:
                worker.full = False
            elif not worker.full and worker.waiting >= high:
                worker.full = True
        changed = [work for work in self.works.values() if work.paused != work.worker.full]
        if not changed:
            return
        for work in changed:
            work.paused = work.worker.full
        self.consumer.pause(*(work.name for work in changed if work.paused))
        self.consumer.resume(*(work.name for work in changed if not work.paused))

    # Partitions come and go; called within poll

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        for name in partitions:
            if name in self.works:
                continue
            work = PartitionWork(name, self._worker_for(name))
            self.works[name] = work
            if self.settings.keep_start:
                self._beginning.append(work)

    def _worker_for(self, name: TopicPartition) -> StreamWorker:
        """The stream with the fewest partitions; but the one that is still at this very partition, if any."""
        counts = {worker: 0 for worker in self.workers if worker.stream.topic == name.topic}
        for work in self.works.values():
            if work.worker in counts:
                counts[work.worker] += 1
        for worker in counts:
            current = worker.current
            if current is not None and current.name == name:
                return worker
        return min(counts, key=lambda worker: (counts[worker], worker.stream.number))

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        gone = self._take_away(partitions)
        ends_at = time.monotonic() + self.settings.let_go_seconds
        for work in gone:
            while not work.worker.let_go(work, POLL_SECONDS):
                if time.monotonic() >= min(ends_at, self._ends_at):
                    log.warning(
                        "%s goes to another member while its handler is still busy: what it is at will be "
                        "handled again",
                        work.name,
                    )
                    break
        self._commit_now(gone, COMMIT_SECONDS)

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        gone = self._take_away(partitions)
        if gone:
            names = ", ".join(str(work.name) for work in gone)
            log.warning("%s went to other members; what was not committed is handled again by them", names)

    def _take_away(self, partitions: list[TopicPartition]) -> list[PartitionWork]:
        gone = [self.works.pop(name) for name in partitions if name in self.works]
        for work in gone:
            work.worker.revoke(work)
        self._beginning = [work for work in self._beginning if not work.revoked]
        return gone

    # Commits

    def _keep_start(self, records: list[Record]) -> None:
        """Commit where reading begins in partitions that have nothing committed.

        A program that is killed before its first commit would otherwise begin somewhere else the next time,
        behind what it was at, as auto.offset.reset=latest says.
        """
        for work in self._beginning:
            if work.start is None:
                first = (record for record in records if (record.topic, record.partition) == work.name)
                record = next(first, None)
                work.start = record.offset if record is not None else None
        try:
            committed = self.consumer.committed([work.name for work in self._beginning], COMMIT_SECONDS)
            starts: dict[PartitionKey, int | OffsetToCommit] = {}
            for work in self._beginning:
                if committed.get(work.name) is None:
                    if work.start is None:
                        work.start = self.consumer.position(work.name, COMMIT_SECONDS)
                    starts[work.name] = work.start
            if starts:
                self.consumer.commit(starts, COMMIT_SECONDS)
            self._beginning = []
        except KafkaError as error:
            if not error.retriable:
                self._beginning = []
            log.warning("where reading begins could not be committed: %s", told(error))

    def _handled(self, works: Iterable[PartitionWork]) -> dict[PartitionKey, int | OffsetToCommit]:
        """What is handled and not committed."""
        offsets: dict[PartitionKey, int | OffsetToCommit] = {}
        for work in works:
            last = work.handled
            if last is not None and last.offset + 1 > work.committed:
                offsets[work.name] = OffsetToCommit(last.offset + 1, "", last.leader_epoch)
        return offsets

    def _commit_soon(self) -> None:
        works = dict(self.works)
        offsets = self._handled(works.values())
        if not offsets:
            return

        def done(committed: Mapping[TopicPartition, OffsetToCommit], error: KafkaError | None) -> None:
            if error is None:
                for name, entry in committed.items():
                    works[name].committed = entry.offset
            else:
                log.warning("what was handled could not be committed yet: %s", told(error))
            self._committing = False

        self._committing = True
        try:
            self.consumer.commit_async(offsets, done)
        except KafkaError as error:
            done({}, error)

    def _commit_now(self, works: Iterable[PartitionWork], seconds: float) -> None:
        offsets = self._handled(works)
        if not offsets:
            return
        try:
            self.consumer.commit(offsets, seconds)
        except KafkaError as error:
            names = ", ".join(f"{topic}-{partition}" for topic, partition in offsets)
            log.warning(
                "what was handled of %s could not be committed, so it is handled again: %s",
                names,
                told(error),
            )

    # What people should know

    def _watch(self, now: float) -> None:
        for worker in self.workers:
            if worker.full and worker not in self._told_full:
                self._told_full.add(worker)
                log.info(
                    "stream %s: records come faster than its handler takes them: %d wait, and its partitions "
                    "are paused until there is room",
                    worker.stream, worker.waiting,
                )  # fmt: skip
            record = worker.at
            busy = now - worker.began
            if record is None or busy < self.settings.slow_seconds or self._told_slow.get(worker) is record:
                continue
            self._told_slow[worker] = record
            log.warning(
                "stream %s: its handler is at %s for %.0f s, and %d records wait behind it",
                worker.stream, place(record), busy, max(worker.waiting - 1, 0),
            )  # fmt: skip
        lags = []
        for name in list(self.works):
            with contextlib.suppress(KafkaError):
                lags.append(self.consumer.lag(name))
        known = [lag for lag in lags if lag is not None]
        self.lag = sum(known) if len(known) == len(self.works) else None

    # The end

    def _wind_down(self) -> None:
        works = list(self.works.values())
        self.works = {}
        for work in works:
            work.worker.revoke(work)
        for worker in self.workers:
            worker.stop()
        for worker in self.workers:
            if not worker.join(self._ends_at - time.monotonic()):
                at = worker.at
                where = f"at {place(at)}" if at is not None else "busy"
                log.warning(
                    "stream %s: its handler is still %s and is left behind; that record is handled again",
                    worker.stream, where,
                )  # fmt: skip
        left = max(self._ends_at - time.monotonic(), 1.0)
        try:
            self._commit_now(works, min(left, COMMIT_SECONDS))
        finally:
            try:
                self.consumer.close(max(self._ends_at - time.monotonic(), 1.0))
            except KafkaError as error:
                log.warning("the group was not left in order: %s", told(error))
