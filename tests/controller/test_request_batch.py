"""The requests of one event: what they hold, their versions, their order, and their answers as events."""

from __future__ import annotations

import asyncio

import pytest

from tests.controller.cluster_rig import (
    CONTROLLER,
    EPOCH,
    ControllerRig,
    broker,
    stop_replica_answer,
    topic_id,
)
from tests.support.virtual_time import run
from tidelog.controller.request_batch import (
    BatchNotEmpty,
    LeaderAndIsrResponseReceived,
    TopicDeletionStopReplicaResponseReceived,
    UpdateMetadataResponseReceived,
)
from tidelog.controller.states import PartitionStatus, ReplicaStatus
from tidelog.endpoints import Endpoint
from tidelog.errors import ErrorCode, UnsupportedVersion
from tidelog.metadata.state import BrokerRegistration
from tidelog.partitions import TopicPartition
from tidelog.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from tidelog.protocol.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
from tidelog.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from tidelog.slices import REST_SECONDS


def test_each_broker_gets_its_requests_in_the_order_of_the_protocol() -> None:
    async def story() -> None:
        rig = ControllerRig(1, 2)
        first, second = rig.put("t", 0, [1, 2]), rig.put("u", 0, [2, 1])
        rig.batch.new_batch()
        rig.batch.add_stop_replica([1, 2], first, delete=False)
        rig.batch.add_update_metadata([1, 2], [second])
        rig.batch.add_leader_and_isr([1, 2], second, rig.context.partitions[second], is_new=False)
        await rig.batch.send_requests()
        await rig.settle()
        for broker_id in (1, 2):
            kinds = [type(request) for request in rig.transport.requests(broker_id)]
            assert kinds == [LeaderAndIsrRequest, UpdateMetadataRequest, StopReplicaRequest]

    run(story())


def test_leader_and_isr_holds_the_partitions_of_a_broker_and_the_addresses_of_their_leaders() -> None:
    async def story() -> None:
        rig = ControllerRig(1, 2, 3)
        partition = rig.put("t", 0, [1, 2], removing=[2])
        other = rig.put("t", 1, [2])
        rig.batch.new_batch()
        for key in (partition, other):
            rig.batch.add_leader_and_isr([2], key, rig.context.partitions[key], is_new=key is other)
        await rig.batch.send_requests()
        await rig.settle()
        [request] = rig.transport.of(2, LeaderAndIsrRequest)
        assert (request.controller_id, request.controller_epoch) == (CONTROLLER, EPOCH)
        assert (request.broker_epoch, request.type, request.is_kraft_controller) == (102, 0, False)
        [topic] = request.topic_states
        assert (topic.topic_name, topic.topic_id) == ("t", topic_id("t"))
        first, second = topic.partition_states
        assert (first.partition_index, first.leader, first.leader_epoch) == (0, 1, 3)
        assert (first.isr, first.replicas, first.removing_replicas) == ([1, 2], [1, 2], [2])
        assert (first.partition_epoch, first.controller_epoch, first.is_new) == (7, EPOCH - 1, False)
        assert (second.partition_index, second.is_new) == (1, True)
        leaders = [(live.broker_id, live.host_name, live.port) for live in request.live_leaders]
        assert leaders == [(1, "host1", 9001), (2, "host2", 9002)]

    run(story())


def test_update_metadata_holds_brokers_with_endpoints_and_offline_replicas() -> None:
    async def story() -> None:
        rig = ControllerRig(1)
        endpoints = [Endpoint("IN", "SASL_SSL", "10.0.0.2", 1), Endpoint("OUT", "SSL", "example.org", 2)]
        rig.context.add_live_brokers([BrokerRegistration(2, endpoints, "north", 9)])
        partition = rig.put("t", 0, [1, 2, 3])
        unknown = rig.put_new("t", 1, [1])
        rig.context.update_offline_replicas(2, offline=[partition])
        rig.batch.new_batch()
        rig.batch.add_update_metadata([1], [partition, unknown])
        await rig.batch.send_requests()
        await rig.settle()
        [request] = rig.transport.of(1, UpdateMetadataRequest)
        assert (request.controller_id, request.controller_epoch) == (CONTROLLER, EPOCH)
        assert (request.broker_epoch, request.type, request.is_kraft_controller) == (101, 0, False)
        [topic] = request.topic_states
        assert (topic.topic_name, topic.topic_id) == ("t", topic_id("t"))
        [state] = topic.partition_states
        assert (state.leader, state.leader_epoch, state.zk_version) == (1, 3, 7)
        assert (state.isr, state.replicas, state.offline_replicas) == ([1, 2, 3], [1, 2, 3], [2, 3])
        own, other = request.live_brokers
        assert (own.id, own.rack, own.endpoints[0].security_protocol) == (1, None, 0)
        found = [(e.listener, e.security_protocol, e.host, e.port) for e in other.endpoints]
        assert (other.id, other.rack) == (2, "north")
        assert found == [("IN", 3, "10.0.0.2", 1), ("OUT", 1, "example.org", 2)]

    run(story())


