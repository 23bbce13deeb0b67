"""Topics are deleted on every broker, also while brokers are down, and by the next controller."""

from __future__ import annotations

import pytest

from tests.controller.cluster_rig import ControllerRig, stop_replica_answer
from tests.support.virtual_time import run
from tidelog.controller.planning import ControllerSettings
from tidelog.controller.request_batch import TopicDeletionStopReplicaResponseReceived
from tidelog.controller.states import PartitionStatus, ReplicaStatus
from tidelog.errors import ErrorCode
from tidelog.metadata.operations import Fenced
from tidelog.partitions import TopicPartition
from tidelog.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from tidelog.protocol.messages.stop_replica import StopReplicaRequest
from tidelog.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse

INELIGIBLE, SUCCESSFUL = ReplicaStatus.DELETION_INELIGIBLE, ReplicaStatus.DELETION_SUCCESSFUL
OFFLINE, STARTED, ONLINE = ReplicaStatus.OFFLINE, ReplicaStatus.DELETION_STARTED, ReplicaStatus.ONLINE


async def handle_answers(rig: ControllerRig) -> None:
    """Handle answers as the controller does, one event after the other, until there are no more."""
    await rig.settle()
    while rig.events:
        event = rig.events.pop(0)
        if isinstance(event, TopicDeletionStopReplicaResponseReceived):
            await rig.deletion.handle_stop_replica_response(event)
        await rig.settle()


async def enqueue(rig: ControllerRig, *topics: str) -> None:
    rig.store.marks.update(dict.fromkeys(topics))
    await rig.deletion.enqueue_topics(topics)
    await handle_answers(rig)


async def broker_fails(rig: ControllerRig, broker_id: int) -> None:
    """What the controller does for the topics to be deleted when a broker is gone."""
    rig.leave(broker_id)
    replicas = rig.context.replicas_on_broker(broker_id)
    doomed = [replica for replica in replicas if replica.topic in rig.context.topics_to_be_deleted]
    await rig.replicas.handle_state_changes([r for r in replicas if r not in doomed], OFFLINE)
    await rig.deletion.fail_replicas(doomed)
    await handle_answers(rig)


async def broker_returns(rig: ControllerRig, broker_id: int) -> None:
    rig.join(broker_id)
    replicas = rig.context.replicas_on_broker(broker_id)
    await rig.replicas.handle_state_changes(replicas, ONLINE)
    await rig.partitions.trigger_online_state_change()
    await rig.deletion.resume_for_topics(dict.fromkeys(replica.topic for replica in replicas))
    await handle_answers(rig)


def is_gone(rig: ControllerRig, topic: str) -> bool:
    assert (topic in rig.store.deleted) == (topic not in rig.context.topics)
    if topic not in rig.store.deleted:
        return False
    context = rig.context
    assert topic not in context.topic_ids
    assert not any(partition.topic == topic for partition in context.partitions)
    assert not any(partition.topic == topic for partition in context.partition_statuses)
    assert not any(replica.topic == topic for replica in context.replica_statuses)
    assert topic not in context.topics_to_be_deleted
    assert topic not in context.topics_with_deletion_started
    assert topic not in context.topics_ineligible_for_deletion
    assert topic not in rig.store.marks
    return True


def test_every_replica_is_deleted_then_the_nodes() -> None:
    async def story() -> None:
        rig = ControllerRig(1, 2, 3)
        for index, replicas in enumerate(([1, 2], [2, 3], [3, 1])):
            rig.put("t", index, replicas)
        rig.put("kept", 0, [1, 2, 3])
        await enqueue(rig, "t")
        assert is_gone(rig, "t")
        assert rig.forgotten == ["t"]
        assert rig.store.writes == 1  # the removal: nobody reads the ISR of a deleted topic
        assert list(rig.context.topics) == ["kept"]
        assert rig.store.states.keys() == {TopicPartition("kept", 0)}
        assert rig.context.offline_partition_count == 0
        for broker_id in (1, 2, 3):
            kinds = [type(request) for request in rig.transport.requests(broker_id)]
            assert kinds == [UpdateMetadataRequest, StopReplicaRequest, StopReplicaRequest]
            told = rig.transport.of(broker_id, UpdateMetadataRequest)[0]
            assert {state.leader for state in told.topic_states[0].partition_states} == {-2}
            stopped, deleted = rig.transport.of(broker_id, StopReplicaRequest)
            assert not any(state.delete_partition for state in stopped.topic_states[0].partition_states)
            assert all(state.delete_partition for state in deleted.topic_states[0].partition_states)
            assert len(deleted.topic_states[0].partition_states) == 2

    run(story())


