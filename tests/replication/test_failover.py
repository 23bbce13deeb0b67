"""Another replica leads soon after a leader is killed, paused or stopped, also if it was the controller."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos.faulty_cluster import BROKERS
from tests.replication.gaps import GapWriter
from tests.replication.replicated_cluster import ReplicatedCluster
from tests.support.contents import read_with_client
from tests.support.scale import scale
from tests.support.wait import eventually, patience
from tidelog import Admin, NewTopic

TOPIC = "watched"
SESSION_SECONDS = 6.0
KILL_MEDIAN, KILL_WORST = 0.5, 1.0
STOP_WORST = 0.3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicatedCluster]:
    folder: Path = tmp_path_factory.mktemp("cluster")
    settings = {"zookeeper.session.timeout.ms": str(int(SESSION_SECONDS * 1000))}
    with ReplicatedCluster(folder, settings) as running:
        with Admin(bootstrap_servers=running.bootstrap) as admin:
            admin.create_topics([NewTopic(TOPIC, len(BROKERS))])
        running.await_recovery()
        yield running


def leader(cluster: ReplicatedCluster, partition: int) -> int:
    def found() -> int | None:
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            return admin.describe_topics([TOPIC])[TOPIC].partitions[partition].leader

    return eventually(found, f"{TOPIC}-{partition} has a leader")


def gaps(
    cluster: ReplicatedCluster,
    rounds: int,
    fault: Callable[[int], None],
    mend: Callable[[int], None],
) -> list[float]:
    """The longest gap of each round, whose fault hits the leader of a partition.

    In every second round that leader is the controller, too.
    """
    found: list[float] = []
    for number in range(rounds):
        partition = number % len(BROKERS)
        if number % 2:
            controller = cluster.await_controller()
            partition = next((p for p in range(len(BROKERS)) if leader(cluster, p) == controller), partition)
        found.append(gap(cluster, partition, fault, mend))
    print(f"gaps: median {statistics.median(found):.3f} s, worst {max(found):.3f} s of {rounds}")
    return found


def gap(
    cluster: ReplicatedCluster, partition: int, fault: Callable[[int], None], mend: Callable[[int], None]
) -> float:
    with GapWriter(cluster.bootstrap, TOPIC, partition) as writer:
        victim = leader(cluster, partition)
        began = time.monotonic()
        fault(victim)
        eventually(lambda: leader(cluster, partition) != victim, "another leader", patience(30.0))
        writer.await_more(50)
        longest = writer.longest_gap(began)
        mend(victim)
        cluster.await_recovery()
    assert writer.errors == []
    log = read_with_client(cluster.bootstrap, [(TOPIC, partition)])[TOPIC, partition]
    values = [int(record.value or b"-1") for record in log.records]
    assert values[-len(writer.acknowledged) :] == writer.acknowledged, "records are lost or doubled"
    return longest


def test_another_replica_leads_after_a_kill(cluster: ReplicatedCluster) -> None:
    found = gaps(cluster, scale(2, 50), cluster.kill, cluster.start)
    assert statistics.median(found) < patience(KILL_MEDIAN)
    assert max(found) < patience(KILL_WORST)


def test_another_replica_leads_after_a_controlled_stop(cluster: ReplicatedCluster) -> None:
    found = gaps(cluster, scale(2, 20), cluster.stop, cluster.start)
    assert max(found) < patience(STOP_WORST)


@pytest.mark.long
def test_another_replica_leads_when_the_session_of_a_paused_leader_is_over(
    cluster: ReplicatedCluster,
) -> None:
    found = gaps(cluster, scale(1, 6), cluster.pause, cluster.resume)
    assert max(found) < patience(SESSION_SECONDS + 2.0)
