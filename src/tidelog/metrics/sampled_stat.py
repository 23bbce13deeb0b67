"""Kafka's sampled statistics, by which quotas are measured: Rate, Avg and TokenBucket.

A statistic keeps its values in samples, each of one window of time. All times are in milliseconds, and never
go backwards.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class SampleConfig(NamedTuple):
    """Kafka's MetricConfig: how many windows a statistic looks back, and how long each window is."""

    samples: int = 11
    window_ms: int = 1000

    @property
    def expiry_ms(self) -> int:
        return self.samples * self.window_ms


class _Sample:
    __slots__ = ("events", "last_event_ms", "start_ms", "value")

    def __init__(self, now_ms: int) -> None:
        self.reset(now_ms)

    def reset(self, now_ms: int) -> None:
        self.start_ms = self.last_event_ms = now_ms
        self.value = 0.0
        self.events = 0


class SampledTotal:
    """Kafka's SampledStat: the sum of the values of the last windows.

    A window begins with the first value after the end of the one before. There is one sample more than
    windows, for a window that began before the oldest moment that still counts.
    """

    __slots__ = ("_config", "_current", "_samples")

    def __init__(self, config: SampleConfig) -> None:
        self._config = config
        self._samples: list[_Sample] = []
        self._current = 0

    def record(self, value: float, now_ms: int) -> None:
        samples = self._samples
        if not samples:
            samples.append(_Sample(now_ms))
        sample = samples[self._current]
        if now_ms - sample.start_ms >= self._config.window_ms:
            sample = self._advance(now_ms)
        sample.value += value
        sample.events += 1
        sample.last_event_ms = now_ms

    def _advance(self, now_ms: int) -> _Sample:
        samples = self._samples
        self._current = (self._current + 1) % (self._config.samples + 1)
        if self._current >= len(samples):
            samples.append(_Sample(now_ms))
        else:
            samples[self._current].reset(now_ms)
        return samples[self._current]

    def purge(self, now_ms: int) -> None:
        """Forget the windows whose last value is too old."""
        expiry_ms = self._config.expiry_ms
        for sample in self._samples:
            if now_ms - sample.last_event_ms >= expiry_ms:
                sample.reset(now_ms)

    def total(self, now_ms: int) -> float:
        self.purge(now_ms)
        return sum(sample.value for sample in self._samples)

    def events(self, now_ms: int) -> int:
        self.purge(now_ms)
        return sum(sample.events for sample in self._samples)

    def oldest_ms(self, now_ms: int) -> int:
        """When the oldest window began."""
        return min((sample.start_ms for sample in self._samples), default=now_ms)


class Rate:
    """A sum for each second.

    The first windows count as if the ones before had been there without values: a client that has just
    begun may use the quota of a whole period at once.
    """

    __slots__ = ("_config", "_total")

    def __init__(self, config: SampleConfig) -> None:
        self._config = config
        self._total = SampledTotal(config)

    def record(self, value: float, now_ms: int) -> None:
        self._total.record(value, now_ms)

    def window_ms(self, now_ms: int) -> int:
        """The time that the rate is measured over: all windows but one, and the begun part of the last."""
        self._total.purge(now_ms)
        config = self._config
        elapsed = now_ms - self._total.oldest_ms(now_ms)
        missing = config.samples - 1 - elapsed // config.window_ms
        if missing > 0:
            elapsed += missing * config.window_ms
        return max(elapsed, 1)

    def measure(self, now_ms: int) -> float:
        total = self._total.total(now_ms)
        return total / (self.window_ms(now_ms) / 1000)


AVG_CONFIG: Final = SampleConfig(2, 30_000)
"""The windows of statistics without settings of their own."""


class Avg:
    """The average of the values of the last windows; NaN if there are none."""

    __slots__ = ("_total",)

    def __init__(self, config: SampleConfig = AVG_CONFIG) -> None:
        self._total = SampledTotal(config)

    def record(self, value: float, now_ms: int) -> None:
        self._total.record(value, now_ms)

    def measure(self, now_ms: int) -> float:
        events = self._total.events(now_ms)
        return self._total.total(now_ms) / events if events else float("nan")


class TokenBucket:
    """Tokens that come back with `rate` a second, up to those of all windows together.

    A take may leave the bucket below zero: the debt has to be paid before anything else is allowed.
    """

    __slots__ = ("_config", "_tokens", "_updated_ms")

    def __init__(self, config: SampleConfig) -> None:
        self._config = config
        self._tokens = 0.0
        self._updated_ms: int | None = None  # a new bucket is full

    def tokens(self, rate: float, now_ms: int) -> float:
        burst = self._config.expiry_ms / 1000 * rate
        if self._updated_ms is None:
            self._tokens = burst
        else:
            self._tokens = min(burst, self._tokens + rate * (now_ms - self._updated_ms) / 1000)
        self._updated_ms = now_ms
        return self._tokens

    def take(self, count: float, rate: float, now_ms: int) -> None:
        burst = self._config.expiry_ms / 1000 * rate
        self._tokens = min(burst, self.tokens(rate, now_ms) - count)
