"""The history of a story of transactions: one file that all processes append to."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.support.wait import eventually
from tidelog.simulation.checks.transaction_history import Line

Wanted = Callable[[Line], bool]


class Diary:
    """Appends lines; each call is one write, so that lines of several processes do not mix."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, *lines: Line) -> None:
        os.write(self._fd, "".join(line.text() for line in lines).encode())

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

    def count(self, wanted: Wanted, after: int = 0) -> int:
        return sum(1 for line in self.read()[after:] if wanted(line))

    def wait_for(
        self, wanted: Wanted, what: str, *, after: int = 0, count: int = 1, timeout: float = 60.0
    ) -> None:
        """Until there are so many such lines behind the first `after` lines."""
        eventually(lambda: self.count(wanted, after) >= count, what, timeout, 0.02)

    def tail(self, count: int = 40) -> str:
        lines = self.read()
        first = max(0, len(lines) - count)
        return "\n".join(f"{at + 1:6} {line}" for at, line in enumerate(lines[first:], first))
