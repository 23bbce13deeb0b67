"""Counters, meters, histograms and gauges under Kafka's names.

An update adds an integer; rates, windows and percentiles are computed when they are read. Hot code keeps the
metric object and adds to its public numbers (`meter.count += n`). Metrics have no locks: only the thread of
the broker updates them.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

BUCKETS: Final = 256
"""Eight buckets for each doubling: a percentile is off by at most a sixteenth, for values up to 2**34."""

DIRECT: Final = 4096
"""For values below this a table has the bucket."""


def bucket_of(value: int) -> int:
    """The bucket that counts `value`: exact below 16, then eight steps to each doubling."""
    if value < 16:
        return max(value, 0)
    shift = value.bit_length() - 4
    return min((shift << 3) + (value >> shift), BUCKETS - 1)


def bucket_bounds(index: int) -> tuple[int, int]:
    """The lowest value of a bucket, and the lowest value of the next."""
    if index < 16:
        return index, index + 1
    shift = (index >> 3) - 1
    low = (index - (shift << 3)) << shift
    return low, low + (1 << shift)


def _bucket_table() -> bytes:
    parts: list[bytes] = []
    filled = index = 0
    while filled < DIRECT:
        low, high = bucket_bounds(index)
        parts.append(bytes((index,)) * (min(high, DIRECT) - low))
        filled = high
        index += 1
    return b"".join(parts)


BUCKET_TABLE: Final = _bucket_table()
"""`BUCKET_TABLE[v]` is `bucket_of(v)` for every v below DIRECT."""


@dataclass(frozen=True, slots=True)
class MetricName:
    """Kafka's name of a metric: `kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec,topic=t`."""

    group: str
    type: str
    name: str
    labels: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        labels = "".join(f",{key}={value}" for key, value in self.labels)
        return f"{self.group}:type={self.type},name={self.name}{labels}"


class Counter:
    """A number that only grows."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def add(self, n: int = 1) -> None:
        self.count += n


class Meter:
    """A count and its rate, as exponential averages over 1, 5 and 15 minutes.

    A reading updates the averages by the count since the last reading.
    """

    __slots__ = ("_averages", "_clock", "_read_at", "_read_count", "_started", "count")

    WINDOWS: Final = (60.0, 300.0, 900.0)

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._clock = clock
        self._started = self._read_at = clock()
        self._read_count = 0
        self._averages: tuple[float, float, float] | None = None

    def mark(self, n: int = 1) -> None:
        self.count += n

    def mean_rate(self) -> float:
        elapsed = self._clock() - self._started
        return self.count / elapsed if elapsed > 0 else 0.0

    def rates(self) -> tuple[float, float, float]:
        """Events a second over the last 1, 5 and 15 minutes."""
        now = self._clock()
        elapsed = now - self._read_at
        if elapsed <= 0:
            return self._averages or (0.0, 0.0, 0.0)
        present = (self.count - self._read_count) / elapsed
        self._read_at, self._read_count = now, self.count
        old = self._averages
        if old is None:
            self._averages = (present, present, present)
        else:
            weights = [1.0 - math.exp(-elapsed / window) for window in self.WINDOWS]
            a, b, c = (mean + (present - mean) * weight for mean, weight in zip(old, weights, strict=True))
            self._averages = (a, b, c)
        return self._averages


class Histogram:
    """Counts of values in buckets, with percentiles over about the last minute.

    Values are integers in a unit of the caller's choice; shown values are multiplied by `unit`. The window
    moves when percentiles are read: the first reading covers the whole life of the histogram.
    """

    __slots__ = ("_clock", "_past", "_window", "buckets", "unit")

    def __init__(
        self, unit: float = 1.0, window_seconds: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.buckets = [0] * BUCKETS
        self.unit = unit
        self._window = window_seconds
        self._clock = clock
        self._past: deque[tuple[float, list[int]]] = deque()

    def record(self, value: int) -> None:
        self.buckets[BUCKET_TABLE[value] if 0 <= value < DIRECT else bucket_of(value)] += 1

    @property
    def count(self) -> int:
        self.settle()
        return sum(self.buckets)

    def settle(self) -> None:
        """Compute buckets that are derived from other histograms. Called before buckets are read."""

    def percentiles(self, quantiles: Iterable[float]) -> list[float]:
        """The value at each quantile of the window; 0 if the window is empty."""
        self.settle()
        counts = self._window_counts()
        return [_quantile(counts, quantile) * self.unit for quantile in quantiles]

    def _window_counts(self) -> list[int]:
        now = self._clock()
        past = self._past
        while len(past) > 1 and past[1][0] <= now - self._window:
            past.popleft()
        start = past[0][1] if past and past[0][0] <= now - self._window else None
        if not past or now - past[-1][0] >= self._window / 12:
            past.append((now, self.buckets.copy()))
        if start is None:
            return self.buckets
        return [present - before for present, before in zip(self.buckets, start, strict=True)]


def _quantile(counts: list[int], quantile: float) -> float:
    total = sum(counts)
    rank = max(1, math.ceil(total * quantile))
    seen = 0
    for index, count in enumerate(counts):
        seen += count
        if count and seen >= rank:
            low, high = bucket_bounds(index)
            return low if high - low == 1 else (low + high) / 2
    return 0.0


class Gauge:
    """A number that a function returns when it is read."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[[], float]) -> None:
        self.function = function

    @property
    def value(self) -> float:
        return self.function()