def test_a_thousand_topics_are_deleted_with_few_requests() -> None:
    async def story() -> None:
        rig = ControllerRig(1, 2, 3)
        names = [f"t{n}" for n in range(1000)]
        for n, name in enumerate(names):
            rig.put(name, 0, [n % 3 + 1])
        await enqueue(rig, *names)
        assert sorted(rig.store.deleted) == sorted(names)
        assert not rig.context.partitions
        assert len(rig.transport.sent) == 9

    run(story())


# --- brokers that are down


def test_a_topic_waits_for_a_broker_that_is_down_and_goes_on_when_it_is_back() -> None:
    async def story() -> None:
        rig = ControllerRig(1, 2)
        partition = rig.put("t", 0, [1, 2])
        await broker_fails(rig, 2)
        await enqueue(rig, "t")
        assert not is_gone(rig, "t")
        assert "t" in rig.context.topics_ineligible_for_deletion
        assert rig.replica_status(partition, 1) is SUCCESSFUL
        assert rig.replica_status(partition, 2) in (OFFLINE, INELIGIBLE)
        await broker_returns(rig, 2)
        assert is_gone(rig, "t")
        assert len(rig.transport.of(1, StopReplicaRequest)) == 2  # stopped and deleted once

    run(story())


def test_a_broker_that_dies_during_the_deletion_gets_it_again() -> None:
    async def story() -> None:
        rig = ControllerRig(1, 2)
        partition = rig.put("t", 0, [1, 2])
        rig.transport.script(2, lambda _: success_metadata(), None)
        await enqueue(rig, "t")
        assert rig.replica_status(partition, 2) is STARTED
        await broker_fails(rig, 2)
        assert not is_gone(rig, "t")
        assert rig.replica_status(partition, 1) is SUCCESSFUL
        await broker_returns(rig, 2)
        assert is_gone(rig, "t")

    run(story())


def test_a_late_answer_about_a_replica_that_a_reassignment_removed_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        rig = ControllerRig(1, 2, 3)
        partition = rig.put("t", 0, [1, 2])
        rig.transport.script(2, lambda _: success_metadata(), None)
        await enqueue(rig, "t")
        late = TopicDeletionStopReplicaResponseReceived(3, 103, 0, {partition: 0})
        await rig.deletion.handle_stop_replica_response(late)
        assert rig.replica_status(partition, 2) is STARTED
        await broker_fails(rig, 2)
        await broker_returns(rig, 2)
        assert is_gone(rig, "t")

    run(story())
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


def success_metadata() -> UpdateMetadataResponse:
    return UpdateMetadataResponse()


def test_a_broker_that_dies_after_it_deleted_its_replicas_holds_nothing_up() -> None:
    async def story() -> None:
        rig = ControllerRig(1, 2, 3)
        partition = rig.put("t", 0, [1, 2, 3])
        rig.transport.script(3, success_metadata(), None)
        await enqueue(rig, "t")
        assert rig.replica_status(partition, 2) is SUCCESSFUL
        await broker_fails(rig, 2)
        await broker_fails(rig, 3)
        await broker_returns(rig, 3)
        assert is_gone(rig, "t")

    run(story())


def test_a_topic_whose_brokers_are_all_down_is_deleted_later() -> None:
    async def story() -> None:
        rig = ControllerRig(1, 2)
        rig.put("t", 0, [2])
        await broker_fails(rig, 2)
        await enqueue(rig, "t")
        await rig.deletion.try_deletion()
        assert not is_gone(rig, "t")
        await broker_returns(rig, 2)
        assert is_gone(rig, "t")

    run(story())


def test_other_topics_are_deleted_while_one_waits() -> None:
    async def story() -> None:
        rig = ControllerRig(1, 2)
        rig.put("waiting", 0, [2])
        rig.put("t", 0, [1])
        await broker_fails(rig, 2)
        await enqueue(rig, "waiting", "t")
        assert is_gone(rig, "t")
        assert not is_gone(rig, "waiting")

    run(story())


# --- failures


def test_a_replica_that_could_not_be_deleted_halts_the_topic_until_it_is_resumed() -> None:
    async def story() -> None:
        rig = ControllerRig(1)
        good, bad = rig.put("t", 0, [1]), rig.put("t", 1, [1])
        errors = {("t", 1): int(ErrorCode.KAFKA_STORAGE_ERROR)}
        stopped_then_failed = (
            success_metadata(),
            stop_replica_answer,
            lambda request: stop_replica_answer(request, errors),
        )
        rig.transport.script(1, *stopped_then_failed)
        await enqueue(rig, "t")
        assert not is_gone(rig, "t")
        assert "t" in rig.context.topics_ineligible_for_deletion
        assert rig.replica_status(good, 1) is SUCCESSFUL
        assert rig.replica_status(bad, 1) is OFFLINE
        assert rig.context.partition_status(bad) is PartitionStatus.NON_EXISTENT
        await rig.deletion.resume_for_topics(["t"])
        await handle_answers(rig)
        assert is_gone(rig, "t")
        last = rig.transport.of(1, StopReplicaRequest)[-1]
        assert [state.partition_index for state in last.topic_states[0].partition_states] == [1]

    run(story())


