"""The controller writes the in-sync replicas that leaders ask for, and refuses what is out of date."""

from __future__ import annotations

import pytest

from tests.controller.controllers import Cluster, Node, simulated
from tidelog.controller.interface import NewTopic
from tidelog.errors import BrokerIdNotRegistered, ErrorCode, NotController, StaleBrokerEpoch
from tidelog.metadata.nodes import PartitionNode
from tidelog.metadata.state import PartitionState
from tidelog.partitions import TopicPartition
from tidelog.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from tidelog.protocol.messages.update_metadata import UpdateMetadataRequest

DEMO = TopicPartition("demo", 0)


class Leader:
    """Broker 2, the leader of demo-0 with the replicas 2, 3 and 1."""

    def __init__(self, cluster: Cluster, controller: Node) -> None:
        self.cluster = cluster
        self.controller = controller

    @property
    def state(self) -> PartitionState:
        return self.controller.controller.context.partitions[DEMO]

    def epoch(self, broker_id: int) -> int:
        return self.cluster.nodes[broker_id].registrations[-1].epoch

    def request(
        self,
        isr: list[int],
        *,
        leader_epoch: int | None = None,
        partition_epoch: int | None = None,
        recovery: int = 0,
        epochs: dict[int, int] | None = None,
        topic_id: bytes | None = None,
        index: int = 0,
    ) -> AlterPartitionRequest:
        state = self.state
        context = self.controller.controller.context
        partition = AlterPartitionRequest.PartitionData(
            partition_index=index,
            leader_epoch=state.leader_epoch if leader_epoch is None else leader_epoch,
            new_isr_with_epochs=[
                AlterPartitionRequest.BrokerState(
                    broker_id=member, broker_epoch=(epochs or {}).get(member, context.broker_epoch(member))
                )
                for member in isr
            ],
            leader_recovery_state=recovery,
            partition_epoch=state.partition_epoch if partition_epoch is None else partition_epoch,
        )
        topic = AlterPartitionRequest.TopicData(
            topic_id=topic_id or context.topic_ids["demo"], partitions=[partition]
        )
        return AlterPartitionRequest(broker_id=2, broker_epoch=self.epoch(2), topics=[topic])

    async def send(
        self, request: AlterPartitionRequest, version: int = 3
    ) -> AlterPartitionResponse.PartitionData:
        if version < 3:
            for partition in request.topics[0].partitions:
                partition.new_isr = [member.broker_id for member in partition.new_isr_with_epochs]
                partition.new_isr_with_epochs = []
        if version < 2:
            request.topics[0].topic_name = request.topics[0].topic_name or DEMO.topic
        decoded = AlterPartitionRequest.decode(request.encode(version), version)
        response = await self.controller.controller.alter_partition(decoded, version)
        response = AlterPartitionResponse.decode(response.encode(version), version)
        assert response.error_code == ErrorCode.NONE
        assert response.topics[0].topic_name == decoded.topics[0].topic_name
        assert response.topics[0].topic_id == decoded.topics[0].topic_id
        ((answer,),) = [topic.partitions for topic in response.topics]
        return answer


async def leader(cluster: Cluster) -> Leader:
    await cluster.start(1)
    controller = await cluster.controller()
    await cluster.start(2)
    await cluster.start(3)
    await cluster.settle()
    (result,) = await controller.controller.create_topics([NewTopic("demo", assignments=[(0, [2, 3, 1])])])
    assert result.error is None
    return Leader(cluster, controller)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_a_smaller_isr_is_written_and_told(version: int) -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            leading = await leader(cluster)
            before = leading.state
            answer = await leading.send(leading.request([2, 1]), version)
            assert (answer.error_code, answer.leader_id, answer.isr) == (0, 2, [2, 1])
            assert answer.partition_epoch == before.partition_epoch + 1
            assert answer.leader_epoch == before.leader_epoch
            data, stat = cluster.zookeeper.tree.get("/brokers/topics/demo/partitions/0/state")
            assert PartitionNode.decode(data).isr == [2, 1]
            assert stat.version == answer.partition_epoch
            await cluster.settle()
            for node in cluster.nodes.values():
                updates = [each for each in node.broker.received if isinstance(each, UpdateMetadataRequest)]
                assert updates[-1].topic_states[0].partition_states[0].isr == [2, 1]

    simulated(story())


