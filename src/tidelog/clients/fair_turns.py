"""Turns on an event loop: a coroutine whose calls seldom wait lets others run from time to time.

A call that need not wait does not suspend its coroutine. A loop of such calls would block the event loop: no
other task or timer would run, and nothing would be sent until the loop ends.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator

# The longest time that other tasks wait for a coroutine that could go on. A turn costs about 20 us.
LONGEST_TURN = 0.002
# This many quick calls take well below LONGEST_TURN, so not every call looks at the clock.
CALLS = 128


class FairTurns:
    """Use `if next(turns.looks): await turns.pass_on()` at the start of a call, where it may be cancelled."""

    __slots__ = ("_began", "_clock", "looks")

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self.looks: Iterator[bool] = itertools.cycle((True, *(False,) * (CALLS - 1)))
        """Whether this call has to look at the clock."""
        self._clock = clock or time.monotonic
        self._began = self._clock()

    async def pass_on(self) -> None:
        """Let others run if the turn has lasted for LONGEST_TURN."""
        if self._clock() - self._began > LONGEST_TURN:
            await asyncio.sleep(0)
            self.restart()

    def restart(self) -> None:
        """Begin a new turn, since others have just run."""
        self._began = self._clock()
