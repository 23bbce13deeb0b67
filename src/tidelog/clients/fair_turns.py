"""Turns on an event loop: a coroutine whose calls seldom wait lets others run now and then.

A call that has no need to wait does not suspend its coroutine. A loop of such calls would hold the event
loop: no other task would run, no timer fire and nothing be sent until it ends.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator

# Others wait no longer than this for one who could go on; a turn of the loop costs about 20 us.
LONGEST_TURN = 0.002
# So many quick calls take well below LONGEST_TURN, and the clock is not looked at for each of them.
CALLS = 128


class FairTurns:
    """`if next(turns.looks): await turns.pass_on()` at the start of a call, where it may be cancelled."""

    __slots__ = ("_began", "_clock", "looks")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.looks: Iterator[bool] = itertools.cycle((True, *(False,) * (CALLS - 1)))
        """Whether this call is one that looks at the clock."""
        self._clock = clock
        self._began = clock()

    async def pass_on(self) -> None:
        """Let others run, where the turn has lasted for LONGEST_TURN."""
        if self._clock() - self._began > LONGEST_TURN:
            await asyncio.sleep(0)
            self.restart()

    def restart(self) -> None:
        """Others have run just now."""
        self._began = self._clock()
