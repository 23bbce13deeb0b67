"""Writes topics: creations, assignments and marks for deletion.

The controller writes with its epoch: after the election of another controller, its writes raise Fenced. Tools
that write to ZooKeeper directly have no epoch. The controller's watches report their nodes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from tidelog.metadata import nodes, operations, paths
from tidelog.metadata.async_tree import AsyncTree
from tidelog.metadata.operations import ControllerEpoch, decode
from tidelog.metadata.state import NO_TOPIC_ID, PartitionState, TopicState
from tidelog.metadata.tree import BadVersion, Create, Delete, NoNode, Operation, SetData, TreeError
from tidelog.metadata.tree_writes import Step, write_steps
from tidelog.partitions import TopicPartition

_log = logging.getLogger("tidelog.metadata")


async def create_topics(
    tree: AsyncTree, topics: Sequence[TopicState], epoch: ControllerEpoch | None = None
) -> dict[str, TreeError]:
    """Write topics with their settings and assignments; returns the errors of the failed ones.

    The states of the partitions are written when they get leaders.
    """
    refused = await write_steps(tree, (_creation(topic, has_config=False) for topic in topics), epoch)
    # A deletion by an older Kafka can leave settings without a topic.
    leftover = [
        topic for topic in topics if topic.name in refused and not _is_topic(refused[topic.name].path)
    ]
    for topic in leftover:
        del refused[topic.name]
    again = (_creation(topic, has_config=True) for topic in leftover)
    return refused | await write_steps(tree, again, epoch)


def _creation(topic: TopicState, *, has_config: bool) -> Step[str]:
    config = operations.put_config(paths.entity_path("topics", topic.name), topic.configs, exists=has_config)
    node = Create(paths.topic(topic.name), operations.topic_node(topic).encode())
    # The topic's id makes its node unlike one of any other writer.
    return Step(topic.name, [config, node, Create(paths.partitions(topic.name))], node)


def _is_topic(path: str) -> bool:
    return path.startswith(paths.TOPICS)


async def set_assignments(
    tree: AsyncTree, topics: Mapping[str, TopicState], epoch: ControllerEpoch | None = None
) -> dict[str, TreeError]:
    """Write the replicas of all partitions of topics; returns the errors of the failed ones."""
    found = await tree.get_all([paths.topic(name) for name in topics])
    steps: list[Step[str]] = []
    refused: dict[str, TreeError] = {}
    for name, topic in topics.items():
        path = paths.topic(name)
        if path not in found:
            refused[name] = NoNode(path)
            continue
        data, stat = found[path]
        node = operations.topic_node(topic)
        node.other_fields = decode(path, nodes.TopicNode.decode, data).other_fields
        steps.append(Step.of(name, SetData(path, node.encode(), stat.version)))
    return refused | await write_steps(tree, steps, epoch)


async def set_replicas(
    tree: AsyncTree, states: Mapping[TopicPartition, PartitionState], epoch: ControllerEpoch | None = None
) -> dict[str, TreeError]:
    """Write the replicas of some partitions of topics; returns the errors of the failed topics.

    All other data of the nodes stays, including simultaneous changes of other writers.
    """
    by_path: dict[str, dict[int, PartitionState]] = {}
    for (name, index), state in states.items():
        by_path.setdefault(paths.topic(name), {})[index] = state
    refused: dict[str, TreeError] = {}
    while by_path:
        found = await tree.get_all(by_path)
        refused.update((_topic_of(path), NoNode(path)) for path in by_path if path not in found)
        steps: list[Step[str]] = []
        for path, (data, stat) in found.items():
            node = decode(path, nodes.TopicNode.decode, data)
            for index, state in by_path[path].items():
                _put_replicas(node, index, state)
            steps.append(Step.of(path, SetData(path, node.encode(), stat.version)))
        failed = await write_steps(tree, steps, epoch)
        by_path = {path: by_path[path] for path, error in failed.items() if isinstance(error, BadVersion)}
        refused.update((_topic_of(path), error) for path, error in failed.items() if path not in by_path)
    return refused


def _put_replicas(node: nodes.TopicNode, index: int, state: PartitionState) -> None:
    node.partitions[index] = state.replicas
    for moving, replicas in ((node.adding, state.adding), (node.removing, state.removing)):
        if replicas:
            moving[index] = replicas
        else:
            moving.pop(index, None)


def _topic_of(path: str) -> str:
    return path.rpartition("/")[2]


async def remove_reassignment_requests(
    tree: AsyncTree,
    partitions: Mapping[TopicPartition, Sequence[int] | None],
    epoch: ControllerEpoch | None = None,
) -> None:
    """Remove partitions from /admin/reassign_partitions, and the node with the last one.

    A partition with given replicas is removed only if the node requests these replicas. As in Kafka, an empty
    or malformed node is removed, too.
    """
    path = paths.REASSIGN_PARTITIONS
    while partitions:
        found = await tree.get_all([path])
        if path not in found:
            return
        data, stat = found[path]
        requested = _requested(path, data)
        remaining = {
            partition: replicas
            for partition, replicas in requested.items()
            if TopicPartition(*partition) not in partitions
            or partitions[TopicPartition(*partition)] not in (None, replicas)
        }
        if requested and len(remaining) == len(requested):
            return
        change: Operation = Delete(path, stat.version)
        if remaining:
            change = SetData(path, nodes.encode_reassignment(remaining), stat.version)
        failed = await write_steps(tree, [Step.of(path, change)], epoch)
        if not isinstance(failed.get(path), BadVersion):
            return


def _requested(path: str, data: bytes) -> dict[tuple[str, int], list[int]]:
    try:
        return decode(path, nodes.decode_reassignment, data)
    except nodes.BadNode as error:
        _log.error("%s", error)
        return {}


async def set_topic_ids(
    tree: AsyncTree, topic_ids: Mapping[str, bytes], epoch: ControllerEpoch | None = None
) -> None:
    """Set the ids of topics without an id. All other data of the nodes stays.

    A topic whose node another writer changes or deletes meanwhile gets none.
    """
    found = await tree.get_all([paths.topic(name) for name in topic_ids])
    steps: list[Step[str]] = []
    for name, topic_id in topic_ids.items():
        path = paths.topic(name)
        if path in found:
            data, stat = found[path]
            node = decode(path, nodes.TopicNode.decode, data)
            if node.topic_id in (None, NO_TOPIC_ID):
                node.topic_id = topic_id
                steps.append(Step.of(name, SetData(path, node.encode(), stat.version)))
    await write_steps(tree, steps, epoch)


async def mark_for_deletion(
    tree: AsyncTree, topics: Iterable[str], epoch: ControllerEpoch | None = None
) -> dict[str, TreeError]:
    """Mark topics for deletion by the present controller or a later one.

    Returns the errors of the failed ones, NodeExists for a topic that was marked before.
    """
    steps = (Step.of(name, Create(paths.deleted_topic(name))) for name in topics)
    return await write_steps(tree, steps, epoch)
