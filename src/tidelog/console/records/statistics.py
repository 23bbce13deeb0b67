"""Statistics in bounded memory: how many different values, and the percentiles of sizes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

PRECISION = 13
REGISTERS = 1 << PRECISION
"""8192 registers: a standard error of 1.15 %."""
PERCENTILES = (50.0, 75.0, 95.0, 99.0, 99.9)
EXACT_BITS = 10
_ALPHA = 0.7213 / (1 + 1.079 / REGISTERS)
_HASH_BITS = 64
_MASK = (1 << _HASH_BITS) - 1
_REST = _HASH_BITS - PRECISION


class HyperLogLog:
    """Counts different byte strings approximately, in 8 KB. It uses Python's hash, which is keyed."""

    __slots__ = ("_registers",)

    def __init__(self) -> None:
        self._registers = bytearray(REGISTERS)

    def add_all(self, values: Iterable[bytes]) -> None:
        registers = self._registers
        for value in values:
            number = hash(value) * 0x9E3779B97F4A7C15 & _MASK
            number ^= number >> 32
            index = number >> _REST
            rank = _REST - (number & ((1 << _REST) - 1)).bit_length() + 1
            if rank > registers[index]:
                registers[index] = rank

    def merge(self, other: HyperLogLog) -> None:
        self._registers = bytearray(map(max, self._registers, other._registers))

    def count(self) -> int:
        found = Counter(self._registers)
        estimate = _ALPHA * REGISTERS**2 / sum(count * 2.0**-rank for rank, count in found.items())
        if estimate <= 2.5 * REGISTERS and found[0]:
            estimate = REGISTERS * math.log(REGISTERS / found[0])  # linear counting
        return round(estimate)


class SizeHistogram:
    """Sizes up to 1024 exactly, larger ones within 0.2 %: a few thousand buckets at most."""

    __slots__ = ("_counts", "count", "high", "low", "total")

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.count = 0
        self.total = 0
        self.low: int | None = None
        self.high: int | None = None

    def add_all(self, sizes: Iterable[int]) -> None:
        self.add_counts(Counter(sizes))

    def add_counts(self, sizes: Counter[int]) -> None:
        """Add sizes, each as often as its count says."""
        if not sizes:
            return
        self.count += sizes.total()
        self.total += sum(size * count for size, count in sizes.items())
        low, high = min(sizes), max(sizes)
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)
        for size, count in sizes.items():
            self._counts[rounded(size)] += count

    def percentiles(self) -> dict[str, int]:
        """The sizes below which so many percent of the records are, by names such as p99.9."""
        found: dict[str, int] = {}
        for percent in PERCENTILES:
            name = f"p{percent:g}"
            found[name] = self._percentile(percent)
        return found

    def _percentile(self, percent: float) -> int:
        wanted = math.ceil(self.count * percent / 100)
        seen = 0
        for size in sorted(self._counts):
            seen += self._counts[size]
            if seen >= wanted:
                return min(size, self.high or 0)
        return 0

    @property
    def average(self) -> float:
        return self.total / self.count if self.count else 0.0


def rounded(size: int) -> int:
    """The size with its first ten binary digits."""
    shift = size.bit_length() - EXACT_BITS
    return size if shift <= 0 else size >> shift << shift
