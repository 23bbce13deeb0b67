"""Background work of a broker: cleaning compacted logs, and retention over many partitions."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import load
import machine
from broker import Broker, BrokerFailed
from load import Load
from machine import MEGABYTE
from report import Figure
from suite import Bench
from targets import figure

CHECKPOINT = "cleaner-offset-checkpoint"
NEVER_DIRTY, ALWAYS_DIRTY = "1.0", "0.0"
SEGMENT_BYTES = 16 << 20
PARTITIONS = 2_000
RETENTION_MS = 100
DROP_INTERVAL_MS = 8_000
"""Long enough for an idle second between the change of the setting and the next run."""
LIMIT = 300.0


class DirtyLog:
    """A compacted topic, filled while the cleaner is off: every key occurs about twice."""

    def __init__(self, bench: Bench, broker: Broker, amount: int, record_size: int) -> None:
        self.broker = broker
        self.topic = broker.topic(
            f"keyed{record_size}",
            cleanup_policy="compact",
            min_cleanable_dirty_ratio=NEVER_DIRTY,
            segment_bytes=str(SEGMENT_BYTES),
        )
        records = min(9_000, 990_000 // record_size)
        bench.warm_memory(2 * amount)
        load.run(
            broker,
            "produce",
            topic=self.topic,
            bytes=amount,
            records=records,
            record_size=record_size,
            keys=amount // record_size // 2,
        )
        # Wait for the flush after a roll: it is not part of the cost of cleaning.
        time.sleep(3.0)
        self.size = self.bytes_to_read()

    @property
    def folder(self) -> Path:
        assert self.broker.data is not None
        return self.broker.data / f"{self.topic}-0"

    def bytes_to_read(self) -> int:
        """The bytes that a pass reads: all segments but the active one."""
        return sum(path.stat().st_size for path in sorted(self.folder.glob("*.log"))[:-1])

    def start_cleaning(self) -> None:
        with self.broker.client() as client:
            client.alter_topic(self.topic, "min.cleanable.dirty.ratio", ALWAYS_DIRTY)

    def is_clean(self) -> bool:
        active = max(int(path.stem) for path in self.folder.glob("*.log"))
        checkpoint = self.folder.parent / CHECKPOINT
        text = checkpoint.read_text() if checkpoint.exists() else ""
        return f"{self.topic} 0 {active}" in text.splitlines()

    def await_clean(self) -> None:
        deadline = time.monotonic() + LIMIT
        while not self.is_clean():
            if time.monotonic() > deadline:
                raise BrokerFailed(f"{self.topic} was not cleaned within {LIMIT:.0f} s")
            time.sleep(0.02)


def cleaning(bench: Bench) -> list[Figure]:
    """Clean logs of 1,000-byte and of 100-byte records, and send one-record requests meanwhile."""
    bench.needs_own_broker()
    with bench.source.broker({"log.cleaner.backoff.ms": "100"}) as broker:
        large = rate(bench, DirtyLog(bench, broker, bench.scaled(512 << 20), 1000), "clean1000")
        small = rate(bench, DirtyLog(bench, broker, bench.scaled(384 << 20), 100), "clean100")
        beside = slowed(bench, broker)
    return [large, small, beside]


def rate(bench: Bench, log: DirtyLog, key: str) -> Figure:
    """Megabytes cleaned per CPU-second."""
    bench.warm_memory(log.size)
    resident = log.broker.resident_mb()
    before, begun = log.broker.cpu(), time.monotonic()
    with machine.PeakMemory(log.broker.pid) as sampler:
        log.start_cleaning()
        log.await_clean()
    seconds, cpu = time.monotonic() - begun, log.broker.cpu() - before
    note = f"{log.size / MEGABYTE:,.0f} MB to {log.bytes_to_read() / MEGABYTE:,.0f} in {seconds:.1f} s"
    grown = sampler.peak / MEGABYTE - resident
    return figure(key, log.size / MEGABYTE / cpu, f"{note}; resident at most {grown:+.0f} MB")


def slowed(bench: Bench, broker: Broker) -> Figure:
    """The p99 of sequential requests during cleaning, relative to the p99 without it."""
    light = broker.topic("light")

    def probe() -> Load:
        return load.run(broker, "latency", topic=light, seconds=0.5, warmup=100)

    log = DirtyLog(bench, broker, bench.scaled(768 << 20), 100)
    alone = [probe() for _ in range(bench.rounds + 1)][1:]
    log.start_cleaning()
    time.sleep(0.3)
    during: list[Load] = []
    while not log.is_clean():
        during.append(probe())
    during = during[:-1] or during  # the last one may have ended after the cleaning
    if not during:
        raise BrokerFailed("the log was cleaned before a request could be sent beside it")

    def middle(runs: list[Load], value: Callable[[Load], float]) -> float:
        return statistics.median(value(run) for run in runs)

    base = middle(alone, lambda run: run.p99_us)
    note = f"{middle(during, lambda run: run.p99_us):,.0f} us against {base:,.0f}"
    note += f"; worst {max(run.max_us for run in during) / 1000:.1f} ms against "
    note += f"{max(run.max_us for run in alone) / 1000:.1f}"
    return figure("clean beside", [run.p99_us / base for run in during], note)


def retention(bench: Bench) -> list[Figure]:
    """CPU of one retention run over 2,000 partitions: an idle broker with runs minus one without."""
    bench.needs_own_broker()
    count, seconds = bench.scaled(PARTITIONS), 4.0 if bench.quick else 10.0
    with bench.source.launcher() as launcher:
        broker, _ = launcher.start({})
        topic = broker.topic("many", partitions=count)
        load.run(broker, "produce", topic=topic, partitions=count, requests=3 * count)
        launcher.stop()

        def idle(interval_ms: int) -> float:
            broker, _ = launcher.start({"log.retention.check.interval.ms": str(interval_ms)})
            broker.await_partitions(topic, count)
            time.sleep(2.0)
            before = broker.cpu()
            time.sleep(seconds)
            cpu = broker.cpu() - before
            launcher.stop()
            return cpu

        without, with_runs = idle(3_600_000), idle(RETENTION_MS)
    taken = max(0.0, with_runs - without)
    runs = (seconds - taken) / (RETENTION_MS / 1000)  # each begins this long after the last one ends
    note = f"{runs:.0f} runs; {count:,} partitions of one segment"
    return [figure("retention", taken / runs * 1000, note), dropping(bench, count)]


def dropping(bench: Bench, count: int) -> Figure:
    """CPU of the loop's thread in a run that deletes a segment of each of 2,000 partitions."""
    with bench.source.broker({"log.retention.check.interval.ms": str(DROP_INTERVAL_MS)}) as broker:
        assert broker.data is not None
        topic = broker.topic("rolled", partitions=count, segment_ms="1", retention_ms="-1")
        for _ in range(2):
            load.run(broker, "produce", topic=topic, partitions=count, requests=count)
        first = [broker.data / f"{topic}-{index}" / f"{0:020d}.log" for index in range(count)]
        with broker.client() as client:
            client.alter_topic(topic, "retention.bytes", "1")
        time.sleep(0.5)
        samples = [(time.monotonic(), machine.main_thread_seconds(broker.pid))]
        deadline = time.monotonic() + LIMIT
        while any(path.exists() for path in first):
            if time.monotonic() > deadline:
                raise BrokerFailed(f"segments of {topic} were left after {LIMIT:.0f} s")
            time.sleep(0.2)
            if all(path.exists() for path in first[:20]):
                samples.append((time.monotonic(), machine.main_thread_seconds(broker.pid)))
        time.sleep(0.2)
        until, cpu = time.monotonic(), machine.main_thread_seconds(broker.pid)
    (begun, before), (begun_run, before_run) = samples[0], samples[-1]
    idle = (before_run - before) / (begun_run - begun) if begun_run > begun else 0.0
    taken = cpu - before_run - idle * (until - begun_run)
    return figure("retention drops", taken * 1000, f"{count:,} segments of as many partitions")
