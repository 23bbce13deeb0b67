"""The history of a run: one line for each event, readable from top to bottom."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Event(NamedTuple):
    at: float
    who: str
    what: str

    def __str__(self) -> str:
        return f"{self.at:10.6f}  {self.who:<12}  {self.what}"


class History:
    """Events in the order in which they happened."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.events: list[Event] = []

    def add(self, who: str, what: str) -> None:
        self.events.append(Event(self._now(), who, what))

    def text(self, last: int | None = None) -> str:
        """All lines, or the last few."""
        events = self.events if last is None else self.events[-last:]
        return "".join(f"{event}\n" for event in events)
