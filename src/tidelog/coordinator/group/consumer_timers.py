"""The deadlines of the members of a consumer group, with one timer.

A heartbeat moves a deadline, but not the timer: a timer that fires too early is set again.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from tidelog.clock import Scheduler, TimerHandle


class Kind(Enum):
    SESSION = "it was not heard of within the session time-out"
    REVOKE = "it did not give up partitions within the rebalance time-out"
    JOIN = "it did not join again within the rebalance time-out"
    SYNC = "it did not fetch its assignment within the rebalance time-out"


class Late(NamedTuple):
    kind: Kind
    member_id: str


class Deadlines:
    __slots__ = ("_due", "_expired", "_fires_at", "_handle", "_scheduler")

    def __init__(self, scheduler: Scheduler, expired: Callable[[list[Late]], None]) -> None:
        self._scheduler = scheduler
        self._expired = expired
        self._due: dict[Late, float] = {}
        self._handle: TimerHandle | None = None
        self._fires_at = 0.0

    def set(self, kind: Kind, member_id: str, timeout_ms: int) -> None:
        due = self._scheduler.clock.monotonic() + timeout_ms / 1000
        self._due[Late(kind, member_id)] = due
        if self._handle is None or due < self._fires_at:
            self._arm(due)

    def set_if_absent(self, kind: Kind, member_id: str, timeout_ms: int) -> None:
        if Late(kind, member_id) not in self._due:
            self.set(kind, member_id, timeout_ms)

    def clear(self, kind: Kind, member_id: str) -> None:
        self._due.pop(Late(kind, member_id), None)

    def forget(self, member_id: str) -> None:
        for kind in Kind:
            self.clear(kind, member_id)

    def close(self) -> None:
        self._due.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self, due: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._fires_at = due
        self._handle = self._scheduler.schedule(max(due - self._scheduler.clock.monotonic(), 0.0), self._fire)

    def _fire(self) -> None:
        self._handle = None
        now = self._scheduler.clock.monotonic()
        late = [entry for entry, due in self._due.items() if due <= now]
        for entry in late:
            del self._due[entry]
        if self._due:
            self._arm(min(self._due.values()))
        if late:
            self._expired(late)
