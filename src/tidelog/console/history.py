"""History: the figures of a cluster over the last minutes, sampled while somebody looks at them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from tidelog.console.local_broker import BrokerFigures
from tidelog.errors import KafkaError

if TYPE_CHECKING:
    from tidelog.console.clusters import Cluster

log = logging.getLogger("tidelog.console")

SAMPLE_SECONDS: Final = 2.0
OTHER_SAMPLE_SECONDS: Final = 5.0
"""A cluster of other brokers is asked for its offsets: that costs more than a look into memory."""
POINTS: Final = 450
UNUSED_SECONDS: Final = 600.0


class Sample(Struct):
    """The figures of one moment; None for figures that the cluster does not report."""

    time: float
    records_in: float | None = None
    bytes_in: float | None = None
    bytes_out: float | None = None
    requests: float | None = None
    produce_p99: float | None = None
    fetch_p99: float | None = None
    connections: int | None = None


class History:
    """A ring of samples. Reading it starts the sampling, which ends ten minutes after the last reading."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.samples: deque[Sample] = deque(maxlen=POINTS)
        self._figures: tuple[float, BrokerFigures] | None = None
        self._records: tuple[float, int] | None = None
        self._task: asyncio.Task[None] | None = None
        self._used_at = 0.0
        self._sampled = asyncio.Event()

    @property
    def seconds(self) -> float:
        """The time between two samples."""
        return OTHER_SAMPLE_SECONDS if self._cluster.local is None else SAMPLE_SECONDS

    def read(self) -> list[Sample]:
        """The samples so far, oldest first."""
        self._used_at = time.monotonic()
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return list(self.samples)

    async def next(self) -> Sample:
        """Wait for the next sample."""
        self.read()
        await self._sampled.wait()
        return self.samples[-1]

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _run(self) -> None:
        try:
            while time.monotonic() - self._used_at < UNUSED_SECONDS:
                try:
                    sample = await self._sample()
                except KafkaError as error:
                    log.debug("no sample of %s: %s", self._cluster.name, error)
                    sample = Sample(time.time())
                self.samples.append(sample)
                told, self._sampled = self._sampled, asyncio.Event()
                told.set()
                await asyncio.sleep(self.seconds)
        finally:
            self._task = None

    async def _sample(self) -> Sample:
        now = time.monotonic()
        sample = Sample(time.time())
        if self._cluster.local is None:
            snapshot = await self._cluster.snapshot()
            ends = [
                p.end for topic in snapshot.topics.values() for p in topic.partitions if p.end is not None
            ]
            total = sum(ends)
            if self._records is not None and now > self._records[0]:
                sample.records_in = max(total - self._records[1], 0) / (now - self._records[0])
            self._records = (now, total)
            return sample
        figures = await self._cluster.local.figures()
        if self._figures is not None:
            then, before = self._figures
            seconds = max(now - then, 0.001)
            sample.records_in = (figures.records_in - before.records_in) / seconds
            sample.bytes_in = (figures.bytes_in - before.bytes_in) / seconds
            sample.bytes_out = (figures.bytes_out - before.bytes_out) / seconds
            sample.requests = (figures.requests - before.requests) / seconds
        produce, fetch = figures.latency.get("Produce"), figures.latency.get("FetchConsumer")
        sample.produce_p99 = None if produce is None or not produce.count else produce.p99
        sample.fetch_p99 = None if fetch is None or not fetch.count else fetch.p99
        sample.connections = figures.connections
        self._figures = (now, figures)
        return sample
