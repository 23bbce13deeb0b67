"""Whether cost grows with size: requests in a log of 10,000 segments and in a broker of 2,000 partitions."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import load
from broker import Broker, BrokerFailed, Launcher
from load import Load
from report import Figure
from suite import CONNECTIONS, Bench
from targets import figure

SEGMENTS = 10_000
PARTITIONS = 2_000
BATCHES_PER_SEGMENT = 4
BATCHES_PER_PARTITION = 20
SEVEN_DAYS_MS = "604800000"


@dataclass(slots=True, frozen=True)
class Place:
    """Partitions to produce to and fetch from at random."""

    broker: Broker
    topic: str
    partitions: int
    offsets: int  # of each partition

    def fill(self, **options: object) -> None:
        """Write one-record batches to each partition in turn, on one connection: offsets follow times."""
        requests = self.partitions * self.offsets
        self._run("produce", requests=requests, depth=16, record_size=1000, **options)

    def produce(self, requests: int) -> Load:
        return self._run("produce", requests=requests, connections=CONNECTIONS, random=True)

    def fetch(self, requests: int) -> Load:
        # At most one byte, so that each answer is the one batch with the offset.
        bounds = {"to": self.offsets, "max_bytes": 1}
        return self._run("fetch", requests=requests, connections=CONNECTIONS, random=True, **bounds)

    def _run(self, mode: str, **options: object) -> Load:
        return load.run(self.broker, mode, topic=self.topic, partitions=self.partitions, **options)


def compare(bench: Bench, broker: Broker, *works: Callable[[int], Load]) -> list[list[float]]:
    """Microseconds of CPU per request of each load, in turns, so that a disturbance affects all."""
    count = bench.scaled(20_000)
    for work in works:
        work(bench.scaled(10_000) * bench.warmup)
    costs: list[list[float]] = [[] for _ in works]
    for _ in range(bench.rounds):
        for work, found in zip(works, costs, strict=True):
            before = broker.cpu()
            work(count)
            found.append((broker.cpu() - before) / count * 1e6)
    return costs


def grown(key: str, smallest: list[float], large: list[float], note: str = "") -> Figure:
    base = statistics.median(smallest)
    text = f"{statistics.median(large):.1f} us against {base:.1f}" + (f"; {note}" if note else "")
    return figure(key, [cost / base for cost in large], text)


def segments(bench: Bench) -> list[Figure]:
    """Produce and random fetch in a log of 10,000 segments, compared with the same batches in one segment.

    With a `segment.ms` of 1 a record with a later timestamp rolls the segment: each has four batches of one
    time.
    """
    count = bench.scaled(SEGMENTS)
    offsets = count * BATCHES_PER_SEGMENT
    with bench.source.broker() as broker:
        few = Place(broker, broker.topic("few", retention_ms="-1"), 1, offsets)
        many = Place(broker, broker.topic("many", retention_ms="-1", segment_ms="1"), 1, offsets)
        few.fill()
        begun = time.monotonic()
        oldest = int(time.time() * 1000) - count * 10 - 60_000
        many.fill(ts_start=oldest, ts_step=10, per_step=BATCHES_PER_SEGMENT)
        roll_ms = (time.monotonic() - begun) / count * 1000
        with broker.client() as client:
            client.alter_topic(many.topic, "segment.ms", SEVEN_DAYS_MS)
        made = broker.segments(many.topic)
        if made is not None and made < count:
            raise BrokerFailed(f"the log has {made:,} segments where {count:,} were meant to be made")
        produced = compare(bench, broker, few.produce, many.produce)
        fetched = compare(bench, broker, few.fetch, many.fetch)
    return [
        grown("segments produce", produced[0], produced[1], f"made at {roll_ms:.2f} ms each"),
        grown("segments fetch", fetched[0], fetched[1]),
    ]


def partitions(bench: Bench) -> list[Figure]:
    """Produce and random fetch before and after creating 2,000 partitions, then a stop and a start."""
    bench.needs_own_broker()
    count = bench.scaled(PARTITIONS)
    with bench.source.launcher() as launcher:
        broker, _ = launcher.start({})
        one = Place(broker, broker.topic("one"), 1, count * BATCHES_PER_PARTITION)
        one.fill()
        alone = compare(bench, broker, one.produce, one.fetch)
        begun = time.monotonic()
        many = Place(broker, broker.topic("many", partitions=count), count, BATCHES_PER_PARTITION)
        made = time.monotonic() - begun
        many.fill()
        beside = compare(bench, broker, one.produce, one.fetch)
        among = compare(bench, broker, many.produce, many.fetch)
        opened = reopen(launcher, many, f"made in {made:.1f} s")
    return [
        grown("beside partitions produce", alone[0], beside[0]),
        grown("beside partitions fetch", alone[1], beside[1]),
        grown("among partitions produce", alone[0], among[0]),
        grown("among partitions fetch", alone[1], among[1]),
        opened,
    ]


def reopen(launcher: Launcher, place: Place, note: str) -> Figure:
    """Seconds from a start after a clean stop until every partition returns its offsets."""
    begun = time.monotonic()
    launcher.stop()
    stopped = time.monotonic() - begun
    begun = time.monotonic()
    broker, first = launcher.start({})
    broker.await_partitions(place.topic, place.partitions)
    opened = time.monotonic() - begun
    return figure("open", opened, f"{note}, stopped in {stopped:.1f} s, first answer after {first:.2f} s")
