"""The history of a story: a file of lines that several processes append to, which grows while it is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from tests.support.wait import eventually


class HistoryLine(Protocol):
    def text(self) -> str:
        """The line with its end."""


L = TypeVar("L", bound=HistoryLine)


class Diary:
    """Appends lines; each call is one write, so that lines of several processes do not mix."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def append(self, lines: Iterable[HistoryLine]) -> None:
        text = "".join(line.text() for line in lines)
        if text:
            os.write(self._fd, text.encode())

    def close(self) -> None:
        os.close(self._fd)


class History(Generic[L]):
    """The growing file, read as far as it is written."""

    def __init__(self, path: Path, parse: Callable[[str], L]) -> None:
        self.path = path
        self.lines: list[L] = []
        self._parse = parse
        self._position = 0
        path.touch()

    def read(self) -> list[L]:
        with self.path.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        self.lines += [self._parse(text) for text in whole.decode().splitlines()]
        return self.lines

    def count(self, wanted: Callable[[L], bool], after: int = 0) -> int:
        """The lines that are wanted, behind the first `after` lines."""
        return sum(1 for line in self.read()[after:] if wanted(line))

    def wait_for(
        self,
        wanted: Callable[[L], bool],
        what: str,
        count: int = 1,
        timeout: float = 60.0,
        *,
        after: int = 0,
    ) -> None:
        """Until there are so many such lines behind the first `after` lines."""
        eventually(lambda: self.count(wanted, after) >= count, what, timeout, 0.02)