def test_a_topic_to_be_deleted_has_a_leader_of_its_own_and_an_overriding_epoch() -> None:
    async def story() -> None:
        rig = ControllerRig(1)
        partition = rig.put("t", 0, [1])
        rig.context.queue_topic_deletion(["t"])
        rig.batch.new_batch()
        rig.batch.add_update_metadata([1], [partition])
        rig.batch.add_stop_replica([1], partition, delete=True)
        await rig.batch.send_requests()
        await rig.settle()
        [told] = rig.transport.of(1, UpdateMetadataRequest)
        [state] = told.topic_states[0].partition_states
        assert (state.leader, state.leader_epoch, state.zk_version, state.isr) == (-2, 0, 0, [1])
        [stop] = rig.transport.of(1, StopReplicaRequest)
        [stopped] = stop.topic_states[0].partition_states
        assert (stopped.leader_epoch, stopped.delete_partition) == (-2, True)
        assert (stop.controller_epoch, stop.broker_epoch, stop.is_kraft_controller) == (EPOCH, 101, False)

    run(story())


def test_a_partition_that_is_new_or_deleted_stays_so_within_a_batch() -> None:
    async def story() -> None:
        rig = ControllerRig(1)
        partition = rig.put("t", 0, [1])
        state = rig.context.partitions[partition]
        rig.batch.new_batch()
        for is_new in (True, False):
            rig.batch.add_leader_and_isr([1], partition, state, is_new=is_new)
        for delete in (True, False):
            rig.batch.add_stop_replica([1], partition, delete=delete)
        await rig.batch.send_requests()
        await rig.settle()
        [led] = rig.transport.of(1, LeaderAndIsrRequest)
        assert led.topic_states[0].partition_states[0].is_new
        [stop] = rig.transport.of(1, StopReplicaRequest)
        assert stop.topic_states[0].partition_states[0].delete_partition

    run(story())


def test_brokers_that_are_gone_or_have_no_id_get_nothing() -> None:
    async def story() -> None:
        rig = ControllerRig(1)
        partition = rig.put("t", 0, [1, 2])
        rig.batch.new_batch()
        rig.batch.add_leader_and_isr([-1, 1, 2], partition, rig.context.partitions[partition], is_new=False)
        rig.batch.add_stop_replica([-1, 2], partition, delete=False)
        rig.batch.add_update_metadata([-1, 2])
        await rig.batch.send_requests()
        await rig.settle()
        assert {sent.broker_id for sent in rig.transport.sent} == {1}
        rig.batch.new_batch()

    run(story())


def test_a_broker_that_shuts_down_is_still_told() -> None:
    async def story() -> None:
        rig = ControllerRig(1, 2)
        partition = rig.put("t", 0, [1, 2])
        rig.context.begin_shutdown(2)
        rig.batch.new_batch()
        rig.batch.add_leader_and_isr([2], partition, rig.context.partitions[partition], is_new=False)
        await rig.batch.send_requests()
        await rig.settle()
        led, told = rig.transport.requests(2)
        assert isinstance(led, LeaderAndIsrRequest)
        assert led.broker_epoch == 102
        assert isinstance(told, UpdateMetadataRequest)
        assert told.topic_states[0].partition_states[0].offline_replicas == [2]

    run(story())


def test_a_batch_begins_only_after_the_last_one_was_sent() -> None:
    async def story() -> None:
        rig = ControllerRig(1)
        partition = rig.put("t", 0, [1])
        rig.batch.new_batch()
        rig.batch.add_leader_and_isr([1], partition, rig.context.partitions[partition], is_new=False)
        with pytest.raises(BatchNotEmpty, match="LeaderAndIsr"):
            rig.batch.new_batch()
        rig.batch.clear()
        rig.batch.add_update_metadata([1])
        with pytest.raises(BatchNotEmpty, match="UpdateMetadata"):
            rig.batch.new_batch()
        await rig.batch.send_requests()
        rig.batch.new_batch()

    run(story())


