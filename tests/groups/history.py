"""The history of a group: one file that all members append to.

The order of the lines is an order in time: a line stands before another when it was written before it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.support.wait import eventually
from tidelog.simulation.checks.group_history import BROKER, Line

Wanted = Callable[[Line], bool]


class Diary:
    """Appends lines; each call is one write, so that lines of several processes do not mix."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, lines: Iterable[Line]) -> None:
        text = "".join(line.text() for line in lines)
        if text:
            os.write(self._fd, text.encode())

    def close(self) -> None:
        os.close(self._fd)


class History:
    """The growing file, read as far as it is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[Line] = []
        self._position = 0
        path.touch()

    def read(self) -> list[Line]:
        with self.path.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        self.lines += [Line.parse(text) for text in whole.decode().splitlines()]
        return self.lines

    def count(self, wanted: Wanted) -> int:
        return sum(1 for line in self.read() if wanted(line))

    def wait_for(self, wanted: Wanted, what: str, count: int = 1, timeout: float = 40.0) -> None:
        """Until there are so many such lines."""
        eventually(lambda: self.count(wanted) >= count, what, timeout, 0.02)

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
