"""How long to wait before something that failed is tried again."""

from __future__ import annotations

import random


class Backoff:
    """Pauses that double from `initial` to `longest`, each a fifth shorter or longer by chance."""

    __slots__ = ("_initial", "_longest")

    def __init__(self, initial_ms: int, longest_ms: int) -> None:
        self._initial = min(initial_ms, longest_ms) / 1000
        self._longest = longest_ms / 1000

    def delay(self, attempt: int) -> float:
        """Seconds before attempt number `attempt` + 1, the first being 0."""
        pause = min(self._initial * (1 << min(attempt, 30)), self._longest)
        return min(pause * random.uniform(0.8, 1.2), self._longest)
