"""Warnings of conditions that last: each is logged once, and again at most every 30 seconds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Hashable

log = logging.getLogger("tidelog.clients")

REPEAT_SECONDS = 30.0


class RepeatedWarnings:
    """`say` logs a warning unless it was logged a moment ago; `keep` forgets the conditions that are over."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or time.monotonic
        self._again_at: dict[Hashable, float] = {}

    def say(self, about: Hashable, text: str) -> None:
        now = self._clock()
        if now >= self._again_at.get(about, now):
            self._again_at[about] = now + REPEAT_SECONDS
            log.warning("%s", text)

    def keep(self, still: Collection[Hashable]) -> None:
        """Only these conditions still hold. Any other is logged at once when it comes back."""
        for about in [about for about in self._again_at if about not in still]:
            del self._again_at[about]
