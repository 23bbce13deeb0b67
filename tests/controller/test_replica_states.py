"""Replicas move between their states as the table allows, and leave the ISR when they go offline."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest

from tests.controller.cluster_rig import EPOCH, ControllerRig
from tests.support.virtual_time import run
from tidelog.controller.states import PartitionAndReplica, PartitionStatus, ReplicaStatus
from tidelog.metadata.state import NO_LEADER, PartitionState
from tidelog.partitions import TopicPartition
from tidelog.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from tidelog.protocol.messages.stop_replica import StopReplicaRequest
from tidelog.protocol.messages.update_metadata import UpdateMetadataRequest
from tidelog.slices import ITEMS_PER_TURN, REST_SECONDS

NEW, ONLINE, OFFLINE = ReplicaStatus.NEW, ReplicaStatus.ONLINE, ReplicaStatus.OFFLINE
STARTED, SUCCESSFUL = ReplicaStatus.DELETION_STARTED, ReplicaStatus.DELETION_SUCCESSFUL
INELIGIBLE, NON_EXISTENT = ReplicaStatus.DELETION_INELIGIBLE, ReplicaStatus.NON_EXISTENT

ALLOWED = {
    (NON_EXISTENT, NEW),
    (NEW, ONLINE),
    (ONLINE, ONLINE),
    (OFFLINE, ONLINE),
    (INELIGIBLE, ONLINE),
    (NEW, OFFLINE),
    (ONLINE, OFFLINE),
    (OFFLINE, OFFLINE),
    (INELIGIBLE, OFFLINE),
    (OFFLINE, STARTED),
    (STARTED, SUCCESSFUL),
    (STARTED, INELIGIBLE),
    (OFFLINE, INELIGIBLE),
    (SUCCESSFUL, NON_EXISTENT),
}


def on(partition: TopicPartition, broker_id: int) -> PartitionAndReplica:
    return PartitionAndReplica(*partition, broker_id)


@pytest.mark.parametrize("before", ReplicaStatus)
@pytest.mark.parametrize("after", ReplicaStatus)
def test_a_replica_moves_only_where_the_table_allows(
    before: ReplicaStatus, after: ReplicaStatus, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> ReplicaStatus:
        rig = ControllerRig(1, 2)
        replica = on(rig.put("t", 0, [1, 2]), 2)
        rig.context.put_replica_status(replica, before)
        await rig.replicas.handle_state_changes([replica], after)
        return rig.context.replica_status(replica)

    with caplog.at_level(logging.ERROR, "tidelog.state.change"):
        status = run(story())
    refused = [record.getMessage() for record in caplog.records]
    if (before, after) in ALLOWED:
        assert status is after
        assert refused == []
    else:
        assert status is before
        assert refused == [f"replica t-0 on broker 2 cannot move from {before.value} to {after.value}"]


# --- new and online


def test_a_new_replica_of_a_led_partition_is_told_to_follow() -> None:
    async def story() -> None:
        rig = ControllerRig(1, 2)
        partition = rig.put("t", 0, [1, 2], 1, [1], replica_status=NON_EXISTENT)
        await rig.replicas.handle_state_changes([on(partition, 2)], NEW)
        await rig.settle()
        [request] = rig.transport.of(2, LeaderAndIsrRequest)
        [state] = request.topic_states[0].partition_states
        assert (state.leader, state.is_new) == (1, True)
        assert not rig.transport.of(1, LeaderAndIsrRequest)
        assert len(rig.transport.of(1, UpdateMetadataRequest)) == 1

    run(story())


def test_a_leader_cannot_be_a_new_replica(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> ReplicaStatus:
        rig = ControllerRig(1)
        partition = rig.put("t", 0, [1], replica_status=NON_EXISTENT)
        await rig.replicas.handle_state_changes([on(partition, 1)], NEW)
        return rig.replica_status(partition, 1)

    assert run(story()) is NON_EXISTENT
    assert "cannot" in caplog.text


def test_a_new_replica_of_a_new_partition_waits_for_its_leader() -> None:
    async def story() -> None:
        rig = ControllerRig(1)
        partition = rig.put_new("t", 0, [1])
        rig.context.replica_statuses.clear()
        await rig.replicas.handle_state_changes([on(partition, 1)], NEW)
        await rig.replicas.handle_state_changes([on(partition, 1)], ONLINE)
        await rig.settle()
        assert rig.transport.sent == []
        assert rig.replica_status(partition, 1) is ONLINE

    run(story())


def test_a_replica_outside_the_assignment_is_added_when_it_comes_online() -> None:
    async def story() -> None:
        rig = ControllerRig(1, 2)
        partition = rig.put("t", 0, [1])
        rig.context.put_replica_status(on(partition, 2), NEW)
        await rig.replicas.handle_state_changes([on(partition, 2)], ONLINE)
        assert rig.context.replicas(partition) == [1, 2]
        assert rig.context.partitions_on_broker(2) == [partition]

    run(story())


def test_replicas_of_a_broker_that_is_back_are_told_what_they_are() -> None:
    async def story() -> None:
        rig = ControllerRig(1, 2)
        led = rig.put("t", 0, [2, 1], replica_status=OFFLINE)
        followed = rig.put("t", 1, [1, 2], replica_status=OFFLINE)
        await rig.replicas.handle_state_changes(rig.context.replicas_on_broker(2), ONLINE)
        await rig.settle()
        [request] = rig.transport.of(2, LeaderAndIsrRequest)
        [topic] = request.topic_states
        assert [(state.partition_index, state.leader) for state in topic.partition_states] == [(0, 2), (1, 1)]
        assert not any(state.is_new for state in topic.partition_states)
        assert [rig.replica_status(partition, 2) for partition in (led, followed)] == [ONLINE, ONLINE]
        assert not rig.transport.of(1, LeaderAndIsrRequest)

    run(story())


# --- offline


def test_an_offline_replica_leaves_the_isr_and_the_others_are_told() -> None:
    async def story() -> None:
        rig = ControllerRig(1, 3)
        partition = rig.put("t", 0, [1, 2, 3])
        await rig.replicas.handle_state_changes([on(partition, 2)], OFFLINE)
        state = PartitionState([1, 2, 3], 1, 4, [1, 3], 8, EPOCH)
        assert rig.store.states[partition] == rig.context.partitions[partition] == state
        await rig.settle()
        for broker_id in (1, 3):
            [request] = rig.transport.of(broker_id, LeaderAndIsrRequest)
            [sent] = request.topic_states[0].partition_states
            assert (sent.leader, sent.leader_epoch, sent.isr) == (1, 4, [1, 3])
        assert rig.replica_status(partition, 2) is OFFLINE

    run(story())


def test_the_last_in_sync_replica_stays_in_the_isr_of_a_partition_without_a_leader() -> None:
    async def story() -> None:
        rig = ControllerRig(1)
        partition = rig.put("t", 0, [2, 1], 2, [2])
        await rig.replicas.handle_state_changes([on(partition, 2)], OFFLINE)
        assert rig.store.states[partition] == PartitionState([2, 1], NO_LEADER, 4, [2], 8, EPOCH)
        assert rig.replica_status(partition, 2) is OFFLINE

    run(story())


def test_a_replica_that_is_not_in_sync_goes_offline_without_a_write() -> None:
    async def story() -> None:
        rig = ControllerRig(1, 2)
        partition = rig.put("t", 0, [1, 2], 1, [1])
        await rig.replicas.handle_state_changes([on(partition, 2)], OFFLINE)
        await rig.settle()
        assert rig.store.writes == 0
        assert rig.replica_status(partition, 2) is OFFLINE
        [request] = rig.transport.of(2, StopReplicaRequest)
        [stopped] = request.topic_states[0].partition_states
        assert (stopped.leader_epoch, stopped.delete_partition) == (3, False)

    run(story())


def test_an_offline_replica_of_a_partition_without_a_leader_so_far_is_only_told() -> None:
    async def story() -> None:
        rig = ControllerRig(1)
        partition = rig.put_new("t", 0, [2])
        await rig.replicas.handle_state_changes([on(partition, 2)], OFFLINE)
        await rig.settle()
        assert rig.replica_status(partition, 2) is OFFLINE
        [request] = rig.transport.of(1, UpdateMetadataRequest)
        assert request.topic_states == []

    run(story())


def test_the_isr_is_shrunk_again_after_another_writer() -> None:
    async def story() -> None:
        rig = ControllerRig(1, 3)
        first = rig.put("t", 0, [1, 2, 3])
        second = rig.put("t", 1, [1, 2, 3])

        def shrink() -> None:
            rig.store.states[first] = replace(rig.store.states[first], isr=[1, 2], partition_epoch=8)
            rig.store.states[second] = replace(rig.store.states[second], isr=[1, 3], partition_epoch=8)

        rig.store.meanwhile = shrink
        await rig.replicas.handle_state_changes([on(first, 2), on(second, 2)], OFFLINE)
        assert rig.context.partitions == rig.store.states
        assert rig.store.states[first] == PartitionState([1, 2, 3], 1, 4, [1], 9, EPOCH)
        assert rig.store.states[second].partition_epoch == 8
        assert rig.replica_status(first, 2) is rig.replica_status(second, 2) is OFFLINE

    run(story())


def test_a_replica_whose_isr_cannot_be_written_keeps_its_status(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        rig = ControllerRig(1)
        bad, good = rig.put("t", 0, [1, 2]), rig.put("t", 1, [1, 2])
        rig.store.failing[bad] = OSError("no")
        await rig.replicas.handle_state_changes([on(bad, 2), on(good, 2)], OFFLINE)
        assert rig.replica_status(bad, 2) is ONLINE
        assert rig.replica_status(good, 2) is OFFLINE

    run(story())
    assert "t-0 on broker 2 failed to move from OnlineReplica to OfflineReplica: no" in caplog.text


@pytest.mark.parametrize("deleted", [True, False])
def test_a_state_that_is_gone_or_newer_is_not_changed(deleted: bool) -> None:
    async def story() -> None:
        rig = ControllerRig(1, 2)
        partition = rig.put("t", 0, [1, 2])

        def intrude() -> None:
            state = rig.store.states.pop(partition)
            if not deleted:
                newer = replace(state, partition_epoch=8, controller_epoch=EPOCH + 1)
                rig.store.states[partition] = newer

        rig.store.meanwhile = intrude
        await rig.replicas.handle_state_changes([on(partition, 2)], OFFLINE)
        assert rig.replica_status(partition, 2) is ONLINE

    run(story())


# --- deletion and start


def test_a_deleted_replica_leaves_the_assignment() -> None:
    async def story() -> None:
        rig = ControllerRig(1, 2)
        partition = rig.put("t", 0, [1, 2], removing=[2], replica_status=SUCCESSFUL)
        await rig.replicas.handle_state_changes([on(partition, 2)], NON_EXISTENT)
        assert rig.context.partitions[partition].replicas == [1]
        assert rig.context.partitions[partition].removing == []
        assert on(partition, 2) not in rig.context.replica_statuses
        assert rig.context.replicas_on_broker(2) == []

    run(story())


def test_a_replica_to_be_deleted_is_stopped_with_its_log() -> None:
    async def story() -> None:
        rig = ControllerRig(1, 2)
        partition = rig.put("t", 0, [1, 2], replica_status=OFFLINE)
        await rig.replicas.handle_state_changes([on(partition, 2)], STARTED)
        await rig.settle()
        [request] = rig.transport.of(2, StopReplicaRequest)
        [stopped] = request.topic_states[0].partition_states
        assert (stopped.leader_epoch, stopped.delete_partition) == (3, True)

    run(story())


def test_a_new_controller_tells_live_brokers_all_and_takes_the_others_out() -> None:
    async def story() -> None:
        rig = ControllerRig(1, 3)
        partition = rig.put("t", 0, [1, 2, 3], replica_status=NON_EXISTENT)
        orphan = rig.put("t", 1, [2], status=PartitionStatus.OFFLINE, replica_status=NON_EXISTENT)
        await rig.replicas.startup()
        await rig.settle()
        assert [rig.replica_status(partition, replica) for replica in (1, 2, 3)] == [ONLINE, OFFLINE, ONLINE]
        assert rig.replica_status(orphan, 2) is OFFLINE
        assert rig.store.states[partition].isr == [1, 3]
        assert rig.store.states[orphan].leader == NO_LEADER
        for broker_id in (1, 3):
            kinds = [type(request) for request in rig.transport.requests(broker_id)]
            assert kinds == [LeaderAndIsrRequest, UpdateMetadataRequest] * 2

    run(story())


class Turns:
    """Counts how many replicas are handled between two turns of other tasks."""

    def __init__(self, rig: ControllerRig) -> None:
        self.longest = 0
        self._handled = 0
        self._put, self._may_move = rig.context.put_replica_status, rig.context.may_move_replica
        rig.context.put_replica_status = self._count_put  # type: ignore[method-assign]
        rig.context.may_move_replica = self._count_check  # type: ignore[method-assign]

    def _count_put(self, replica: PartitionAndReplica, status: ReplicaStatus) -> None:
        self._count()
        self._put(replica, status)

    def _count_check(self, replica: PartitionAndReplica, status: ReplicaStatus) -> bool:
        self._count()
        return self._may_move(replica, status)

    def _count(self) -> None:
        self._handled += 1
        self.longest = max(self.longest, self._handled)

    async def others(self) -> None:
        while True:
            self._handled = 0
            await asyncio.sleep(REST_SECONDS / 2)


def test_other_tasks_run_between_many_replicas() -> None:
    async def story() -> None:
        rig = ControllerRig(1, 2)
        partitions = [rig.put("t", index, [1, 2]) for index in range(1000)]
        turns = Turns(rig)
        others = asyncio.ensure_future(turns.others())
        await rig.replicas.startup()
        await rig.replicas.handle_state_changes([on(partition, 2) for partition in partitions], OFFLINE)
        others.cancel()
        assert rig.replica_status(partitions[-1], 2) is OFFLINE
        assert turns.longest <= 2 * ITEMS_PER_TURN

    run(story())
