"""Lets other requests run while the controller works through thousands of partitions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

T = TypeVar("T")

ITEMS_PER_TURN = 100
"""About a millisecond of work. A count, not a time, so that a simulation replays the same turns."""


async def in_slices(items: Sequence[T]) -> AsyncIterator[Sequence[T]]:
    """The items in slices, with a turn of the loop between two slices."""
    for start in range(0, len(items), ITEMS_PER_TURN):
        if start:
            await asyncio.sleep(0)
        yield items[start : start + ITEMS_PER_TURN]
