"""The states of partitions and replicas at the controller, and the transitions between them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from tidelog.partitions import TopicPartition


class PartitionAndReplica(NamedTuple):
    """A replica: its partition and its broker."""

    topic: str
    partition: int
    replica: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} on broker {self.replica}"


class PartitionStatus(Enum):
    NON_EXISTENT = "NonExistentPartition"
    """The partition was never created, or is deleted."""

    NEW = "NewPartition"
    """It has replicas, but no leader or in-sync replicas yet."""

    ONLINE = "OnlinePartition"
    """It has a leader."""

    OFFLINE = "OfflinePartition"
    """It had a leader, which is gone."""


class ReplicaStatus(Enum):
    NEW = "NewReplica"
    """Its creation has begun: it can only become a follower."""

    ONLINE = "OnlineReplica"
    """It is started and in the assignment: it can become leader or follower."""

    OFFLINE = "OfflineReplica"
    """Its broker or its log folder is gone."""

    DELETION_STARTED = "ReplicaDeletionStarted"
    DELETION_SUCCESSFUL = "ReplicaDeletionSuccessful"

    DELETION_INELIGIBLE = "ReplicaDeletionIneligible"
    """Its deletion failed, or its broker is gone."""

    NON_EXISTENT = "NonExistentReplica"


PARTITION_PREDECESSORS: Mapping[PartitionStatus, tuple[PartitionStatus, ...]] = {
    PartitionStatus.NON_EXISTENT: (PartitionStatus.OFFLINE,),
    PartitionStatus.NEW: (PartitionStatus.NON_EXISTENT,),
    PartitionStatus.ONLINE: (PartitionStatus.NEW, PartitionStatus.ONLINE, PartitionStatus.OFFLINE),
    PartitionStatus.OFFLINE: (PartitionStatus.NEW, PartitionStatus.ONLINE, PartitionStatus.OFFLINE),
}
"""The states from which a partition may move to a state. Tuples: a set would hash each state in Python."""

_STARTED = (
    ReplicaStatus.NEW,
    ReplicaStatus.ONLINE,
    ReplicaStatus.OFFLINE,
    ReplicaStatus.DELETION_INELIGIBLE,
)

REPLICA_PREDECESSORS: Mapping[ReplicaStatus, tuple[ReplicaStatus, ...]] = {
    ReplicaStatus.NEW: (ReplicaStatus.NON_EXISTENT,),
    ReplicaStatus.ONLINE: _STARTED,
    ReplicaStatus.OFFLINE: _STARTED,
    ReplicaStatus.DELETION_STARTED: (ReplicaStatus.OFFLINE,),
    ReplicaStatus.DELETION_SUCCESSFUL: (ReplicaStatus.DELETION_STARTED,),
    ReplicaStatus.DELETION_INELIGIBLE: (ReplicaStatus.OFFLINE, ReplicaStatus.DELETION_STARTED),
    ReplicaStatus.NON_EXISTENT: (ReplicaStatus.DELETION_SUCCESSFUL,),
}
"""The states from which a replica may move to a state."""


class StateChangeFailed(Exception):
    """A partition or replica could not be moved to another state."""
