"""Writes topics: creations, assignments and marks for deletion.

The controller writes with its epoch: once another controller was elected, its writes raise Fenced. Tools that
write to ZooKeeper directly have no epoch; the controller sees their nodes and acts on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tidelog.metadata import nodes, operations, paths
from tidelog.metadata.async_tree import AsyncTree
from tidelog.metadata.operations import ControllerEpoch, decode
from tidelog.metadata.state import NO_TOPIC_ID, TopicState
from tidelog.metadata.tree import Create, NoNode, SetData, TreeError
from tidelog.metadata.tree_writes import Step, write_steps


async def create_topics(
    tree: AsyncTree, topics: Sequence[TopicState], epoch: ControllerEpoch | None = None
) -> dict[str, TreeError]:
    """Write topics with their settings and assignments; returns the errors of those not created.

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
    """Write the replicas of the partitions of topics; returns the errors of those not written."""
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


async def set_topic_ids(
    tree: AsyncTree, topic_ids: Mapping[str, bytes], epoch: ControllerEpoch | None = None
) -> None:
    """Give topics ids, unless they have one. Everything else in their nodes stays.

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
    """Mark topics for deletion: from now on they will be deleted, whoever is the controller.

    Returns the errors of those not marked, NodeExists for a topic that was marked before.
    """
    steps = (Step.of(name, Create(paths.deleted_topic(name))) for name in topics)
    return await write_steps(tree, steps, epoch)
