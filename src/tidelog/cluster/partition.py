"""Partition: a partition on this broker, with its log, its leader, its followers and its append queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tidelog.cluster.append_queue import AppendQueue
from tidelog.cluster.append_rules import AppendRules, AppendRulesTable
from tidelog.cluster.flush_waiters import FlushWaiter, FlushWaiters
from tidelog.cluster.followers import NO_BROKER_EPOCH, Followers, IsrRules, Replica
from tidelog.cluster.leader_append import LeaderAppend
from tidelog.cluster.worker import Worker
from tidelog.errors import (
    FencedLeaderEpoch,
    KafkaError,
    KafkaStorageError,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    RetriableError,
    UnknownLeaderEpoch,
)
from tidelog.metadata.state import PartitionState
from tidelog.records.check import CheckedBatch, check_produced
from tidelog.storage.append import AppendOrigin, AppendResult, DuplicateBatch, PendingAppend
from tidelog.storage.config import LONG_MAX
from tidelog.storage.log import Log
from tidelog.storage.log_appender import TurnOutcome
from tidelog.storage.log_listener import LogListener
from tidelog.storage.marker import Marker
from tidelog.storage.producer_state_manager import Verification
from tidelog.storage.refused_batches import Sequences

# From this size on, the worker checks and writes a batch.
HEAVY_BYTES = 64 * 1024


# The outcome of a batch that is not in the file yet.
NOT_WRITTEN = KafkaStorageError("the batch was not written")


class PartitionWatcher(Protocol):
    """A reader at the end of the partition, waiting for new records."""

    def changed(self) -> None:
        """There are new records, or another change that readers have to see."""

    def include_next(self) -> None:
        """The high watermark or the ISR changed, without new records."""


class Partition(LogListener):
    __slots__ = (
        "_rules_table",
        "_worker",
        "adding",
        "appends",
        "broker_id",
        "end_watchers",
        "flushes",
        "followers",
        "index",
        "isr_rules",
        "leader_epoch",
        "leader_epoch_start_offset",
        "leader_id",
        "log",
        "notified_log_end",
        "offline",
        "on_high_watermark",
        "on_log_start",
        "partition_epoch",
        "removing",
        "replicas",
        "rules",
        "topic",
        "topic_id",
        "watchers",
    )

    def __init__(
        self,
        topic: str,
        index: int,
        topic_id: bytes,
        broker_id: int,
        worker: Worker,
        isr_rules: IsrRules,
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
        # The replicas that a reassignment adds and removes.
        self.adding: list[int] = []
        self.removing: list[int] = []
        # The log end offset when this broker became leader: of the first record with its epoch.
        self.leader_epoch_start_offset = -1
        self.followers = Followers()
        self.isr_rules = isr_rules
        self.rules: AppendRules | None = None
        self._rules_table = rules_table or AppendRulesTable()
        # Called when the high watermark moved: it may complete delayed produces and fetches.
        self.on_high_watermark: Callable[[Partition], None] | None = None
        # Called when the log start offset moved: a follower tells its leader.
        self.on_log_start: Callable[[Partition], None] | None = None
        # Readers up to the high watermark, and readers up to the log end. Each is notified of the next
        # change, and has to watch again.
        self.watchers: dict[PartitionWatcher, None] = {}
        self.end_watchers: dict[PartitionWatcher, None] = {}
        self.notified_log_end = -1  # the log end offset that the readers up to the log end know
        self._worker = worker
        self.appends = AppendQueue(worker)
        self.flushes = FlushWaiters()

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.index}"

    @property
    def is_leader(self) -> bool:
        return self.leader_id == self.broker_id

    @property
    def isr(self) -> list[int]:
        return self.followers.isr

    def become_leader(self, log: Log, state: PartitionState) -> bool:
        """Lead the partition; returns whether the leadership or the leader epoch is new.

        A state with the present leader epoch changes only the replicas. A new epoch begins at the log end
        offset, so no append may be at the worker (`AppendQueue.between`). A single replica commits its whole
        log.
        """
        is_new = state.leader_epoch != self.leader_epoch or not self.is_leader
        self._take(state)
        others = [broker for broker in self.replicas if broker != self.broker_id]
        self.followers.assign(others, keep=not is_new, now=self.isr_rules.clock.monotonic())
        self._serve(log)
        if is_new:
            log.forget_gap()  # the followers take the log as it is
            self.leader_epoch_start_offset = log.log_end_offset
            log.assign_epoch(state.leader_epoch, log.log_end_offset)
            self._hold_back_unflushed(log)
        self.advance_high_watermark()
        self.changed()
        return is_new

    def _hold_back_unflushed(self, log: Log) -> None:
        """Hold the high watermark back until the unsynced records are on disk (flush.messages)."""
        unflushed = log.log_end_offset - log.recovery_point
        if len(self.replicas) > 1 and unflushed >= log.config.flush_messages:
            self.flushes.hold_back(log.recovery_point)

    def become_follower(self, log: Log, state: PartitionState) -> bool:
        """Follow the leader, or wait for one; returns whether the leader or its epoch is new.

        The log stays as it is. No append may be at the worker (`AppendQueue.between`).
        """
        is_new = (state.leader, state.leader_epoch) != (self.leader_id, self.leader_epoch)
        self._take(state)
        self.followers.clear()
        self._serve(log)
        return is_new

    def log_or_raise(self) -> Log:
        """The log, whatever the role. KafkaStorageError if it is offline."""
        if self.log is None or self.offline:
            raise KafkaStorageError(f"the folder of {self.name} is offline")
        return self.log

    def follow_watermarks(self, high_watermark: int, log_start_offset: int) -> None:
        """Take over the high watermark and the log start offset of the leader.

        The high watermark never falls, even if a new leader has a lower one: committed records stay
        committed.
        """
        log = self.log_or_raise()
        if high_watermark > log.high_watermark and log.high_watermark < log.log_end_offset:
            log.update_high_watermark(high_watermark)
            if self.on_high_watermark is not None:
                self.on_high_watermark(self)
        if log_start_offset > log.log_start_offset:
            log.delete_records_before(min(log_start_offset, log.high_watermark))

    def stop_leading(self) -> None:
        """Stop leading until a state with a newer leader epoch arrives."""
        self.leader_id = -1
        self.followers.clear()

    def _take(self, state: PartitionState) -> None:
        self.leader_id = state.leader
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.replicas = list(state.replicas)
        self.adding, self.removing = list(state.adding), list(state.removing)
        self.followers.commit_isr(state.isr)

    def _serve(self, log: Log) -> None:
        self.log = log
        self.offline = False
        log.listen(self)
        self.config_changed()

    def log_start_moved(self, log: Log) -> None:
        if self.on_log_start is not None:
            self.on_log_start(self)
        self.changed()

    def changed(self) -> None:
        """Notify all watchers of new records, or of another change that readers have to see."""
        _notify(self.watchers)
        _notify(self.end_watchers)

    def high_watermark_moved(self) -> None:
        """Notify consumers of a new high watermark. Followers get it with their next records."""
        if self.watchers:
            _notify(self.watchers)
        for follower in self.end_watchers:
            follower.include_next()

    def isr_changed(self) -> None:
        """Advance the high watermark after a change of the ISR.

        The next fetch of a follower may change it again.
        """
        self.advance_high_watermark()
        for follower in self.end_watchers:
            follower.include_next()

    def config_changed(self) -> None:
        assert self.log is not None
        self.rules = self._rules_table.of(self.log.appender.rules)

    def leader_log(self, current_leader_epoch: int = -1) -> Log:
        """The log, if this broker leads the partition with the leader epoch that the caller expects."""
        return self.local_log(current_leader_epoch, only_leader=True)

    def local_log(self, current_leader_epoch: int = -1, *, only_leader: bool) -> Log:
        """The log of a leader or, unless `only_leader`, of a follower with the expected leader epoch."""
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
        if only_leader and self.leader_id != self.broker_id:
            raise NotLeaderOrFollower(f"{self.name} is led by broker {self.leader_id}, not by this one")
        if self.log is None or self.offline:
            raise KafkaStorageError(f"the folder of {self.name} is offline")
        if not only_leader and self.log.is_truncating:
            raise NotLeaderOrFollower(f"{self.name} is being truncated to what its leader has")
        return self.log

    def follower(self, replica_id: int, current_leader_epoch: int = -1, broker_epoch: int = -1) -> Replica:
        """The state of a follower that fetches.

        Raises UnknownLeaderEpoch if the broker has no replica: as in Kafka, the follower may have heard of
        its assignment before this leader. Without a leader epoch in the request, the error is
        NotLeaderOrFollower.
        """
        replica = self.followers.replicas.get(replica_id)
        if replica is None:
            reason = f"broker {replica_id} has no replica of {self.name} to keep up"
            raise NotLeaderOrFollower(reason) if current_leader_epoch < 0 else UnknownLeaderEpoch(reason)
        if NO_BROKER_EPOCH < broker_epoch < replica.broker_epoch:
            raise NotLeaderOrFollower(
                f"the fetch of broker {replica_id} has the broker epoch {broker_epoch}, "
                f"an earlier one had {replica.broker_epoch}"
            )
        return replica

    # -- appending ---------------------------------------------------------------------------------

    @property
    def min_isr(self) -> int:
        """The number of in-sync replicas that acks=all needs: min.insync.replicas, at most all replicas."""
        assert self.log is not None
        return min(self.log.config.min_insync_replicas, len(self.replicas))

    def check_in_sync_replicas(self) -> None:
        """Raise NotEnoughReplicas if too few replicas are in sync for acks=all. Call it before the write."""
        if len(self.isr) < self.min_isr:
            raise NotEnoughReplicas(
                f"{self.name} has {len(self.isr)} replicas in sync, "
                f"min.insync.replicas asks for {self.min_isr}"
            )

    def refuse(self, sequences: Sequences | None, error: KafkaError) -> None:
        """Refuse the batches in flight behind a batch that was refused with a retriable error."""
        if self.log is not None and isinstance(error, RetriableError):
            self.log.producers.refuse(sequences, error)

    def can_append_now(self, acks: int) -> bool:
        """Whether a small batch can be appended and answered in this turn of the loop."""
        appends = self.appends
        return (
            not appends.writing
            and not appends.waiting
            and self.leader_id == self.broker_id
            and not self.offline
            and (acks != -1 or (len(self.replicas) == 1 and self.flushes.running is None))
        )

    def can_append_in_turn(self, acks: int) -> bool:
        """Whether `append_in_turn` may be called, for a log without flush.messages.

        With acks=all and several replicas, the answer waits for the high watermark.
        """
        log, appends = self.log, self.appends
        return (
            not appends.writing
            and not appends.waiting
            and self.leader_id == self.broker_id
            and not self.offline
            and log is not None
            and log.config.flush_messages == LONG_MAX
            and (
                acks != -1
                or (self.flushes.running is None and (len(self.replicas) == 1 or not self.is_under_min_isr))
            )
        )

    def can_append_own_now(self) -> bool:
        """Whether a small batch that this broker made can be appended in this turn of the loop.

        With several replicas it is committed later.
        """
        return not self.appends.turn and self.flushes.running is None and self.can_append_now(1)

    def commits_now(self) -> bool:
        """Whether a small batch that this broker made is written and committed in this turn of the loop."""
        appends, flushes = self.appends, self.flushes
        return (
            len(self.replicas) == 1
            and not appends.turn
            and not appends.writing
            and not appends.waiting
            and flushes.running is None
            and not flushes.next
            and self.leader_id == self.broker_id
            and not self.offline
        )

    def commit_own_now(self, batch: bytearray, timestamp: int) -> bool:
        """Append and commit a batch with one record. Call it only if `commits_now`.

        Returns False if nothing was appended: the batch needs the checks of `append_one_own_now`.
        """
        log = self.log
        assert log is not None
        if log.quick_appender.append_own(batch, timestamp, self.leader_epoch) < 0:
            return False
        self.advance_high_watermark()
        return True

    def append_marker_now(self, marker: Marker, batch: bytearray, timestamp: int) -> bool:
        """Append a marker. Call it only if `commits_now`, and advance the high watermark after it.

        Returns False if nothing was appended: the marker needs the checks of `append_own_now`.
        """
        log = self.log
        assert log is not None
        return log.quick_appender.append_marker(marker, batch, timestamp, self.leader_epoch) >= 0

    def check_now(self, data: memoryview, now_ms: int, allow_zstd: bool) -> CheckedBatch:
        """Check a client's batch on the loop.

        Raises a KafkaError if it is invalid or too large for the loop.
        """
        assert self.rules is not None
        rules = self.rules.on_loop if allow_zstd else self.rules.on_loop_without_zstd
        return check_produced(data, rules, now_ms)

    def append_quickly(self, batch: CheckedBatch, *, is_verified: bool = False) -> AppendResult | None:
        """Append a usual batch.

        Returns None if nothing was appended: the batch needs the checks of `append_now`. `is_verified`: the
        coordinator has just confirmed that the batch may begin a transaction.
        """
        assert self.log is not None
        return self.log.quick_appender.append(batch, self.leader_epoch, is_verified=is_verified)

    def append_now(self, batch: CheckedBatch, now_ms: int, guard: Verification | None = None) -> AppendResult:
        """Append a small batch in this turn of the loop. Call it only if `can_append_now`.

        The caller answers the producer, then advances the high watermark in the same turn (which answers
        waiting fetches), unless the batch needs a flush. Raises NotCached if the check for a duplicate needs
        the disk.
        """
        log = self.log
        assert log is not None
        prepared = log.appender.prepare(batch, self.leader_epoch, now_ms, guard=guard)
        if isinstance(prepared, DuplicateBatch):
            return prepared.result
        return log.appender.write(prepared, now_ms)

    def append_in_turn(self, batch: CheckedBatch) -> None:
        """Queue a small batch for `write_turn`. Call it only if `can_append_in_turn`.

        Use `append_now` for a batch that begins a transaction: the batches after it are checked against the
        producer's new state.
        """
        appends = self.appends
        appends.joined += batch.data  # the network buffer is reused for the next frame
        appends.turn.append(batch)

    def write_turn(self, now_ms: int) -> list[TurnOutcome]:
        """Append the batches of `append_in_turn` with one write; returns the base offset or the error of
        each.

        Raises a KafkaError if no batch can be appended. The caller calls `turn_written` in both cases.
        """
        batches, data = self.appends.take_turn()
        log = self.log
        assert log is not None
        if log.closed:
            self.leader_log()  # raises if the log was deleted or is offline by now
        return log.appender.append_together(batches, data, self.leader_epoch, now_ms)

    def turn_written(self) -> None:
        """Advance the high watermark over the written batches, and continue with the queued appends."""
        self.advance_high_watermark()
        self.appends.drain()

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

    def submit(self, append: LeaderAppend) -> None:
        """Check and append a batch, off the loop if it is large; `append.done` gets the outcome."""
        append.submit(self._worker)

    # -- watermarks --------------------------------------------------------------------------------

    @property
    def has_uncertain_offsets(self) -> bool:
        """Whether the high watermark may still be lower than the last leader's, which clients have seen.

        It is not once it has reached the first offset of this leader's epoch.
        """
        return (
            self.is_leader
            and self.log is not None
            and self.leader_epoch_start_offset > self.log.high_watermark
        )

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def is_under_replicated(self) -> bool:
        """Whether a replica is out of sync. A replica that a reassignment adds does not count yet."""
        return self.is_leader and len(self.isr) < len(self.replicas) - len(self.adding)

    @property
    def is_under_min_isr(self) -> bool:
        in_sync = len(self.followers.isr)
        if in_sync >= len(self.replicas):
            return False  # min.insync.replicas is limited to the number of replicas: see `min_isr`
        assert self.log is not None
        return in_sync < self.log.config.min_insync_replicas

    def advance_high_watermark(self) -> bool:
        """Advance the high watermark to the smallest log end offset of the maximal ISR; returns whether it
        may have
        moved. Also notifies followers of new records.

        As in Kafka, the high watermark stays while fewer replicas than min.insync.replicas are in sync.
        """
        log, flushes = self.log, self.flushes
        assert log is not None
        if self.leader_id != self.broker_id:
            return False  # an append or a flush ended after this broker lost the partition
        if len(self.replicas) == 1 and flushes.running is None and not flushes.next:
            log.commit_all()
            if self.on_high_watermark is not None:
                self.on_high_watermark(self)
            return True
        end = log.log_end_offset
        if end != self.notified_log_end:
            self.notified_log_end = end
            _notify(self.end_watchers)
        flushed = flushes.flushed_up_to(end) if flushes.running or flushes.next else end
        offset = self.followers.committed_up_to(flushed, end, self.isr_rules)
        if offset <= log.high_watermark or self.is_under_min_isr:
            return False
        log.update_high_watermark(offset)
        if self.on_high_watermark is not None:
            self.on_high_watermark(self)
        return True

    def notify_followers(self) -> None:
        """Notify followers of new records.

        They should get the records before anything else happens with them.
        """
        assert self.log is not None
        if self.log.log_end_offset != self.notified_log_end:
            self.notified_log_end = self.log.log_end_offset
            _notify(self.end_watchers)

    # -- flushing ----------------------------------------------------------------------------------

    def flush_ended(self, waiting: list[FlushWaiter], error: BaseException | None) -> None:
        self.flushes.end()
        if error is None:
            self.advance_high_watermark()
        for _, done in waiting:
            done(error)

    # -- deleting ----------------------------------------------------------------------------------

    def low_watermark(self) -> int:
        """The offset below which every replica on a live broker has deleted its records."""
        assert self.log is not None
        return self.followers.log_start_offset(self.log.log_start_offset, self.isr_rules)

    def delete_records_before(self, offset: int) -> int:
        """Move the log start offset to `offset`, -1 for the high watermark; returns the offset itself."""
        return self.leader_log().delete_records_before(offset)


def _notify(watchers: dict[PartitionWatcher, None]) -> None:
    if watchers:
        notified = list(watchers)
        watchers.clear()
        for watcher in notified:
            watcher.changed()
