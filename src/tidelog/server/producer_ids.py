"""ProducerIds: assigns producer ids from blocks of the controller, so that no id is used twice."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import NamedTuple

from tidelog.errors import CoordinatorLoadInProgress, KafkaError

log = logging.getLogger("tidelog.server")

# The part of a block that is given out when the next block is requested.
PREFETCH_AT = 0.9
# The wait after a failed request for a block.
RETRY_SECONDS = 0.05
# The longest wait of a request for a block. After it, the client has to retry.
WAIT_SECONDS = 1.0


class _Waiting(NamedTuple):
    deadline: float
    done: Callable[[int], None]
    failed: Callable[[KafkaError], None]


class ProducerIds:
    """Assigns the ids of a block one by one. `allocate` reserves a block."""

    def __init__(self, allocate: Callable[[], Coroutine[None, None, range]]) -> None:
        self._allocate = allocate
        self._block = self._next = range(0)
        # The position in the block, and the position at which the next block is requested.
        self._given = 0
        self._prefetch_at = 0
        self._waiting: deque[_Waiting] = deque()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def request(self, done: Callable[[int], None], failed: Callable[[KafkaError], None]) -> None:
        """Call `done` with an id, at once or when the next block is there.

        Calls `failed` with CoordinatorLoadInProgress if no block comes in time: clients of every version
        retry then.
        """
        if self._given == len(self._block) and not self._take_next():
            self._fetch()
            loop = asyncio.get_running_loop()
            self._waiting.append(_Waiting(loop.time() + WAIT_SECONDS, done, failed))
            if len(self._waiting) == 1:
                loop.call_later(WAIT_SECONDS, self._expire)
            return
        producer_id = self._block[self._given]
        self._given += 1
        if self._given == self._prefetch_at:
            self._fetch()
        done(producer_id)

    def close(self) -> None:
        """Request no more blocks, and answer the waiting requests."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
        self._fail(len(self._waiting))

    def _take_next(self) -> bool:
        if not self._next:
            return False
        self._block, self._next = self._next, range(0)
        self._given = 0
        self._prefetch_at = max(1, int(len(self._block) * PREFETCH_AT))
        return True

    def _fetch(self) -> None:
        if self._task is None and not self._next and not self._is_closed:
            self._task = asyncio.get_running_loop().create_task(self._reserve())

    async def _reserve(self) -> None:
        """Get the next block; after an error try again as long as requests wait for it."""
        try:
            while not self._next:
                try:
                    self._next = await self._allocate()
                except Exception as error:
                    log.warning("no block of producer ids was reserved: %s", error)
                    if not self._waiting:
                        break  # the next request tries again
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._task = None
        waiting, self._waiting = self._waiting, deque()
        for _, done, failed in waiting:
            self.request(done, failed)

    def _expire(self) -> None:
        if not self._waiting:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._fail(sum(waiting.deadline <= now for waiting in self._waiting))
        if self._waiting:
            loop.call_later(self._waiting[0].deadline - now, self._expire)

    def _fail(self, count: int) -> None:
        for _ in range(count):
            self._waiting.popleft().failed(
                CoordinatorLoadInProgress("there is no block of producer ids yet: try again")
            )
