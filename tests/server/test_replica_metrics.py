"""The metrics about replicas, under the names of Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.replicated import OTHER, REPLICAS, Replicated
from tests.cluster.world import FOLLOWER, SELF
from tests.storage.helpers import batch
from tidelog.cluster.fetch_session import FetchSessionCache
from tidelog.metadata.state import PartitionState
from tidelog.metrics.prometheus import render
from tidelog.metrics.registry import Registry
from tidelog.server.metrics import BrokerMetrics
from tidelog.storage.config import LogConfig

MANAGER = "kafka_server_replicamanager_"
PARTITION = "kafka_cluster_partition_"


@pytest.fixture
def world(tmp_path: Path) -> Replicated:
    return Replicated(tmp_path)


def scrape(world: Replicated) -> dict[str, float]:
    registry = Registry()
    sessions = FetchSessionCache(world.scheduler.clock, 10)
    BrokerMetrics(registry, world.replicas, sessions, world.metadata, lambda: 3, 0)
    found = {}
    for line in render(registry).splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[name] = float(value)
    return found


def lead(world: Replicated, index: int, state: PartitionState, min_isr: int = 2) -> None:
    config = LogConfig(min_insync_replicas=min_isr)
    world.replicas.become_leader("t", b"T" * 16, index, state, config)


def test_partitions_that_miss_replicas_are_counted(world: Replicated) -> None:
    lead(world, 0, PartitionState(list(REPLICAS), SELF, 0, list(REPLICAS)))
    lead(world, 1, PartitionState(list(REPLICAS), SELF, 0, [SELF, OTHER]))
    lead(world, 2, PartitionState(list(REPLICAS), SELF, 0, [SELF]))
    lead(world, 3, PartitionState(list(REPLICAS), SELF, 0, [SELF, OTHER], adding=[FOLLOWER]))
    state = PartitionState(list(REPLICAS), OTHER, 0, [OTHER])
    world.replicas.become_follower("t", b"T" * 16, 4, state, LogConfig())
    found = scrape(world)
    assert found[MANAGER + "partitioncount"] == 5
    assert found[MANAGER + "leadercount"] == 4
    assert found[MANAGER + "underreplicatedpartitions"] == 2, "replicas that are added are not missed"
    assert found[MANAGER + "underminisrpartitioncount"] == 1
    assert found[MANAGER + "atminisrpartitioncount"] == 2
    assert found[MANAGER + "reassigningpartitions"] == 1
    assert found[MANAGER + "offlinereplicacount"] == 0

    def of_partitions(name: str) -> list[float]:
        label = 'topic="t",partition="{}"'
        return [found[f"{PARTITION}{name}{{{label.format(index)}}}"] for index in range(5)]

    assert of_partitions("underreplicated") == [0, 1, 1, 0, 0]
    assert of_partitions("underminisr") == [0, 0, 1, 0, 0]
    assert of_partitions("atminisr") == [0, 1, 0, 1, 0]
    assert of_partitions("insyncreplicascount") == [3, 2, 1, 2, 0]
    assert of_partitions("replicascount") == [3, 3, 3, 3, 0]
    exported = [name for name in found if name.startswith("kafka_topic_partition_current_offset")]
    assert len(exported) == 4, "the leader of a partition exports it"


def test_changes_of_the_isr_are_counted(world: Replicated) -> None:
    partition = world.lead(isr=(SELF, OTHER))
    world.follow(0)
    world.asked.grant()
    world.produce(partition, batch(), acks=1)
    world.advance(60)
    world.asked.refuse(107)
    world.advance(60)
    world.asked.grant()
    counts = (world.meters.expands.count, world.meters.shrinks.count, world.meters.failed_updates.count)
    assert counts == (1, 1, 1)
