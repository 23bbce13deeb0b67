"""Where a page of records begins, and the cursor of the next: a short text for an address.

A cursor has an offset for each partition, and the way to read from there. The same cursor shows the same
records again, however many came since.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

Positions: TypeAlias = dict[int, int]
MAX_LENGTH = 32_000
_FORM = re.compile(r"([on])([ad])((?:_\d{1,6}-\d{1,19})+)")


class CursorError(ValueError):
    """A cursor or a start point is not valid; the message names the mistake."""


class Direction(StrEnum):
    OLDER = "o"
    NEWER = "n"


class Order(StrEnum):
    """The order of the records on a page."""

    ASCENDING = "a"
    DESCENDING = "d"


@dataclass(slots=True, frozen=True)
class Cursor:
    """Reads records below the positions (OLDER), or from them on (NEWER)."""

    direction: Direction
    order: Order
    positions: Positions

    def __str__(self) -> str:
        parts = "".join(f"_{index}-{offset}" for index, offset in sorted(self.positions.items()))
        return f"{self.direction}{self.order}{parts}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Raises CursorError."""
        match = _FORM.fullmatch(text) if len(text) <= MAX_LENGTH else None
        if match is None:
            raise CursorError("the cursor of the page is not valid; begin again without it")
        pairs = (part.split("-") for part in match.group(3)[1:].split("_"))
        return cls(
            Direction(match.group(1)),
            Order(match.group(2)),
            {int(index): int(offset) for index, offset in pairs},
        )


class StartKind(StrEnum):
    NEWEST = "newest"
    OLDEST = "oldest"
    OFFSET = "offset"
    TIME = "time"


@dataclass(slots=True, frozen=True)
class Start:
    """A start point. `at` is the offset or the timestamp in milliseconds."""

    kind: StartKind = StartKind.NEWEST
    at: int = 0

    def __post_init__(self) -> None:
        if self.at < 0:
            raise CursorError(f"start {self.kind} {self.at}: expected 0 or more")


def clamped(positions: Mapping[int, int], low: Mapping[int, int], high: Mapping[int, int]) -> Positions:
    """The positions within the logs: records may have been deleted since a cursor was made."""
    return {
        index: max(low[index], min(high[index], offset))
        for index, offset in positions.items()
        if index in low
    }
