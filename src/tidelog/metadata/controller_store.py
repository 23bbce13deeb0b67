"""ControllerStore: the writes of an elected controller.

Every multi checks the controller epoch: after the election of another controller, all calls raise Fenced and
write nothing. If the answer to a write is lost, the store reads the node to find out the outcome. Many topics
and partitions are written in a pipeline of multis below ZooKeeper's limit of 1 MB. Each topic and each
partition is complete in one multi, so that the next controller can continue after a crash at any point.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import TypeVar

from tidelog.metadata import operations, paths, topic_writes
from tidelog.metadata.cluster_store import ClusterStore
from tidelog.metadata.nodes import BadNode
from tidelog.metadata.operations import ControllerEpoch
from tidelog.metadata.state import PartitionState, StateUpdates, TopicState
from tidelog.metadata.tree import (
    BadVersion,
    Create,
    Delete,
    NoNode,
    NotEmpty,
    Operation,
    TreeError,
    child_of,
)
from tidelog.metadata.tree_writes import Step, write_steps
from tidelog.partitions import TopicPartition
from tidelog.slices import in_slices

K = TypeVar("K")

_log = logging.getLogger("tidelog.metadata")


class ControllerStore:
    """Implements tidelog.controller.state_store.StateStore, among others."""

    def __init__(self, cluster: ClusterStore, epoch: ControllerEpoch) -> None:
        self.epoch = epoch
        self._cluster = cluster
        self._tree = cluster.tree

    # --- topics

    async def create_topics(self, topics: Sequence[TopicState]) -> dict[str, TreeError]:
        """Write topics with their settings and assignments; returns the errors of the failed ones.

        The states of the partitions are written when they get leaders.
        """
        return await topic_writes.create_topics(self._tree, topics, self.epoch)

    async def set_assignments(self, topics: Mapping[str, TopicState]) -> dict[str, TreeError]:
        """Write the replicas of all partitions of topics; returns the errors of the failed ones."""
        return await topic_writes.set_assignments(self._tree, topics, self.epoch)

    async def set_replicas(self, states: Mapping[TopicPartition, PartitionState]) -> dict[str, TreeError]:
        """Write the replicas of some partitions of topics; returns the errors of the failed topics."""
        return await topic_writes.set_replicas(self._tree, states, self.epoch)

    async def remove_reassignment_requests(
        self, partitions: Mapping[TopicPartition, Sequence[int] | None]
    ) -> None:
        """Remove partitions from /admin/reassign_partitions, and the node with the last one.

        A partition with given replicas is removed only if the node requests these replicas.
        """
        await topic_writes.remove_reassignment_requests(self._tree, partitions, self.epoch)

    async def set_topic_ids(self, topic_ids: Mapping[str, bytes]) -> None:
        """Set the ids of topics without an id. A topic whose node changes meanwhile gets none."""
        await topic_writes.set_topic_ids(self._tree, topic_ids, self.epoch)

    async def mark_for_deletion(self, topics: Iterable[str]) -> None:
        """Mark topics for deletion by this controller or a later one."""
        await topic_writes.mark_for_deletion(self._tree, topics, self.epoch)

    async def remove_deletion_marks(self, topics: Sequence[str]) -> None:
        """Delete the nodes that ask for the deletion of topics, and keep the topics."""
        await self._write(Step.of(name, Delete(paths.deleted_topic(name))) for name in topics)

    async def delete_topics(self, topics: Sequence[str]) -> None:
        """Delete the nodes of topics: settings, partitions and assignment, and last their deletion marks.

        Missing nodes are no error, because an earlier controller may have begun the deletion. If a tool
        creates a topic of the same name meanwhile, the new topic stays with its settings.
        """
        configs = [paths.entity_config(paths.entity_path("topics", name)) for name in topics]
        await self._write(Step.of(path, Delete(path)) for path in configs)
        remaining = [paths.topic(name) for name in topics]
        while remaining:
            doomed = await self._below(remaining)
            refused = await self._write(Step.of(path, Delete(path)) for path in reversed(doomed))
            for error in refused.values():
                if not isinstance(error, (NoNode, NotEmpty)):
                    raise error
            # A tool added a node meanwhile: try again for the topics that still exist.
            remaining = [path for path in remaining if isinstance(refused.get(path), NotEmpty)]
        await self.remove_deletion_marks(topics)

    async def _below(self, level: list[str]) -> list[str]:
        """The nodes and all below them, parents before children."""
        found: list[str] = []
        while level:
            children = await self._tree.children_of_all(level)
            found += children
            level = [child_of(node, name) for node, names in children.items() for name in names]
        return found

    # --- partitions

    async def create_partition_states(
        self, states: Mapping[TopicPartition, PartitionState]
    ) -> dict[TopicPartition, Exception]:
        """Create the nodes of new partitions, with missing parents; returns the errors of the failed ones."""
        parents = {paths.partitions(topic): topic for topic, _ in states}
        found = await self._tree.children_of_all(parents)
        await self._write(Step.of(path, Create(path)) for path in parents if path not in found)
        known: set[tuple[str, str]] = set()
        async for some in in_slices(found.items()):
            for path, names in some:
                known.update((parents[path], name) for name in names)
        steps = (_partition_creation(partition, state, known) for partition, state in states.items())
        return {**await self._write(steps)}

    async def read_partition_states(
        self, known: Mapping[TopicPartition, PartitionState]
    ) -> dict[TopicPartition, PartitionState]:
        """The known states with the leader, in-sync replicas and epochs that are in the tree.

        Partitions without a readable state node are left out.
        """
        by_path = {paths.partition_state(*partition): partition for partition in known}
        found = await self._tree.get_all(by_path)
        states: dict[TopicPartition, PartitionState] = {}
        async for some in in_slices(found.items()):
            for path, node in some:
                partition = by_path[path]
                try:
                    states[partition] = operations.with_leadership(path, known[partition], node)
                except BadNode as error:
                    _log.error("%s", error)
        return states

    async def update_partition_states(self, states: Mapping[TopicPartition, PartitionState]) -> StateUpdates:
        """Replace states. A write fails unless the node's version is the `partition_epoch` of the state."""
        refused = await self._write(
            Step.of(partition, operations.set_partition_state(*partition, state))
            for partition, state in states.items()
        )
        updated: dict[TopicPartition, PartitionState] = {}
        async for some in in_slices(states.items()):
            for partition, state in some:
                if partition not in refused:
                    updated[partition] = replace(state, partition_epoch=state.partition_epoch + 1)
        retriable = [partition for partition, error in refused.items() if isinstance(error, BadVersion)]
        failed: dict[TopicPartition, Exception] = {
            partition: error for partition, error in refused.items() if not isinstance(error, BadVersion)
        }
        return StateUpdates(updated, retriable, failed)

    # --- settings, notifications, requests in nodes

    async def topic_configs(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """The settings that topics override."""
        return await self._cluster.topic_configs(topics)

    async def delete_nodes(self, doomed: Iterable[str]) -> None:
        """Delete notifications or requests that are handled. Missing nodes are no error."""
        await self._write(Step.of(path, Delete(path)) for path in doomed)

    async def _write(self, steps: Iterable[Step[K]]) -> dict[K, TreeError]:
        return await write_steps(self._tree, steps, self.epoch)


def _partition_creation(
    partition: TopicPartition, state: PartitionState, known: Set[tuple[str, str]]
) -> Step[TopicPartition]:
    topic, index = partition
    node = operations.create_partition_state(topic, index, state)
    parent: list[Operation] = [] if (topic, str(index)) in known else [Create(paths.partition(topic, index))]
    return Step(partition, [*parent, node], node)
