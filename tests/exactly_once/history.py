"""The history of a story of transactions: one file that all processes append to."""

from __future__ import annotations

from pathlib import Path

from tests.support import shared_history
from tidelog.simulation.checks.transaction_history import Line


class Diary(shared_history.Diary):
    def write(self, *lines: Line) -> None:
        self.append(lines)


class History(shared_history.History[Line]):
    def __init__(self, path: Path) -> None:
        super().__init__(path, Line.parse)

    def tail(self, count: int = 40) -> str:
        lines = self.read()
        first = max(0, len(lines) - count)
        return "\n".join(f"{at + 1:6} {line}" for at, line in enumerate(lines[first:], first))
