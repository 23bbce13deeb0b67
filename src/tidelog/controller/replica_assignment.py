"""ReplicaAssignment: the replicas of a partition, and the replicas that a reassignment adds and removes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tidelog.metadata.state import PartitionState


@dataclass(slots=True)
class ReplicaAssignment:
    """`replicas` has all replicas, including those that a reassignment adds or removes."""

    replicas: list[int]
    adding: list[int] = field(default_factory=list)
    removing: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, state: PartitionState) -> ReplicaAssignment:
        return cls(state.replicas, state.adding, state.removing)

    @property
    def origin(self) -> list[int]:
        """The replicas before the reassignment."""
        return [replica for replica in self.replicas if replica not in self.adding]

    @property
    def target(self) -> list[int]:
        """The replicas after the reassignment."""
        return [replica for replica in self.replicas if replica not in self.removing]

    @property
    def is_being_reassigned(self) -> bool:
        return bool(self.adding or self.removing)

    def reassigned_to(self, target: Sequence[int]) -> ReplicaAssignment:
        """The assignment while the partition moves from its origin to a target, the target's replicas first.

        It replaces a running reassignment: the replicas that this one was adding are dropped unless the
        target has them.
        """
        origin = self.origin
        replicas = list(dict.fromkeys([*target, *origin]))
        return ReplicaAssignment(
            replicas,
            [replica for replica in replicas if replica not in origin],
            [replica for replica in replicas if replica not in target],
        )
