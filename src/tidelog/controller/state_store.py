"""StateStore: the reads and writes of the controller's state machines in the tree.

Every write checks the epoch of this controller in the same step. All calls raise Fenced if another controller
was elected, and TreeUnavailable (as SessionExpired) if the tree cannot be reached; the event ends then. If
the outcome of a write is lost, the store reads the node to find it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from tidelog.metadata.state import PartitionState, StateUpdates
from tidelog.partitions import TopicPartition


class StateStore(Protocol):
    async def create_partition_states(
        self, states: Mapping[TopicPartition, PartitionState]
    ) -> dict[TopicPartition, Exception]:
        """Create the nodes of new partitions, with missing parents; returns the errors of the failed ones.

        The states of the created partitions have the partition epoch 0.
        """

    async def read_partition_states(
        self, known: Mapping[TopicPartition, PartitionState]
    ) -> dict[TopicPartition, PartitionState]:
        """The known states with the leader, in-sync replicas and epochs that are in the tree.

        Partitions without a state node are left out.
        """

    async def update_partition_states(self, states: Mapping[TopicPartition, PartitionState]) -> StateUpdates:
        """Replace states. A write fails unless the node's version is the `partition_epoch` of the state."""

    async def topic_configs(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """The settings that the topics override."""

    async def delete_topics(self, topics: Sequence[str]) -> None:
        """Delete the nodes of topics: settings, partitions and assignment, and last their deletion marks.

        Missing nodes are no error: an earlier controller may have begun the deletion.
        """

    async def remove_deletion_marks(self, topics: Sequence[str]) -> None:
        """Delete the nodes that ask for the deletion of topics, and keep the topics."""
