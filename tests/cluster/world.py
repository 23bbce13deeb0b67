"""What the cluster tests share: a replica manager over real logs, whose time, worker and disk tests move."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from tests.storage.helpers import batch
from tidelog.clock import SimulatedScheduler
from tidelog.cluster.fetch import CONSUMER, Fetcher, FetchParams
from tidelog.cluster.fetch_session import (
    INVALID_SESSION_ID,
    FetchContext,
    FetchedPartition,
    FetchPartition,
    FetchSession,
)
from tidelog.cluster.partition import Partition
from tidelog.cluster.replica_manager import AppendOutcome, ReplicaManager
from tidelog.cluster.topic_metrics import AllTopicMetrics
from tidelog.cluster.worker import Done, InlineWorker, Worker
from tidelog.errors import KafkaError
from tidelog.metadata.state import PartitionState
from tidelog.metrics.registry import Registry
from tidelog.partitions import PartitionKey
from tidelog.records.batch import BatchHeader, iter_batches
from tidelog.storage.append import AppendOrigin, AppendResult
from tidelog.storage.config import LogConfig
from tidelog.storage.disk import Bytes, Disk, RealDisk, RealFile, SyncFailed
from tidelog.storage.log_manager import LogManager
from tidelog.storage.log_manager_listener import LogManagerListener
from tidelog.storage.reads import NotCached

T = TypeVar("T")
SELF, FOLLOWER = 0, 1


class HeldWorker:
    """A worker that does one piece of work when the test says so."""

    def __init__(self) -> None:
        self._held: deque[Callable[[], None]] = deque()

    def submit(self, work: Callable[[], T], done: Done[T]) -> None:
        def run() -> None:
            try:
                result = work()
            except Exception as error:
                done(None, error)
            else:
                done(result, None)

        self._held.append(run)

    def run_one(self) -> bool:
        if not self._held:
            return False
        self._held.popleft()()
        return True

    def run_all(self) -> None:
        while self.run_one():
            pass

    def close(self) -> None:
        self._held.clear()


class FailingDisk(RealDisk):
    """Counts the syncs of log files; writes and syncs of them fail with the errors put into the lists."""

    def __init__(self) -> None:
        self.write_errors: deque[int] = deque()
        self.sync_errors: deque[int] = deque()
        self.syncs = 0

    def open(self, path: str, *, create: bool = False) -> RealFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        file = _FailingFile(path, os.open(path, flags, 0o644))
        file.disk = self
        return file


class _FailingFile(RealFile):
    __slots__ = ("disk",)

    disk: FailingDisk

    def pwrite(self, data: Bytes, position: int) -> None:
        if self.path.endswith(".log") and self.disk.write_errors:
            number = self.disk.write_errors.popleft()
            if number:
                # What still fitted is in the file, as it is when a disk fills up.
                super().pwrite(memoryview(data)[: len(data) // 2], position)
                raise OSError(number, os.strerror(number), self.path)
        super().pwrite(data, position)

    def pwritev(self, parts: Sequence[Bytes], position: int) -> None:
        self.pwrite(b"".join(parts), position)

    def fsync(self) -> None:
        if self.path.endswith(".log"):
            self.disk.syncs += 1
            if self.disk.sync_errors:
                number = self.disk.sync_errors.popleft()
                raise SyncFailed(number, os.strerror(number), self.path)
        super().fsync()


class Produced:
    """What became of a produce: None until it is answered."""

    def __init__(self) -> None:
        self.outcomes: list[AppendOutcome] | None = None

    def __call__(self, outcomes: list[AppendOutcome]) -> None:
        assert self.outcomes is None, "answered twice"
        self.outcomes = outcomes

    @property
    def answered(self) -> bool:
        return self.outcomes is not None

    @property
    def error(self) -> BaseException | None:
        assert self.outcomes is not None, "not answered"
        (outcome,) = self.outcomes
        return outcome.error

    @property
    def result(self) -> AppendResult:
        assert self.outcomes is not None, "not answered"
        (outcome,) = self.outcomes
        assert outcome.error is None, repr(outcome.error)
        assert outcome.result is not None
        return outcome.result

    @property
    def offset(self) -> int:
        return self.result.base_offset


class Fetched:
    """What a fetch was answered with: None until it is."""

    def __init__(self) -> None:
        self.answers: list[FetchedPartition] | None = None

    def __call__(self, answers: list[FetchedPartition]) -> None:
        assert self.answers is None, "answered twice"
        self.answers = answers

    @property
    def answered(self) -> bool:
        return self.answers is not None

    @property
    def only(self) -> FetchedPartition:
        assert self.answers is not None, "not answered"
        (answer,) = self.answers
        return answer

    def offsets(self) -> list[list[int]]:
        """The offsets of the whole batches, partition by partition."""
        assert self.answers is not None, "not answered"
        return [offsets_in(answer) for answer in self.answers]


def offsets_in(answer: FetchedPartition) -> list[int]:
    if answer.records is None:
        return []
    return [
        offset
        for _, header in iter_batches(answer.records.read())
        for offset in range(header.base_offset, header.next_offset)
    ]


class OfflinePartitions(LogManagerListener):
    """Takes the partitions of an offline log folder offline, as the broker does."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    def log_dir_offline(self, path: str, lost: list[PartitionKey]) -> None:
        self._replicas.partitions_offline(lost)


