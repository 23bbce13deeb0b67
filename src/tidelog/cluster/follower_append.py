"""The appends, truncations and flushes of a follower. They use the append queue of the partition.

An append fails if the leader epoch has changed since its fetch. So no record of the old leader is appended
after the change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.cluster.worker import InlineWorker, Worker
from tidelog.errors import FencedLeaderEpoch, KafkaStorageError
from tidelog.storage.config import LONG_MAX
from tidelog.storage.follower_appender import FetchedRecords, PendingCopy, UnexpectedAppendOffset
from tidelog.storage.truncation import Truncation

if TYPE_CHECKING:
    from tidelog.clock import Clock, Scheduler
    from tidelog.cluster.partition import Partition
    from tidelog.storage.flush_job import FlushJob
    from tidelog.storage.log import Log

HEAVY_BYTES = 64 * 1024
"""From this size on, the worker checks the CRCs and writes."""

Appended = Callable[[FetchedRecords | None, BaseException | None], None]
Truncated = Callable[[int, BaseException | None], None]


def follower_log(partition: Partition, leader_epoch: int) -> Log:
    """The log of a follower.

    Raises FencedLeaderEpoch if the leader changed, KafkaStorageError if it is offline.
    """
    if partition.leader_epoch != leader_epoch or partition.is_leader:
        raise FencedLeaderEpoch(
            f"{partition.name} has leader epoch {partition.leader_epoch} since, fetched was {leader_epoch}"
        )
    if partition.log is None or partition.offline or partition.log.closed:
        raise KafkaStorageError(f"the folder of {partition.name} is offline")
    return partition.log


def append_now(
    partition: Partition, data: memoryview, leader_epoch: int, clock: Clock
) -> tuple[int, int] | None:
    """Append one small batch in this turn of the loop; returns its last offset and its leader epoch.

    Returns None and changes nothing if the append has to wait or needs the checks of `FollowerAppend`. Raises
    KafkaStorageError.
    """
    log = partition.log
    if (
        log is None
        or partition.offline
        or log.closed
        or partition.leader_epoch != leader_epoch
        or partition.leader_id == partition.broker_id
        or not partition.appends.is_at_rest
        or len(data) >= HEAVY_BYTES
        or log.config.flush_messages != LONG_MAX
    ):
        return None
    return log.follower_appender.append_one(data, clock)


class FollowerAppend:
    """Appends the bytes of one partition in a fetch answer.

    `done` gets the batches, or None without batches.
    """

    __slots__ = (
        "_data",
        "_done",
        "_flush",
        "_is_flushed",
        "_is_wanted",
        "_leader_epoch",
        "_now_ms",
        "_partition",
        "_pending",
        "_records",
        "_restart",
        "_scheduler",
        "worker",
    )

    def __init__(
        self,
        partition: Partition,
        data: memoryview,
        leader_epoch: int,
        now_ms: int,
        done: Appended,
        is_wanted: Callable[[], bool] = lambda: True,
        *,
        scheduler: Scheduler,
    ) -> None:
        """`is_wanted` is called when the append begins; it says whether the partition is still fetched."""
        self._scheduler = scheduler
        self._flush: FlushJob | None = None
        self._is_flushed = False
        self.worker: Worker | None = None
        self._is_wanted = is_wanted
        self._partition = partition
        self._data = data
        self._leader_epoch = leader_epoch
        self._now_ms = now_ms
        self._done = done
        self._records: FetchedRecords | None = None
        self._pending: PendingCopy | None = None
        self._restart: Truncation | None = None

    # -- append_queue.QueuedAppend

    def begin(self) -> Callable[[], object] | None:
        try:
            write = self._begin()
        except Exception as error:
            self._done(None, error)
            return None
        if write is None:
            self._done(self._records, None)
        return write

    def _begin(self) -> Callable[[], object] | None:
        log = follower_log(self._partition, self._leader_epoch)
        if not self._is_wanted():
            raise FencedLeaderEpoch(f"{self._partition.name} is not fetched any more")
        appender = log.follower_appender
        if self._records is None:
            try:
                self._records = appender.check(self._data)
            except UnexpectedAppendOffset as error:
                return self._begin_anew(log, error)
        records = self._records
        if records is None:
            return None
        if len(self._data) < HEAVY_BYTES:
            appender.append_rest(records, self._now_ms)
        if records.is_appended:
            return None if log.config.flush_messages == LONG_MAX else self._begin_flush(log)
        self._pending = appender.prepare(records, self._now_ms)
        return self._pending.write

    def _begin_flush(self, log: Log) -> Callable[[], object] | None:
        """Sync the records (flush.messages) before the next fetch tells the leader of them."""
        if self._is_flushed or log.log_end_offset - log.recovery_point < log.config.flush_messages:
            return None
        self._flush = job = log.begin_flush()
        if job is None:
            return None
        # The appends of other partitions do not wait for these syncs.
        self.worker = InlineWorker(self._scheduler)
        return job.run

    def _begin_anew(self, log: Log, error: UnexpectedAppendOffset) -> Callable[[], object]:
        """Begin an empty log with the leader's first batch, which begins before the leader's log start
        offset.
        """
        end = log.log_end_offset
        if not (log.log_start_offset == end and error.first_offset < end <= error.last_offset):
            raise error
        self._restart = restart = log.truncation_fully(error.first_offset, self._now_ms)
        restart.begin()
        return restart.cut

    def written(self, error: BaseException | None) -> Callable[[], object] | None:
        flush: Callable[[], object] | None = None
        try:
            if self._restart is not None:
                restart, self._restart = self._restart, None
                _end(self._partition, restart, error)
            elif self._flush is not None:
                job, self._flush = self._flush, None
                _end_flush(self._partition, job, error, self._now_ms)
                self._is_flushed, self.worker = True, None
            else:
                flush = self._finish(error)
        except Exception as failure:
            self._done(None, failure)
            return None
        if flush is None:
            # The next records go to the next segment, after a waiting change of the leader.
            self._partition.appends.waiting.appendleft(self)
        return flush

    def _finish(self, error: BaseException | None) -> Callable[[], object] | None:
        """Add the written records to the log. A flush comes before a change of the leader."""
        log, pending = self._partition.log, self._pending
        assert log is not None
        assert pending is not None
        if error is not None:
            raise log.follower_appender.abandon(pending, error)
        if log.closed:
            raise KafkaStorageError(f"{self._partition.name} was closed during the write")
        log.follower_appender.finish(pending)
        self._is_flushed = False
        return None if log.config.flush_messages == LONG_MAX else self._begin_flush(log)


class FollowerFlush:
    """Syncs the log of a follower; `done` gets the log end offset.

    With flush.messages, the first fetch of a follower must not tell the leader of unsynced records, which a
    crash can remove. There are some if this broker wrote them as leader and lost the leadership before the
    flush.
    """

    __slots__ = ("_done", "_job", "_leader_epoch", "_now_ms", "_partition", "worker")

    def __init__(
        self, partition: Partition, leader_epoch: int, scheduler: Scheduler, done: Truncated
    ) -> None:
        self._partition = partition
        self._leader_epoch = leader_epoch
        self._now_ms = scheduler.clock.ms()
        self._done = done
        self._job: FlushJob | None = None
        # The appends of other partitions do not wait for these syncs.
        self.worker: Worker | None = InlineWorker(scheduler)

    # -- append_queue.QueuedAppend

    def begin(self) -> Callable[[], object] | None:
        try:
            log = follower_log(self._partition, self._leader_epoch)
            self._job = log.begin_flush()
        except Exception as error:
            self._done(-1, error)
            return None
        if self._job is None:
            self._done(log.log_end_offset, None)
            return None
        return self._job.run

    def written(self, error: BaseException | None) -> None:
        assert self._job is not None
        try:
            log = _end_flush(self._partition, self._job, error, self._now_ms)
        except Exception as failure:
            self._done(-1, failure)
        else:
            self._done(log.log_end_offset, None)


class FollowerTruncation:
    """Cuts the log back to `offset`, or restarts it there (`fully`); `done` gets the log end offset."""

    __slots__ = (
        "_done",
        "_fully",
        "_is_found",
        "_leader_epoch",
        "_now_ms",
        "_offset",
        "_partition",
        "_steps",
        "worker",
    )

    def __init__(
        self,
        partition: Partition,
        leader_epoch: int,
        scheduler: Scheduler,
        done: Truncated,
        *,
        offset: int,
        fully: bool = False,
    ) -> None:
        self._partition = partition
        self._offset = offset
        self._leader_epoch = leader_epoch
        self._now_ms = scheduler.clock.ms()
        self._done = done
        self._fully = fully
        self._steps: Truncation | None = None
        self._is_found = False
        # The appends of other partitions do not wait for these syncs.
        self.worker: Worker | None = InlineWorker(scheduler)

    # -- append_queue.QueuedAppend

    def begin(self) -> Callable[[], object] | None:
        try:
            step = self._begin()
        except Exception as error:
            self._done(-1, error)
            return None
        if step is None:
            assert self._partition.log is not None
            self._done(self._partition.log.log_end_offset, None)
        return step

    def _begin(self) -> Callable[[], object] | None:
        log = follower_log(self._partition, self._leader_epoch)
        if self._steps is None:
            if not self._fully and self._offset >= log.log_end_offset:
                log.forget_empty_epoch()
                return None
            make = log.truncation_fully if self._fully else log.truncation
            self._steps = make(self._offset, self._now_ms)
            return self._steps.find
        self._is_found = True
        self._steps.begin()
        return self._steps.cut

    def written(self, error: BaseException | None) -> None:
        steps = self._steps
        assert steps is not None
        try:
            if self._is_found:
                _end(self._partition, steps, error)
            elif error is not None:
                raise _storage_error(self._partition, error)
        except Exception as failure:
            self._done(-1, failure)
            return
        if self._is_found:
            assert self._partition.log is not None
            self._partition.changed()
            self._done(self._partition.log.log_end_offset, None)
        else:
            self._partition.appends.waiting.appendleft(self)


LogChange = FollowerTruncation | FollowerFlush
"""What a follower does to a log between fetches."""


def truncation_offset(found: Log, leader_epoch: int, leader_end_offset: int) -> int:
    """The offset to truncate a log to; the leader's log ends `leader_epoch` at `leader_end_offset`.

    A log may diverge in several epochs: the next fetch checks again.
    """
    end = found.log_end_offset
    epoch, epoch_end = found.end_offset_for_epoch(leader_epoch)
    if epoch < 0:
        return min(leader_end_offset, end)
    if epoch != leader_epoch:
        return min(epoch_end, end)
    return min(epoch_end, leader_end_offset, end)


def _end_flush(partition: Partition, job: FlushJob, error: BaseException | None, now_ms: int) -> Log:
    log = partition.log
    assert log is not None
    if error is not None:
        raise _storage_error(partition, error, "cannot be flushed")
    if log.closed:
        raise KafkaStorageError(f"{partition.name} was closed during its flush")
    log.end_flush(job, now_ms)
    return log


def _end(partition: Partition, steps: Truncation, error: BaseException | None) -> None:
    log = partition.log
    assert log is not None
    if error is not None:
        steps.failed()
        raise _storage_error(partition, error)
    if log.closed:
        raise KafkaStorageError(f"{partition.name} was closed during its truncation")
    steps.end()


def _storage_error(
    partition: Partition, error: BaseException, what: str = "cannot be truncated"
) -> BaseException:
    """The error to report; a broken disk takes its log folder offline."""
    if not isinstance(error, OSError):
        return error
    assert partition.log is not None
    return partition.log.storage_error(what, error)
