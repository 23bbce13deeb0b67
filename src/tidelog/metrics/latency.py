"""Latency: durations in the buckets of a Prometheus histogram, for quantiles over many brokers."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from tidelog.metrics.registry import HistogramFamily

BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds: the usual bounds of Prometheus, from a broker that idles to one that nobody can use."""


class Latency:
    __slots__ = ("_counts", "help_text", "name", "seconds")

    def __init__(self, name: str, help_text: str) -> None:
        self.name = name
        self.help_text = help_text
        self.seconds = 0.0
        self._counts = [0] * (len(BOUNDS) + 1)

    @property
    def count(self) -> int:
        return sum(self._counts)

    def record(self, seconds: float) -> None:
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds

    def family(self) -> HistogramFamily:
        buckets: list[tuple[float, int]] = []
        below = 0
        for bound, count in zip((*BOUNDS, float("inf")), self._counts, strict=True):
            below += count
            buckets.append((bound, below))
        return HistogramFamily(self.name, buckets, self.seconds, self.help_text)
