"""Partition: a partition on this broker, with its log, its leader and the queue of its appends.

Appends of a partition are prepared, written and finished one after the other. A small one takes one turn of
the loop; while the worker writes a large one, later appends wait in the queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from tidelog.cluster.append_rules import AppendRules, AppendRulesTable
from tidelog.cluster.worker import Worker
from tidelog.errors import (
    FencedLeaderEpoch,
    KafkaError,
    KafkaStorageError,
    MessageTooLarge,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    UnknownLeaderEpoch,
)
from tidelog.metadata.state import PartitionState
from tidelog.records.check import CheckedBatch, check_produced
from tidelog.storage.append import AppendOrigin, AppendResult, DuplicateBatch, PendingAppend
from tidelog.storage.config import LONG_MAX
from tidelog.storage.log import Log
from tidelog.storage.log_listener import LogListener
from tidelog.storage.producer_state_manager import Verification

# From this size on, the worker checks and writes a batch.
HEAVY_BYTES = 64 * 1024


# The outcome of a batch that is not in the file yet.
NOT_WRITTEN = KafkaStorageError("the batch was not written")

FlushWaiter = tuple[int, Callable[[BaseException | None], None]]  # the append's base offset, the callback


class Append:
    """A batch of a produce request for one partition, until it is in the log."""

    __slots__ = (
        "allow_zstd",
        "batch",
        "data",
        "done",
        "guard",
        "heavy",
        "leader_epoch",
        "now_ms",
        "origin",
        "transaction_version",
    )

    def __init__(
        self,
        data: memoryview,
        heavy: bool,
        allow_zstd: bool,
        origin: AppendOrigin,
        now_ms: int,
        done: Callable[[AppendResult | None, BaseException | None], None],
        guard: Verification | None = None,
        transaction_version: int = 0,
    ) -> None:
        self.guard = guard
        self.transaction_version = transaction_version
        self.data = data
        self.heavy = heavy
        self.allow_zstd = allow_zstd
        self.origin = origin
        self.now_ms = now_ms
        self.done = done
        self.batch: CheckedBatch | None = None  # set when it is checked
        self.leader_epoch = -1  # set when it is submitted


class PartitionWatcher(Protocol):
    """A reader that has read all that the partition had for it."""

    def changed(self) -> None: ...


class Replica:
    """What the leader knows about a follower."""

    __slots__ = ("broker_id", "last_caught_up_ms", "log_end_offset", "log_start_offset")

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.log_end_offset = -1
        self.log_start_offset = -1
        self.last_caught_up_ms = 0


class Partition(LogListener):
    __slots__ = (
        "_changes",
        "_hold",
        "_is_held",
        "_joined",
        "_next_flush",
        "_queue",
        "_rules_table",
        "_worker",
        "broker_id",
        "end_watchers",
        "flushing",
        "followers",
        "index",
        "isr",
        "leader_epoch",
        "leader_id",
        "log",
        "offline",
        "on_high_watermark",
        "partition_epoch",
        "replicas",
        "rules",
        "topic",
        "topic_id",
        "unwritten",
        "watchers",
        "writing",
    )

    def __init__(
        self,
        topic: str,
        index: int,
        topic_id: bytes,
        broker_id: int,
        worker: Worker,
        rules_table: AppendRulesTable | None = None,
    ) -> None:
        self.topic = topic
        self.index = index
        self.topic_id = topic_id
        self.broker_id = broker_id
        self.log: Log | None = None
        # The log folder failed: nothing is read or written until the broker restarts.
        self.offline = True
        self.leader_id = -1
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.replicas: list[int] = []
        self.isr: list[int] = []
        self.followers: dict[int, Replica] = {}
        self.rules: AppendRules | None = None
        self._rules_table = rules_table or AppendRulesTable()
        # Called when the high watermark moved: it may complete delayed produces and fetches.
        self.on_high_watermark: Callable[[Partition], None] | None = None
        # Called once with the next change; those that read to the log end with the next append, too.
        self.watchers: dict[PartitionWatcher, None] = {}
        self.end_watchers: dict[PartitionWatcher, None] = {}
        # Appends that wait for the running flush, and appends that wait for the next one.
        self.flushing: list[FlushWaiter] | None = None
        self._next_flush: list[FlushWaiter] = []
        self._worker = worker
        self._queue: deque[Append] = deque()
        self._hold: Callable[[], None] | None = None
        self._is_held = False
        self._changes: list[Callable[[], None]] = []  # changes of the leader that wait for an append
        self.writing = False  # or held: later appends wait in both cases
        # Small batches to append at the end of this turn of the loop, and their bytes.
        self.unwritten: list[CheckedBatch] = []
        self._joined = bytearray()

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.index}"

    @property
    def is_leader(self) -> bool:
        return self.leader_id == self.broker_id

    def become_leader(self, log: Log, state: PartitionState) -> None:
        """Lead the partition. With the epoch that it is led with already, only the replicas can change.

        A new epoch begins at the log end: no append may be at the worker (`between_appends`). If this is the
        only replica, its whole log is committed.
        """
        is_new = state.leader_epoch != self.leader_epoch or not self.is_leader
        self._take(state)
        known = {} if is_new else self.followers
        others = [broker for broker in self.replicas if broker != self.broker_id]
        self.followers = {broker: known.get(broker) or Replica(broker) for broker in others}
        self._serve(log)
        if is_new:
            log.assign_epoch(state.leader_epoch, log.log_end_offset)
        self.advance_high_watermark()
        self.changed()

    def become_follower(self, log: Log, state: PartitionState) -> bool:
        """Follow the leader, or wait for one; returns whether the leader or its epoch is new.

        The log stays as it is. No append may be at the worker (`between_appends`).
        """
        is_new = (state.leader, state.leader_epoch) != (self.leader_id, self.leader_epoch)
        self._take(state)
        self.followers = {}
        self._serve(log)
        return is_new

    def stop_leading(self) -> None:
        """The controller stopped this replica: it leads no more until there is a newer epoch."""
        self.leader_id = -1
        self.followers = {}

    def _take(self, state: PartitionState) -> None:
        self.leader_id = state.leader
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.replicas = list(state.replicas)
        self.isr = list(state.isr)

    def _serve(self, log: Log) -> None:
        self.log = log
        self.offline = False
        log.listen(self)
        self.config_changed()

    def log_start_moved(self, log: Log) -> None:
        self.changed()

    def changed(self) -> None:
        """Tell the watchers that readers would see something new; each has to watch again."""
        for watchers in (self.watchers, self.end_watchers):
            if watchers:
                told = list(watchers)
                watchers.clear()
                for watcher in told:
                    watcher.changed()

    def config_changed(self) -> None:
        assert self.log is not None
        self.rules = self._rules_table.of(self.log.appender.rules)

    def leader_log(self, current_leader_epoch: int = -1) -> Log:
        """The log, if this broker leads the partition with the leader epoch that the caller expects."""
        if current_leader_epoch >= 0 and current_leader_epoch != self.leader_epoch:
            if current_leader_epoch < self.leader_epoch:
                raise FencedLeaderEpoch(
                    f"{self.name} is led with epoch {self.leader_epoch}, the request has the older "
                    f"{current_leader_epoch}"
                )
            raise UnknownLeaderEpoch(
                f"{self.name} is led with epoch {self.leader_epoch} here, the request has the newer "
                f"{current_leader_epoch}"
            )
        if self.leader_id != self.broker_id:
            raise NotLeaderOrFollower(f"{self.name} is led by broker {self.leader_id}, not by this one")
        if self.log is None or self.offline:
            raise KafkaStorageError(f"the folder of {self.name} is offline")
        return self.log

    def follower(self, replica_id: int) -> Replica:
        """The state of a follower that fetches. KafkaError if it is no replica of the partition."""
        found = self.followers.get(replica_id)
        if found is None:
            raise NotLeaderOrFollower(f"broker {replica_id} has no replica of {self.name} to keep up")
        return found

    # -- appending ---------------------------------------------------------------------------------

    @property
    def min_isr(self) -> int:
        """How many replicas have to be in sync for acks=all: min.insync.replicas, at most all of them."""
        assert self.log is not None
        return min(self.log.config.min_insync_replicas, len(self.replicas))

    def check_in_sync_replicas(self) -> None:
        """KafkaError if too few replicas are in sync for acks=all; nothing is written then."""
        if len(self.isr) < self.min_isr:
            raise NotEnoughReplicas(
                f"{self.name} has {len(self.isr)} replicas in sync, "
                f"min.insync.replicas asks for {self.min_isr}"
            )

    def can_append_now(self, acks: int) -> bool:
        """Whether a small batch can be appended and answered in this turn of the loop."""
        return (
            not self.writing
            and not self._queue
            and self.leader_id == self.broker_id
            and not self.offline
            and (acks != -1 or (len(self.replicas) == 1 and self.flushing is None))
        )

    def can_append_in_turn(self, acks: int) -> bool:
        """The same for `append_in_turn`, which answers after the write without a flush."""
        log = self.log
        return self.can_append_now(acks) and log is not None and log.config.flush_messages == LONG_MAX

    def can_append_own_now(self) -> bool:
        """The same for batches that this broker made, with acks=all; they are not joined with others."""
        return not self.unwritten and self.can_append_now(-1)

    def check_now(self, data: memoryview, now_ms: int, allow_zstd: bool) -> CheckedBatch:
        """Check a client's batch on the loop. KafkaError if it is invalid, or too large for the loop."""
        assert self.rules is not None
        rules = self.rules.on_loop if allow_zstd else self.rules.on_loop_without_zstd
        return check_produced(data, rules, now_ms)

    def append_now(self, batch: CheckedBatch, now_ms: int, guard: Verification | None = None) -> AppendResult:
        """Append a small batch in this turn of the loop, if `can_append_now`."""
        log = self.log
        assert log is not None
        prepared = log.appender.prepare(batch, self.leader_epoch, now_ms, guard=guard)
        if isinstance(prepared, DuplicateBatch):
            return prepared.result
        result = log.appender.write(prepared, now_ms)
        if not result.needs_flush:
            self.advance_high_watermark()
        return result

    def append_in_turn(self, batch: CheckedBatch) -> None:
        """Queue a small batch for `write_turn`, which appends all of this turn of the loop together.

        Only if `can_append_in_turn`. A batch that begins a transaction is appended at once instead: the
        batches after it are checked against the producer's new state.
        """
        self._joined += batch.data  # the network buffer is reused for the next frame
        self.unwritten.append(batch)

    def write_turn(self, now_ms: int) -> list[int | DuplicateBatch | KafkaError]:
        """Append the batches of `append_in_turn`; returns the base offset or the error of each.

        KafkaError if none can be appended. The caller calls `turn_written` in both cases.
        """
        batches, data = self.unwritten, self._joined
        self.unwritten, self._joined = [], bytearray()
        log = self.log
        assert log is not None
        if log.closed:
            self.leader_log()  # raises if it is deleted or offline by now
        return log.appender.append_together(batches, data, self.leader_epoch, now_ms)

    def turn_written(self) -> None:
        """Advance the high watermark over the written batches, and continue with the queued appends."""
        self.advance_high_watermark()
        self._drain()

    def append_one_own_now(self, batch: memoryview, now_ms: int, version: int = 0) -> AppendResult:
        """Append a batch that this broker made, if `can_append_own_now`.

        `version` is the transaction version of a marker. The caller advances the high watermark.
        """
        assert self.log is not None
        return self.log.appender.write(self._prepare_own(self.log, batch, now_ms, version), now_ms)

    def _prepare_own(self, log: Log, batch: memoryview, now_ms: int, version: int) -> PendingAppend:
        assert self.rules is not None
        prepared = log.appender.prepare(
            check_produced(batch, self.rules.own_on_loop, now_ms),
            self.leader_epoch,
            now_ms,
            origin=AppendOrigin.COORDINATOR,
            transaction_version=version,
        )
        assert isinstance(prepared, PendingAppend)  # only clients' batches can be duplicates
        return prepared

    def append_own_now(
        self, batches: Sequence[memoryview], now_ms: int, versions: Sequence[int]
    ) -> list[AppendResult | KafkaError]:
        """The same for several batches, with one write. An invalid batch is left out."""
        log = self.log
        assert log is not None
        outcomes: list[AppendResult | KafkaError] = []
        pending: list[PendingAppend] = []
        for batch, version in zip(batches, versions, strict=True):
            try:
                pending.append(self._prepare_own(log, batch, now_ms, version))
            except KafkaError as error:
                outcomes.append(error)
            except BaseException:
                if pending:
                    log.appender.abandon(pending[0])
                raise
            else:
                outcomes.append(NOT_WRITTEN)
        if not pending:
            return outcomes
        try:
            results = iter(log.appender.write_all(pending, now_ms))
        except KafkaError as failure:
            return [failure if outcome is NOT_WRITTEN else outcome for outcome in outcomes]
        return [next(results) if outcome is NOT_WRITTEN else outcome for outcome in outcomes]

    def submit(self, append: Append) -> None:
        """Append, with checks and writes off the loop; `append.done` is called once, with the outcome.

        If the leader epoch changes before the write, the outcome is NotLeaderOrFollower.
        """
        append.leader_epoch = self.leader_epoch
        if not append.heavy:
            try:
                self._check(append)
            except MessageTooLarge:
                append.heavy = True
            except Exception as error:
                append.done(None, error)
                return
        if append.heavy:
            self._worker.submit(lambda: self._check(append), lambda _, error: self._checked(append, error))
        else:
            self._checked(append, None)

    def _check(self, append: Append) -> None:
        assert self.rules is not None
        rules = self.rules.of(
            on_loop=not append.heavy,
            allow_zstd=append.allow_zstd,
            from_client=append.origin is AppendOrigin.CLIENT,
        )
        append.batch = check_produced(append.data, rules, append.now_ms)

    def _checked(self, append: Append, error: BaseException | None) -> None:
        if error is not None:
            append.done(None, error)
            return
        self._queue.append(append)
        self._drain()

    def between_appends(self, change: Callable[[], None]) -> None:
        """Call `change` now, or when the append at the worker and those of this turn are written.

        Appends that are queued then are made after the change.
        """
        if self._is_appending:
            self._changes.append(change)
        else:
            change()

    @property
    def _is_appending(self) -> bool:
        return bool(self.unwritten) or (self.writing and not self._is_held)

    def hold(self, held: Callable[[], None]) -> None:
        """Queue all appends between the call of `held` and `release`."""
        self._hold = held
        self._drain()

    def release(self) -> None:
        self._hold = None
        if self._is_held:
            self._is_held = self.writing = False
            self._drain()

    def _drain(self) -> None:
        if self.unwritten:
            return  # `turn_written` continues
        while self._changes and not self._is_appending:
            self._changes.pop(0)()
        if self._hold is not None and not self.writing:
            held, self._hold = self._hold, None
            self._is_held = self.writing = True
            held()
            return
        while self._queue and not self.writing:
            append = self._queue.popleft()
            try:
                result = self._begin(append)
            except Exception as error:
                append.done(None, error)
            else:
                if result is not None:
                    append.done(result, None)

    def _begin(self, append: Append) -> AppendResult | None:
        """Append the batch; None if the worker writes it."""
        assert append.batch is not None
        log = self.leader_log()
        if append.leader_epoch != self.leader_epoch:
            # The producer retries. A coordinator has begun to read its partition anew without this record.
            raise NotLeaderOrFollower(f"{self.name} is led with a newer epoch since the append came")
        prepared = log.appender.prepare(
            append.batch,
            self.leader_epoch,
            append.now_ms,
            origin=append.origin,
            guard=append.guard,
            transaction_version=append.transaction_version,
        )
        if isinstance(prepared, DuplicateBatch):
            return prepared.result
        if not append.heavy:
            return log.appender.write(prepared, append.now_ms)
        self.writing = True
        self._worker.submit(prepared.write, lambda _, error: self._written(append, prepared, error))
        return None

    def _written(self, append: Append, pending: PendingAppend, error: BaseException | None) -> None:
        self.writing = False
        result: AppendResult | None = None
        try:
            result = self._finish(append, pending, error)
        except Exception as failure:
            error = failure
        append.done(result, error)
        self._drain()

    def _finish(self, append: Append, pending: PendingAppend, error: BaseException | None) -> AppendResult:
        log = self.log
        assert log is not None
        if error is not None:
            raise log.appender.abandon(pending, error)
        if log.closed:
            self.leader_log()  # raises if it was deleted or went offline during the write
        return log.appender.finish(pending, append.now_ms)

    # -- watermarks --------------------------------------------------------------------------------

    def advance_high_watermark(self) -> bool:
        """Move the high watermark to the smallest log end offset of the replicas in sync; it never falls."""
        assert self.log is not None
        if len(self.replicas) == 1 and self.flushing is None and not self._next_flush:
            self.log.commit_all()
            if self.on_high_watermark is not None:
                self.on_high_watermark(self)
            return True
        if not self.is_leader:
            return False  # a flush ended after this broker lost the partition
        offset = self._flushed_up_to(self.log.log_end_offset)
        for broker_id in self.isr:
            if broker_id != self.broker_id:
                offset = min(offset, self.followers[broker_id].log_end_offset)
        if offset <= self.log.high_watermark:
            if self.end_watchers:
                self.changed()  # followers read uncommitted records
            return False
        self.log.update_high_watermark(offset)
        if self.on_high_watermark is not None:
            self.on_high_watermark(self)
        return True

    # -- flushing ----------------------------------------------------------------------------------

    def await_flush(self, base_offset: int, done: Callable[[BaseException | None], None]) -> None:
        self._next_flush.append((base_offset, done))

    def begin_flush(self) -> list[FlushWaiter]:
        """The appends that a flush beginning now includes."""
        self.flushing, self._next_flush = self._next_flush, []
        return self.flushing

    def flush_ended(self, waiting: list[FlushWaiter], error: BaseException | None) -> None:
        self.flushing = None
        if error is None:
            self.advance_high_watermark()
        for _, done in waiting:
            done(error)

    @property
    def has_flush_waiters(self) -> bool:
        return bool(self._next_flush)

    def _flushed_up_to(self, log_end_offset: int) -> int:
        """Where readers have to stop: before the first append that waits for its flush, or at the log end."""
        for waiters in (self.flushing, self._next_flush):
            if waiters:
                return min(log_end_offset, waiters[0][0])
        return log_end_offset

    # -- deleting ----------------------------------------------------------------------------------

    def low_watermark(self) -> int:
        """The offset below which every replica has deleted its records."""
        assert self.log is not None
        starts = [self.followers[b].log_start_offset for b in self.isr if b != self.broker_id]
        return min([self.log.log_start_offset, *starts])

    def delete_records_before(self, offset: int) -> int:
        """Move the log start offset; -1 is the high watermark. Returns the requested offset."""
        return self.leader_log().delete_records_before(offset)