def test_a_topic_that_is_being_reassigned_waits_for_the_end() -> None:
    async def story() -> None:
        rig = ControllerRig(1, 2)
        partition = rig.put("t", 0, [1, 2])
        rig.context.partitions_being_reassigned[partition] = None
        await enqueue(rig, "t")
        assert not is_gone(rig, "t")
        assert rig.transport.sent == []
        del rig.context.partitions_being_reassigned[partition]
        await rig.deletion.resume_for_topics(["t", "unknown"])
        await handle_answers(rig)
        assert is_gone(rig, "t")

    run(story())


def test_a_broker_that_dies_before_a_halted_deletion_begins_is_waited_for() -> None:
    async def story() -> None:
        rig = ControllerRig(1, 2)
        partition = rig.put("t", 0, [1, 2])
        rig.context.partitions_being_reassigned[partition] = None
        await enqueue(rig, "t")
        await broker_fails(rig, 2)
        del rig.context.partitions_being_reassigned[partition]
        await rig.deletion.resume_for_topics(["t"])
        await handle_answers(rig)
        assert not is_gone(rig, "t")
        assert rig.replica_status(partition, 1) is SUCCESSFUL
        await broker_returns(rig, 2)
        assert is_gone(rig, "t")

    run(story())


def test_a_topic_is_enqueued_once() -> None:
    async def story() -> None:
        rig = ControllerRig(1)
        rig.put("t", 0, [1])
        rig.transport.script(1, success_metadata(), None)
        await enqueue(rig, "t")
        await enqueue(rig, "t")
        await rig.deletion.try_deletion()
        await rig.settle()
        assert len(rig.transport.sent) == 2  # UpdateMetadata, and the StopReplica that is not answered

    run(story())


def test_a_controller_that_was_replaced_removes_no_nodes() -> None:
    async def story() -> None:
        rig = ControllerRig(1)
        rig.put("t", 0, [1])
        rig.store.fenced = True
        with pytest.raises(Fenced):
            await enqueue(rig, "t")
        assert rig.store.deleted == []

    run(story())


# --- the next controller


async def take_over(rig: ControllerRig) -> None:
    """Start a controller as it does after its election, with the context filled from the tree."""
    await rig.deletion.init(list(rig.store.marks))
    await rig.partitions.startup()
    await rig.replicas.startup()
    await rig.deletion.try_deletion()
    await handle_answers(rig)


def unknown_states(rig: ControllerRig) -> None:
    rig.context.partition_statuses.clear()
    rig.context.replica_statuses.clear()


def test_the_next_controller_completes_the_deletion() -> None:
    async def story() -> None:
        rig = ControllerRig(1, 2)
        for index in range(3):
            rig.put("t", index, [1, 2])
        unknown_states(rig)
        rig.store.marks["t"] = None
        await take_over(rig)
        assert is_gone(rig, "t")

    run(story())


def test_the_next_controller_waits_for_a_broker_that_is_down() -> None:
    async def story() -> None:
        rig = ControllerRig(1)
        partition = rig.put("t", 0, [1, 2])
        unknown_states(rig)
        rig.store.marks["t"] = None
        await take_over(rig)
        assert "t" in rig.context.topics_ineligible_for_deletion
        assert rig.replica_status(partition, 1) is ONLINE
        assert rig.transport.of(1, StopReplicaRequest) == []
        await broker_returns(rig, 2)
        assert is_gone(rig, "t")

    run(story())


def test_a_mark_without_a_topic_and_a_topic_without_states_are_removed() -> None:
    """A controller died while it removed the nodes."""

    async def story() -> None:
        rig = ControllerRig(1)
        rig.put_new("half", 0, [1])
        unknown_states(rig)
        rig.store.marks = {"nothing": None, "half": None}
        await take_over(rig)
        assert is_gone(rig, "half")
        assert is_gone(rig, "nothing")
        assert not rig.transport.of(1, LeaderAndIsrRequest)

    run(story())


def test_marks_are_removed_where_topics_may_not_be_deleted() -> None:
    async def story() -> None:
        rig = ControllerRig(1, settings=ControllerSettings(delete_topic_enable=False))
        partition = rig.put("t", 0, [1])
        unknown_states(rig)
        rig.store.marks["t"] = None
        await take_over(rig)
        assert rig.store.marks == {}
        assert rig.store.deleted == []
        assert rig.context.partition_status(partition) is PartitionStatus.ONLINE
        await enqueue(rig, "t")
        assert rig.store.marks == {}
        assert not rig.context.topics_to_be_deleted

    run(story())
