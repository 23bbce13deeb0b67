"""What the checks of the simulation take for a fault, and what not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidelog import AsyncAdmin, NewTopic
from tidelog.cluster.partition import Partition
from tidelog.cluster.replica_manager import ReplicaManager
from tidelog.errors import KafkaStorageError
from tidelog.metadata.state import PartitionState
from tidelog.simulation.cluster import SimCluster
from tidelog.simulation.invariants import Invariants
from tidelog.simulation.process import Process
from tidelog.simulation.world import World
from tidelog.storage.config import LogConfig

TOPIC = "replicated"


class Run:
    """Three brokers with one topic; all turns are checked."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cluster = SimCluster(world, 3)
        assert self.cluster.zookeeper is not None
        self.invariants = Invariants(self.cluster, self.cluster.zookeeper)
        self.cluster.start()
        assert world.run(30.0, lambda: self.cluster.is_running)

        async def main(_: Process) -> None:
            async with AsyncAdmin({"bootstrap.servers": self.cluster.bootstrap}) as admin:
                await admin.create_topics([NewTopic(TOPIC, 1, 3)])

        client = world.start("admin", "client", main)
        assert world.run(30.0, lambda: not client.is_alive)
        assert world.run(30.0, lambda: not self.invariants.differences())
        world.run(1.0)
        self.replicas, self.follower = self._find_follower()

    def _find_follower(self) -> tuple[ReplicaManager, Partition]:
        for broker in self.cluster.brokers:
            assert broker.server is not None
            assert broker.server.replicas is not None
            found = broker.server.replicas.find_partition(TOPIC, 0)
            if found is not None and not found.is_leader:
                return broker.server.replicas, found
        raise AssertionError("no broker follows")

    @property
    def problems(self) -> list[str]:
        self.world.run(1.0)
        return [text for text in self.invariants.problems if "goes back" in text]


@pytest.fixture
def run() -> Iterator[Run]:
    with World(1).running() as world:
        yield Run(world)


def test_a_leader_epoch_that_falls_is_a_fault(run: Run) -> None:
    assert not run.problems
    run.follower.leader_epoch -= 1
    assert run.problems


def test_a_topic_that_is_made_again_begins_with_its_own_epochs(run: Run) -> None:
    run.follower.leader_epoch += 1
    assert not run.problems
    run.follower.topic_id = bytes(reversed(run.follower.topic_id))
    run.follower.leader_epoch -= 1
    assert not run.problems
    run.follower.leader_epoch -= 1
    assert run.problems


def follow_again(run: Run, leader_epoch: int) -> None:
    before = run.follower
    state = PartitionState(before.replicas, before.leader_id, leader_epoch, before.isr, 5, 1)
    run.replicas.become_follower(TOPIC, before.topic_id, 0, state, LogConfig(), is_new=False)


def test_a_deleted_replica_that_cannot_be_made_again_has_no_epoch(run: Run) -> None:
    run.replicas.delete_partition(TOPIC, 0)
    run.replicas.logs.failed[TOPIC, 0] = "its folder is offline"
    with pytest.raises(KafkaStorageError):
        follow_again(run, 0)
    made = run.replicas.find_partition(TOPIC, 0)
    assert made is not None
    assert made.leader_epoch == -1
    assert not run.problems


def test_a_deleted_replica_that_is_made_again_has_no_older_epoch(run: Run) -> None:
    run.follower.leader_epoch = 3
    assert not run.problems
    run.replicas.delete_partition(TOPIC, 0)
    follow_again(run, 2)
    assert run.problems
