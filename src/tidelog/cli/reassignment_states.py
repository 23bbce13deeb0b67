"""The state of a reassignment: which partitions and log folders have arrived, move, or do not move."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from tidelog.cli.reassignment_file import Reassignment, joined
from tidelog.errors import UnknownTopicOrPartition
from tidelog.partitions import PartitionKey

if TYPE_CHECKING:
    from tidelog.clients.admin import Admin, Replica, ReplicaLogDirInfo


@dataclass(slots=True, frozen=True)
class PartitionReassignmentState:
    """The replicas that a partition has and should have, and whether it is being reassigned."""

    current: list[int]
    wanted: list[int]
    done: bool

    @property
    def name(self) -> str:
        """The state for programs."""
        if not self.done:
            return "in-progress"
        return "completed" if self.current == self.wanted else "not-active"

    def line(self, partition: PartitionKey) -> str:
        name = f"{partition[0]}-{partition[1]}"
        if not self.done:
            return f"Reassignment of partition {name} is still in progress."
        if self.current == self.wanted:
            return f"Reassignment of partition {name} is completed."
        return (
            f"There is no active reassignment of partition {name}, "
            f"but replica set is {joined(self.current)} rather than {joined(self.wanted)}."
        )


class LogDirMove(Enum):
    """The move of a replica to another log folder; the values are for programs."""

    COMPLETED = "completed"
    ACTIVE = "in-progress"
    ELSEWHERE = "to-another-folder"
    CANCELLED = "not-active"
    MISSING = "missing"


@dataclass(slots=True, frozen=True)
class LogDirMoveState:
    """The log folders that a replica is in, is being moved to, and should be in."""

    current: str | None
    future: str | None
    wanted: str

    @property
    def move(self) -> LogDirMove:
        if self.current is None:
            return LogDirMove.MISSING
        if self.future is not None:
            return LogDirMove.ACTIVE if self.future == self.wanted else LogDirMove.ELSEWHERE
        return LogDirMove.COMPLETED if self.current == self.wanted else LogDirMove.CANCELLED

    @property
    def done(self) -> bool:
        return self.move in (LogDirMove.COMPLETED, LogDirMove.CANCELLED)

    def line(self, replica: Replica) -> str:
        partition = f"{replica.topic}-{replica.partition}"
        name = f"{partition}-{replica.broker_id}"
        where = f"Partition {partition} on broker {replica.broker_id}"
        match self.move:
            case LogDirMove.COMPLETED:
                return f"Reassignment of replica {name} completed successfully."
            case LogDirMove.ACTIVE:
                return f"Reassignment of replica {name} is still in progress."
            case LogDirMove.ELSEWHERE:
                return f"{where} is being moved to log dir {self.future} instead of {self.wanted}."
            case LogDirMove.CANCELLED:
                return f"{where} is not being moved from log dir {self.current} to {self.wanted}."
            case LogDirMove.MISSING:
                return (
                    f"Partition {partition} is not found in any live log dir on broker {replica.broker_id}. "
                    "There is likely an offline log directory on the broker."
                )


@dataclass(slots=True, frozen=True)
class ReassignmentStates:
    partitions: dict[PartitionKey, PartitionReassignmentState]
    moves: dict[Replica, LogDirMoveState]
    partitions_move: bool
    """Whether any partition of the cluster is being reassigned, also one that is not in `partitions`."""

    @property
    def ongoing(self) -> bool:
        """Whether throttles are still needed."""
        return self.partitions_move or not all(state.done for state in self.moves.values())

    @property
    def own_ongoing(self) -> bool:
        """Whether one of these partitions or replicas still moves."""
        return not all(state.done for state in self.partitions.values()) or any(
            state.future is not None for state in self.moves.values()
        )

    def partition_lines(self) -> list[str]:
        lines = [state.line(partition) for partition, state in sorted(self.partitions.items())]
        return ["Status of partition reassignment:", *lines]

    def move_lines(self) -> list[str]:
        return [state.line(replica) for replica, state in sorted(self.moves.items())]

    def as_json(self) -> dict[str, object]:
        return {
            "partitions": [
                {
                    "topic": topic,
                    "partition": index,
                    "state": state.name,
                    "replicas": state.current,
                    "wanted": state.wanted,
                }
                for (topic, index), state in sorted(self.partitions.items())
            ],
            "logDirs": [
                {
                    "topic": replica.topic,
                    "partition": replica.partition,
                    "broker": replica.broker_id,
                    "state": state.move.value,
                    "logDir": state.current,
                    "future": state.future,
                    "wanted": state.wanted,
                }
                for replica, state in sorted(self.moves.items())
            ],
        }


def reassignment_states(admin: Admin, reassignment: Reassignment) -> ReassignmentStates:
    running = admin.list_partition_reassignments()
    still = [partition for partition in reassignment.partitions if partition not in running]
    current = current_replicas(admin, still, missing_ok=True)
    partitions = {}
    for partition, wanted in reassignment.replicas.items():
        if partition in running:
            partitions[partition] = PartitionReassignmentState(running[partition].replicas, wanted, False)
        else:
            partitions[partition] = PartitionReassignmentState(current.get(partition, []), wanted, True)
    return ReassignmentStates(partitions, log_dir_moves(admin, reassignment.log_dirs), bool(running))


def log_dir_moves(admin: Admin, wanted: Mapping[Replica, str]) -> dict[Replica, LogDirMoveState]:
    if not wanted:
        return {}
    found: Mapping[Replica, ReplicaLogDirInfo] = admin.describe_replica_log_dirs(wanted)
    return {
        replica: LogDirMoveState(found[replica].current_log_dir, found[replica].future_log_dir, folder)
        for replica, folder in wanted.items()
    }


def current_replicas(
    admin: Admin, partitions: Collection[PartitionKey], *, missing_ok: bool = False
) -> dict[PartitionKey, list[int]]:
    """The replicas of partitions. Raises UnknownTopicOrPartition unless `missing_ok`."""
    described = admin.describe_topics(sorted({topic for topic, _ in partitions}), partial=True)
    for error in described.errors.values():
        if not (missing_ok and isinstance(error, UnknownTopicOrPartition)):
            raise error
    replicas: dict[PartitionKey, Sequence[int]] = {
        (name, partition.partition): partition.replicas
        for name, topic in described.items()
        for partition in topic.partitions
    }
    missing = [f"{topic}-{index}" for topic, index in sorted(partitions) if (topic, index) not in replicas]
    if missing and not missing_ok:
        raise UnknownTopicOrPartition(f"partitions that do not exist: {joined(missing, ', ')}")
    return {partition: list(replicas[partition]) for partition in partitions if partition in replicas}
