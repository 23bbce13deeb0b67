"""One partition on this broker: its log, who leads it, and the order in which appends reach it.

Appends of one partition are prepared, written and finished one after the other. Small ones run through in
one turn of the loop; while a large one is being written by the worker, those behind it wait their turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from typing import Protocol

from tidelog.cluster.worker import Worker
from tidelog.errors import (
    FencedLeaderEpoch,
    KafkaError,
    KafkaStorageError,
    MessageTooLarge,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    UnknownLeaderEpoch,
)
from tidelog.metadata.state import PartitionState
from tidelog.records.check import CheckedBatch, ProduceRules, check_produced, look_at, plain_batch
from tidelog.storage.append import (
    AppendOrigin,
    AppendResult,
    DuplicateBatch,
    PendingAppend,
    write_together,
)
from tidelog.storage.log import Log
from tidelog.storage.producer_state import Verification

# What a batch may unpack to on the loop. Few bytes can hold very many: those are for the worker.
UNPACKED_ON_LOOP = 1 << 20
# From this size on, checking and writing a batch is left to the worker.
HEAVY_BYTES = 64 * 1024


# Stands for the outcome of a batch until it is in the file.
NOT_WRITTEN = KafkaStorageError("the batch was not written")

FlushWaiter = tuple[int, Callable[[BaseException | None], None]]  # the append's base offset, what is next


class Append:
    """One partition's share of a produce request on its way into the log."""

    __slots__ = (
        "allow_zstd",
        "checked",
        "data",
        "done",
        "guard",
        "heavy",
        "now_ms",
        "origin",
        "pending",
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
        self.checked: CheckedBatch | None = None
        self.pending: PendingAppend | None = None


class PartitionWatcher(Protocol):
    """A reader that has seen all that a partition had for it."""

    def changed(self) -> None: ...


class Replica:
    """What the leader knows of a follower."""

    __slots__ = ("broker_id", "last_caught_up_ms", "log_end_offset", "log_start_offset")

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.log_end_offset = -1
        self.log_start_offset = -1
        self.last_caught_up_ms = 0


class AppendRules:
    """What a topic asks of batches: in all, and of those that are checked on the loop."""

    __slots__ = ("full", "on_loop", "on_loop_without_zstd", "own")

    def __init__(self, rules: ProduceRules) -> None:
        self.full = rules
        self.on_loop = replace(rules, max_unpacked=min(rules.max_unpacked, UNPACKED_ON_LOOP))
        # Produce below version 7 does not know zstd.
        self.on_loop_without_zstd = replace(self.on_loop, allow_zstd=False)
        # What the broker writes itself: control batches, and batches without sequences.
        self.own = replace(self.on_loop, from_client=False)


class AppendRulesTable:
    """One AppendRules for all partitions that ask for the same, so that it is near when it is looked at."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], AppendRules] = {}

    def of(self, rules: ProduceRules) -> AppendRules:
        key = astuple(rules)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = AppendRules(rules)
        return found


class Partition:
    __slots__ = (
        "_hold",
        "_is_held",
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
        "on_write_error",
        "partition_epoch",
        "replicas",
        "rules",
        "topic",
        "topic_id",
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
        # The folder of the log failed: nothing is read or written until the broker starts anew.
        self.offline = True
        self.leader_id = -1
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.replicas: list[int] = []
        self.isr: list[int] = []
        self.followers: dict[int, Replica] = {}
        self.rules: AppendRules | None = None
        self._rules_table = rules_table or AppendRulesTable()
        # Called when the high watermark moved: waiting produces and fetches look again.
        self.on_high_watermark: Callable[[Partition], None] | None = None
        self.on_write_error: Callable[[Partition, OSError], None] | None = None
        # Told once of the next change; those who read to the log end are told of appends too.
        self.watchers: dict[PartitionWatcher, None] = {}
        self.end_watchers: dict[PartitionWatcher, None] = {}
        # Appends that are not answered before the disk has them: those of the flush that runs, and the next.
        self.flushing: list[FlushWaiter] | None = None
        self._next_flush: list[FlushWaiter] = []
        self._worker = worker
        self._queue: deque[Append] = deque()
        self._hold: Callable[[], None] | None = None
        self._is_held = False
        self.writing = False  # or held: in both cases later appends wait

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.index}"

    @property
    def is_leader(self) -> bool:
        return self.leader_id == self.broker_id

    def become_leader(self, log: Log, state: PartitionState) -> None:
        """Lead the partition from this epoch on; everything in the log of the only replica is committed."""
        self.log = log
        self.leader_id = state.leader
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.replicas = list(state.replicas)
        self.isr = list(state.isr)
        self.followers = {b: Replica(b) for b in self.replicas if b != self.broker_id}
        log.assign_epoch(state.leader_epoch, log.log_end_offset)
        self.offline = False
        log.on_log_start = self.changed
        self.config_changed()
        self.advance_high_watermark()
        self.changed()

    def changed(self) -> None:
        """Readers would see something new here: those who watch look again, and then watch again."""
        for watchers in (self.watchers, self.end_watchers):
            if watchers:
                told = list(watchers)
                watchers.clear()
                for watcher in told:
                    watcher.changed()

    def config_changed(self) -> None:
        assert self.log is not None
        self.rules = self._rules_table.of(self.log.produce_rules)

    def leader_log(self, current_leader_epoch: int = -1) -> Log:
        """The log to serve from, if the caller's idea of the leader's epoch agrees with ours."""
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
        """What is known of a replica that fetches; only those the partition has may do so."""
        found = self.followers.get(replica_id)
        if found is None:
            raise NotLeaderOrFollower(f"broker {replica_id} has no replica of {self.name} to keep up")
        return found

    # -- appending ---------------------------------------------------------------------------------

    @property
    def min_isr(self) -> int:
        """How many replicas have to be in sync for acks=all: never more than there are."""
        assert self.log is not None
        return min(self.log.config.min_insync_replicas, len(self.replicas))

    def check_in_sync_replicas(self) -> None:
        """acks=all asks for enough replicas in sync before anything is written."""
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

    def append_now(
        self, data: memoryview, now_ms: int, allow_zstd: bool, guard: Verification | None = None
    ) -> AppendResult:
        """Append a small batch in this turn of the loop; the caller has seen `can_append_now`.

        MessageTooLarge where it is not small enough: `submit` can tell whether it is for the log too.
        """
        log = self.log
        assert log is not None
        assert self.rules is not None
        rules = self.rules.on_loop if allow_zstd else self.rules.on_loop_without_zstd
        look = look_at(data, rules, now_ms)
        plain = plain_batch(look, data, rules)
        if plain is not None:
            result = log.append_plain(data, *plain, self.leader_epoch, now_ms)
        else:
            checked = check_produced(data, rules, now_ms, look)
            prepared = log.prepare(checked, leader_epoch=self.leader_epoch, now_ms=now_ms, guard=guard)
            if isinstance(prepared, DuplicateBatch):
                return prepared.result
            try:
                prepared.write()
            except OSError as error:
                raise self._write_failed(prepared, error) from error
            result = log.finish(prepared, now_ms)
        if not result.needs_flush:
            if self.flushing is None and len(self.replicas) == 1:
                log.commit_all()
                if self.on_high_watermark is not None:
                    self.on_high_watermark(self)
            else:
                self.advance_high_watermark()
        return result

    def append_own_now(
        self, batches: Sequence[memoryview], now_ms: int, versions: Sequence[int]
    ) -> list[AppendResult | KafkaError]:
        """Append batches that this broker made, with one write; the caller has seen `can_append_now(-1)`.

        A batch that is refused is left out. `versions` are those of the transactions that markers end.
        `commit_now` is to follow.
        """
        log = self.log
        assert log is not None
        assert self.rules is not None
        outcomes: list[AppendResult | KafkaError] = []
        pending: list[PendingAppend] = []
        for batch, version in zip(batches, versions, strict=True):
            try:
                checked = check_produced(batch, self.rules.own, now_ms)
                prepared = log.prepare(
                    checked,
                    leader_epoch=self.leader_epoch,
                    origin=AppendOrigin.COORDINATOR,
                    now_ms=now_ms,
                    transaction_version=version,
                )
            except KafkaError as error:
                outcomes.append(error)
                continue
            except BaseException:
                if pending:
                    log.abandon(pending[0])
                raise
            assert isinstance(prepared, PendingAppend)  # only clients' batches can be duplicates
            pending.append(prepared)
            outcomes.append(NOT_WRITTEN)
        if not pending:
            return outcomes
        try:
            write_together(pending)
        except OSError as error:
            failure = self._write_failed(pending[0], error)
            return [failure if outcome is NOT_WRITTEN else outcome for outcome in outcomes]
        results = iter([log.finish(prepared, now_ms) for prepared in pending])
        return [next(results) if outcome is NOT_WRITTEN else outcome for outcome in outcomes]

    def commit_now(self) -> None:
        """What was appended in this turn of the loop is on every replica in sync: there is no other."""
        assert self.log is not None
        self.log.commit_all()
        if self.on_high_watermark is not None:
            self.on_high_watermark(self)

    def submit(self, append: Append) -> None:
        """Append with the heavy parts off the loop; `append.done` is called with the outcome."""
        rules = self.rules
        assert rules is not None
        if not append.heavy:
            try:
                self._check(append, rules.on_loop)
            except MessageTooLarge:
                append.heavy = True
            except Exception as error:
                append.done(None, error)
                return
        if append.heavy:
            self._worker.submit(
                lambda: self._check(append, rules.full), lambda _, error: self._checked(append, error)
            )
            return
        self._queue.append(append)
        self._drain()

    def _check(self, append: Append, rules: ProduceRules) -> None:
        from_client = append.origin is AppendOrigin.CLIENT
        if not append.allow_zstd or not from_client:
            rules = replace(rules, allow_zstd=append.allow_zstd, from_client=from_client)
        append.checked = check_produced(append.data, rules, append.now_ms)

    def _checked(self, append: Append, error: BaseException | None) -> None:
        if error is not None:
            append.done(None, error)
            return
        self._queue.append(append)
        self._drain()

    def hold(self, held: Callable[[], None]) -> None:
        """Let no append begin from when `held` is called until `release`: those that come wait their turn."""
        self._hold = held
        self._drain()

    def release(self) -> None:
        self._hold = None
        if self._is_held:
            self._is_held = self.writing = False
            self._drain()

    def _drain(self) -> None:
        if self._hold is not None and not self.writing:
            held, self._hold = self._hold, None
            self._is_held = self.writing = True
            held()
            return
        while self._queue and not self.writing:
            append = self._queue.popleft()
            try:
                if not self._prepare(append):
                    continue
                assert append.pending is not None
                if append.heavy:
                    self.writing = True
                    self._worker.submit(
                        append.pending.write,
                        lambda _, error, append=append: self._written(append, error),  # type: ignore[misc]
                    )
                    return
                self._write(append)
            except Exception as error:
                append.done(None, error)

    def _prepare(self, append: Append) -> bool:
        assert append.checked is not None
        log = self.leader_log()
        prepared = log.prepare(
            append.checked,
            leader_epoch=self.leader_epoch,
            origin=append.origin,
            now_ms=append.now_ms,
            guard=append.guard,
            transaction_version=append.transaction_version,
        )
        if isinstance(prepared, DuplicateBatch):
            append.done(prepared.result, None)
            return False
        append.pending = prepared
        return True

    def _write(self, append: Append) -> None:
        assert self.log is not None
        assert append.pending is not None
        try:
            append.pending.write()
        except OSError as error:
            raise self._write_failed(append.pending, error) from error
        self._finish(append)

    def _written(self, append: Append, error: BaseException | None) -> None:
        self.writing = False
        if error is None:
            try:
                self._finish(append)
            except Exception as failure:
                append.done(None, failure)
        else:
            assert append.pending is not None
            append.done(None, self._write_failed(append.pending, error))
        self._drain()

    def _write_failed(self, pending: PendingAppend, error: BaseException) -> KafkaError:
        """Cut the file back to where it was; a disk that is full is not a disk that failed."""
        assert self.log is not None
        self.log.abandon(pending)
        if isinstance(error, OSError) and self.on_write_error is not None:
            self.on_write_error(self, error)
        return KafkaStorageError(f"{self.name} could not be written: {error}")

    def _finish(self, append: Append) -> None:
        assert self.log is not None
        assert append.pending is not None
        if self.log.closed:
            self.leader_log()  # deleted or offline since the write began: this says which
        result = self.log.finish(append.pending, append.now_ms)
        append.done(result, None)

    # -- watermarks --------------------------------------------------------------------------------

    def advance_high_watermark(self) -> bool:
        """The high watermark is the smallest log end offset of the replicas in sync; it never falls."""
        assert self.log is not None
        offset = self._flushed_up_to(self.log.log_end_offset)
        for broker_id in self.isr:
            if broker_id != self.broker_id:
                offset = min(offset, self.followers[broker_id].log_end_offset)
        if offset <= self.log.high_watermark:
            if self.end_watchers:
                self.changed()  # followers read what is not committed yet
            return False
        self.log.update_high_watermark(offset)
        if self.on_high_watermark is not None:
            self.on_high_watermark(self)
        return True

    # -- flushing ----------------------------------------------------------------------------------

    def await_flush(self, base_offset: int, done: Callable[[BaseException | None], None]) -> None:
        self._next_flush.append((base_offset, done))

    def begin_flush(self) -> list[FlushWaiter]:
        """Whose appends the flush that begins now covers."""
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
        """Nobody sees a record whose producer still waits for the disk."""
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
        """Move the log start offset; -1 stands for the high watermark. Gives the offset that is asked for."""
        log = self.leader_log()
        wanted = log.high_watermark if offset == -1 else offset
        if wanted < 0 or wanted > log.high_watermark:
            raise OffsetOutOfRange(
                f"records of {self.name} can be deleted up to the high watermark {log.high_watermark}, "
                f"not to {offset}"
            )
        log.delete_records_before(wanted)
        return wanted
