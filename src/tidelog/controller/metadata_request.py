"""The contents of UpdateMetadata: topics, partitions and brokers from the controller's context."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tidelog.controller.context import ControllerContext
from tidelog.metadata.state import LEADER_DURING_DELETE, BrokerRegistration, PartitionState
from tidelog.partitions import TopicPartition
from tidelog.protocol.messages.update_metadata import UpdateMetadataRequest
from tidelog.protocol.wire import ZERO_UUID
from tidelog.slices import in_slices

SECURITY_PROTOCOLS: Final = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
"""The numbers of the security protocols on the wire."""

_Partition = UpdateMetadataRequest.UpdateMetadataPartitionState


async def topic_states(
    context: ControllerContext, partitions: Sequence[TopicPartition]
) -> list[UpdateMetadataRequest.UpdateMetadataTopicState]:
    """The states of partitions by topic, without partitions that never had a leader."""
    topics: dict[str, UpdateMetadataRequest.UpdateMetadataTopicState] = {}
    async for some in in_slices(partitions):
        for partition in some:
            state = context.leadership(partition)
            if state is None:
                continue
            topic = topics.get(partition.topic)
            if topic is None:
                topic = topics[partition.topic] = UpdateMetadataRequest.UpdateMetadataTopicState(
                    topic_name=partition.topic, topic_id=context.topic_ids.get(partition.topic, ZERO_UUID)
                )
            topic.partition_states.append(_partition_state(context, partition, state))
    return list(topics.values())


def _partition_state(
    context: ControllerContext, partition: TopicPartition, state: PartitionState
) -> _Partition:
    offline = [
        broker_id for broker_id in state.replicas if not context.is_replica_online(broker_id, partition)
    ]
    # Brokers answer requests for a topic that is deleted as if it did not exist: its epochs start again.
    deleted = context.is_topic_queued_for_deletion(partition.topic)
    return _Partition(
        partition_index=partition.partition,
        controller_epoch=state.controller_epoch,
        leader=LEADER_DURING_DELETE if deleted else state.leader,
        leader_epoch=0 if deleted else state.leader_epoch,
        isr=state.isr,
        zk_version=0 if deleted else state.partition_epoch,
        replicas=state.replicas,
        offline_replicas=offline,
    )


def broker_states(
    brokers: Iterable[BrokerRegistration],
) -> list[UpdateMetadataRequest.UpdateMetadataBroker]:
    """Live brokers with the endpoints of all their listeners."""
    return [
        UpdateMetadataRequest.UpdateMetadataBroker(
            id=broker.broker_id,
            endpoints=[
                UpdateMetadataRequest.UpdateMetadataEndpoint(
                    port=endpoint.port,
                    host=endpoint.host,
                    listener=endpoint.listener,
                    security_protocol=SECURITY_PROTOCOLS[endpoint.security_protocol],
                )
                for endpoint in broker.endpoints
            ],
            rack=broker.rack,
        )
        for broker in brokers
    ]
