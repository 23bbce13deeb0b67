"""The thread that polls for all streams: it gives records to the workers and commits handled ones.

- It polls while handlers work, so that a slow handler does not lose its membership. A full queue pauses its
  partitions until there is room.
- It commits the handled records of each partition, in order; the position is ahead of the handlers.
- It gives up a revoked partition after the record being handled is handled and committed.
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

from tidelog.clients.consumer.listener import ConsumerRebalanceListener
from tidelog.clients.errors import WakeupException
from tidelog.clients.handlers.worker import PartitionWork, StreamWorker, one_line, place
from tidelog.clients.offsets import OffsetAndMetadata, known_epoch
from tidelog.errors import KafkaError
from tidelog.partitions import PartitionKey, TopicPartition
from tidelog.records.loops import ConsumerRecord

log = logging.getLogger("tidelog.clients")

# The longest poll: commits may be due.
POLL_SECONDS = 0.1
WATCH_SECONDS = 1.0
COMMIT_SECONDS = 10.0
RETRY_SECONDS = 0.5


class PolledConsumer(Protocol):
    """The calls of a Consumer that a dispatcher uses. Other threads call `wakeup` only."""

    def poll(self, timeout: float | None = ..., max_records: int | None = ...) -> list[ConsumerRecord]: ...
    def subscribe(
        self, topics: Iterable[str] = ..., *, listener: ConsumerRebalanceListener | None = ...
    ) -> None: ...
    def pause(self, *partitions: PartitionKey) -> None: ...
    def resume(self, *partitions: PartitionKey) -> None: ...
    def position(self, partition: PartitionKey, timeout: float | None = ...) -> int: ...
    def current_lag(self, partition: PartitionKey) -> int | None: ...
    def commit(
        self, offsets: Mapping[PartitionKey, int | OffsetAndMetadata], timeout: float | None = ...
    ) -> None: ...
    def commit_async(
        self,
        offsets: Mapping[PartitionKey, int | OffsetAndMetadata],
        callback: Callable[[Mapping[TopicPartition, OffsetAndMetadata], KafkaError | None], object],
    ) -> None: ...
    def committed(
        self, partitions: Iterable[PartitionKey], timeout: float | None = ...
    ) -> dict[TopicPartition, OffsetAndMetadata | None]: ...
    def wakeup(self) -> None: ...
    def close(self, timeout: float | None = ...) -> None: ...


@dataclass(slots=True, frozen=True)
class DispatcherSettings:
    commit_seconds: float
    queue_records: int
    slow_seconds: float
    let_go_seconds: float
    """The time that a rebalance waits for handlers."""
    keep_start: bool
    """Whether to commit the first position, for a restart to begin there."""


class Dispatcher(ConsumerRebalanceListener):
    """`run` is the body of its thread. Other threads call `stop` and `fail`."""

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
        self._warned_slow: dict[StreamWorker, ConsumerRecord] = {}
        self._warned_full: set[StreamWorker] = set()

    def fail(self, error: BaseException) -> None:
        """End with an error. The first error counts."""
        if self.failure is None:
            self.failure = error
            # Logged here: nothing may wait for the end and raise it.
            log.error("%s", one_line(error), exc_info=error.__cause__)
        self.stop()

    def stop(self, seconds: float | None = None) -> None:
        """End soon, after `timeout` seconds even if a handler is busy."""
        if seconds is not None:
            self._ends_at = min(self._ends_at, time.monotonic() + seconds)
        self._stop.set()
        self.wake()

    @property
    def is_current(self) -> bool:
        """Whether the caller is this thread."""
        return threading.current_thread() is self._thread

    def wake(self) -> None:
        """End a poll that waits."""
        with contextlib.suppress(RuntimeError):  # the consumer's loop has ended
            self.consumer.wakeup()

    def run(self, topics: Iterable[str], close_seconds: float) -> None:
        """Poll until `stop`; then wait for the handlers, commit and leave the group."""
        self._thread = threading.current_thread()
        try:
            self.consumer.subscribe(topics, listener=self)
            while not self._stop.is_set():
                self._turn()
        except BaseException as error:
            self.fail(error)
        finally:
            self._ends_at = min(self._ends_at, time.monotonic() + close_seconds)
            self._finish()

    def _turn(self) -> None:
        try:
            records = self.consumer.poll(min(POLL_SECONDS, max(self.settings.commit_seconds, 0.01)))
        except WakeupException:
            records = []
        except KafkaError as error:
            if not error.retriable:
                raise
            log.warning("%s; trying again", one_line(error))
            self._stop.wait(RETRY_SECONDS)
            records = []
        if self._beginning:
            self._commit_start(records)
        self._hand_out(records)
        self._pause_full_queues()
        now = time.monotonic()
        if now >= self._commit_at and not self._committing:
            self._commit_at = now + self.settings.commit_seconds
            self._commit_soon()
        if now >= self._watch_at:
            self._watch_at = now + WATCH_SECONDS
            self._watch(now)

    # Records

    def _hand_out(self, records: list[ConsumerRecord]) -> None:
        for name, some in groupby(records, attrgetter("topic", "partition")):
            work = self.works.get(TopicPartition(*name))
            if work is not None:
                work.worker.offer(work, list(some))

    def _pause_full_queues(self) -> None:
        """Pause the partitions of full queues, and resume the partitions of queues with room."""
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

    # Rebalances, called by poll

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        for name in partitions:
            if name in self.works:
                continue
            work = PartitionWork(name, self._worker_for(name))
            self.works[name] = work
            if self.settings.keep_start:
                self._beginning.append(work)

    def _worker_for(self, name: TopicPartition) -> StreamWorker:
        """The stream that still handles this partition, otherwise the one with the fewest partitions."""
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
        gone = self._revoke(partitions)
        ends_at = time.monotonic() + self.settings.let_go_seconds
        for work in gone:
            while not work.worker.wait_until_idle(work, POLL_SECONDS):
                if time.monotonic() >= min(ends_at, self._ends_at):
                    log.warning(
                        "%s goes to another member while its handler is still busy: what it is at will be "
                        "handled again",
                        work.name,
                    )
                    break
        self._commit_now(gone, COMMIT_SECONDS)

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        gone = self._revoke(partitions)
        if gone:
            names = ", ".join(str(work.name) for work in gone)
            log.warning("%s went to other members; what was not committed is handled again by them", names)

    def _revoke(self, partitions: list[TopicPartition]) -> list[PartitionWork]:
        gone = [self.works.pop(name) for name in partitions if name in self.works]
        for work in gone:
            work.worker.revoke(work)
        self._beginning = [work for work in self._beginning if not work.revoked]
        return gone

    # Commits

    def _commit_start(self, records: list[ConsumerRecord]) -> None:
        """Commit the first positions of partitions without a committed offset.

        With auto.offset.reset=latest a program that is killed before its first commit would otherwise skip
        records at its next start.
        """
        for work in self._beginning:
            if work.start is None:
                first = (record for record in records if (record.topic, record.partition) == work.name)
                record = next(first, None)
                work.start = record.offset if record is not None else None
        try:
            committed = self.consumer.committed([work.name for work in self._beginning], COMMIT_SECONDS)
            starts: dict[PartitionKey, int | OffsetAndMetadata] = {}
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
            log.warning("the first positions could not be committed: %s", one_line(error))

    def _handled(self, works: Iterable[PartitionWork]) -> dict[PartitionKey, int | OffsetAndMetadata]:
        """The offsets of handled records that are not committed."""
        offsets: dict[PartitionKey, int | OffsetAndMetadata] = {}
        for work in works:
            last = work.handled
            if last is not None and last.offset + 1 > work.committed:
                offsets[work.name] = OffsetAndMetadata(last.offset + 1, "", known_epoch(last.leader_epoch))
        return offsets

    def _commit_soon(self) -> None:
        works = dict(self.works)
        offsets = self._handled(works.values())
        if not offsets:
            return

        def done(committed: Mapping[TopicPartition, OffsetAndMetadata], error: KafkaError | None) -> None:
            if error is None:
                for name, entry in committed.items():
                    works[name].committed = entry.offset
            else:
                log.warning("handled records could not be committed yet: %s", one_line(error))
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
                one_line(error),
            )

    # Warnings

    def _watch(self, now: float) -> None:
        for worker in self.workers:
            if worker.full and worker not in self._warned_full:
                self._warned_full.add(worker)
                log.info(
                    "stream %s: records come faster than its handler takes them: %d wait, and its partitions "
                    "are paused until there is room",
                    worker.stream, worker.waiting,
                )  # fmt: skip
            record = worker.at
            busy = now - worker.began
            if record is None or busy < self.settings.slow_seconds or self._warned_slow.get(worker) is record:
                continue
            self._warned_slow[worker] = record
            log.warning(
                "stream %s: its handler is at %s for %.0f s, and %d records wait behind it",
                worker.stream, place(record), busy, max(worker.waiting - 1, 0),
            )  # fmt: skip
        lags = []
        for name in list(self.works):
            with contextlib.suppress(KafkaError):
                lags.append(self.consumer.current_lag(name))
        known = [lag for lag in lags if lag is not None]
        self.lag = sum(known) if len(known) == len(self.works) else None

    # Close

    def _finish(self) -> None:
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
                log.warning("leaving the group failed: %s", one_line(error))
