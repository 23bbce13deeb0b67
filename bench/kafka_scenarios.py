"""What is measured in turns on our broker and on Apache Kafka.

A scenario is a context: it starts a broker of the given source, prepares it, and yields its rounds.
`ROWS` says what the figures of all scenarios are called and which ratio to Kafka they are to reach.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import load
import machine
import workloads
from broker import Broker, BrokerFailed, Source
from load import Load
from machine import GIGABYTE
from ratios import Row
from suite import Skipped
from wire import LATEST

import transactions

Figures = dict[str, float]
PER_REQUEST, PER_GB = "CPU-s / 100,000", "CPU-s / GB"
SESSION_PARTITIONS, SESSION_BATCHES = 1_000, 20_000
TRANSACTION_SECONDS, SESSION_SECONDS = 3.0, 2.0
# Topics that were deleted between two rounds have left the page cache before the next one.
DELETE_SOON, DELETE_SECONDS = {"log.segment.delete.delay.ms": "100"}, 60.0
IDEMPOTENT = ("enable.idempotence=true", "acks=all")

ROWS: dict[str, Row] = {
    "start": Row("start to first answer, on a folder used before", "s", 0.1),
    "small": Row("one-record produce, 16 connections, acks=1", PER_REQUEST, 0.40),
    "idempotent": Row("one-record produce, 16 connections, idempotent, acks=all", PER_REQUEST, 0.40),
    "p50": Row("one-record produce, one connection, p50", "us", 0.35),
    "p99": Row("one-record produce, one connection, p99", "us", 0.42),
    "bulk1000": Row("produce, 1 MB requests, 1,000-byte records", PER_GB, 0.5),
    "bulk100": Row("produce, 1 MB requests, 100-byte records", PER_GB, 0.5),
    "fetch": Row("fetch, 1 MiB requests", PER_GB, 0.75),
    "session": Row("fetch of one partition in a session of 1,000", PER_REQUEST, 0.3),
    "librdkafka100": Row("librdkafka, idempotent, acks=all, 100-byte records", "records/s", 1.2, True),
    "librdkafka1000": Row("librdkafka, idempotent, acks=all, 1,000-byte records", "records/s", 1.2, True),
    "transactions": Row("transactions of 3 partitions, one producer", "1 / s", 1.8, True),
    "transactions8": Row("transactions of 3 partitions, eight producers", "1 / s", 1.8, True),
    "memory": Row("resident after produce and fetch", "MB", 0.06),
}


@dataclass(slots=True)
class Scale:
    """How much of the work is done: all of it, or a tenth."""

    quick: bool = False

    def __call__(self, count: int) -> int:
        return max(1, count // 10) if self.quick else count

    def seconds(self, count: float) -> float:
        return count / 10 if self.quick else count


@dataclass(slots=True)
class Loaded:
    """A broker that is ready for rounds. The first figure of a round tells whether the broker is warm."""

    work: Callable[[], Figures]
    broker: Broker | None = None  # none where each round starts one


Scenario = Callable[[Source, Scale], AbstractContextManager[Loaded]]


@contextmanager
def large_topic(source: Source, broker: Broker, amount: int) -> Iterator[str]:
    """A topic that takes `amount` bytes into memory the machine holds; its files are gone afterwards."""
    machine.warm_memory(source.folder, amount)
    topic = broker.topic("large")
    yield topic
    with broker.client() as client:
        client.delete_topic(topic)
    stop = time.monotonic() + DELETE_SECONDS
    while broker.data is not None and any(folder.name.startswith(topic) for folder in broker.data.iterdir()):
        if time.monotonic() > stop:
            raise BrokerFailed(f"topic {topic} has files {DELETE_SECONDS:.0f} s after its deletion")
        time.sleep(0.05)


@contextmanager
def start(source: Source, scale: Scale) -> Iterator[Loaded]:
    with source.launcher() as launcher:

        def work() -> Figures:
            _, seconds = launcher.start({})
            launcher.stop()
            return {"start": seconds}

        work()
        yield Loaded(work)


def per_100_000(broker: Broker, work: Callable[[], Load]) -> float:
    """CPU-seconds of the broker for 100,000 requests of a load."""
    before, done = broker.cpu(), work()
    return (broker.cpu() - before) / done.requests * 100_000


def per_gigabyte(broker: Broker, work: Callable[[], Load]) -> float:
    before, done = broker.cpu(), work()
    return (broker.cpu() - before) / done.bytes * GIGABYTE


@contextmanager
def small(source: Source, scale: Scale) -> Iterator[Loaded]:
    with source.broker() as broker:
        topic, requests = broker.topic("small"), scale(100_000)

        def work() -> Figures:
            return {"small": per_100_000(broker, lambda: workloads.one_record(broker, topic, requests))}

        yield Loaded(work, broker)


@contextmanager
def idempotent(source: Source, scale: Scale) -> Iterator[Loaded]:
    with source.broker() as broker:
        topic, requests = broker.topic("idempotent"), scale(100_000)

        def work() -> Figures:
            cost = per_100_000(broker, lambda: workloads.idempotent_record(broker, topic, requests))
            return {"idempotent": cost}

        yield Loaded(work, broker)


@contextmanager
def latency(source: Source, scale: Scale) -> Iterator[Loaded]:
    with source.broker() as broker:
        topic = broker.topic("latency")

        def work() -> Figures:
            done = workloads.one_connection(broker, topic, scale(30_000))
            return {"p50": done.p50_us, "p99": done.p99_us}

        yield Loaded(work, broker)


def bulk(key: str, batch: dict[str, int]) -> Scenario:
    @contextmanager
    def scenario(source: Source, scale: Scale) -> Iterator[Loaded]:
        amount = scale(GIGABYTE // 2)
        with source.broker(DELETE_SOON) as broker:

            def work() -> Figures:
                with large_topic(source, broker, amount) as topic:
                    return {key: per_gigabyte(broker, lambda: workloads.bulk(broker, topic, amount, batch))}

            yield Loaded(work, broker)

    return scenario


@contextmanager
def fetch(source: Source, scale: Scale) -> Iterator[Loaded]:
    amount = scale(GIGABYTE)
    with source.broker() as broker:
        topic = broker.topic("fetch")
        end = workloads.fill(broker, topic, amount)

        def work() -> Figures:
            return {"fetch": per_gigabyte(broker, lambda: workloads.fetch(broker, topic, end, amount * 3))}

        yield Loaded(work, broker)


@contextmanager
def session(source: Source, scale: Scale) -> Iterator[Loaded]:
    with source.broker() as broker:
        topic = broker.topic("session", SESSION_PARTITIONS)
        workloads.fill_session(broker, topic, SESSION_PARTITIONS, SESSION_BATCHES)
        seconds = scale.seconds(SESSION_SECONDS)

        def fetches() -> Load:
            return workloads.session(broker, topic, SESSION_PARTITIONS, SESSION_BATCHES, seconds)

        yield Loaded(lambda: {"session": per_100_000(broker, fetches)}, broker)


def librdkafka(record_size: int, records: int) -> Scenario:
    @contextmanager
    def scenario(source: Source, scale: Scale) -> Iterator[Loaded]:
        library = load.librdkafka()
        if library is None:
            raise Skipped("librdkafka was not found; install the package confluent-kafka")
        count, key = scale(records), f"librdkafka{record_size}"
        with source.broker(DELETE_SOON) as broker:

            def work() -> Figures:
                with large_topic(source, broker, count * (record_size + 12)) as topic:
                    rate = load.run_librdkafka(library, broker, topic, count, record_size, *IDEMPOTENT)
                return {key: rate}

            yield Loaded(work, broker)

    return scenario


def commits(key: str, producers: int) -> Scenario:
    @contextmanager
    def scenario(source: Source, scale: Scale) -> Iterator[Loaded]:
        seconds, turns = scale.seconds(TRANSACTION_SECONDS), iter(range(1_000))
        with source.broker() as broker:
            topic = broker.topic("transactions", transactions.PARTITIONS)

            def work() -> Figures:
                name = f"{key}-{next(turns)}"
                return {key: transactions.commits_per_second(broker, topic, name, producers, seconds)}

            yield Loaded(work, broker)

    return scenario


@contextmanager
def memory(source: Source, scale: Scale) -> Iterator[Loaded]:
    amount = scale(GIGABYTE // 2)
    with source.broker(DELETE_SOON) as broker:

        def work() -> Figures:
            with large_topic(source, broker, amount) as topic:
                workloads.one_record(broker, topic, scale(50_000))
                workloads.bulk(broker, topic, amount, workloads.MEGABYTE_OF_1000)
                with broker.client() as client:
                    end = client.offset(topic, 0, LATEST)
                workloads.fetch(broker, topic, end, amount)
                return {"memory": broker.resident_mb()}

        yield Loaded(work, broker)


SCENARIOS: dict[str, Scenario] = {
    "start": start,
    "small": small,
    "idempotent": idempotent,
    "latency": latency,
    "bulk1000": bulk("bulk1000", workloads.MEGABYTE_OF_1000),
    "bulk100": bulk("bulk100", workloads.MEGABYTE_OF_100),
    "fetch": fetch,
    "session": session,
    "librdkafka100": librdkafka(100, 4_000_000),
    "librdkafka1000": librdkafka(1_000, 500_000),
    "transactions": commits("transactions", 1),
    "transactions8": commits("transactions8", transactions.MANY),
    "memory": memory,
}
