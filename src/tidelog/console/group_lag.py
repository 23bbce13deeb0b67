"""GroupLags: the lag of every group in records and in time, its history, trend and time to catch up.

Samples come from snapshots of the cluster. Time lag comes from the log end offsets of earlier samples, so no
record is read for it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidelog.console.snapshot import ClusterSnapshot, GroupSnapshot
from tidelog.errors import KafkaError
from tidelog.metrics.lag_clock import LagClock
from tidelog.partitions import PartitionKey

if TYPE_CHECKING:
    from tidelog.console.clusters import Cluster

log = logging.getLogger("tidelog.console")

SAMPLE_SECONDS: Final = 10.0
POINTS: Final = 360
"""Samples of a group: an hour, about 7 KB."""
TREND_SECONDS: Final = 300.0
"""A trend is taken over this time."""
TREND_POINTS: Final = 3
"""The least samples of a trend."""
STEADY_SHARE: Final = 0.02
"""A lag that changes by less than this share of itself in a minute is steady."""
SLICE: Final = 200
"""Groups that are sampled in one turn of the loop."""

GROWING, SHRINKING, STEADY = "growing", "shrinking", "steady"


@dataclass(slots=True, frozen=True)
class LagSample:
    """The lag of a group at one moment, in seconds since 1970."""

    time: float
    lag: int | None
    seconds: float | None


@dataclass(slots=True, frozen=True)
class LagReading:
    """The lag of a group now.

    `seconds` is None if it is unknown; `at_least` says that the offset is older than the observation, so the
    lag in time is at least `seconds`. `per_second` is the change of the lag; `catch_up_seconds` is None for a
    lag that does not shrink.
    """

    lag: int | None
    seconds: float | None = None
    at_least: bool = False
    trend: str | None = None
    per_second: float | None = None
    catch_up_seconds: float | None = None


class LagHistory:
    """The last samples of one group."""

    __slots__ = ("_lags", "_seconds", "_times")

    def __init__(self) -> None:
        self._times = array("d")
        self._lags = array("q")
        self._seconds = array("f")

    def add(self, sample: LagSample) -> None:
        self._times.append(sample.time)
        self._lags.append(-1 if sample.lag is None else sample.lag)
        self._seconds.append(math.nan if sample.seconds is None else sample.seconds)
        if len(self._times) > POINTS + POINTS // 8:
            for column in (self._times, self._lags, self._seconds):
                del column[: len(column) - POINTS]

    def __len__(self) -> int:
        return len(self._times)

    def samples(self) -> list[LagSample]:
        return [
            LagSample(at, None if lag < 0 else lag, None if math.isnan(seconds) else seconds)
            for at, lag, seconds in zip(self._times, self._lags, self._seconds, strict=True)
        ]

    def slope(self) -> float | None:
        """The change of the lag in records a second, by least squares; None with too few samples."""
        if not self._times:
            return None
        since = self._times[-1] - TREND_SECONDS
        first = len(self._times) - 1
        while first > 0 and self._times[first - 1] >= since:
            first -= 1
        points = [
            (at, lag)
            for at, lag in zip(self._times[first:], self._lags[first:], strict=True)
            if lag >= 0
        ]
        if len(points) < TREND_POINTS:
            return None
        mean_at = sum(at for at, _ in points) / len(points)
        mean_lag = sum(lag for _, lag in points) / len(points)
        spread = sum((at - mean_at) ** 2 for at, _ in points)
        if spread == 0:
            return None
        return sum((at - mean_at) * (lag - mean_lag) for at, lag in points) / spread


class GroupLags:
    """The lags of the groups of one cluster. `take` adds a sample of each group."""

    def __init__(self) -> None:
        self._clock: LagClock[PartitionKey] = LagClock()
        self._observed_since: dict[PartitionKey, float] = {}
        self._histories: dict[str, LagHistory] = {}
        self._now = 0.0

    def observe(self, snapshot: ClusterSnapshot, now: float) -> None:
        """Note the log end offsets of all partitions that a group has offsets in."""
        self._now = now
        known = {key for group in snapshot.groups.values() for key in group.offsets}
        for topic, index in known:
            end = end_offset(snapshot, (topic, index))
            if end is not None:
                self._clock.observe((topic, index), end, now)
                self._observed_since.setdefault((topic, index), now)
        for key in [key for key in self._observed_since if key not in known]:
            del self._observed_since[key]
            self._clock.forget(key)
        for group_id in [each for each in self._histories if each not in snapshot.groups]:
            del self._histories[group_id]

    def sample(self, groups: Iterable[GroupSnapshot], now: float) -> None:
        """Add a sample of each group to its history."""
        for group in groups:
            seconds, _ = self.seconds(group)
            history = self._histories.setdefault(group.group_id, LagHistory())
            history.add(LagSample(now, lag_of(group), seconds))

    def take(self, snapshot: ClusterSnapshot, now: float) -> None:
        self.observe(snapshot, now)
        self.sample(snapshot.groups.values(), now)

    def partition_seconds(self, key: PartitionKey, committed: int) -> tuple[float | None, bool]:
        """The lag of an offset in seconds, and whether it is only the least that it can be."""
        seconds = self._clock.seconds(key, committed, self._now)
        if seconds is not None:
            return seconds, False
        since = self._observed_since.get(key)
        return (None, False) if since is None else (self._now - since, True)

    def seconds(self, group: GroupSnapshot) -> tuple[float | None, bool]:
        """The largest lag in seconds of a group's partitions, and whether it is only the least."""
        worst: float | None = None
        at_least = False
        for key, committed in group.offsets.items():
            found, least = self.partition_seconds(key, committed)
            if found is not None:
                worst = found if worst is None else max(worst, found)
                at_least = at_least or least
        return worst, at_least

    def reading(self, group: GroupSnapshot) -> LagReading:
        """The lag of a group now, with its trend."""
        seconds, at_least = self.seconds(group)
        lag = lag_of(group)
        history = self._histories.get(group.group_id)
        slope = None if history is None else history.slope()
        if lag is None or slope is None:
            return LagReading(lag, seconds, at_least)
        trend = STEADY
        if abs(slope) * 60 >= max(STEADY_SHARE * lag, 1.0):
            trend = GROWING if slope > 0 else SHRINKING
        catch_up = lag / -slope if trend == SHRINKING and lag > 0 else None
        return LagReading(lag, seconds, at_least, trend, slope, catch_up)

    def history(self, group_id: str) -> list[LagSample]:
        found = self._histories.get(group_id)
        return [] if found is None else found.samples()


