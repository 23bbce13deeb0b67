"""What is measured. Each scenario takes a Bench and gives figures; `SCENARIOS` holds them in their order.

CPU is counted in seconds of the broker's processes, so a busy machine blurs it less than it does times.
Every scenario gets a new broker with empty folders, unless one broker was given for all.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import load
import machine
from broker import Broker, BrokerFailed, Source
from load import Load
from machine import GIGABYTE, MEGABYTE
from report import Figure
from wire import EARLIEST

CONNECTIONS = 16
BULK_CONNECTIONS = 4
SEGMENTS = 10_000
PARTITIONS = 2_000
BATCHES_PER_SEGMENT = 4
BATCHES = SEGMENTS * BATCHES_PER_SEGMENT
# Batches of close to 1 MB, below the default max.message.bytes.
RECORDS_OF_1000, RECORDS_OF_100 = 990, 9_000
SEVEN_DAYS_MS = "604800000"


class Skipped(Exception):
    """The scenario cannot be measured here; the text says why."""


@dataclass(slots=True)
class Bench:
    """Everything a scenario needs: where brokers come from and how much to do."""

    source: Source
    quick: bool = False
    warmup: int = 1  # a broker that compiles itself while running wants more

    def scaled(self, count: int) -> int:
        return max(1, count // 10) if self.quick else count

    @property
    def rounds(self) -> int:
        return 2 if self.quick else 5

    def needs_own_broker(self) -> None:
        if self.source.attached is not None:
            raise Skipped("starts and stops brokers, so it needs --launch instead of --against")


def measured_cpu(broker: Broker, work: Callable[[], Load]) -> tuple[float, Load]:
    before = broker.cpu()
    done = work()
    return broker.cpu() - before, done


def start(bench: Bench) -> list[Figure]:
    """From starting the process to its first answer, on a folder used before; and memory when idle."""
    bench.needs_own_broker()
    times: list[float] = []
    with bench.source.launcher() as launcher:
        _, first = launcher.start({})
        launcher.stop()
        for _ in range(bench.rounds):
            broker, seconds = launcher.start({})
            times.append(seconds)
            time.sleep(1.0)  # memory is taken when what the start left to do is done
            resident = broker.resident_mb()
            launcher.stop()
    return [
        Figure(
            "start to first answer",
            statistics.median(times),
            "s",
            0.4,
            kafka="2",
            rounds=times,
            note=f"on an empty folder {first:.2f} s",
        ),
        Figure("resident when idle", resident, "MB", 60, kafka="1,170 (warm)"),
    ]


def small(bench: Bench) -> list[Figure]:
    """One-record produce requests, a closed loop on 16 connections."""
    count = bench.scaled(100_000)
    costs: list[float] = []
    rates: list[float] = []
    with bench.source.broker() as broker:
        topic = broker.topic("small")

        def work(requests: int) -> Load:
            return load.run(broker, "produce", topic=topic, connections=CONNECTIONS, requests=requests)

        work(bench.scaled(50_000) * bench.warmup)
        for _ in range(bench.rounds):
            cpu, done = measured_cpu(broker, lambda: work(count))
            costs.append(cpu / count * 100_000)
            rates.append(done.requests / done.seconds)
    return [
        Figure(
            "one-record produce, 16 connections",
            statistics.median(costs),
            "CPU-s / 100,000",
            2.0,
            kafka="2.9",
            rounds=costs,
            note=f"{statistics.median(rates):,.0f} requests/s",
        ),
    ]


def latency(bench: Bench) -> list[Figure]:
    """One-record produce requests one after the other on one connection."""
    runs: list[Load] = []
    with bench.source.broker() as broker:
        topic = broker.topic("latency")
        load.run(broker, "latency", topic=topic, requests=bench.scaled(20_000) * bench.warmup)
        for _ in range(bench.rounds):
            runs.append(load.run(broker, "latency", topic=topic, requests=bench.scaled(30_000), warmup=500))
    middle, high = [r.p50_us for r in runs], [r.p99_us for r in runs]
    note = f"p99.9 {statistics.median(r.p999_us for r in runs):,.0f} us"
    return [
        Figure(
            "one-record produce, one connection, p50",
            statistics.median(middle),
            "us",
            40,
            kafka="92",
            rounds=middle,
        ),
        Figure(
            "one-record produce, one connection, p99",
            statistics.median(high),
            "us",
            100,
            kafka="159",
            rounds=high,
            note=note,
        ),
    ]


def bulk(bench: Bench) -> list[Figure]:
    """Produce requests of 1 MB, records of 1,000 and of 100 bytes."""
    figures = []
    for size, records in ((1000, RECORDS_OF_1000), (100, RECORDS_OF_100)):
        costs: list[float] = []
        rates: list[float] = []
        with bench.source.broker() as broker:
            topic = broker.topic("bulk")

            def work(
                amount: int,
                topic: str = topic,
                size: int = size,
                records: int = records,
                broker: Broker = broker,
            ) -> Load:
                return load.run(
                    broker,
                    "produce",
                    topic=topic,
                    connections=BULK_CONNECTIONS,
                    records=records,
                    record_size=size,
                    bytes=amount,
                )

            work(bench.scaled(GIGABYTE) // 2 * bench.warmup)
            for _ in range(min(3, bench.rounds)):
                cpu, done = measured_cpu(broker, lambda: work(bench.scaled(GIGABYTE)))
                costs.append(cpu / done.bytes * GIGABYTE)
                rates.append(done.bytes / done.seconds / MEGABYTE)
        figures.append(
            Figure(
                f"produce, 1 MB requests, records of {size:,} bytes",
                statistics.median(costs),
                "CPU-s / GB",
                1.0,
                kafka="3.0",
                rounds=costs,
                note=f"{statistics.median(rates):,.0f} MB/s",
            )
        )
    return figures


def fetch(bench: Bench) -> list[Figure]:
    """Fetch requests of 1 MiB in order through a log that is in the page cache."""
    costs: list[float] = []
    rates: list[float] = []
    amount = bench.scaled(GIGABYTE)
    with bench.source.broker() as broker:
        topic = broker.topic("fetch")
        written = load.run(
            broker, "produce", topic=topic, connections=2, records=64, record_size=1000, bytes=amount
        )
        end = written.requests * 64

        def work(wanted: int) -> Load:
            return load.run(broker, "fetch", topic=topic, to=end, bytes=wanted, max_bytes=1 << 20)

        work(amount * bench.warmup)
        for _ in range(bench.rounds):
            cpu, done = measured_cpu(broker, lambda: work(amount * 4))
            costs.append(cpu / done.bytes * GIGABYTE)
            rates.append(done.bytes / done.seconds / MEGABYTE)
    return [
        Figure(
            "fetch, 1 MiB a request",
            statistics.median(costs),
            "CPU-s / GB",
            0.25,
            kafka="0.22-0.33",
            rounds=costs,
            note=f"{statistics.median(rates):,.0f} MB/s on one connection",
        ),
    ]


def beside(bench: Bench) -> list[Figure]:
    """A one-record request every 2 ms beside a producer of 1 GB/s whose topic keeps little."""
    seconds = 3 if bench.quick else 10
    with bench.source.broker({"log.retention.check.interval.ms": "1000"}) as broker:
        heavy = broker.topic(
            "heavy", retention_bytes=str(512 << 20), segment_bytes=str(128 << 20), file_delete_delay_ms="100"
        )
        light = broker.topic("light")
        bulk_options = {
            "topic": heavy,
            "connections": BULK_CONNECTIONS,
            "records": RECORDS_OF_1000,
            "record_size": 1000,
        }
        load.run(broker, "latency", topic=light, requests=bench.scaled(20_000) * bench.warmup)
        load.run(broker, "produce", bytes=GIGABYTE * 3 // 2, **bulk_options)
        retained = await_retention(broker, heavy, 60)
        producer = load.start(broker, "produce", seconds=seconds, rate=GIGABYTE, **bulk_options)
        time.sleep(0.3)
        probe = load.start(broker, "latency", topic=light, seconds=seconds - 0.6, interval_us=2000)
        small, heavy_load = load.finish(probe), load.finish(producer)
    note = f"p50 {small.p50_us / 1000:.2f} ms, worst {small.max_us / 1000:.1f} ms"
    reached = heavy_load.bytes / heavy_load.seconds / MEGABYTE
    return [
        Figure("one record beside 1 GB/s, p99", small.p99_us / 1000, "ms", 10, note=note, kafka=KAFKA_BESIDE),
        Figure(
            "producer's rate meanwhile",
            reached,
            "MB/s",
            kafka=KAFKA_BESIDE_RATE,
            note="" if retained else "retention did not run before",
        ),
    ]


def await_retention(broker: Broker, topic: str, limit: float) -> bool:
    """Waits until the broker has begun to delete old segments, as it would have long done in service."""
    stop = time.monotonic() + limit
    with broker.client() as client:
        while time.monotonic() < stop:
            if client.offset(topic, 0, EARLIEST) > 0:
                return True
            time.sleep(0.25)
    return False


def memory(bench: Bench) -> list[Figure]:
    """Resident memory under small and bulk produce and fetch, three times over."""
    in_flight = 8
    after: list[float] = []
    amount = bench.scaled(GIGABYTE)
    with bench.source.broker() as broker:
        topic = broker.topic("memory")
        idle = broker.resident_mb()
        with machine.PeakMemory(broker.pid) as sampler:
            for _ in range(3):
                load.run(broker, "produce", topic=topic, connections=64, requests=bench.scaled(100_000))
                done = load.run(
                    broker,
                    "produce",
                    topic=topic,
                    connections=in_flight,
                    records=RECORDS_OF_1000,
                    record_size=1000,
                    bytes=amount,
                )
                with broker.client() as client:
                    end = client.offset(topic, 0, -1)
                load.run(
                    broker,
                    "fetch",
                    topic=topic,
                    connections=in_flight,
                    bytes=done.bytes,
                    to=end,
                    max_bytes=1 << 20,
                )
                after.append(broker.resident_mb())
    return [
        Figure(
            "resident grown after load",
            after[-1] - idle,
            "MB",
            32,
            rounds=after,
            kafka=KAFKA_GROWN,
            note=f"{in_flight} requests of 1 MB at a time, 64 connections; at most "
            f"{(sampler.peak / MEGABYTE) - idle:.0f} MB meanwhile",
        ),
        Figure("resident grown from first to third load", after[-1] - after[0], "MB", 4),
    ]


def connections(bench: Bench) -> list[Figure]:
    """Memory with 10,000 connections that were answered once and then do nothing."""
    count = bench.scaled(10_000)
    with bench.source.broker() as broker:
        before = broker.resident_mb()
        with load.idle_connections(broker, count):
            time.sleep(0.5)
            resident = broker.resident_mb()
    each = (resident - before) * 1000 / count
    return [
        Figure(
            f"resident with {count:,} idle connections",
            resident,
            "MB",
            200,
            kafka=KAFKA_CONNECTIONS,
            note=f"{each:.1f} KB each",
        ),
    ]


@dataclass(slots=True, frozen=True)
class Place:
    """Somewhere to produce to and fetch from at random."""

    topic: str
    partitions: int
    offsets: int  # of each partition, all of them readable

    def produce(self, broker: Broker, requests: int) -> Load:
        return load.run(
            broker,
            "produce",
            topic=self.topic,
            partitions=self.partitions,
            connections=CONNECTIONS,
            requests=requests,
            random=True,
        )

    def fetch(self, broker: Broker, requests: int) -> Load:
        # One byte at most, so that each answer is the one batch that holds the offset.
        return load.run(
            broker,
            "fetch",
            topic=self.topic,
            partitions=self.partitions,
            connections=CONNECTIONS,
            requests=requests,
            random=True,
            to=self.offsets,
            max_bytes=1,
        )


def cost_of(broker: Broker, bench: Bench, work: Callable[[Broker, int], Load]) -> float:
    count = bench.scaled(30_000)
    return measured_cpu(broker, lambda: work(broker, count))[0] / count * 1e6


def compare(
    broker: Broker, bench: Bench, one: Callable[[Broker, int], Load], other: Callable[[Broker, int], Load]
) -> tuple[list[float], list[float]]:
    """Microseconds of CPU a request of both, in turns so that a disturbance meets both."""
    for work in (one, other):
        work(broker, bench.scaled(20_000) * bench.warmup)
    costs: tuple[list[float], list[float]] = ([], [])
    for _ in range(bench.rounds):
        costs[0].append(cost_of(broker, bench, one))
        costs[1].append(cost_of(broker, bench, other))
    return costs


def growth(name: str, smallest: list[float], large: list[float], kafka: str, note: str = "") -> Figure:
    base, cost = statistics.median(smallest), statistics.median(large)
    text = f"{cost:.1f} us against {base:.1f}" + (f"; {note}" if note else "")
    return Figure(name, cost / base, "times", 1.3, rounds=large, note=text, kafka=kafka)


def write_batches(broker: Broker, place: Place, **options: object) -> None:
    """One-record batches, partition after partition; one connection, so that offsets follow times."""
    load.run(
        broker,
        "produce",
        topic=place.topic,
        partitions=place.partitions,
        depth=16,
        record_size=1000,
        requests=place.partitions * place.offsets,
        deadline=280,
        **options,
    )


def segments(bench: Bench) -> list[Figure]:
    """Produce and random fetch in a log of 10,000 segments, against the same batches in one segment.

    With `segment.ms` of 1 a segment ends when a record dated later comes: four batches of one time in each.
    """
    count = bench.scaled(SEGMENTS)
    with bench.source.broker() as broker:
        offsets = count * BATCHES_PER_SEGMENT
        few = Place(broker.topic("few", retention_ms="-1"), 1, offsets)
        many = Place(broker.topic("many", retention_ms="-1", segment_ms="1"), 1, offsets)
        write_batches(broker, few)
        begun = time.monotonic()
        oldest = int(time.time() * 1000) - count * 10 - 60_000
        write_batches(broker, many, ts_start=oldest, ts_step=10, per_step=BATCHES_PER_SEGMENT)
        rolled = (time.monotonic() - begun) / count * 1000
        with broker.client() as client:
            client.alter_topic(many.topic, "segment.ms", SEVEN_DAYS_MS)
        found = broker.segments(many.topic)
        if found is not None and found < count:
            raise BrokerFailed(f"the log has {found:,} segments where {count:,} were meant to be made")
        produced = compare(broker, bench, few.produce, many.produce)
        fetched = compare(broker, bench, few.fetch, many.fetch)
    return [
        growth(
            f"produce, {count:,} segments", *produced, kafka=KAFKA_SEGMENTS[0], note=f"{rolled:.2f} ms a roll"
        ),
        growth(f"fetch at random, {count:,} segments", *fetched, kafka=KAFKA_SEGMENTS[1]),
    ]


def partitions(bench: Bench) -> list[Figure]:
    """Produce and random fetch before and after 2,000 partitions were made; then a stop and a start on them."""
    bench.needs_own_broker()
    count = bench.scaled(PARTITIONS)
    with bench.source.launcher() as launcher:
        broker, _ = launcher.start({})
        one = Place(broker.topic("one"), 1, count * 20)
        write_batches(broker, one)
        alone = compare(broker, bench, one.produce, one.fetch)
        begun = time.monotonic()
        all_of_them = Place(broker.topic("all", partitions=count), count, 20)
        made = time.monotonic() - begun
        write_batches(broker, all_of_them)
        same = compare(broker, bench, one.produce, one.fetch)
        spread = compare(broker, bench, all_of_them.produce, all_of_them.fetch)
        begun = time.monotonic()
        launcher.stop()
        stopped = time.monotonic() - begun
        begun = time.monotonic()
        broker, _ = launcher.start({})
        with broker.client() as client:
            while client.led_partitions(all_of_them.topic) < count:
                time.sleep(0.005)
                if time.monotonic() - begun > 120:
                    raise BrokerFailed(f"not all of the {count:,} partitions came back")
        opened = time.monotonic() - begun
        all_of_them.fetch(broker, bench.scaled(1000))
    kafka = KAFKA_PARTITIONS
    return [
        growth(f"produce, broker of {count:,} partitions", alone[0], same[0], kafka[0]),
        growth(f"fetch at random, broker of {count:,} partitions", alone[1], same[1], kafka[1]),
        growth(f"produce, spread over {count:,} partitions", alone[0], spread[0], kafka[2]),
        growth(f"fetch at random, spread over {count:,} partitions", alone[1], spread[1], kafka[3]),
        Figure(
            f"opening {count:,} partitions after a clean stop",
            opened,
            "s",
            3,
            kafka=KAFKA_OPEN,
            note=f"made in {made:.1f} s, stopped in {stopped:.1f} s",
        ),
    ]


def librdkafka(bench: Bench) -> list[Figure]:
    """One librdkafka producer with its default batching."""
    library = load.librdkafka()
    if library is None:
        raise Skipped("librdkafka was not found; install the package confluent-kafka")
    figures = []
    cases = ((100, 8_000_000, 2_500_000, "2.1-2.6 M"), (1000, 1_500_000, 600_000, "300,000"))
    for size, records, target, kafka in cases:
        rates: list[float] = []
        with bench.source.broker() as broker:
            topic = broker.topic("librdkafka")
            load.run_librdkafka(library, broker, topic, bench.scaled(records // 4), size)
            for _ in range(min(3, bench.rounds)):
                rates.append(load.run_librdkafka(library, broker, topic, bench.scaled(records), size))
        figures.append(
            Figure(
                f"librdkafka, records of {size:,} bytes",
                statistics.median(rates),
                "records/s",
                target,
                at_least=True,
                kafka=kafka,
                rounds=rates,
            )
        )
    return figures


def floor(bench: Bench) -> list[Figure]:
    """What the kernel alone takes to append to a file here."""
    folder: Path = bench.source.folder
    size = bench.scaled(3 * GIGABYTE)
    cost = machine.append_cost(folder, size) / size * GIGABYTE
    return [
        Figure(
            "(this machine: append to a file)",
            cost,
            "CPU-s / GB",
            note="the part of a produce no broker saves",
        )
    ]


# Apache Kafka 4.3.1 with a heap of 1 GB, measured with this harness on two cores.
KAFKA_BESIDE = ""
KAFKA_BESIDE_RATE = ""
KAFKA_GROWN = ""
KAFKA_CONNECTIONS = ""
KAFKA_SEGMENTS = ("", "")
KAFKA_PARTITIONS = ("", "", "", "")
KAFKA_OPEN = ""

SCENARIOS: dict[str, Callable[[Bench], list[Figure]]] = {
    "floor": floor,
    "start": start,
    "small": small,
    "latency": latency,
    "bulk": bulk,
    "fetch": fetch,
    "beside": beside,
    "memory": memory,
    "connections": connections,
    "segments": segments,
    "partitions": partitions,
    "librdkafka": librdkafka,
}