Metric = Counter | Meter | Histogram | Gauge
M = TypeVar("M", Counter, Meter, Histogram)


@dataclass(slots=True)
class Family:
    """Samples of one name that are computed when they are read, such as the sizes of all logs.

    `name` is a Kafka name without labels, or a Prometheus name with a `help` text. A collector may yield a
    name several times: short families let a scrape pause between them. `fold` says what a scrape without
    series for each partition shows of the partitions of a topic: their sum, their maximum, or nothing.
    """

    name: MetricName | str
    kind: str
    samples: list[tuple[tuple[tuple[str, str], ...], float]]
    help: str = ""
    fold: Literal["sum", "max", "nothing"] = "sum"


@dataclass(slots=True)
class HistogramFamily:
    """A histogram of Prometheus: for each upper bound the number of values up to it, and the sum of all."""

    name: str
    buckets: list[tuple[float, int]]
    total: float
    help: str


class Registry:
    """All metrics of one broker by name. The same name gives the same metric."""

    __slots__ = ("_collectors", "_metrics", "clock")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._metrics: dict[MetricName, Metric] = {}
        self._collectors: list[Callable[[], Iterable[Family | HistogramFamily]]] = []

    def counter(self, group: str, type: str, name: str, **labels: str) -> Counter:
        return self._get(MetricName(group, type, name, tuple(labels.items())), Counter, Counter)

    def meter(self, group: str, type: str, name: str, **labels: str) -> Meter:
        def make() -> Meter:
            return Meter(self.clock)

        return self._get(MetricName(group, type, name, tuple(labels.items())), Meter, make)

    def histogram(self, group: str, type: str, name: str, *, unit: float = 1.0, **labels: str) -> Histogram:
        def make() -> Histogram:
            return Histogram(unit, clock=self.clock)

        return self._get(MetricName(group, type, name, tuple(labels.items())), Histogram, make)

    def gauge(self, group: str, type: str, name: str, function: Callable[[], float], **labels: str) -> Gauge:
        """Show the result of `function`. Replaces an earlier gauge of the same name."""
        gauge = Gauge(function)
        self._metrics[MetricName(group, type, name, tuple(labels.items()))] = gauge
        return gauge

    def attach(self, group: str, type: str, histograms: Mapping[str, Histogram], **labels: str) -> None:
        """Show these histograms under their names. Replaces earlier metrics of the same names."""
        for name, histogram in histograms.items():
            self._metrics[MetricName(group, type, name, tuple(labels.items()))] = histogram

    def collect(self, collector: Callable[[], Iterable[Family | HistogramFamily]]) -> None:
        """Call `collector` at every reading. For thousands of numbers, or numbers that come and go."""
        self._collectors.append(collector)

    def families(self) -> Iterator[Family | HistogramFamily]:
        for collector in self._collectors:
            yield from collector()

    def remove(self, group: str, type: str, name: str, **labels: str) -> None:
        self._metrics.pop(MetricName(group, type, name, tuple(labels.items())), None)

    def remove_labelled(self, key: str, value: str) -> None:
        """Remove every metric with this label: those of a deleted topic."""
        for name in [name for name in self._metrics if (key, value) in name.labels]:
            del self._metrics[name]

    def __iter__(self) -> Iterator[tuple[MetricName, Metric]]:
        return iter(list(self._metrics.items()))

    def _get(self, name: MetricName, kind: type[M], make: Callable[[], M]) -> M:
        metric = self._metrics.get(name)
        if metric is None:
            metric = self._metrics[name] = make()
        if not isinstance(metric, kind):
            raise TypeError(f"{name} is a {type(metric).__name__}, asked for as a {kind.__name__}")
        return metric
