"""Partitions move between their states as the table allows, get leaders, and their brokers are told."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from tests.controller.cluster_rig import EPOCH, ControllerRig, topic_id
from tests.support.virtual_time import run
from tidelog.controller.partition_state_machine import ElectionStrategy
from tidelog.controller.planning import ControllerSettings
from tidelog.controller.request_batch import BatchNotEmpty
from tidelog.controller.states import PartitionStatus, StateChangeFailed
from tidelog.metadata.operations import Fenced
from tidelog.metadata.state import NO_LEADER, PartitionState
from tidelog.metadata.tree import NodeExists
from tidelog.partitions import TopicPartition
from tidelog.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from tidelog.protocol.messages.update_metadata import UpdateMetadataRequest

NON_EXISTENT, NEW = PartitionStatus.NON_EXISTENT, PartitionStatus.NEW
ONLINE, OFFLINE = PartitionStatus.ONLINE, PartitionStatus.OFFLINE

ALLOWED = {
    (NON_EXISTENT, NEW),
    (NEW, ONLINE),
    (NEW, OFFLINE),
    (ONLINE, ONLINE),
    (ONLINE, OFFLINE),
    (OFFLINE, ONLINE),
    (OFFLINE, OFFLINE),
    (OFFLINE, NON_EXISTENT),
}

STRATEGY = ElectionStrategy.OFFLINE_PARTITION


@pytest.mark.parametrize("before", PartitionStatus)
@pytest.mark.parametrize("after", PartitionStatus)
def test_a_partition_moves_only_where_the_table_allows(
    before: PartitionStatus, after: PartitionStatus, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> PartitionStatus:
        rig = ControllerRig(1, 2)
        if before in (NON_EXISTENT, NEW):
            partition = rig.put_new("t", 0, [1, 2])
        else:
            partition = rig.put("t", 0, [1, 2])
        rig.context.put_partition_status(partition, before)
        await rig.partitions.handle_state_changes([partition], after, STRATEGY)
        return rig.context.partition_status(partition)

    with caplog.at_level(logging.ERROR, "tidelog.state.change"):
        status = run(story())
    refused = [record.getMessage() for record in caplog.records]
    if (before, after) in ALLOWED:
        assert status is after
        assert refused == []
    else:
        assert status is before
        assert refused == [f"partition t-0 cannot move from {before.value} to {after.value}"]


def test_a_change_is_logged_with_the_controllers_id_and_epoch(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        rig = ControllerRig(1)
        await rig.partitions.handle_state_changes([rig.put_new("t", 0, [1])], ONLINE)
        await rig.settle()

    with caplog.at_level(logging.INFO, "tidelog.state.change"):
        run(story())
    lines = {record.getMessage(): record.__dict__["fields"] for record in caplog.records}
    text = "partition t-0: NewPartition to OnlinePartition with leader 1 epoch 0 isr [1] version 0"
    assert lines[text] == {"controller": 1, "epoch": EPOCH}
    answered = "received the answer of broker 1 to LeaderAndIsr v7 with error code 0"
    assert lines[answered] == {"controller": 1, "epoch": EPOCH, "correlation_id": 1}


# --- new partitions


def test_the_first_online_replica_of_a_new_partition_leads() -> None:
    async def story() -> None:
        rig = ControllerRig(2, 3)
        partition = rig.put_new("t", 0, [1, 3, 2])
        assert await rig.partitions.handle_state_changes([partition], ONLINE, STRATEGY) == {}
        state = PartitionState([1, 3, 2], 3, 0, [3, 2], 0, EPOCH)
        assert rig.context.partitions[partition] == rig.store.states[partition] == state
        await rig.settle()
        for broker_id in (2, 3):
            [request] = rig.transport.of(broker_id, LeaderAndIsrRequest)
            [topic] = request.topic_states
            assert (topic.topic_name, topic.topic_id) == ("t", topic_id("t"))
            [sent] = topic.partition_states
            assert (sent.leader, sent.leader_epoch, sent.isr, sent.is_new) == (3, 0, [3, 2], True)

    run(story())


def test_a_partition_without_an_online_replica_stays_new() -> None:
    async def story() -> None:
        rig = ControllerRig(1)
        lost, good = rig.put_new("t", 0, [2]), rig.put_new("t", 1, [1])
        await rig.partitions.handle_state_changes([lost, good], ONLINE, STRATEGY)
        assert rig.context.partition_status(lost) is NEW
        assert rig.context.partition_status(good) is ONLINE
        rig.join(2)
        await rig.partitions.trigger_online_state_change()
        assert rig.context.partition_status(lost) is ONLINE

    run(story())


def test_a_partition_whose_node_cannot_be_created_stays_new() -> None:
    async def story() -> None:
        rig = ControllerRig(1)
        partition = rig.put_new("t", 0, [1])
        rig.store.failing[partition] = NodeExists("/brokers/topics/t/partitions/0/state")
        await rig.partitions.handle_state_changes([partition], ONLINE, STRATEGY)
        assert rig.context.partition_status(partition) is NEW
        await rig.settle()
        assert rig.transport.sent == []

    run(story())


def test_a_thousand_new_topics_are_one_write_and_two_requests_to_each_broker() -> None:
    async def story() -> None:
        rig = ControllerRig(1, 2, 3)
        partitions = [rig.put_new(f"t{n}", 0, [n % 3 + 1]) for n in range(1000)]
        await rig.partitions.handle_state_changes(partitions, ONLINE, STRATEGY)
        await rig.settle()
        assert rig.store.writes == 1
        for broker_id in (1, 2, 3):
            led, told = rig.transport.requests(broker_id)
            assert isinstance(led, LeaderAndIsrRequest)
            assert isinstance(told, UpdateMetadataRequest)
            assert [topic.topic_name for topic in led.topic_states] == [
                f"t{n}" for n in range(1000) if n % 3 + 1 == broker_id
            ]
            assert len(told.topic_states) == 1000

    run(story())


# --- elections


def elect(
    strategy: ElectionStrategy,
    *,
    live: tuple[int, ...],
    replicas: list[int],
    isr: list[int],
    leader: int = NO_LEADER,
    removing: list[int] | None = None,
    shutting_down: int | None = None,
    configs: dict[str, str] | None = None,
    settings: ControllerSettings | None = None,
) -> tuple[PartitionState | Exception, list[int]]:
    """The result of an election, and the brokers that are told to lead or follow."""

    async def story() -> tuple[PartitionState | Exception, list[int]]:
        rig = ControllerRig(*live, settings=settings)
        partition = rig.put("t", 0, replicas, leader, isr, removing=removing, status=OFFLINE)
        if shutting_down is not None:
            rig.context.begin_shutdown(shutting_down)
        rig.store.configs["t"] = configs or {}
        results = await rig.partitions.handle_state_changes([partition], ONLINE, strategy)
        await rig.settle()
        told = [broker_id for broker_id in replicas if rig.transport.of(broker_id, LeaderAndIsrRequest)]
        is_online = rig.context.partition_status(partition) is ONLINE
        assert is_online == isinstance(results[partition], PartitionState)
        return results[partition], told

    return run(story())


def test_an_offline_partition_is_led_by_its_first_online_in_sync_replica() -> None:
    state, told = elect(STRATEGY, live=(2, 3, 4), replicas=[1, 2, 3, 4], isr=[1, 4, 3])
    assert state == PartitionState([1, 2, 3, 4], 3, 4, [4, 3], 8, EPOCH)
    assert told == [2, 3, 4]


def test_no_unclean_leader_is_elected_unless_the_topic_allows_it() -> None:
    state, told = elect(STRATEGY, live=(2, 3), replicas=[1, 2, 3], isr=[1])
    assert isinstance(state, StateChangeFailed)
    assert told == []
    allowed = {"unclean.leader.election.enable": "true"}
    state, told = elect(STRATEGY, live=(2, 3), replicas=[1, 2, 3], isr=[1], configs=allowed)
    assert state == PartitionState([1, 2, 3], 2, 4, [2], 8, EPOCH, leader_recovery_state=1)
    assert told == [2, 3]


def test_a_topic_without_the_setting_follows_the_brokers_default() -> None:
    settings = ControllerSettings(unclean_leader_election_enable=True)
    state, _ = elect(STRATEGY, live=(2,), replicas=[1, 2], isr=[1], settings=settings)
    assert isinstance(state, PartitionState)
    assert state.leader == 2
    refused = {"unclean.leader.election.enable": "false"}
    state, _ = elect(STRATEGY, live=(2,), replicas=[1, 2], isr=[1], settings=settings, configs=refused)
    assert isinstance(state, StateChangeFailed)


def test_an_operator_can_ask_for_an_unclean_election() -> None:
    state, _ = elect(ElectionStrategy.UNCLEAN, live=(2,), replicas=[1, 2], isr=[1])
    assert isinstance(state, PartitionState)
    assert (state.leader, state.isr) == (2, [2])
    state, _ = elect(ElectionStrategy.UNCLEAN, live=(1, 2), replicas=[2, 1], isr=[1])
    assert isinstance(state, PartitionState)
    assert state.leader == 1
    assert state.leader_recovery_state == 0


def test_a_reassigned_partition_is_led_by_a_replica_that_stays() -> None:
    strategy = ElectionStrategy.REASSIGNMENT
    state, told = elect(strategy, live=(1, 2, 3), replicas=[1, 2, 3], isr=[1, 2, 3], leader=1, removing=[1])
    assert isinstance(state, PartitionState)
    assert (state.leader, state.isr) == (2, [1, 2, 3])
    assert told == [2, 3]
    state, _ = elect(strategy, live=(1, 2), replicas=[1, 2], isr=[1], leader=1, removing=[1])
    assert isinstance(state, StateChangeFailed)


def test_the_preferred_replica_leads_if_it_is_online_and_in_sync() -> None:
    strategy = ElectionStrategy.PREFERRED_REPLICA
    state, told = elect(strategy, live=(1, 2), replicas=[1, 2], isr=[2, 1], leader=2)
    assert isinstance(state, PartitionState)
    assert (state.leader, state.isr) == (1, [2, 1])
    assert told == [1, 2]
    for live, isr in (((2,), [2, 1]), ((1, 2), [2])):
        state, _ = elect(strategy, live=live, replicas=[1, 2], isr=isr, leader=2)
        assert isinstance(state, StateChangeFailed)


def test_a_broker_that_shuts_down_hands_its_partitions_over() -> None:
    strategy = ElectionStrategy.CONTROLLED_SHUTDOWN
    state, told = elect(strategy, live=(1, 2), replicas=[1, 2], isr=[1, 2], leader=1, shutting_down=1)
    assert isinstance(state, PartitionState)
    assert (state.leader, state.isr) == (2, [2])
    assert told == [1, 2]
    state, told = elect(strategy, live=(1, 2), replicas=[1, 2], isr=[1], leader=1, shutting_down=1)
    assert isinstance(state, StateChangeFailed)
    assert told == []


def test_a_replica_in_a_failed_log_folder_does_not_lead() -> None:
    async def story() -> None:
        rig = ControllerRig(1, 2)
        partition = rig.put("t", 0, [1, 2], status=OFFLINE)
        assert rig.context.update_offline_replicas(1, offline=[partition]) == [partition]
        results = await rig.partitions.trigger_online_state_change()
        assert results[partition] == replace(rig.store.states[partition], leader=2, isr=[2])

    run(story())


def test_an_election_is_repeated_on_the_state_that_another_writer_left() -> None:
    async def story() -> None:
        rig = ControllerRig(2, 3)
        first = rig.put("t", 0, [1, 2, 3], status=OFFLINE)
        second = rig.put("t", 1, [1, 2, 3], status=OFFLINE)

        def shrink() -> None:
            rig.store.states[first] = replace(rig.store.states[first], isr=[1, 3], partition_epoch=8)

        rig.store.meanwhile = shrink
        results = await rig.partitions.trigger_online_state_change()
        assert results[first] == PartitionState([1, 2, 3], 3, 4, [3], 9, EPOCH)
        assert results[second] == PartitionState([1, 2, 3], 2, 4, [2, 3], 8, EPOCH)
        assert rig.context.partitions == rig.store.states
        assert (rig.store.writes, rig.store.reads) == (2, 1)

    run(story())


@pytest.mark.parametrize("deleted", [True, False])
def test_an_election_ends_if_the_state_is_gone_or_of_a_newer_controller(deleted: bool) -> None:
    async def story() -> None:
        rig = ControllerRig(1, 2)
        partition = rig.put("t", 0, [1, 2], status=OFFLINE)

        def intrude() -> None:
            state = rig.store.states.pop(partition)
            if not deleted:
                newer = replace(state, partition_epoch=8, controller_epoch=EPOCH + 1)
                rig.store.states[partition] = newer

        rig.store.meanwhile = intrude
        results = await rig.partitions.trigger_online_state_change()
        assert isinstance(results[partition], StateChangeFailed)
        assert rig.context.partition_status(partition) is OFFLINE

    run(story())


def test_a_failed_write_leaves_the_partition_offline_and_others_go_on() -> None:
    async def story() -> None:
        rig = ControllerRig(1)
        bad = rig.put("t", 0, [1], NO_LEADER, status=OFFLINE)
        good = rig.put("t", 1, [1], NO_LEADER, status=OFFLINE)
        rig.store.failing[bad] = OSError("the disk of ZooKeeper is full")
        results = await rig.partitions.trigger_online_state_change()
        assert results[bad] is rig.store.failing[bad]
        assert rig.context.partition_status(bad) is OFFLINE
        assert rig.context.partition_status(good) is ONLINE

    run(story())


def test_a_controller_that_was_replaced_tells_no_broker() -> None:
    async def story() -> None:
        rig = ControllerRig(1)
        partition = rig.put("t", 0, [1], NO_LEADER, status=OFFLINE)
        rig.store.fenced = True
        with pytest.raises(Fenced):
            await rig.partitions.trigger_online_state_change()
        assert rig.context.partition_status(partition) is OFFLINE
        await rig.settle()
        assert rig.transport.sent == []

    run(story())


def test_an_election_without_a_strategy_is_a_mistake() -> None:
    async def story() -> None:
        rig = ControllerRig(1)
        with pytest.raises(ValueError, match="strategy"):
            await rig.partitions.handle_state_changes([rig.put("t", 0, [1])], ONLINE)

    run(story())


# --- start


def test_a_new_controller_finds_the_status_of_each_partition() -> None:
    async def story() -> None:
        rig = ControllerRig(1)
        led = rig.put("t", 0, [1], status=NON_EXISTENT)
        offline = rig.put("t", 1, [2], status=NON_EXISTENT)
        orphaned = rig.put("t", 2, [2, 1], status=NON_EXISTENT)
        new = rig.put_new("t", 3, [1])
        lost = rig.put_new("t", 4, [2])
        doomed = rig.put("doomed", 0, [2, 1], status=NON_EXISTENT)
        rig.context.queue_topic_deletion(["doomed"])
        results = await rig.partitions.startup()
        assert results.keys() == {offline, orphaned}
        found = {partition: rig.context.partition_status(partition) for partition in rig.context.partitions}
        assert found == {
            led: ONLINE,
            offline: OFFLINE,
            orphaned: ONLINE,
            new: ONLINE,
            lost: NEW,
            doomed: OFFLINE,
        }
        assert rig.context.partitions[orphaned].leader == 1
        assert rig.context.offline_partition_count == 2

    run(story())


def test_nothing_to_move_sends_nothing() -> None:
    async def story() -> None:
        rig = ControllerRig(1)
        assert await rig.partitions.handle_state_changes([], ONLINE, STRATEGY) == {}
        assert await rig.partitions.startup() == {}
        assert rig.transport.sent == []

    run(story())


def test_changes_do_not_begin_while_requests_of_the_last_ones_wait() -> None:
    async def story() -> None:
        rig = ControllerRig(1)
        partition = rig.put("t", 0, [1])
        rig.batch.add_stop_replica([1], partition, delete=False)
        with pytest.raises(BatchNotEmpty, match="StopReplica"):
            await rig.partitions.handle_state_changes([partition], OFFLINE)
        assert rig.context.partition_status(partition) is ONLINE

    run(story())


def test_the_other_topics_partitions_are_not_touched() -> None:
    async def story() -> None:
        rig = ControllerRig(1)
        moved, other = rig.put("t", 0, [1]), rig.put("u", 0, [1])
        await rig.partitions.handle_state_changes([moved], OFFLINE)
        assert rig.context.partition_status(other) is ONLINE
        assert rig.context.partition_status(TopicPartition("v", 0)) is NON_EXISTENT

    run(story())