class World:
    """Broker 0 and its partitions; `advance` lets time pass."""

    def __init__(
        self,
        folder: Path,
        *,
        disk: Disk | None = None,
        worker: Worker | None = None,
        scheduler: SimulatedScheduler | None = None,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.scheduler = scheduler or SimulatedScheduler()
        clock = self.scheduler.clock
        self.logs = LogManager(
            [str(folder)], LogConfig(), disk=disk or RealDisk(), clock=clock, scheduler=self.scheduler
        )
        self.logs.log_dirs.lock()
        self.logs.log_dirs.claim("cluster", SELF)
        self.logs.load()
        self.worker = worker or InlineWorker(self.scheduler)
        self.replicas = ReplicaManager(
            SELF, self.logs, self.scheduler, self.worker, AllTopicMetrics(Registry())
        )
        self.logs.listen(OfflinePartitions(self.replicas))
        self.fetcher = Fetcher(self.replicas)

    def partition(
        self,
        topic: str = "t",
        index: int = 0,
        *,
        replicas: Iterable[int] = (SELF,),
        isr: Iterable[int] | None = None,
        leader_epoch: int = 0,
        leader: int = SELF,
        **settings: object,
    ) -> Partition:
        """Lead a partition, as the controller would have this broker do."""
        brokers = list(replicas)
        state = PartitionState(brokers, leader, leader_epoch, brokers if isr is None else list(isr))
        config = LogConfig(**settings)  # type: ignore[arg-type]
        return self.replicas.become_leader(topic, topic.encode().ljust(16, b"-"), index, state, config)

    def produce(
        self,
        partition: Partition,
        data: bytes | bytearray | None = None,
        *,
        acks: int = -1,
        timeout_ms: int = 1000,
        heavy: bool = False,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> Produced:
        """A produce request with one batch, on the way that its size takes."""
        produced = Produced()
        view = memoryview(batch() if data is None else bytearray(data))
        if not heavy and origin is AppendOrigin.CLIENT and partition.can_append_now(acks):
            self._append_now(partition, view, produced, acks)
            return produced
        self.replicas.append(
            [(partition, view)],
            acks=acks,
            timeout_ms=timeout_ms,
            heavy=heavy,
            allow_zstd=True,
            origin=origin,
            done=produced,
        )
        return produced

    def _append_now(self, partition: Partition, data: memoryview, produced: Produced, acks: int) -> None:
        now_ms = self.scheduler.clock.ms()
        try:
            batch = partition.check_now(data, now_ms, True)
            result = partition.append_quickly(batch) or partition.append_now(batch, now_ms)
        except NotCached:
            self.replicas.append_checked(partition, batch, acks=acks, timeout_ms=1000, done=produced)
            return
        except KafkaError as error:
            produced([AppendOutcome(None, error)])
            return
        if not result.needs_flush:
            produced([AppendOutcome(result, None)])
            partition.advance_high_watermark()
            return
        self.replicas.flush_then(
            partition,
            result.base_offset,
            lambda error: produced([AppendOutcome(result if error is None else None, error)]),
        )

    def fetch(
        self,
        wanted: list[FetchPartition] | FetchContext,
        *,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        isolation_level: int = 0,
        replica_id: int = CONSUMER,
    ) -> Fetched:
        """A fetch of these partitions without a session, or of those of a session."""
        fetched = Fetched()
        context = wanted if isinstance(wanted, FetchContext) else without_session(wanted)
        params = FetchParams(max_wait_ms, min_bytes, max_bytes, isolation_level, replica_id)
        self.fetcher.fetch(context, params, fetched)
        return fetched

    def delete_records(
        self, offsets: dict[PartitionKey, int], timeout_ms: int = 1000
    ) -> list[dict[PartitionKey, tuple[int, KafkaError | None]]]:
        """The list gets the answer when there is one."""
        answers: list[dict[PartitionKey, tuple[int, KafkaError | None]]] = []
        self.replicas.delete_records(offsets, timeout_ms, answers.append)
        return answers

    def follower_has(self, partition: Partition, offset: int) -> None:
        """The follower's log has grown up to `offset`, as its next fetch would tell."""
        partition.followers.replicas[FOLLOWER].log_end_offset = offset
        partition.advance_high_watermark()

    def advance(self, seconds: float = 0.0) -> None:
        self.scheduler.advance(seconds)

    def close(self) -> None:
        self.replicas.shutdown()
        self.logs.shutdown()


def without_session(wanted: list[FetchPartition]) -> FetchContext:
    return FetchContext(FetchSession(INVALID_SESSION_ID, wanted))


def want(
    topic: str = "t", index: int = 0, offset: int = 0, max_bytes: int = 1 << 20, **epochs: int
) -> FetchPartition:
    return FetchPartition(topic, index, offset, max_bytes, **epochs)


def stored(partition: Partition) -> list[tuple[BatchHeader, bytes]]:
    """Every batch in the files of a partition, in the order of their bytes."""
    assert partition.log is not None
    found = []
    for path in sorted(Path(partition.log.dir).glob("*.log")):
        data = path.read_bytes()
        end = 0
        for position, header in iter_batches(data):
            end = position + header.total_size
            found.append((header, data[position:end]))
        assert end == len(data), f"{path.name} ends with {len(data) - end} bytes that are no batch"
    return found