def lag_of(group: GroupSnapshot) -> int | None:
    """The lag of a group in records; None if it has no offsets, or an end offset is unknown."""
    return group.lag if group.lags else None


def end_offset(snapshot: ClusterSnapshot, key: PartitionKey) -> int | None:
    """The log end offset of a partition; None if the topic is gone or the offset is unknown."""
    topic = snapshot.topics.get(key[0])
    if topic is None or key[1] >= len(topic.partitions):
        return None
    return topic.partitions[key[1]].end


class GroupLagSampler:
    """Samples the groups of a cluster from `start` until `close`."""

    def __init__(self, cluster: Cluster, now: Callable[[], float] = time.time) -> None:
        self.lags = GroupLags()
        self._cluster = cluster
        self._now = now
        self._task: asyncio.Task[None] | None = None
        self._sampled = asyncio.Event()

    def start(self) -> None:
        """Begin to sample, on the running loop. Does nothing when called again."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def next(self) -> None:
        """Wait for the next sample."""
        self.start()
        await self._sampled.wait()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _run(self) -> None:
        while True:
            try:
                await self._sample()
            except KafkaError as error:
                log.debug("no lags of %s: %s", self._cluster.name, error)
            told, self._sampled = self._sampled, asyncio.Event()
            told.set()
            await asyncio.sleep(SAMPLE_SECONDS)

    async def _sample(self) -> None:
        snapshot = await self._cluster.snapshot(fresh=True)
        now = self._now()
        self.lags.observe(snapshot, now)
        groups = list(snapshot.groups.values())
        for start in range(0, len(groups), SLICE):
            self.lags.sample(groups[start : start + SLICE], now)
            await asyncio.sleep(0)  # other requests have their turn
