"""The scenarios that are measured in turns on our broker and on Apache Kafka.

A scenario is a context manager: it starts a broker of the given source, prepares it, and yields its rounds.
`ROWS` has the names of the figures of all scenarios, and their goals for the ratio to Kafka. A row without a
goal only completes the table.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

import floor
import load
import machine
import workloads
from broker import Broker, BrokerFailed, Source
from growth import BATCHES_PER_PARTITION, Place
from load import Load
from machine import GIGABYTE, MEGABYTE
from ratios import Row
from security_scenarios import LOGINS, login_broker, ruled_broker
from suite import Skipped
from tls_scenarios import tls_broker
from wire import LATEST

import groups
import transactions

Figures = dict[str, float]
PER_REQUEST, PER_GB = "CPU-s / 100,000", "CPU-s / GB"
SESSION_PARTITIONS, SESSION_BATCHES = 1_000, 20_000
TRANSACTION_SECONDS, SESSION_SECONDS = 3.0, 2.0
# By then topics that were deleted between two rounds have left the page cache.
DELETE_SOON, DELETE_SECONDS = {"log.segment.delete.delay.ms": "100"}, 60.0
IDLE_CONNECTIONS, IDLE_SECONDS = 2_000, 0.5
OPENED_PARTITIONS = 500
RULES = 1_000
# The large producer has reached its rate before the small one begins, and outlasts it.
BESIDE_RATE, BESIDE_SECONDS, BESIDE_LEAD = 500 * MEGABYTE, 1.0, 0.2
IDEMPOTENT = ("enable.idempotence=true", "acks=all")

ROWS: dict[str, Row] = {
    "start": Row("start to first answer, on a folder used before", "s", 0.1),
    "small": Row("one-record produce, 16 connections, acks=1", PER_REQUEST, 0.40),
    "idempotent": Row("one-record produce, 16 connections, idempotent, acks=all", PER_REQUEST, 0.40),
    "transactional": Row("one-record produce, 16 connections, transactional, acks=all", PER_REQUEST),
    "p50": Row("one-record produce, one connection, p50", "us", 0.35),
    "p99": Row("one-record produce, one connection, p99", "us", 0.42),
    "one-core p50": Row("one-record produce, one connection, client and broker on one core, p50", "us"),
    "one-core p99": Row("one-record produce, one connection, client and broker on one core, p99", "us"),
    "floor": Row("client and floor.c on two cores, p50", "us"),
    "one-core floor": Row("client and floor.c on one core, p50", "us"),
    "beside": Row("one-record produce beside a 500 MB/s producer, p99", "us"),
    "beside rate": Row("rate of that producer", "MB/s", at_least=True),
    "bulk1000": Row("produce, 1 MB requests, 1,000-byte records", PER_GB, 0.5),
    "bulk100": Row("produce, 1 MB requests, 100-byte records", PER_GB, 0.5),
    "fetch": Row("fetch, 1 MiB requests", PER_GB, 0.75),
    "fetch64": Row("fetch, 64 KiB requests", PER_GB),
    "tls-produce": Row("produce over TLS, 1 MB requests, 1,000-byte records", PER_GB, 0.6),
    "tls-fetch": Row("fetch over TLS, 1 MiB requests", PER_GB, 0.6),
    "logins": Row("logins by SCRAM-SHA-512 over TLS", "CPU-s / 1,000", 1.0),
    "handshakes": Row("TLS handshakes", "CPU-s / 1,000"),
    "acl-produce": Row("one-record produce, 16 connections, 1,000 access rules", PER_REQUEST, 0.40),
    "session": Row("fetch of one partition in a session of 1,000", PER_REQUEST, 0.3),
    "librdkafka100": Row("librdkafka, idempotent, acks=all, 100-byte records", "records/s", 1.2, True),
    "librdkafka1000": Row("librdkafka, idempotent, acks=all, 1,000-byte records", "records/s", 1.2, True),
    "transactions": Row("transactions of 3 partitions, one producer", "1 / s", 1.8, True),
    "transactions8": Row("transactions of 3 partitions, eight producers", "1 / s", 1.8, True),
    "commits": Row("offset commits of one partition, 16 connections", PER_REQUEST),
    "open": Row("opening 500 partitions after a clean stop", "s"),
    "memory": Row("resident after produce and fetch", "MB", 0.06),
    "connections": Row("resident, 2,000 idle connections", "MB"),
}


@dataclass(slots=True)
class Scale:
    """The share of the work: all of it, or a tenth."""

    quick: bool = False

    def __call__(self, count: int) -> int:
        return max(1, count // 10) if self.quick else count

    def seconds(self, count: float) -> float:
        return count / 10 if self.quick else count


@dataclass(slots=True)
class Loaded:
    """A broker that is ready for rounds. The first figure of a round shows whether the broker is warm."""

    work: Callable[[], Figures]
    broker: Broker | None = None  # None if each round starts one


Scenario = Callable[[Source, Scale], AbstractContextManager[Loaded]]


@contextmanager
def large_topic(source: Source, broker: Broker, amount: int) -> Iterator[str]:
    """A topic for `amount` bytes, with memory that the machine already holds; its files are removed after."""
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
    """CPU-seconds of the broker per 100,000 requests of a load."""
    before, done = broker.cpu(), work()
    return (broker.cpu() - before) / done.requests * 100_000


def per_gigabyte(broker: Broker, work: Callable[[], Load]) -> float:
    before, done = broker.cpu(), work()
    return (broker.cpu() - before) / done.bytes * GIGABYTE


def one_record(key: str, produce: Callable[[Broker, str, int], Load], count: int = 100_000) -> Scenario:
    @contextmanager
    def scenario(source: Source, scale: Scale) -> Iterator[Loaded]:
        with source.broker() as broker:
            topic, requests = broker.topic(key), scale(count)

            def work() -> Figures:
                return {key: per_100_000(broker, lambda: produce(broker, topic, requests))}

            yield Loaded(work, broker)

    return scenario


@contextmanager
def latency(source: Source, scale: Scale) -> Iterator[Loaded]:
    with source.broker() as broker:
        topic = broker.topic("latency")

        def work() -> Figures:
            done = workloads.one_connection(broker, topic, scale(30_000))
            return {"p50": done.p50_us, "p99": done.p99_us}

        yield Loaded(work, broker)


@contextmanager
def latency_floor(source: Source, scale: Scale) -> Iterator[Loaded]:
    requests, cores = scale(30_000), os.sched_getaffinity(0)
    if len(cores) < 2:
        raise Skipped("a client and a server on two cores need two")
    first, last = min(cores), max(cores)
    with ExitStack() as stack:
        with machine.on_core(last):
            broker = stack.enter_context(source.broker())
            server = stack.enter_context(floor.server(source.folder))
        topic = broker.topic("latency")

        def work() -> Figures:
            with machine.on_core(last):
                done = workloads.one_connection(broker, topic, requests)
                one_core = workloads.one_connection(server, topic, requests)
            with machine.on_core(first):
                two_cores = workloads.one_connection(server, topic, requests)
            return {
                "one-core p50": done.p50_us,
                "one-core p99": done.p99_us,
                "one-core floor": one_core.p50_us,
                "floor": two_cores.p50_us,
            }

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
def beside(source: Source, scale: Scale) -> Iterator[Loaded]:
    seconds = scale.seconds(BESIDE_SECONDS)
    heavy_seconds = seconds + 2 * BESIDE_LEAD
    with source.broker(workloads.RETAIN_OFTEN) as broker:
        heavy, light = broker.topic("heavy", **workloads.KEEP_LITTLE), broker.topic("light")

        def work() -> Figures:
            machine.warm_memory(source.folder, int(BESIDE_RATE * heavy_seconds))
            producer = load.start(
                broker,
                "produce",
                topic=heavy,
                connections=workloads.BULK_CONNECTIONS,
                seconds=heavy_seconds,
                rate=BESIDE_RATE,
                **workloads.MEGABYTE_OF_1000,
            )
            time.sleep(BESIDE_LEAD)
            try:
                small = load.run(broker, "latency", topic=light, seconds=seconds)
            finally:
                large = load.finish(producer)
            return {"beside": small.p99_us, "beside rate": large.bytes / large.seconds / MEGABYTE}

        yield Loaded(work, broker)


def fetch(key: str, max_bytes: int, times: int) -> Scenario:
    """Fetch requests of `max_bytes`, `times` times through a log of 1 GB."""

    @contextmanager
    def scenario(source: Source, scale: Scale) -> Iterator[Loaded]:
        amount = scale(GIGABYTE)
        with source.broker() as broker:
            topic = broker.topic("fetch")
            end = workloads.fill(broker, topic, amount)

            def fetches() -> Load:
                return workloads.fetch(broker, topic, end, amount * times, max_bytes)

            yield Loaded(lambda: {key: per_gigabyte(broker, fetches)}, broker)

    return scenario


@contextmanager
def tls_produce(source: Source, scale: Scale) -> Iterator[Loaded]:
    amount = scale(GIGABYTE // 2)
    with tls_broker(source, DELETE_SOON) as (broker, over_tls):

        def work() -> Figures:
            with large_topic(source, broker, amount) as topic:
                batch = workloads.MEGABYTE_OF_1000
                cost = per_gigabyte(broker, lambda: workloads.bulk(over_tls, topic, amount, batch))
            return {"tls-produce": cost}

        yield Loaded(work, broker)


@contextmanager
def tls_fetch(source: Source, scale: Scale) -> Iterator[Loaded]:
    amount = scale(GIGABYTE // 2)
    with tls_broker(source) as (broker, over_tls):
        topic = broker.topic("fetch")
        end = workloads.fill(broker, topic, amount)

        def fetches() -> Load:
            return workloads.fetch(over_tls, topic, end, 2 * amount)

        yield Loaded(lambda: {"tls-fetch": per_gigabyte(broker, fetches)}, broker)


@contextmanager
def logins(source: Source, scale: Scale) -> Iterator[Loaded]:
    count = scale(LOGINS)
    with login_broker(source) as target:

        def per_1_000(work: Callable[[int], Load]) -> float:
            return per_100_000(target.broker, lambda: work(count)) / 100

        def work() -> Figures:
            return {"logins": per_1_000(target.log_in), "handshakes": per_1_000(target.shake_hands)}

        yield Loaded(work, target.broker)


@contextmanager
def acl_produce(source: Source, scale: Scale) -> Iterator[Loaded]:
    requests = scale(100_000)
    with ruled_broker(source, RULES) as (broker, topic):

        def work() -> Figures:
            return {"acl-produce": per_100_000(broker, lambda: workloads.one_record(broker, topic, requests))}

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
def offset_commits(source: Source, scale: Scale) -> Iterator[Loaded]:
    requests = scale(10_000)
    with source.broker() as broker:
        topic = broker.topic("commits", groups.COMMITTED_PARTITIONS)

        def work() -> Figures:
            return {"commits": per_100_000(broker, lambda: groups.commit(broker, topic, requests))}

        yield Loaded(work, broker)


@contextmanager
def reopen(source: Source, scale: Scale) -> Iterator[Loaded]:
    partitions = scale(OPENED_PARTITIONS)
    with source.launcher() as launcher:
        broker, _ = launcher.start({})
        topic = broker.topic("open", partitions)
        Place(broker, topic, partitions, BATCHES_PER_PARTITION).fill()
        launcher.stop()

        def work() -> Figures:
            begun = time.monotonic()
            started, _ = launcher.start({})
            started.await_partitions(topic, partitions)
            seconds = time.monotonic() - begun
            launcher.stop()
            return {"open": seconds}

        yield Loaded(work)


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


@contextmanager
def connections(source: Source, scale: Scale) -> Iterator[Loaded]:
    with source.broker() as broker:

        def work() -> Figures:
            with load.idle_connections(broker, scale(IDLE_CONNECTIONS)):
                time.sleep(IDLE_SECONDS)
                return {"connections": broker.resident_mb()}

        yield Loaded(work, broker)


SCENARIOS: dict[str, Scenario] = {
    "start": start,
    "small": one_record("small", workloads.one_record),
    "idempotent": one_record("idempotent", workloads.idempotent_record),
    "transactional": one_record("transactional", workloads.transactional_record, 50_000),
    "latency": latency,
    "latency-floor": latency_floor,
    "beside": beside,
    "bulk1000": bulk("bulk1000", workloads.MEGABYTE_OF_1000),
    "bulk100": bulk("bulk100", workloads.MEGABYTE_OF_100),
    "fetch": fetch("fetch", workloads.MEBIBYTE, 3),
    "fetch64": fetch("fetch64", workloads.FETCHED_BATCH_BYTES, 1),
    "tls-produce": tls_produce,
    "tls-fetch": tls_fetch,
    "logins": logins,
    "acl-produce": acl_produce,
    "session": session,
    "librdkafka100": librdkafka(100, 4_000_000),
    "librdkafka1000": librdkafka(1_000, 500_000),
    "transactions": commits("transactions", 1),
    "transactions8": commits("transactions8", transactions.MANY),
    "commits": offset_commits,
    "open": reopen,
    "memory": memory,
    "connections": connections,
}
