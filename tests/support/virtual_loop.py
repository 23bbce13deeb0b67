"""An asyncio loop whose time jumps to the next timer instead of passing."""

from __future__ import annotations

import asyncio
import selectors


class _JumpingSelector(selectors.SelectSelector):
    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if not events:
            if timeout is None:
                raise RuntimeError("nothing will ever happen: no callback and no timer is left")
            self.loop.now += max(0.0, timeout)
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` starts at 0 and moves when everything waits."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)
        # Otherwise rounding could let the loop wait for ever shorter times before a timer.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self.now
