"""LeaderAppend: a batch of a client or a coordinator, from its check until it is in the log of the leader."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tidelog.cluster.worker import ReadingWorker, Worker
from tidelog.errors import KafkaStorageError, MessageTooLarge, NotLeaderOrFollower
from tidelog.records.check import CheckedBatch, check_produced
from tidelog.storage.append import AppendOrigin, AppendResult, DuplicateBatch, PendingAppend
from tidelog.storage.producer_state_manager import Verification
from tidelog.storage.reads import CACHED, CachedReads, NotCached
from tidelog.storage.refused_batches import Sequences

if TYPE_CHECKING:
    from tidelog.clock import Scheduler
    from tidelog.cluster.partition import Partition


class LeaderAppend:
    """Checks and appends one batch, then calls `done` once with the result or the error.

    The error is NotLeaderOrFollower if the leader epoch changes before the write. The check for a duplicate
    may read the log from the disk; the appends behind this one wait for that read.
    """

    __slots__ = (
        "_reads",
        "allow_zstd",
        "batch",
        "data",
        "done",
        "guard",
        "heavy",
        "leader_epoch",
        "now_ms",
        "origin",
        "partition",
        "pending",
        "scheduler",
        "transaction_version",
        "worker",
    )

    def __init__(
        self,
        partition: Partition,
        data: memoryview,
        heavy: bool,
        allow_zstd: bool,
        origin: AppendOrigin,
        now_ms: int,
        done: Callable[[AppendResult | None, BaseException | None], None],
        guard: Verification | None = None,
        transaction_version: int = 0,
        *,
        scheduler: Scheduler,
    ) -> None:
        self.partition = partition
        self.scheduler = scheduler
        self.worker: Worker | None = None
        self._reads: CachedReads = CACHED
        self.guard = guard
        self.transaction_version = transaction_version
        self.data = data
        self.heavy = heavy
        self.allow_zstd = allow_zstd
        self.origin = origin
        self.now_ms = now_ms
        self.done = done
        self.batch: CheckedBatch | None = None  # set when it is checked
        self.pending: PendingAppend | None = None  # set while the worker writes it
        self.leader_epoch = partition.leader_epoch

    def submit(self, worker: Worker) -> None:
        """Check the batch, off the loop if it is large, and append it when its turn comes."""
        if not self.heavy:
            try:
                self._check()
            except MessageTooLarge:
                self.heavy = True
            except Exception as error:
                self.done(None, error)
                return
        if self.heavy:
            worker.submit(self._check, lambda _, error: self._checked(error))
        else:
            self._checked(None)

    def _check(self) -> None:
        assert self.partition.rules is not None
        rules = self.partition.rules.of(
            on_loop=not self.heavy,
            allow_zstd=self.allow_zstd,
            from_client=self.origin is AppendOrigin.CLIENT,
        )
        self.batch = check_produced(self.data, rules, self.now_ms)

    def _checked(self, error: BaseException | None) -> None:
        if error is not None:
            self.done(None, error)
        else:
            self.partition.appends.put(self)

    # -- append_queue.QueuedAppend

    def begin(self) -> Callable[[], object] | None:
        self.worker = None
        try:
            outcome = self._append()
        except NotCached as cold:
            self.worker = ReadingWorker(self.scheduler)
            return partial(self._bring_in, cold)
        except Exception as error:
            self.done(None, error)
            return None
        if isinstance(outcome, PendingAppend):
            self.pending = outcome
            return outcome.write
        self.done(outcome, None)
        return None

    def _append(self) -> AppendResult | PendingAppend:
        """Append the batch, or prepare it if the worker writes it."""
        assert self.batch is not None
        partition = self.partition
        log = partition.leader_log()
        if self.leader_epoch != partition.leader_epoch:
            # The producer retries. A coordinator has begun to read its partition anew without this record.
            error = NotLeaderOrFollower(f"{partition.name} is led with a newer epoch since the append came")
            if self.origin is AppendOrigin.CLIENT:
                partition.refuse(Sequences.of(self.batch), error)
            raise error
        prepared = log.appender.prepare(
            self.batch,
            self.leader_epoch,
            self.now_ms,
            origin=self.origin,
            guard=self.guard,
            transaction_version=self.transaction_version,
            reads=self._reads,
        )
        if isinstance(prepared, DuplicateBatch):
            return prepared.result
        return prepared if self.heavy else log.appender.write(prepared, self.now_ms)

    def _bring_in(self, cold: NotCached) -> None:
        self._reads = CachedReads({**self._reads.brought, **cold.bring_in()})

    def written(self, error: BaseException | None) -> None:
        if self.pending is None and error is None:  # the disk was read
            self.partition.appends.waiting.appendleft(self)
            return
        result: AppendResult | None = None
        try:
            result = self._finish(error)
        except Exception as failure:
            error = failure
        self.done(result, error)

    def _finish(self, error: BaseException | None) -> AppendResult:
        log, pending = self.partition.log, self.pending
        assert log is not None
        if pending is None:
            raise KafkaStorageError(f"{self.partition.name} cannot be read: {error}")
        if error is not None:
            raise log.appender.abandon(pending, error)
        if log.closed:
            self.partition.leader_log()  # raises if it was deleted or went offline during the write
        return log.appender.finish(pending, self.now_ms)
