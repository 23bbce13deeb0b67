"""Diaries in memory: the checkers get their lines, and the history of the run gets the same as text."""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.simulation.checks.group_history import BROKER, NOBODY
from tidelog.simulation.checks.group_history import Line as GroupLine
from tidelog.simulation.checks.transaction_history import Line as TransactionLine
from tidelog.simulation.history import History


class GroupDiary:
    def __init__(self, history: History) -> None:
        self.lines: list[GroupLine] = []
        self._history = history

    def write(self, lines: Iterable[GroupLine]) -> None:
        for line in lines:
            self.lines.append(line)
            if line.who == BROKER:
                continue  # the history has the fault itself
            where = f" {line.topic}-{line.partition}" if line.partition >= 0 else ""
            offset = f" {line.offset}" if line.offset >= 0 else ""
            detail = f" ({line.detail})" if line.detail != NOBODY else ""
            self._history.add(line.who, f"{line.what}{where}{offset}{detail}")


class TransactionDiary:
    def __init__(self, history: History) -> None:
        self.lines: list[TransactionLine] = []
        self._history = history

    def write(self, *lines: TransactionLine) -> None:
        for line in lines:
            self.lines.append(line)
            self._history.add(line.who, str(line)[len(f"{line.who:12}") :].strip())
