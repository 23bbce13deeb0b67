"""Leaders come back to their preferred replicas, and an unclean election happens only where it is allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos.writer import SteadyWriter, check_writes
from tests.replication.elastic_cluster import ElasticCluster
from tests.support.contents import produce, read_with_client
from tests.support.scale import scale
from tests.support.wait import eventually, patience
from tidelog.clients.admin import AlterConfigOp, ConfigResource, ElectionType, ResourceType
from tidelog.errors import EligibleLeadersNotAvailable

PARTITIONS = 6


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ElasticCluster]:
    with ElasticCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def values(cluster: ElasticCluster, topic: str, partition: int = 0) -> list[bytes]:
    log = read_with_client(cluster.bootstrap, [(topic, partition)])[topic, partition]
    return [record.value or b"" for record in log.records]


@pytest.mark.long
def test_leaders_come_back_by_themselves(tmp_path: Path) -> None:
    settings = {
        "auto.leader.rebalance.enable": "true",
        "leader.imbalance.check.interval.seconds": "1",
    }
    with ElasticCluster(tmp_path, settings=settings) as cluster:
        cluster.create("led", *([[1, 2, 3], [2, 3, 1], [3, 1, 2]] * (PARTITIONS // 3)))

        def leaders() -> list[int | None]:
            return [cluster.leader("led", index) for index in range(PARTITIONS)]

        with SteadyWriter(cluster.bootstrap, "led", PARTITIONS, "n") as writer:
            for broker_id in (1, 2, 3) * scale(1, 5):
                writer.await_more(PARTITIONS, patience(30.0))
                broker = cluster[broker_id]
                broker.terminate(patience(30.0))
                eventually(lambda id=broker_id: id not in leaders(), "leaders leave", patience(20.0))  # type: ignore[misc]
                broker.start()
                cluster.await_members()
                eventually(
                    lambda: leaders() == [1, 2, 3] * (PARTITIONS // 3),
                    "every preferred replica leads",
                    patience(30.0),
                    0.1,
                )
            writer.await_more(PARTITIONS, patience(30.0))
            writer.stop()
        cluster.await_in_sync()
        found = {
            ("led", index): [one.decode() for one in values(cluster, "led", index)] for index in range(6)
        }
        assert check_writes(writer.acknowledged, found, writer.sent_anew) == []
        assert cluster.differences() == []
        assert cluster.surprises() == []


def lag_behind(cluster: ElasticCluster, topic: str) -> None:
    """Broker 1 is the only one in the ISR and dies; brokers 2 and 3 lack its last records."""
    cluster.create(topic, [1, 2, 3], min_insync_replicas="1")
    produce(cluster.bootstrap, {(topic, 0): [b"all"] * 10})
    for broker_id in (2, 3):
        cluster[broker_id].terminate(patience(30.0))
    cluster.await_isr([1], topic)
    produce(cluster.bootstrap, {(topic, 0): [b"only on 1"] * 20})
    cluster[1].kill()
    for broker_id in (2, 3):
        cluster[broker_id].launch()
    for broker_id in (2, 3):
        cluster[broker_id].await_ready()
    cluster.await_members()


def test_a_partition_waits_for_its_in_sync_replica(cluster: ElasticCluster) -> None:
    lag_behind(cluster, "clean")
    cluster.await_leader(None, "clean")
    assert cluster.isr("clean") == [1]
    # A change of another topic does not bring a leader.
    cluster.create("other", [2, 3])
    assert cluster.leader("clean") is None
    cluster[1].start()
    cluster.await_leader(1, "clean")
    cluster.await_in_sync()
    assert values(cluster, "clean") == [b"all"] * 10 + [b"only on 1"] * 20
    assert cluster.differences() == []
    assert cluster.surprises() == []


def allow_by_config(cluster: ElasticCluster, topic: str) -> None:
    change = AlterConfigOp("unclean.leader.election.enable", "true")
    resource = ConfigResource(ResourceType.TOPIC, topic)
    cluster.ask(lambda admin: admin.incremental_alter_configs({resource: [change]}))


def ask_for_election(cluster: ElasticCluster, topic: str) -> None:
    assert cluster.elect(ElectionType.UNCLEAN, (topic, 0)) == {(topic, 0): True}


@pytest.mark.parametrize("election", [allow_by_config, ask_for_election])
def test_a_replica_that_is_out_of_sync_leads_where_it_may(
    cluster: ElasticCluster, election: Callable[[ElasticCluster, str], None]
) -> None:
    topic = election.__name__.replace("_", "-")
    lag_behind(cluster, topic)
    cluster.await_leader(None, topic)
    election(cluster, topic)
    cluster.await_leader(2, topic)
    cluster.await_isr([2, 3], topic)
    # The offsets of the lost records are used again.
    produce(cluster.bootstrap, {(topic, 0): [b"new"] * 5})
    cluster[1].start()
    cluster.await_members()
    cluster.await_in_sync()
    produce(cluster.bootstrap, {(topic, 0): [b"newer"] * 5})
    assert values(cluster, topic) == [b"all"] * 10 + [b"new"] * 5 + [b"newer"] * 5
    assert cluster.elect(ElectionType.PREFERRED, (topic, 0)) == {(topic, 0): True}
    cluster.await_leader(1, topic)
    produce(cluster.bootstrap, {(topic, 0): [b"last"]})
    assert values(cluster, topic) == [b"all"] * 10 + [b"new"] * 5 + [b"newer"] * 5 + [b"last"]
    assert cluster.differences() == []
    assert cluster.surprises() == []


def test_an_unclean_election_needs_a_replica_that_is_alive(cluster: ElasticCluster) -> None:
    cluster.create("alone", [1])
    cluster[1].terminate(patience(30.0))
    cluster.await_leader(None, "alone")
    with pytest.raises(EligibleLeadersNotAvailable):
        cluster.elect(ElectionType.UNCLEAN, ("alone", 0))
    cluster[1].start()
    cluster.await_leader(1, "alone")
    assert cluster.surprises() == []
