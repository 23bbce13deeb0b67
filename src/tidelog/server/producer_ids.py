"""Producer ids out of blocks that are reserved in the tree, so that no id is ever given twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class ProducerIds:
    """Gives ids one by one and reserves the next block when the present one is used up."""

    def __init__(self, allocate: Callable[[], Awaitable[range]]) -> None:
        self._allocate = allocate
        self._block = iter(range(0))
        self._refill = asyncio.Lock()

    async def next(self) -> int:
        # The lock lets one caller fetch a block while the others wait for it.
        async with self._refill:
            for producer_id in self._block:
                return producer_id
            self._block = iter(await self._allocate())
            return next(self._block)
