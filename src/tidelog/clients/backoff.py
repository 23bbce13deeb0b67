"""The pause before a failed attempt is repeated."""

from __future__ import annotations

import random


class Backoff:
    """Pauses that double from `initial` to `longest`, each with a random jitter of 20 percent."""

    __slots__ = ("_initial", "_longest")

    def __init__(self, initial_ms: int, longest_ms: int) -> None:
        self._initial = min(initial_ms, longest_ms) / 1000
        self._longest = longest_ms / 1000

    def delay(self, attempt: int) -> float:
        """The seconds before attempt number `attempt` + 1, counted from 0."""
        pause = min(self._initial * (1 << min(attempt, 30)), self._longest)
        return min(pause * random.uniform(0.8, 1.2), self._longest)
