"""Builds the operations that change Kafka's nodes, and reads their values. Pure functions.

The blocking MetadataStore and the asynchronous ClusterStore share them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

from tidelog.metadata import nodes, paths
from tidelog.metadata.state import (
    INTERNAL_TOPICS,
    NO_LEADER,
    NO_STATE_NODE,
    NO_TOPIC_ID,
    PartitionState,
    TopicState,
)
from tidelog.metadata.tree import Check, Create, Operation, SetData, Stat

PRODUCER_ID_BLOCK = 1000
"""The size of a block of producer ids, as in Kafka."""

MAX_PRODUCER_ID = 2**63 - 1

CHANGE_EXPIRY_MS = 15 * 60 * 1000
"""How long notifications of changed settings stay, as in Kafka."""

CLEANED = 100
"""How many known notifications are read beside the new ones: all of them would make every change slower."""

T = TypeVar("T")


def unread(sequences: Mapping[str, int], after: int) -> list[str]:
    """The paths of notifications to read: all with a number above `after`, and the oldest other one."""
    new = {path for path, sequence in sequences.items() if sequence > after}
    return [*heapq.nsmallest(CLEANED, sequences.keys() - new, key=sequences.__getitem__), *new]


class Fenced(Exception):
    """Another controller was elected; nothing was written."""

    def __init__(self) -> None:
        super().__init__("another controller was elected: this one is no longer in charge")


class ControllerEpoch(NamedTuple):
    """The epoch of an elected controller, and the version of /controller_epoch that its writes check."""

    epoch: int
    version: int

    @property
    def check(self) -> Check:
        return Check(paths.CONTROLLER_EPOCH, self.version)


def decode(path: str, decoder: Callable[[bytes], T], data: bytes) -> T:
    """Decode a node. Raises BadNode with its path if that fails."""
    try:
        return decoder(data)
    except nodes.BadNode as error:
        raise nodes.BadNode(f"{path} in the tree cannot be understood: {error}") from error


# --- the controller


def election(node: nodes.ControllerNode, epoch: ControllerEpoch) -> list[Operation]:
    """The operations of an election with this epoch.

    They fail if there is a controller, or the epoch was raised.
    """
    return [
        Create(paths.CONTROLLER, node.encode(), ephemeral=True),
        SetData(paths.CONTROLLER_EPOCH, nodes.encode_number(epoch.epoch), epoch.version - 1),
    ]


def next_epoch(data: bytes, stat: Stat) -> ControllerEpoch:
    """The epoch of the next election, from the present data of /controller_epoch."""
    epoch = decode(paths.CONTROLLER_EPOCH, nodes.decode_number, data) + 1
    return ControllerEpoch(epoch, stat.version + 1)


# --- topics and partitions


def topic_node(topic: TopicState) -> nodes.TopicNode:
    partitions = {index: state.replicas for index, state in topic.partitions.items()}
    adding = {index: state.adding for index, state in topic.partitions.items() if state.adding}
    removing = {index: state.removing for index, state in topic.partitions.items() if state.removing}
    topic_id = None if topic.topic_id == NO_TOPIC_ID else topic.topic_id
    return nodes.TopicNode(partitions, topic_id, adding, removing)


def topic_state(
    name: str, topic_id: bytes, partitions: dict[int, PartitionState], configs: dict[str, str]
) -> TopicState:
    return TopicState(name, topic_id, partitions, configs, name in INTERNAL_TOPICS)


def partition_node(state: PartitionState) -> nodes.PartitionNode:
    return nodes.PartitionNode(
        state.leader,
        state.leader_epoch,
        state.isr,
        state.controller_epoch,
        state.leader_recovery_state,
        state.other_fields,
    )


def partition_state(
    topic: str, index: int, node: nodes.TopicNode, found: tuple[bytes, Stat] | None
) -> PartitionState:
    """The state of a partition from the topic's node and its state node.

    Without a state node it has no leader.
    """
    replicas, adding, removing = (
        assignment.get(index, []) for assignment in (node.partitions, node.adding, node.removing)
    )
    state = PartitionState(replicas, NO_LEADER, -1, [], NO_STATE_NODE, 0, adding, removing)
    return state if found is None else with_leadership(paths.partition_state(topic, index), state, found)


def with_leadership(path: str, state: PartitionState, found: tuple[bytes, Stat]) -> PartitionState:
    """The state with leader, in-sync replicas and epochs of the state node."""
    data, stat = found
    node = decode(path, nodes.PartitionNode.decode, data)
    return replace(
        state,
        leader=node.leader,
        leader_epoch=node.leader_epoch,
        isr=node.isr,
        partition_epoch=stat.version,
        controller_epoch=node.controller_epoch,
        leader_recovery_state=node.leader_recovery_state,
        other_fields=node.other_fields,
        written_at=stat.mzxid,
    )


def create_partition(topic: str, index: int, state: PartitionState) -> list[Operation]:
    return [Create(paths.partition(topic, index)), create_partition_state(topic, index, state)]


def create_partition_state(topic: str, index: int, state: PartitionState) -> Create:
    return Create(paths.partition_state(topic, index), partition_node(state).encode())


def set_partition_state(topic: str, index: int, state: PartitionState) -> SetData:
    """Replace a state that has the partition epoch of `state`."""
    return SetData(paths.partition_state(topic, index), partition_node(state).encode(), state.partition_epoch)


# --- settings and producer ids


def put_config(entity_path: str, configs: Mapping[str, str], *, exists: bool) -> Operation:
    """Write the settings of an entity, whose node may exist: a deletion by an older Kafka can leave it."""
    path = paths.entity_config(entity_path)
    data = nodes.encode_config(configs)
    return SetData(path, data) if exists else Create(path, data)


def config_notice(entity_path: str) -> Create:
    """The notification of changed settings for other brokers."""
    return Create(paths.CONFIG_CHANGE_PREFIX, nodes.encode_config_change(entity_path), sequential=True)


def next_producer_ids(data: bytes, broker_id: int) -> nodes.ProducerIdBlock:
    """The block after the one in /latest_producer_id_block. Raises ValueError if there are no ids left."""
    first = decode(paths.PRODUCER_IDS, nodes.ProducerIdBlock.decode, data).last + 1 if data else 0
    if first + PRODUCER_ID_BLOCK - 1 > MAX_PRODUCER_ID:
        raise ValueError(f"there are no producer ids left: the last block ended at {first - 1}")
    return nodes.ProducerIdBlock(broker_id, first, first + PRODUCER_ID_BLOCK - 1)
