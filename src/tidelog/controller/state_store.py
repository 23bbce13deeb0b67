"""StateStore: what the controller's state machines read from the tree and write to it.

Every write checks the epoch of this controller in the same step. All calls raise Fenced if another controller
was elected, and TreeUnavailable (as SessionExpired) if the tree cannot be reached: the event ends then. A
write whose outcome was lost is resolved by the store, which reads the node back.
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
        """The known states with leader, in-sync replicas and epochs as they are in the tree.

        Partitions without a state node are left out.
        """

    async def update_partition_states(self, states: Mapping[TopicPartition, PartitionState]) -> StateUpdates:
        """Replace states. The node of each must have the `partition_epoch` of its state as its version."""

    async def topic_configs(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """The settings that the topics override."""

    async def delete_topics(self, topics: Sequence[str]) -> None:
        """Delete the nodes of topics: settings, partitions and assignment, and at last their deletion marks.

        Missing nodes are no error: an earlier controller may have begun the deletion.
        """

    async def remove_deletion_marks(self, topics: Sequence[str]) -> None:
        """Delete the nodes that ask for the deletion of topics, and keep the topics."""
