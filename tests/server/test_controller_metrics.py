"""The controller's metrics have Kafka's names and the numbers of the active controller."""

from __future__ import annotations

from tests.controller.controllers import Cluster, simulated
from tidelog.controller.interface import NewTopic
from tidelog.metrics.prometheus import render
from tidelog.metrics.registry import Gauge, Histogram, MetricName, Registry
from tidelog.partitions import TopicPartition
from tidelog.protocol.election_type import ElectionType
from tidelog.server.controller_metrics import register_controller_metrics

# As Kafka 3.9 registers them on ZooKeeper; the migration to KRaft is not served.
GAUGES = {
    "ActiveBrokerCount",
    "ActiveControllerCount",
    "ControllerState",
    "FencedBrokerCount",
    "GlobalPartitionCount",
    "GlobalTopicCount",
    "OfflinePartitionsCount",
    "PreferredReplicaImbalanceCount",
    "ReplicasIneligibleToDeleteCount",
    "ReplicasToDeleteCount",
    "TopicsIneligibleToDeleteCount",
    "TopicsToDeleteCount",
}
TIMES = {
    "AutoLeaderBalanceRateAndTimeMs",
    "ControlledShutdownRateAndTimeMs",
    "ControllerChangeRateAndTimeMs",
    "ControllerShutdownRateAndTimeMs",
    "IsrChangeRateAndTimeMs",
    "LeaderAndIsrResponseReceivedRateAndTimeMs",
    "LeaderElectionRateAndTimeMs",
    "ListPartitionReassignmentRateAndTimeMs",
    "LogDirChangeRateAndTimeMs",
    "ManualLeaderBalanceRateAndTimeMs",
    "PartitionReassignmentRateAndTimeMs",
    "TopicChangeRateAndTimeMs",
    "TopicDeletionRateAndTimeMs",
    "TopicUncleanLeaderElectionEnableRateAndTimeMs",
    "UncleanLeaderElectionEnableRateAndTimeMs",
    "UpdateMetadataResponseReceivedRateAndTimeMs",
}


def names(registry: Registry, kind: str) -> set[str]:
    return {name.name for name, _ in registry if name.group == "kafka.controller" and name.type == kind}


def gauge(registry: Registry, name: str) -> float:
    found = dict(registry)[MetricName("kafka.controller", "KafkaController", name)]
    assert isinstance(found, Gauge)
    return found.value


def count(registry: Registry, kind: str, name: str, **labels: str) -> int:
    found = dict(registry)[MetricName("kafka.controller", kind, name, tuple(labels.items()))]
    assert isinstance(found, Histogram)
    return found.count


def test_the_metrics_of_a_controller() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            await cluster.start(9)
            node = await cluster.controller()
            registry = Registry()
            register_controller_metrics(registry, node.controller)
            assert names(registry, "KafkaController") == GAUGES
            assert names(registry, "ControllerStats") == {*TIMES, "UncleanLeaderElectionsPerSec"}
            assert names(registry, "ControllerEventManager") == {"EventQueueSize", "EventQueueTimeMs"}
            for broker_id in (1, 2):
                await cluster.start(broker_id)
            await cluster.settle()
            cluster.settings.unclean_leader_election_enable = True
            topics = [NewTopic("demo", assignments=[(0, [1, 2])]), NewTopic("alone", assignments=[(0, [1])])]
            await node.controller.create_topics(topics)
            await cluster.settle()
            assert (gauge(registry, "GlobalTopicCount"), gauge(registry, "GlobalPartitionCount")) == (2, 2)
            assert (gauge(registry, "ActiveBrokerCount"), gauge(registry, "ActiveControllerCount")) == (3, 1)
            queue = "RequestRateAndQueueTimeMs"
            assert count(registry, "ControllerChannelManager", queue, **{"broker-id": "1"}) > 0

            await cluster.crash(1)
            await cluster.until(lambda: gauge(registry, "OfflinePartitionsCount") == 1, "a partition offline")
            assert gauge(registry, "PreferredReplicaImbalanceCount") == 2
            assert count(registry, "ControllerStats", "LeaderElectionRateAndTimeMs") > 0
            render(registry)  # brokers that are gone leave with a reading
            labelled = {name.labels for name, _ in registry if name.name == queue}
            assert labelled == {(("broker-id", "9"),), (("broker-id", "2"),)}

            await cluster.crash(2)
            await cluster.until(lambda: gauge(registry, "OfflinePartitionsCount") == 2, "both offline")
            await cluster.start(1)  # it was not in sync any more
            await cluster.until(lambda: gauge(registry, "OfflinePartitionsCount") == 0, "an unclean leader")
            await cluster.settle()
            assert node.controller.stats.unclean_elections == 1
            assert "UncleanLeaderElections" in render(registry)
            moved = await node.controller.alter_partition_reassignments({TopicPartition("alone", 0): [9]})
            assert [*moved.values()] == [None]
            await node.controller.elect_leaders(None, ElectionType.PREFERRED)
            await cluster.settle()
            assert count(registry, "ControllerStats", "PartitionReassignmentRateAndTimeMs") > 0
            assert gauge(registry, "PreferredReplicaImbalanceCount") == 0

    simulated(story())
