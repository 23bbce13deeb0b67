"""CoordinatorRuntime: the partitions of a coordinator's internal topic that this broker leads.

A shard is the state of one partition. Only records in the log change it, by `replay`, after an append and
when the partition is loaded: so both give the same state. A record is replayed when it is written, and the
next decision uses it. A caller gets its answer when its append is committed, as with acks=all. Until then
readers get the state before the append (`committed`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple

from tidelog.clock import Scheduler
from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.cluster.partition import Partition
from tidelog.cluster.replica_manager import ReplicaManager
from tidelog.coordinator.delayed_commit import DelayedCommit
from tidelog.coordinator.loading import Loading
from tidelog.coordinator.shard import Done, HostedShard, S, Shard
from tidelog.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidFetchSize,
    KafkaError,
    KafkaStorageError,
    MessageTooLarge,
    NotCoordinator,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    RecordListTooLarge,
    RequestTimedOut,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from tidelog.metadata.state import TopicState
from tidelog.records.batch import (
    HEADER_SIZE,
    Record,
    build_batch,
    build_end_transaction_marker,
)
from tidelog.records.loops import one_record_batch
from tidelog.records.partitioning import partition_for_id
from tidelog.storage.append import AppendResult

__all__ = [
    "CoordinatorRuntime",
    "Done",
    "NewRecord",
    "Shard",
    "coordinator_error",
    "in_parts",
    "partition_count",
]

log = logging.getLogger("tidelog.coordinator")

# The number of partitions that are loaded at a time. Each has a chunk of its log in memory.
LOADS_AT_ONCE = 4
MEASURED_LOADS = 1000

# Records that need not be in one batch are appended in batches of at most this many bytes.
PART_BYTES = 32 * 1024
# The partitions of this many keys are cached, up to this length of a key.
REMEMBERED_KEYS, REMEMBERED_KEY = 4096, 256
# An upper bound for the bytes of a record without its key and value.
RECORD_OVERHEAD = 32


class NewRecord(NamedTuple):
    """A record to append: a value of None deletes the key."""

    key: bytes
    value: bytes | None


class CoordinatorRuntime(Generic[S]):
    def __init__(
        self,
        topic: str,
        replicas: ReplicaManager,
        metadata: MetadataCache,
        scheduler: Scheduler,
        make_shard: Callable[[int, int], S],
        *,
        append_timeout_ms: Callable[[], int],
        load_buffer_size: int = 5 << 20,
    ) -> None:
        """`make_shard(partition, leader_epoch)` creates the empty state of a partition."""
        self.topic = topic
        self._replicas = replicas
        self._metadata = metadata
        self._scheduler = scheduler
        self._make_shard = make_shard
        self._append_timeout_ms = append_timeout_ms
        self._load_buffer_size = load_buffer_size
        self._hosted: dict[int, HostedShard[S]] = {}
        self._to_load: deque[HostedShard[S]] = deque()
        self._loads = 0
        # The durations of the last loads, for the metrics.
        self.load_seconds: deque[float] = deque(maxlen=MEASURED_LOADS)
        self._tickets = 0
        self._is_starting_loads = False
        # The last version of the topic, and its number of partitions.
        self._counted: TopicState | None = None
        self._count = 0
        self._partitions: dict[str, int] = {}  # of the keys that were looked up

    # -- which shard -------------------------------------------------------------------------------

    def partition_for(self, key: str) -> int:
        """The partition of a group or a transactional id, by the real number of partitions of the topic."""
        topic = self._metadata.snapshot.topics.get(self.topic)
        if topic is None:
            raise NotCoordinator(f"this broker does not know the topic {self.topic}")
        if topic is not self._counted:
            self._count = partition_count(topic)
            self._counted = topic
            self._partitions.clear()
        partition = self._partitions.get(key)
        if partition is None:
            partition = partition_for_id(key, self._count)
            if len(key) <= REMEMBERED_KEY:
                if len(self._partitions) >= REMEMBERED_KEYS:
                    self._partitions.clear()
                self._partitions[key] = partition
        return partition

    def shard(self, partition: int) -> S:
        """The shard of a partition.

        Raises NotCoordinator or CoordinatorLoadInProgress if it is not loaded.
        """
        return self._loaded(partition).shard

    def shard_for(self, key: str) -> S:
        return self.shard(self.partition_for(key))

    def committed(self, partition: int) -> S:
        """The shard for readers: its journal has only changes above the high watermark.

        Raises CoordinatorLoadInProgress also until the whole loaded log is committed.
        """
        shard = self.shard(partition)
        shard.journal.check_readable()
        shard.journal.settle()
        return shard

    def committed_for(self, key: str) -> S:
        return self.committed(self.partition_for(key))

    def is_led_here(self, partition: int) -> bool:
        """Whether this broker leads a partition, loaded or not."""
        return partition in self._hosted

    def leader_epoch(self, partition: int) -> int:
        return self._loaded(partition).leader_epoch

    @property
    def is_loading(self) -> bool:
        return any(not hosted.is_loaded for hosted in self._hosted.values())

    def shards(self) -> Iterator[S]:
        """The loaded shards, with settled journals. The caller may rest between two."""
        for hosted in list(self._hosted.values()):
            if hosted.is_loaded:
                hosted.shard.journal.settle()
                yield hosted.shard

    def _loaded(self, partition: int) -> HostedShard[S]:
        hosted = self._hosted.get(partition)
        if hosted is None:
            raise NotCoordinator(f"this broker does not lead {self.topic}-{partition}")
        if not hosted.is_loaded:
            raise CoordinatorLoadInProgress(f"{self.topic}-{partition} is being loaded")
        return hosted

    # -- deciding and writing ----------------------------------------------------------------------

    def run(
        self, partition: int, operation: Callable[[S], None], failed: Callable[[KafkaError], None]
    ) -> None:
        """Call `operation` with the shard when it has replayed all earlier appends, nearly always at once.

        If this broker does not lead the partition or has not loaded it, calls `failed` instead.
        """
        try:
            hosted = self._loaded(partition)
        except KafkaError as error:
            failed(error)
            return
        if hosted.unreplayed or hosted.waiting:
            hosted.waiting.append((operation, failed))
        else:
            operation(hosted.shard)

    def settled(self, partition: int) -> S | None:
        """The shard, if it has replayed all appends; None if `run` would wait or fail."""
        hosted = self._hosted.get(partition)
        if hosted is None or not hosted.is_loaded or hosted.unreplayed or hosted.waiting:
            return None
        return hosted.shard

    def commits_now(self, partition: int) -> bool:
        """Whether an append is committed when it is written, and no operation is waiting."""
        hosted = self._hosted.get(partition)
        return (
            hosted is not None
            and hosted.is_loaded
            and not hosted.unreplayed
            and not hosted.waiting
            and hosted.partition.commits_now()
        )

    def append_now(self, partition: int, key: bytes, value: bytes, timestamp: int) -> bool:
        """Append and commit one record.

        Call it only if `commits_now`, and apply the record to the shard after it. Returns False if nothing
        was appended: use `append`, which waits or reports the error.
        """
        try:
            batch = one_record_batch(key, value, timestamp)
            return self._hosted[partition].partition.commit_own_now(batch, timestamp)
        except KafkaError:
            return False
        except Exception:
            log.exception("%s-%d: a record could not be appended", self.topic, partition)
            return False

    def append(
        self,
        partition: int,
        records: Sequence[NewRecord],
        done: Done,
        take: Callable[[S], None] | None = None,
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
    ) -> None:
        """Append records as one batch and replay them; call `done` when they are committed, or with the
        error.

        Call this in the operation of `run` that has made the decision. Without records, `done` is called when
        the state of the decision is committed. With a producer id, the records are part of its transaction.
        `take` replaces the replay for a caller that need not decode the records.
        """
        if not records:
            self.when_committed(partition, done)
            return
        now_ms = self._scheduler.clock.ms()
        batch = build_batch(
            [Record(at, now_ms, key, value) for at, (key, value) in enumerate(records)],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=producer_id >= 0,
        )

        def replay(hosted: HostedShard[S], base_offset: int) -> None:
            if take is not None:
                take(hosted.shard)
                return
            for at, (key, value) in enumerate(records):
                hosted.shard.replay(
                    key,
                    value,
                    offset=base_offset + at,
                    timestamp=now_ms,
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                )

        self._append(partition, batch, replay, done)

    def append_parts(self, partition: int, records: Sequence[NewRecord], done: Done) -> None:
        """Append records in order, in as many batches as they need.

        `done` is called once: when all are committed, or with the first error, even if other batches are
        written.
        """
        try:
            log = self._loaded(partition).partition.leader_log()
        except KafkaError as error:
            done(coordinator_error(error))
            return
        parts = in_parts(records, min(PART_BYTES, log.config.max_message_bytes))
        missing = len(parts)
        first: KafkaError | None = None

        def appended(error: KafkaError | None) -> None:
            nonlocal missing, first
            first = first or error
            missing -= 1
            if not missing:
                done(first)

        for part in parts:
            self.append(partition, part, appended)

    def append_marker(
        self,
        partition: int,
        done: Done,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        transaction_version: int = 0,
    ) -> None:
        """End a producer's transaction in a partition of this topic."""
        marker = build_end_transaction_marker(
            commit=commit,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp=self._scheduler.clock.ms(),
        )

        def replay(hosted: HostedShard[S], _: int) -> None:
            hosted.shard.end_transaction(producer_id, producer_epoch, commit=commit)

        self._append(partition, marker, replay, done, transaction_version)

    def _append(
        self,
        partition: int,
        batch: bytes,
        replay: Callable[[HostedShard[S], int], None],
        done: Done,
        transaction_version: int = 0,
    ) -> None:
        try:
            hosted = self._loaded(partition)
        except KafkaError as error:
            done(error)
            return
        hosted.unreplayed += 1
        is_written = is_answered = False
        # A number, not `answered` itself: a function that refers to itself would wait for the garbage
        # collector.
        ticket = 0

        def written(result: AppendResult) -> None:
            nonlocal is_written
            is_written = True
            self._replay(hosted, result, replay)
            self._seen(hosted)

        def answered(error: KafkaError | None) -> None:
            nonlocal is_answered
            is_answered = True
            if not is_written:
                self._seen(hosted)
            # A resignation has answered the appends that were in flight.
            if not ticket or hosted.in_flight.pop(ticket, None) is not None:
                done(None if error is None else coordinator_error(error))

        self._replicas.append_own(
            hosted.partition,
            memoryview(bytearray(batch)),
            timeout_ms=self._append_timeout_ms(),
            written=written,
            done=answered,
            transaction_version=transaction_version,
        )
        if not is_answered:
            ticket = self._wait(hosted, done)

    def _wait(self, hosted: HostedShard[S], done: Done) -> int:
        """Register `done` for the commit or the resignation; returns its key in `in_flight`."""
        self._tickets += 1
        if self.is_hosted(hosted):
            hosted.in_flight[self._tickets] = done
        else:  # it resigned during the append
            done(NotCoordinator(f"this broker stopped leading {hosted.partition.name}"))
        return self._tickets

    def _replay(
        self, hosted: HostedShard[S], result: AppendResult, replay: Callable[[HostedShard[S], int], None]
    ) -> None:
        if not self.is_hosted(hosted):
            self._written_after_resigning(hosted.partition.index, result.base_offset)
            return
        journal = hosted.shard.journal
        if result.needs_flush or len(hosted.partition.replicas) > 1:
            journal.settle()
            journal.end = result.last_offset + 1
        try:
            replay(hosted, result.base_offset)
        except Exception:
            log.exception("%s: what was appended could not be replayed", hosted.partition.name)
            self._load_anew(hosted)
        finally:
            journal.end = 0

    def _written_after_resigning(self, partition: int, base_offset: int) -> None:
        """Load the shard again if it was loaded before this append of an earlier epoch was written."""
        hosted = self._hosted.get(partition)
        if hosted is not None and hosted.loads_up_to <= base_offset:
            log.error("%s: a record of an earlier epoch was written late", hosted.partition.name)
            self._load_anew(hosted)

    def when_committed(self, partition: int, done: Done) -> None:
        """Call `done` when all records written so far are committed. With one replica that is at once."""
        try:
            hosted = self._loaded(partition)
            log_of_partition = hosted.partition.leader_log()
        except KafkaError as error:
            done(coordinator_error(error))
            return
        end = log_of_partition.log_end_offset
        if log_of_partition.high_watermark >= end:
            done(None)
            return

        ticket = self._wait(hosted, done)

        def answered(error: KafkaError | None) -> None:
            if hosted.in_flight.pop(ticket, None) is not None:
                done(None if error is None else coordinator_error(error))

        self._replicas.produce_purgatory.watch(
            DelayedCommit(hosted.partition, end, answered),
            [(hosted.partition.topic, hosted.partition.index)],
            self._append_timeout_ms(),
        )

    def _seen(self, hosted: HostedShard[S]) -> None:
        """Run the waiting operations after a replay, each on the state after the previous one."""
        hosted.unreplayed -= 1
        while hosted.waiting and not hosted.unreplayed:
            operation, failed = hosted.waiting.popleft()
            try:
                operation(hosted.shard)
            except Exception:  # it concerns neither the append that was waited for nor the next operation
                log.exception("%s: a request that waited for an append failed", hosted.partition.name)
                failed(UnknownServerError())

    # -- leadership --------------------------------------------------------------------------------

    def elected(self, partition: Partition) -> None:
        """Load a partition that this broker leads with a new epoch."""
        before = self._hosted.get(partition.index)
        if before is not None and before.leader_epoch == partition.leader_epoch:
            return
        self.resigned(partition.index)
        shard = self._make_shard(partition.index, partition.leader_epoch)
        hosted = self._hosted[partition.index] = HostedShard(partition, shard)
        self._to_load.append(hosted)
        self._load_more()

    def _load_anew(self, hosted: HostedShard[S]) -> None:
        """Load the partition again, because the state of its shard differs from its log."""
        if self.is_hosted(hosted):
            self.resigned(hosted.partition.index)
            self.elected(hosted.partition)

    def _load_more(self) -> None:
        if self._is_starting_loads:
            return  # the load ended at once: the caller starts the next one
        self._is_starting_loads = True
        while self._to_load and self._loads < LOADS_AT_ONCE:
            hosted = self._to_load.popleft()
            if self.is_hosted(hosted):
                try:
                    source = hosted.partition.leader_log()
                except KafkaError as error:
                    log.error("%s cannot be loaded: %s", hosted.partition.name, error)
                    self.resigned(hosted.partition.index)
                    continue
                self._loads += 1
                hosted.loads_up_to = source.log_end_offset
                Loading(self, hosted, source, self._load_buffer_size).go_on()
        self._is_starting_loads = False

    def load_ended(self, seconds: float | None = None) -> None:
        """Start the next load after one has ended; `seconds` is the duration of a complete one."""
        if seconds is not None:
            self.load_seconds.append(seconds)
        self._loads -= 1
        self._load_more()

    def resigned(self, partition: int) -> None:
        """Unload a partition that this broker does not lead any more, or that was deleted."""
        hosted = self._hosted.pop(partition, None)
        if hosted is None:
            return
        if hosted.is_loaded:
            hosted.shard.unload()
        lost = NotCoordinator(f"this broker stops leading {self.topic}-{partition}")
        while hosted.waiting:
            _, failed = hosted.waiting.popleft()
            failed(lost)
        in_flight, hosted.in_flight = hosted.in_flight, {}
        for done in in_flight.values():
            done(lost)

    def close(self) -> None:
        for partition in list(self._hosted):
            self.resigned(partition)

    def is_hosted(self, hosted: HostedShard[S]) -> bool:
        return self._hosted.get(hosted.partition.index) is hosted

    def schedule(self, callback: Callable[[], None]) -> None:
        self._scheduler.schedule(0.0, callback)

    @property
    def scheduler(self) -> Scheduler:
        return self._scheduler


