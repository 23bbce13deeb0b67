"""CoordinatorRuntime: the partitions of a coordinator's internal topic that this broker leads.

A shard is the state of one partition. Only records in the log change it, by `replay`, both after an append
and when the partition is loaded: both give the same state. A caller gets its answer when its append is
committed, as with acks=all.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from tidelog.clock import Scheduler
from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.cluster.partition import Partition
from tidelog.cluster.replica_manager import ReplicaManager
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
from tidelog.records.batch import (
    HEADER_SIZE,
    Record,
    build_batch,
    build_end_transaction_marker,
    iter_batches,
    read_control_record,
    read_records,
)
from tidelog.records.partitioning import partition_for_id
from tidelog.storage.append import AppendResult
from tidelog.storage.log import Log
from tidelog.storage.reads import CACHED, CachedReads, NotCached, bring_in

log = logging.getLogger("tidelog.coordinator")

# How long the replay of a chunk may keep the loop from requests at a time.
SECONDS_A_TURN = 0.003

# How many partitions are loaded at a time: each has a chunk of its log in memory.
LOADS_AT_ONCE = 4

# Records that need not be in one batch are appended in batches of at most this many bytes.
PART_BYTES = 32 * 1024
# An upper bound for the bytes of a record without its key and value.
RECORD_OVERHEAD = 32

Done = Callable[[KafkaError | None], None]


class NewRecord(NamedTuple):
    """A record to append: a value of None deletes the key."""

    key: bytes
    value: bytes | None


class Shard(Protocol):
    """The state of one partition of a coordinator's topic."""

    def replay(
        self,
        key: bytes,
        value: bytes | None,
        *,
        offset: int,
        timestamp: int,
        producer_id: int,
        producer_epoch: int,
    ) -> None:
        """Apply a record. `producer_id` is -1 unless the record is part of a transaction."""

    def end_transaction(self, producer_id: int, producer_epoch: int, *, commit: bool) -> None:
        """Apply a marker: the records of the producer's transaction are committed or aborted."""

    def loaded(self) -> None:
        """All records are replayed: start timers; requests come from now on."""

    def unload(self) -> None:
        """This broker does not lead the partition any more: stop timers, and answer all waiting requests."""


S = TypeVar("S", bound=Shard)