def test_what_is_out_of_date_is_refused() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            leading = await leader(cluster)
            await leading.send(leading.request([2, 1]))
            state = leading.state
            refused = {
                "newer leader epoch": leading.request([2], leader_epoch=state.leader_epoch + 1),
                "newer partition epoch": leading.request([2], partition_epoch=state.partition_epoch + 1),
                "older leader epoch": leading.request([2], leader_epoch=state.leader_epoch - 1),
                "older partition epoch": leading.request([2], partition_epoch=state.partition_epoch - 1),
                "without the leader": leading.request([1]),
                "unknown broker": leading.request([2, 9], epochs={9: -1}),
                "restarted follower": leading.request([2, 3], epochs={3: leading.epoch(3) - 1}),
                "recovering with followers": leading.request([2, 3], recovery=1),
                "unknown topic": leading.request([2], topic_id=bytes(range(16))),
                "unknown partition": leading.request([2], index=5),
            }
            codes = {name: (await leading.send(request)).error_code for name, request in refused.items()}
            assert codes == {
                "newer leader epoch": ErrorCode.NOT_CONTROLLER,
                "newer partition epoch": ErrorCode.NOT_CONTROLLER,
                "older leader epoch": ErrorCode.FENCED_LEADER_EPOCH,
                "older partition epoch": ErrorCode.INVALID_UPDATE_VERSION,
                "without the leader": ErrorCode.INVALID_REQUEST,
                "unknown broker": ErrorCode.INELIGIBLE_REPLICA,
                "restarted follower": ErrorCode.INELIGIBLE_REPLICA,
                "recovering with followers": ErrorCode.INVALID_REQUEST,
                "unknown topic": ErrorCode.UNKNOWN_TOPIC_ID,
                "unknown partition": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            }
            assert leading.state == state

    simulated(story())


@pytest.mark.parametrize("version", [0, 1])
def test_leaders_that_name_topics_get_the_errors_of_their_time(version: int) -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            leading = await leader(cluster)
            state = leading.state
            absent = await leading.send(leading.request([2, 9], epochs={9: -1}), version)
            assert absent.error_code == ErrorCode.OPERATION_NOT_ATTEMPTED
            request = leading.request([2])
            request.topics[0].topic_name = "gone"
            assert (await leading.send(request, version)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert leading.state == state

    simulated(story())


def test_a_repeated_change_gets_the_state_that_the_first_one_made() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            leading = await leader(cluster)
            request = leading.request([2, 3])
            first = await leading.send(request)
            assert await leading.send(request) == first
            assert leading.state.partition_epoch == first.partition_epoch

    simulated(story())


def test_a_leader_of_an_earlier_registration_is_refused() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            leading = await leader(cluster)
            request = leading.request([2])
            request.broker_epoch -= 1
            with pytest.raises(StaleBrokerEpoch):
                await leading.controller.controller.alter_partition(request, 3)
            with pytest.raises(NotController):
                await cluster.nodes[2].controller.alter_partition(leading.request([2]), 3)

    simulated(story())


def test_a_state_that_another_writer_changed_is_read_again() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            leading = await leader(cluster)
            path = "/brokers/topics/demo/partitions/0/state"
            written = PartitionNode(2, 0, [2, 3], 1, other_fields={"from_the_future": 1})
            await leading.controller.tree.set(path, written.encode())
            answer = await leading.send(leading.request([2]))
            assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
            assert leading.state.isr == [2, 3]
            assert (await leading.send(leading.request([2]))).error_code == ErrorCode.NONE
            data, _ = cluster.zookeeper.tree.get(path)
            assert PartitionNode.decode(data).other_fields == {"from_the_future": 1}

    simulated(story())


def test_isr_changes_of_older_brokers_arrive_by_notification() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            leading = await leader(cluster)
            other = cluster.nodes[2]
            path = "/brokers/topics/demo/partitions/0/state"
            await other.tree.set(path, PartitionNode(2, 0, [2], 1).encode())
            await other.store.write_isr_change([DEMO, TopicPartition("gone", 1)])
            await cluster.until(lambda: leading.state.isr == [2], "the smaller ISR")
            await cluster.settle()
            assert await other.tree.children("/isr_change_notification") == []

    simulated(story())


def test_producer_ids_are_allocated_once() -> None:
    async def story() -> None:
        async with Cluster(1, 2) as cluster:
            controller = await cluster.controller()
            epoch = cluster.nodes[2].registrations[-1].epoch
            allocate = controller.controller.allocate_producer_ids
            assert await allocate(2, epoch) == range(1000)
            assert await allocate(2, epoch) == range(1000, 2000)
            with pytest.raises(StaleBrokerEpoch):
                await allocate(2, epoch - 1)
            with pytest.raises(BrokerIdNotRegistered):
                await allocate(7, 1)

    simulated(story())


def test_a_broker_without_a_replica_does_not_join_the_isr() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            leading = await leader(cluster)
            await cluster.start(4)
            await cluster.settle()
            answer = await leading.send(leading.request([2, 3, 1, 4]))
            assert answer.error_code == ErrorCode.INVALID_REQUEST
            assert leading.state.isr == [2, 3, 1]

    simulated(story())