def partition_count(topic: TopicState) -> int:
    """The number of partitions of an internal topic. Raises CoordinatorNotAvailable if some are not known.

    The controller sends no state of partitions that never had a leader. With a wrong number, ids would map to
    wrong partitions.
    """
    count = len(topic.partitions)
    if not count or max(topic.partitions) >= count:
        raise CoordinatorNotAvailable(f"this broker does not know all partitions of {topic.name} yet")
    return count


def in_parts(records: Sequence[NewRecord], most_bytes: int) -> list[list[NewRecord]]:
    """Split the records into lists of at most `most_bytes`, in order. A larger record is alone."""
    parts: list[list[NewRecord]] = [[]]
    room = most_bytes = most_bytes - HEADER_SIZE
    for record in records:
        size = len(record.key) + len(record.value or b"") + RECORD_OVERHEAD
        if size > room and parts[-1]:
            parts.append([])
            room = most_bytes
        parts[-1].append(record)
        room -= size
    return parts


def coordinator_error(error: KafkaError) -> KafkaError:
    """The error that the client of a coordinator gets if its records cannot be appended."""
    if isinstance(
        error, UnknownTopicOrPartition | NotEnoughReplicas | NotEnoughReplicasAfterAppend | RequestTimedOut
    ):
        return CoordinatorNotAvailable(error.message)
    if isinstance(error, NotLeaderOrFollower | KafkaStorageError):
        return NotCoordinator(error.message)
    if isinstance(error, MessageTooLarge | RecordListTooLarge | InvalidFetchSize):
        return UnknownServerError(error.message)
    return error