class _Hosted(Generic[S]):
    """A partition that this broker leads: its shard, and the operations that wait for its appends."""

    __slots__ = ("is_loaded", "leader_epoch", "partition", "shard", "unreplayed", "waiting")

    def __init__(self, partition: Partition, shard: S) -> None:
        self.partition = partition
        self.shard = shard
        self.leader_epoch = partition.leader_epoch
        self.is_loaded = False
        # Appends that are not replayed yet: operations on the shard wait for them.
        self.unreplayed = 0
        self.waiting: deque[tuple[Callable[[S], None], Callable[[KafkaError], None]]] = deque()


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
        self._hosted: dict[int, _Hosted[S]] = {}
        self._to_load: deque[_Hosted[S]] = deque()
        self._loads = 0
        self._is_starting_loads = False

    # -- which shard -------------------------------------------------------------------------------

    def partition_for(self, key: str) -> int:
        """The partition of a group or a transactional id, by the real number of partitions of the topic."""
        topic = self._metadata.snapshot.topics.get(self.topic)
        if topic is None or not topic.partitions:
            raise CoordinatorNotAvailable(f"the topic {self.topic} does not exist yet")
        return partition_for_id(key, len(topic.partitions))

    def shard(self, partition: int) -> S:
        """The shard of a partition; NotCoordinator or CoordinatorLoadInProgress if it is not loaded."""
        return self._loaded(partition).shard

    def shard_for(self, key: str) -> S:
        return self.shard(self.partition_for(key))

    def leader_epoch(self, partition: int) -> int:
        return self._loaded(partition).leader_epoch

    @property
    def is_loading(self) -> bool:
        return any(not hosted.is_loaded for hosted in self._hosted.values())

    def shards(self) -> Iterator[S]:
        """The shards that are loaded."""
        for hosted in self._hosted.values():
            if hosted.is_loaded:
                yield hosted.shard

    def _loaded(self, partition: int) -> _Hosted[S]:
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
        """Call `operation` with a shard that has replayed all appends so far: nearly always at once.

        `failed` is called instead if the partition is not led here or not loaded.
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
        """A shard that has replayed all appends so far; None if `run` would wait or fail."""
        hosted = self._hosted.get(partition)
        if hosted is None or not hosted.is_loaded or hosted.unreplayed or hosted.waiting:
            return None
        return hosted.shard

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
        """Append records as one batch and replay them; `done` when they are committed, or with the error.

        With a producer id they are part of its transaction. Call it from the operation of `run` that decides.
        `take` replaces the replay, for a caller that knows the contents and need not decode them.
        """
        if not records:
            done(None)
            return
        now_ms = self._scheduler.clock.ms()
        batch = build_batch(
            [Record(at, now_ms, key, value) for at, (key, value) in enumerate(records)],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=producer_id >= 0,
        )

        def replay(hosted: _Hosted[S], base_offset: int) -> None:
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

        `done` is called once: when all are committed, or with the first error. Other batches may be written
        then.
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

        def replay(hosted: _Hosted[S], _: int) -> None:
            hosted.shard.end_transaction(producer_id, producer_epoch, commit=commit)

        self._append(partition, marker, replay, done, transaction_version)

    def _append(
        self,
        partition: int,
        batch: bytes,
        replay: Callable[[_Hosted[S], int], None],
        done: Done,
        transaction_version: int = 0,
    ) -> None:
        try:
            hosted = self._loaded(partition)
        except KafkaError as error:
            done(error)
            return
        hosted.unreplayed += 1
        is_written = False

        def written(result: AppendResult) -> None:
            nonlocal is_written
            is_written = True
            try:
                if self.is_hosted(hosted):
                    replay(hosted, result.base_offset)
            except Exception:
                log.exception("%s: what was appended could not be replayed", hosted.partition.name)
                self._load_anew(hosted)
            self._seen(hosted)

        def answered(error: KafkaError | None) -> None:
            if not is_written:
                self._seen(hosted)
            done(None if error is None else coordinator_error(error))

        self._replicas.append_own(
            hosted.partition,
            memoryview(bytearray(batch)),
            timeout_ms=self._append_timeout_ms(),
            written=written,
            done=answered,
            transaction_version=transaction_version,
        )

    def _seen(self, hosted: _Hosted[S]) -> None:
        """An append is replayed: run the waiting operations, each on the state after the one before."""
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
        """This broker leads a partition with a new epoch: load it."""
        before = self._hosted.get(partition.index)
        if before is not None and before.leader_epoch == partition.leader_epoch:
            return
        self.resigned(partition.index)
        shard = self._make_shard(partition.index, partition.leader_epoch)
        hosted = self._hosted[partition.index] = _Hosted(partition, shard)
        self._to_load.append(hosted)
        self._load_more()

    def _load_anew(self, hosted: _Hosted[S]) -> None:
        """The state of the shard differs from its log: load the partition again."""
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
                _Loading(self, hosted, source, self._load_buffer_size).go_on()
        self._is_starting_loads = False

    def load_ended(self) -> None:
        """A load has ended: start the next one."""
        self._loads -= 1
        self._load_more()

    def resigned(self, partition: int) -> None:
        """This broker does not lead the partition any more, or it is deleted."""
        hosted = self._hosted.pop(partition, None)
        if hosted is None:
            return
        if hosted.is_loaded:
            hosted.shard.unload()
        while hosted.waiting:
            _, failed = hosted.waiting.popleft()
            failed(NotCoordinator(f"this broker stops leading {self.topic}-{partition}"))

    def close(self) -> None:
        for partition in list(self._hosted):
            self.resigned(partition)

    def is_hosted(self, hosted: _Hosted[S]) -> bool:
        return self._hosted.get(hosted.partition.index) is hosted

    def schedule(self, callback: Callable[[], None]) -> None:
        self._scheduler.schedule(0.0, callback)

    @property
    def scheduler(self) -> Scheduler:
        return self._scheduler


class _Loading(Generic[S]):
    """Loads a partition: reads chunks off the loop, and replays them on the loop in turns of a few ms."""

    def __init__(self, runtime: CoordinatorRuntime[S], hosted: _Hosted[S], source: Log, chunk: int) -> None:
        self._runtime = runtime
        self._hosted = hosted
        self._log = source
        self._chunk = chunk
        self._offset = source.log_start_offset
        self._end = source.log_end_offset
        self._began = runtime.scheduler.clock.monotonic()
        self._records = 0

    def go_on(self, reads: CachedReads = CACHED) -> None:
        if not self._runtime.is_hosted(self._hosted):
            self._runtime.load_ended()
            return
        if self._offset >= self._end:
            self._finish()
            return
        try:
            found = self._log.read(self._offset, self._chunk, max_offset=self._end, reads=reads)
        except NotCached as cold:
            bring_in(self._runtime.scheduler, cold, reads, self.go_on)
            return
        except KafkaError as error:
            self._failed(error)
            return
        if found.slice is None:
            self._finish()  # the records up to the end were removed by the cleaner
            return
        self._runtime.scheduler.run_blocking(found.slice.read, self._read)

    def _read(self, data: bytes | None, error: BaseException | None) -> None:
        if data is None:
            self._failed(error)
            return
        self._replay(self._batches(data))

    def _replay(self, steps: Iterator[None]) -> None:
        if not self._runtime.is_hosted(self._hosted):
            self._runtime.load_ended()
            return
        clock = self._runtime.scheduler.clock
        until = clock.monotonic() + SECONDS_A_TURN
        try:
            for _ in steps:
                if clock.monotonic() >= until:
                    self._runtime.schedule(lambda: self._replay(steps))
                    return
        except Exception as error:
            self._failed(error)
            return
        self.go_on()

    def _batches(self, data: bytes) -> Iterator[None]:
        """Replay whole batches, at most a hundred records in a step."""
        shard = self._hosted.shard
        before = self._offset
        for position, header in iter_batches(data):
            records = read_records(data, position, header=header)
            producer_id = header.producer_id if header.is_transactional else -1
            if header.is_control:
                for record in records:
                    marker = read_control_record(record)
                    if marker is not None:
                        shard.end_transaction(header.producer_id, header.producer_epoch, commit=marker.commit)
            else:
                for at, record in enumerate(records):
                    if record.offset >= self._offset and record.key is not None:
                        shard.replay(
                            record.key,
                            record.value,
                            offset=record.offset,
                            timestamp=record.timestamp,
                            producer_id=producer_id,
                            producer_epoch=header.producer_epoch,
                        )
                    if at % 100 == 99:
                        yield
            self._records += len(records)
            self._offset = header.next_offset
            yield
        if self._offset == before:
            self._offset = self._end  # no whole batch was read: the log ends here

    def _finish(self) -> None:
        hosted = self._hosted
        hosted.is_loaded = True
        hosted.shard.loaded()
        level = logging.INFO if self._records else logging.DEBUG
        log.log(
            level,
            "loaded",
            extra={
                "fields": {
                    "partition": hosted.partition.name,
                    "records": self._records,
                    "ms": round((self._runtime.scheduler.clock.monotonic() - self._began) * 1000),
                }
            },
        )
        self._runtime.load_ended()

    def _failed(self, error: BaseException | None) -> None:
        """The load failed: log it, and answer no requests for this partition."""
        if self._runtime.is_hosted(self._hosted):
            log.error("%s cannot be loaded", self._hosted.partition.name, exc_info=error)
            self._runtime.resigned(self._hosted.partition.index)
        self._runtime.load_ended()


def in_parts(records: Sequence[NewRecord], most_bytes: int) -> list[list[NewRecord]]:
    """Split the records into lists of at most so many bytes, in order; a larger record is alone."""
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
    """The error for a client of the coordinator whose records could not be appended."""
    if isinstance(
        error, UnknownTopicOrPartition | NotEnoughReplicas | NotEnoughReplicasAfterAppend | RequestTimedOut
    ):
        return CoordinatorNotAvailable(error.message)
    if isinstance(error, NotLeaderOrFollower | KafkaStorageError):
        return NotCoordinator(error.message)
    if isinstance(error, MessageTooLarge | RecordListTooLarge | InvalidFetchSize):
        return UnknownServerError(error.message)
    return error
