"""The states of a classic group, the clients of its members, and the interface of its owner."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tidelog.clock import Clock
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.runtime import Done, NewRecord

if TYPE_CHECKING:
    from tidelog.coordinator.group.classic import ClassicGroup


class GroupState(Enum):
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Client(NamedTuple):
    """The client of a request, as DescribeGroups shows it."""

    client_id: str
    host: str
    api_version: int


class ClassicGroupHost(Protocol):
    """The owner of a group: its clock, settings, log and timers."""

    @property
    def clock(self) -> Clock: ...

    @property
    def settings(self) -> GroupSettings: ...

    def write(self, group: ClassicGroup, record: NewRecord, done: Done) -> None:
        """Append a record; `done` is called when it is committed, or with the error."""

    def wake(self, group: ClassicGroup) -> None:
        """Wake the group at its `wake_at`, which is earlier than before."""

    def new_member_id(self, prefix: str) -> str: ...

    def rebalanced(self, group: ClassicGroup) -> None:
        """The assignments are complete."""
