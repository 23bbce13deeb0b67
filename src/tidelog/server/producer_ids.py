"""Gives out producer ids from blocks that are reserved in the tree, so that no id is given out twice."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine

from tidelog.errors import KafkaError, UnknownServerError


class ProducerIds:
    """Gives out the ids of a block one by one, and reserves the next block at its end."""

    def __init__(self, allocate: Callable[[], Coroutine[None, None, range]]) -> None:
        self._allocate = allocate
        self._block = iter(range(0))
        self._waiting: deque[tuple[Callable[[int], None], Callable[[KafkaError], None]]] = deque()
        self._refill: asyncio.Task[None] | None = None

    def request(self, done: Callable[[int], None], failed: Callable[[KafkaError], None]) -> None:
        """Call `done` with an id, at once or when the next block is reserved, or `failed` with the error."""
        if self._refill is None:
            for producer_id in self._block:
                done(producer_id)
                return
            self._refill = asyncio.get_running_loop().create_task(self._reserve())
        self._waiting.append((done, failed))

    async def _reserve(self) -> None:
        try:
            block = await self._allocate()
        except Exception as error:
            self._refill = None
            refused = error if isinstance(error, KafkaError) else UnknownServerError(str(error))
            waiting, self._waiting = self._waiting, deque()
            for _, failed in waiting:
                failed(refused)
            return
        self._block = iter(block)
        self._refill = None
        waiting, self._waiting = self._waiting, deque()
        for done, failed in waiting:
            self.request(done, failed)
