"""What the tests of a leader share: partitions with followers, and a controller that answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.cluster.world import FOLLOWER, SELF, Fetched, World, want, without_session
from tidelog.cluster.alter_partition_manager import AlteredPartition, IsrChange
from tidelog.cluster.fetch import FetchParams
from tidelog.cluster.isr_manager import IsrManager, IsrMeters
from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.cluster.partition import Partition
from tidelog.metadata.state import BrokerRegistration, ClusterState
from tidelog.metrics.registry import Registry

OTHER = 2
REPLICAS = (SELF, FOLLOWER, OTHER)
OWN_EPOCH = 100


class Asked:
    """Keeps the changes that a leader asks for; the test answers them."""

    def __init__(self) -> None:
        self.changes: list[IsrChange] = []

    def submit(self, change: IsrChange) -> None:
        self.changes.append(change)

    def only(self) -> IsrChange:
        (change,) = self.changes
        self.changes.clear()
        return change

    def isr(self) -> list[int]:
        (change,) = self.changes
        return [broker for broker, _ in change.isr]

    def grant(self) -> None:
        change = self.only()
        isr = [broker for broker, _ in change.isr]
        change.answered(AlteredPartition(SELF, change.leader_epoch, isr, change.partition_epoch + 1), 0)

    def refuse(self, code: int) -> None:
        self.only().answered(None, code)


class Replicated(World):
    """Broker 0 leads partitions of three replicas."""

    def __init__(self, folder: Path, *, max_lag_seconds: float = 30.0) -> None:
        super().__init__(folder)
        self.registry = Registry()
        self.asked = Asked()
        self.metadata = MetadataCache("cluster")
        self.replicas.metadata = self.replicas.isr_rules.metadata = self.metadata
        self.replicas.isr_rules.max_lag_seconds = max_lag_seconds
        self.meters = IsrMeters(self.registry)
        self.isr = IsrManager(self.replicas, self.asked, self.meters, lambda: OWN_EPOCH)
        self.replicas.isr_manager = self.isr
        self.alive(*REPLICAS)
        self.isr.start()

    def alive(self, *brokers: int) -> None:
        state = ClusterState("cluster")
        state.brokers = {broker: BrokerRegistration(broker, []) for broker in brokers}
        self.metadata.update(state)

    def lead(
        self, topic: str = "t", index: int = 0, *, isr: Sequence[int] = REPLICAS, **more: object
    ) -> Partition:
        return self.partition(topic, index, replicas=REPLICAS, isr=isr, **more)  # type: ignore[arg-type]

    def follow(
        self, offset: int, *, replica_id: int = FOLLOWER, index: int = 0, epoch: int = -1, **more: int
    ) -> Fetched:
        """A fetch of a follower without a session."""
        fetched = Fetched()
        params = FetchParams(500, 1, 1 << 20, 0, replica_id, epoch)
        self.fetcher.fetch(without_session([want(index=index, offset=offset, **more)]), params, fetched)
        return fetched
