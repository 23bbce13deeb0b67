"""The history of a group: one file that all members append to.

The order of the lines is an order in time: a line stands before another when it was written before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from tests.support import shared_history
from tidelog.simulation.checks.group_history import BROKER, Line

Wanted = Callable[[Line], bool]


class Diary(shared_history.Diary):
    def write(self, lines: Iterable[Line]) -> None:
        self.append(lines)


class History(shared_history.History[Line]):
    def __init__(self, path: Path) -> None:
        super().__init__(path, Line.parse)

    def wait_for_more(self, wanted: Wanted, what: str, count: int = 1, timeout: float = 40.0) -> None:
        """Until there are so many such lines more than now."""
        self.wait_for(wanted, what, self.count(wanted) + count, timeout)

    def tail(self, count: int = 60) -> str:
        return "".join(line.text() for line in self.read()[-count:])

    def before(self, topic: str, partition: int, number: int, count: int = 60) -> str:
        """What happened to a partition, up to a numbered line."""
        lines = [
            f"{at} {line.text()}"
            for at, line in enumerate(self.read()[:number], 1)
            if (line.topic, line.partition) == (topic, partition) or line.who == BROKER
        ]
        return f"{topic}-{partition} until line {number}:\n{''.join(lines[-count:])}"
