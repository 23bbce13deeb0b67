"""Pace: long work on the console's loop rests, so that other pages get their turn."""

from __future__ import annotations

import asyncio

WORK_SECONDS = 0.002
CHECK_EVERY = 16


class Pace:
    """`await pace.step()` after each item: after 2 ms of work the loop rests for as long as it worked.

    `pace.step(100)` stands for a hundred items.
    """

    __slots__ = ("_began", "_loop", "_steps")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._steps = 0

    async def step(self, items: int = 1) -> None:
        self._steps += items
        if self._steps < CHECK_EVERY:
            return
        self._steps = 0
        worked = self._loop.time() - self._began
        if worked >= WORK_SECONDS:
            await asyncio.sleep(min(worked, 5 * WORK_SECONDS))
            self.restart()

    def restart(self) -> None:
        """Begin again after a wait for something else, which was a rest, too."""
        self._began = self._loop.time()
