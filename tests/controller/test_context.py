"""The controller's context answers as a search through everything would, whatever changed before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.controller.cluster_rig import broker, topic_id
from tidelog.controller.context import ControllerContext
from tidelog.controller.states import PartitionAndReplica, PartitionStatus, ReplicaStatus
from tidelog.metadata.state import NO_LEADER, NO_STATE_NODE, PartitionState
from tidelog.partitions import TopicPartition

TOPICS = ("a", "b")
BROKERS = range(1, 5)

replica_lists = st.lists(st.sampled_from(BROKERS), min_size=1, max_size=3, unique=True)
partitions = st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 2))
steps = st.one_of(
    st.tuples(st.just("put"), partitions, replica_lists, st.booleans()),
    st.tuples(st.just("assign"), partitions, replica_lists),
    st.tuples(st.just("remove"), st.sampled_from(TOPICS)),
    st.tuples(st.just("queue"), st.sampled_from(TOPICS)),
    st.tuples(st.just("status"), partitions, st.sampled_from(PartitionStatus)),
    st.tuples(st.just("join"), st.sampled_from(BROKERS)),
    st.tuples(st.just("leave"), st.sampled_from(BROKERS)),
    st.tuples(st.just("stop"), st.sampled_from(BROKERS)),
    st.tuples(st.just("disk"), st.sampled_from(BROKERS), partitions),
)


def apply(context: ControllerContext, step: tuple) -> None:  # type: ignore[type-arg]
    match step:
        case "put", partition, replicas, has_leader:
            leader = replicas[-1] if has_leader else NO_LEADER
            epoch = 0 if has_leader else NO_STATE_NODE
            context.put_partition(partition, PartitionState(replicas, leader, 0, replicas, epoch))
        case "assign", partition, replicas:
            context.put_assignment(partition, replicas, [], [])
        case "remove", topic:
            context.remove_topic(topic)
        case "queue", topic:
            context.queue_topic_deletion([topic])
        case "status", partition, status:
            if partition in context.partitions:
                context.put_partition_status(partition, status)
        case "join", broker_id:
            context.add_live_brokers([broker(broker_id)])
        case "leave", broker_id:
            context.remove_live_brokers([broker_id])
        case "stop", broker_id:
            context.begin_shutdown(broker_id)
        case "disk", broker_id, partition:
            context.update_offline_replicas(broker_id, offline=[partition])


@given(st.lists(steps, max_size=40))
def test_the_indexes_agree_with_a_search(history: list[tuple]) -> None:  # type: ignore[type-arg]
    context = ControllerContext()
    for step in history:
        apply(context, step)
    known = context.partitions
    for broker_id in BROKERS:
        on_broker = {partition for partition, state in known.items() if broker_id in state.replicas}
        assert set(context.partitions_on_broker(broker_id)) == on_broker
        assert {r.topic_partition for r in context.replicas_on_broker(broker_id)} == on_broker
        led = {
            partition
            for partition in on_broker
            if known[partition].leader == broker_id and partition.topic not in context.topics_to_be_deleted
        }
        assert set(context.partitions_with_leader_on(broker_id)) == led
    for topic in TOPICS:
        assert set(context.partitions_of(topic)) == {key for key in known if key.topic == topic}
    replicas = list(context.all_replicas())
    online = [replica for replica, is_online in replicas if is_online]
    offline = [replica for replica, is_online in replicas if not is_online]
    assert len(online) + len(offline) == sum(len(state.replicas) for state in known.values())
    assert all(context.is_replica_online(r.replica, r.topic_partition) for r in online)
    assert not any(context.is_replica_online(r.replica, r.topic_partition) for r in offline)
    imbalanced = [
        partition
        for partition, state in known.items()
        if state.partition_epoch != NO_STATE_NODE
        and state.leader != state.replicas[0]
        and partition.topic not in context.topics_to_be_deleted
    ]
    assert context.preferred_replica_imbalance_count == len(imbalanced)
    offline_partitions = context.partitions_in(PartitionStatus.OFFLINE)
    assert context.offline_partition_count == len(offline_partitions)


def test_a_broker_that_shuts_down_is_live_only_for_requests() -> None:
    context = ControllerContext()
    context.set_live_brokers([broker(1), broker(2)])
    context.begin_shutdown(2)
    partition = TopicPartition("t", 0)
    assert context.live_broker_ids == {1}
    assert context.broker_epoch(2) == 102
    assert context.broker_epoch(3) == -1
    assert not context.is_replica_online(2, partition)
    assert context.is_replica_online(2, partition, include_shutting_down=True)
    context.remove_live_brokers([2])
    context.add_live_brokers([broker(2, 300)])
    assert context.is_replica_online(2, partition)
    assert context.broker_epoch(2) == 300


def test_replicas_in_failed_log_folders_are_offline_until_their_broker_is_gone() -> None:
    context = ControllerContext()
    context.set_live_brokers([broker(1)])
    first, second = TopicPartition("t", 0), TopicPartition("t", 1)
    assert context.update_offline_replicas(1, offline=[first]) == [first]
    assert context.update_offline_replicas(1, offline=[first, second]) == [second]
    assert context.update_offline_replicas(1, offline=[], online=[first]) == []
    assert context.is_replica_online(1, first)
    assert not context.is_replica_online(1, second)
    context.remove_live_brokers([1])
    context.add_live_brokers([broker(1)])
    assert context.is_replica_online(1, second)


def test_topic_ids_are_unique() -> None:
    context = ControllerContext()
    context.put_topic_id("t", topic_id("t"))
    context.put_topic_id("t", topic_id("t"))
    with pytest.raises(ValueError, match="another id"):
        context.put_topic_id("t", topic_id("u"))
    with pytest.raises(ValueError, match="the same id"):
        context.put_topic_id("u", topic_id("t"))
    context.remove_topic("t")
    context.put_topic_id("t", topic_id("u"))
    assert context.topic_names == {topic_id("u"): "t"}


def test_a_reassigned_partition_counts_as_balanced_until_its_new_replica_is_in_sync() -> None:
    context = ControllerContext()
    partition = TopicPartition("t", 0)
    context.put_partition(partition, PartitionState([2, 1], 1, 0, [1], adding=[2]))
    assert context.preferred_replica_imbalance_count == 0
    context.put_assignment(partition, [2, 1], [], [])
    assert context.preferred_replica_imbalance_count == 1


def test_the_gauges_have_kafkas_names() -> None:
    context = ControllerContext()
    context.set_live_brokers([broker(1)])
    for index in range(2):
        partition = TopicPartition("t", index)
        context.put_partition(partition, PartitionState([1], 1, 0, [1]))
        context.put_partition_status(partition, PartitionStatus.OFFLINE)
    context.queue_topic_deletion(["t"])
    context.put_replica_status(PartitionAndReplica("t", 0, 1), ReplicaStatus.DELETION_INELIGIBLE)
    context.put_replica_status(PartitionAndReplica("t", 1, 1), ReplicaStatus.DELETION_SUCCESSFUL)
    assert context.summary() == {
        "GlobalTopicCount": 1,
        "GlobalPartitionCount": 2,
        "OfflinePartitionsCount": 2,
        "PreferredReplicaImbalanceCount": 0,
        "TopicsToDeleteCount": 1,
        "TopicsIneligibleToDeleteCount": 0,
        "ReplicasToDeleteCount": 1,
        "ReplicasIneligibleToDeleteCount": 1,
    }
    context.reset()
    assert context.summary() == dict.fromkeys(context.summary(), 0)
