"""A broker with two log folders on a simulated disk and clock, whose partition moves between them."""

from __future__ import annotations

from tests.cluster.world import OfflinePartitions
from tests.storage.helpers import NOW, batch
from tests.support.simdisk import SimulatedDisk
from tidelog.clock import ManualClock, SimulatedScheduler
from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.cluster.moves import MoveSettings, ReplicaMoves
from tidelog.cluster.partition import Partition
from tidelog.cluster.replica_manager import AppendOutcome, ReplicaManager
from tidelog.cluster.topic_metrics import AllTopicMetrics
from tidelog.cluster.worker import InlineWorker
from tidelog.metadata.state import PartitionState
from tidelog.metrics.registry import Registry
from tidelog.storage.append import AppendOrigin
from tidelog.storage.cleaner.log_cleaner import LogCleaner
from tidelog.storage.config import LogConfig
from tidelog.storage.log import Log
from tidelog.storage.log_manager import LogManager

A, B, C = "/disk/a", "/disk/b", "/disk/c"
KEY = ("t", 0)


class Moving:
    def __init__(
        self,
        disk: SimulatedDisk | None = None,
        *,
        dirs: tuple[str, ...] = (A, B),
        epoch: int = 0,
        step_bytes: int = 400,
        near_bytes: int = 0,
        settings: MoveSettings | None = None,
        is_hosted: bool = True,
        **config: object,
    ) -> None:
        """Unless `is_hosted`, the broker belongs to a cluster: a test has it lead the partition."""
        self.disk = disk or SimulatedDisk()
        self.scheduler = SimulatedScheduler(ManualClock(NOW))
        defaults: dict[str, object] = {"segment_bytes": 1000, "index_interval_bytes": 200, **config}
        self.config = LogConfig(**defaults)  # type: ignore[arg-type]
        self.logs = LogManager(
            dirs, self.config, disk=self.disk, clock=self.scheduler.clock, scheduler=self.scheduler
        )
        self.logs.log_dirs.lock()
        self.logs.log_dirs.claim("cluster", 0)
        self.logs.load(lambda _: self.config)
        worker = InlineWorker(self.scheduler)
        self.replicas = ReplicaManager(0, self.logs, self.scheduler, worker, AllTopicMetrics(Registry()))
        self.logs.listen(OfflinePartitions(self.replicas))
        if is_hosted:
            self.partition = self.lead(epoch)
        else:
            self.replicas.metadata = MetadataCache("cluster")
        self.cleaner = LogCleaner(self.logs, self.scheduler)
        self.cleaner.start()
        self.moves = ReplicaMoves(
            self.replicas,
            self.scheduler,
            self.cleaner,
            settings,
            step_bytes=step_bytes,
            near_bytes=near_bytes,
        )
        self.moves.start()

    def lead(self, epoch: int = 0) -> Partition:
        state = PartitionState([0], 0, epoch, [0])
        return self.replicas.become_leader("t", b"t" * 16, 0, state, self.config)

    @property
    def log(self) -> Log:
        assert self.partition.log is not None
        return self.partition.log

    def append(
        self,
        data: bytes | bytearray | None = None,
        *,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        heavy: bool = False,
    ) -> list[AppendOutcome]:
        """The list gets the outcome when there is one."""
        answers: list[AppendOutcome] = []
        self.replicas.append(
            [(self.partition, memoryview(bytearray(batch() if data is None else data)))],
            acks=-1,
            timeout_ms=30_000,
            heavy=heavy,
            allow_zstd=True,
            origin=origin,
            done=answers.extend,
        )
        return answers

    def folder(self) -> str:
        folder = self.logs.log_dir_of(KEY)
        assert folder is not None
        return folder.path

    def names(self, folder: str) -> list[str]:
        """What is in a log folder of the partition."""
        return [name for name in self.disk.listdir(folder) if name.startswith("t-0")]

    def advance(self, seconds: float = 0.0) -> None:
        self.scheduler.advance(seconds)

    def crashed(self, disk: SimulatedDisk, epoch: int) -> Moving:
        """The next broker, on what is left."""
        disk.locks.clear()
        return Moving(disk, epoch=epoch, dirs=tuple(folder.path for folder in self.logs.log_dirs))
