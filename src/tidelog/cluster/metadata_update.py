"""Builds the next ClusterState from an UpdateMetadata request of the controller.

An update names all live brokers, and only the partitions that changed. The next snapshot shares the topics
that the update does not name, and the partitions of a topic that did not change.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from tidelog.endpoints import Endpoint
from tidelog.metadata.state import (
    INTERNAL_TOPICS,
    LEADER_DURING_DELETE,
    NO_TOPIC_ID,
    BrokerRegistration,
    ClusterState,
    PartitionState,
    TopicState,
)
from tidelog.protocol.messages.update_metadata import UpdateMetadataRequest
from tidelog.slices import Slices

SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""Kafka's security protocols; the id of each on the wire is its position."""

PARTIAL_UPDATE: Final = 0
"""The type of an update with the partitions that changed. Kafka's controllers on ZooKeeper know no other."""

FULL_UPDATE: Final = 2
"""The type of an update with all partitions: topics that it does not name are deleted.

Kafka's brokers take it for a partial one, unless it comes from a KRaft controller.
"""

_NONE: Final[list[int]] = []  # shared: published states are never changed


@dataclass(slots=True)
class MetadataUpdate:
    """The next snapshot, and the names and ids of the topics that were deleted."""

    state: ClusterState
    deleted: list[tuple[str, bytes]] = field(default_factory=list)


def updated(state: ClusterState, request: UpdateMetadataRequest) -> Slices[MetadataUpdate]:
    """The snapshot after an update, in slices.

    A full update has all topics: topics without a mention are deleted.
    """
    is_full = request.type == FULL_UPDATE
    topics = {} if is_full else state.topics
    changed: list[TopicState] = []
    removed: dict[str, None] = {}
    deleted: list[tuple[str, bytes]] = []
    for update in request.topic_states:
        previous = topics.get(update.topic_name)
        if previous is not None and _is_another(previous, update.topic_id):
            deleted.append((previous.name, previous.topic_id))
            previous = None
        partitions = {} if previous is None else dict(previous.partitions)
        for partition in update.partition_states:
            if partition.leader == LEADER_DURING_DELETE:
                partitions.pop(partition.partition_index, None)
            else:
                partitions[partition.partition_index] = _partition(partition)
            yield
        if partitions:
            changed.append(_topic(previous, update, partitions))
        else:
            removed[update.topic_name] = None
            if previous is not None:
                deleted.append((previous.name, previous.topic_id))
        yield
    if is_full:
        names = {topic.name: topic.topic_id for topic in changed}
        missing = [
            topic
            for topic in state.topics.values()
            if topic.name not in names or _is_another(topic, names[topic.name])
        ]
        deleted += [(topic.name, topic.topic_id) for topic in missing]
        removed.update(dict.fromkeys(topic.name for topic in missing if topic.name not in names))
    if changed or removed:
        state = state.with_topics(changed, removed)
    state = state.with_brokers(_brokers(state.brokers, request))
    return MetadataUpdate(state.with_controller(request.controller_id, request.controller_epoch), deleted)


def _is_another(topic: TopicState, topic_id: bytes) -> bool:
    """Whether the name belongs to a newer topic. A topic without an id is the same topic."""
    return NO_TOPIC_ID not in (topic.topic_id, topic_id) and topic.topic_id != topic_id


def _topic(
    topic: TopicState | None,
    update: UpdateMetadataRequest.UpdateMetadataTopicState,
    partitions: dict[int, PartitionState],
) -> TopicState:
    if topic is not None:
        return replace(topic, topic_id=update.topic_id, partitions=partitions)
    name = update.topic_name
    return TopicState(name, update.topic_id, partitions, is_internal=name in INTERNAL_TOPICS)


def _partition(update: UpdateMetadataRequest.UpdateMetadataPartitionState) -> PartitionState:
    return PartitionState(
        update.replicas,
        update.leader,
        update.leader_epoch,
        update.isr,
        update.zk_version,
        update.controller_epoch,
        _NONE,
        _NONE,
        offline_replicas=update.offline_replicas or _NONE,
    )


def _brokers(
    before: dict[int, BrokerRegistration], request: UpdateMetadataRequest
) -> dict[int, BrokerRegistration]:
    brokers = {broker.id: _broker(broker) for broker in request.live_brokers}
    return before if brokers == before else brokers


def _broker(broker: UpdateMetadataRequest.UpdateMetadataBroker) -> BrokerRegistration:
    return BrokerRegistration(
        broker.id,
        [
            Endpoint(endpoint.listener, _protocol(endpoint.security_protocol), endpoint.host, endpoint.port)
            for endpoint in broker.endpoints
        ],
        broker.rack,
    )


def _protocol(number: int) -> str:
    known = 0 <= number < len(SECURITY_PROTOCOLS)
    return SECURITY_PROTOCOLS[number] if known else f"protocol {number}"


def listeners_differ(brokers: dict[int, BrokerRegistration]) -> str | None:
    """The listeners of each broker, for a log line; None if all brokers have the same."""
    listeners = {
        broker_id: sorted(endpoint.listener for endpoint in broker.endpoints)
        for broker_id, broker in brokers.items()
    }
    if len({tuple(names) for names in listeners.values()}) <= 1:
        return None
    return "; ".join(f"broker {broker_id}: {', '.join(names)}" for broker_id, names in listeners.items())