# --- answers


def test_answers_become_events() -> None:
    async def story() -> None:
        rig = ControllerRig(1)
        partition = rig.put("t", 0, [1])
        partition_error = LeaderAndIsrResponse.LeaderAndIsrPartitionError(
            partition_index=0, error_code=ErrorCode.KAFKA_STORAGE_ERROR
        )
        topics = [
            LeaderAndIsrResponse.LeaderAndIsrTopicError(topic_id=id_, partition_errors=[partition_error])
            for id_ in (topic_id("t"), topic_id("deleted since"))
        ]
        rig.transport.script(
            1,
            LeaderAndIsrResponse(topics=topics),
            UpdateMetadataResponse(error_code=ErrorCode.STALE_BROKER_EPOCH),
        )
        rig.batch.new_batch()
        rig.batch.add_leader_and_isr([1], partition, rig.context.partitions[partition], is_new=False)
        await rig.batch.send_requests()
        await rig.settle()
        assert rig.events == [
            LeaderAndIsrResponseReceived(1, 101, 0, {partition: ErrorCode.KAFKA_STORAGE_ERROR}),
            UpdateMetadataResponseReceived(1, ErrorCode.STALE_BROKER_EPOCH),
        ]

    run(story())


async def delete_replicas(rig: ControllerRig) -> None:
    """Stop the replicas of two topics, one of which is deleted."""
    rig.context.queue_topic_deletion(["t"])
    rig.context.begin_topic_deletion(["t"])
    rig.batch.new_batch()
    for index in (0, 1):
        rig.batch.add_stop_replica([1], rig.put("t", index, [1]), delete=True)
    rig.batch.add_stop_replica([1], rig.put("t", 2, [1]), delete=False)
    rig.batch.add_stop_replica([1], rig.put("moved", 0, [1]), delete=True)
    await rig.batch.send_requests()
    await rig.settle()


def test_only_the_deletions_of_a_deleted_topic_are_passed_on() -> None:
    async def story() -> None:
        rig = ControllerRig(1)
        failed = {("t", 1): ErrorCode.KAFKA_STORAGE_ERROR}
        rig.transport.script(1, lambda request: stop_replica_answer(request, failed))
        await delete_replicas(rig)
        outcome = {TopicPartition("t", 0): 0, TopicPartition("t", 1): ErrorCode.KAFKA_STORAGE_ERROR}
        assert rig.events == [TopicDeletionStopReplicaResponseReceived(1, 101, 0, outcome)]

    run(story())


@pytest.mark.parametrize(
    "outcome",
    [
        StopReplicaResponse(error_code=ErrorCode.UNSUPPORTED_VERSION),
        UnsupportedVersion("the broker has no StopReplica v4"),
    ],
)
def test_a_refused_request_fails_all_its_deletions(outcome: StopReplicaResponse | Exception) -> None:
    async def story() -> None:
        rig = ControllerRig(1)
        rig.transport.script(1, outcome)
        await delete_replicas(rig)
        code = int(ErrorCode.UNSUPPORTED_VERSION)
        failed = {TopicPartition("t", 0): code, TopicPartition("t", 1): code}
        assert rig.events == [TopicDeletionStopReplicaResponseReceived(1, 101, code, failed)]

    run(story())


# --- large batches


def test_other_tasks_run_while_a_large_batch_is_made() -> None:
    async def story() -> None:
        rig = ControllerRig(1)
        for n in range(1000):
            rig.put(f"t{n}", 0, [1], status=PartitionStatus.ONLINE, replica_status=ReplicaStatus.OFFLINE)
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(REST_SECONDS / 2)

        counting = asyncio.create_task(count_turns())
        await rig.replicas.handle_state_changes(rig.context.replicas_on_broker(1), ReplicaStatus.ONLINE)
        counting.cancel()
        assert turns >= 20

    run(story())


def test_a_registration_without_the_listener_is_left_out_of_the_leaders() -> None:
    async def story() -> None:
        rig = ControllerRig(1)
        rig.context.add_live_brokers([broker(2, listener="OTHER")])
        partition = rig.put("t", 0, [2, 1])
        rig.batch.new_batch()
        rig.batch.add_leader_and_isr([1], partition, rig.context.partitions[partition], is_new=False)
        await rig.batch.send_requests()
        await rig.settle()
        [request] = rig.transport.of(1, LeaderAndIsrRequest)
        assert request.live_leaders == []

    run(story())
