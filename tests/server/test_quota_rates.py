"""The rate that clients with a quota reach, and the clients without one beside them.

The short form has a few seconds and few clients, the long form 30 seconds and 20 clients. The same rates
under a simulated clock are in test_simulated_quota_rates, the quota of time is in test_request_time_quota.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from tests.server.quota_broker import TOPIC, QuotaBroker, fetch, fetched_bytes, produce, quota_broker
from tests.support.raw import RawConnection
from tests.support.scale import scale
from tidelog import Consumer, OffsetSpec, Producer, TopicPartition
from tidelog.clients.admin.users import QuotaEntity

APP: QuotaEntity = (("client-id", "app"),)
# Small, so that a slow machine has time for them.
VALUE = 500
RECORD = VALUE + 100  # with the other fields of its batch and request, about
CLIENTS = scale(3, 20)
FETCHED = 12_000
BATCH = VALUE + 70  # of one record, exactly
ANSWER = 80  # an answer to a fetch without its batches, about
WARM_UP_SECONDS = 2.0
SECONDS = scale(8, 30)
# A measured interval may have a part of the burst of one window more or less.
WITHIN = scale(20, 10) / 100


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[QuotaBroker]:
    with quota_broker(monkeypatch) as made:
        yield made


def is_quiet(broker: QuotaBroker) -> bool:
    """Whether the machine has time for clients: a request takes a few milliseconds."""
    other = broker.connect(client_id="probe")
    began = time.monotonic()
    for _ in range(20):
        produce(other, 10)
    return time.monotonic() - began < 0.2


def check_rate(rate: float, limit: float, quiet: bool) -> None:
    """A rate is never above its limit, and reaches it unless the machine is too slow for that."""
    assert rate <= limit * (1 + WITHIN)
    assert rate >= limit * (1 - WITHIN) or not quiet


class Loads:
    """Threads that work until the end of a test."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self._threads: list[threading.Thread] = []

    def produce(self, connection: RawConnection, counts: list[int], index: int) -> None:
        def run() -> None:
            while not self.ended.is_set():
                produce(connection, VALUE)
                counts[index] += 1

        self._start(run)

    def fetch(self, connection: RawConnection, counts: list[int], index: int) -> None:
        """Fetch the same records again and again."""

        def run() -> None:
            while not self.ended.is_set():
                counts[index] += fetched_bytes(fetch(connection, max_bytes=FETCHED))

        self._start(run)

    def send(self, bootstrap: str) -> None:
        """A producer of ours, as fast as it may."""

        def run() -> None:
            settings = {"client.id": "app", "batch.size": RECORD, "buffer.memory": 60_000}
            with Producer(settings, bootstrap_servers=bootstrap) as producer:
                while not self.ended.is_set():
                    producer.send(TOPIC, b"v" * VALUE)

        self._start(run)

    def _start(self, run: object) -> None:
        thread = threading.Thread(target=run, daemon=True)  # type: ignore[arg-type]
        thread.start()
        self._threads.append(thread)

    def end(self) -> None:
        self.ended.set()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()


@pytest.fixture
def loads() -> Iterator[Loads]:
    made = Loads()
    yield made
    made.end()


def records_of(broker: QuotaBroker) -> int:
    partition = TopicPartition(TOPIC, 0)
    return broker.admin.list_offsets({partition: OffsetSpec.LATEST})[partition].offset


def bytes_a_second(broker: QuotaBroker) -> float:
    """What all producers together write, once the quota of the first windows is used up.

    A rate needs real time: these sleeps are the measurement.
    """
    time.sleep(WARM_UP_SECONDS)
    first, began = records_of(broker), time.monotonic()
    time.sleep(SECONDS)
    last, ended = records_of(broker), time.monotonic()
    return (last - first) * RECORD / (ended - began)


def test_a_producer_reaches_its_quota_and_not_more(broker: QuotaBroker, loads: Loads) -> None:
    limit = 20_000.0
    broker.set_quota(APP, producer_byte_rate=limit)
    quiet = is_quiet(broker)
    loads.send(broker.bootstrap)
    rate = bytes_a_second(broker)
    assert ("kafka_server_produce_throttle_time", "", "app") in broker.metrics()
    check_rate(rate, limit, quiet and is_quiet(broker))


def test_many_producers_share_a_quota_and_others_are_not_slowed(broker: QuotaBroker, loads: Loads) -> None:
    limit = float(scale(30_000, 200_000))
    broker.set_quota(APP, producer_byte_rate=limit)
    quiet = is_quiet(broker)
    counts = [0] * CLIENTS
    for index in range(CLIENTS):
        loads.produce(broker.connect(), counts, index)
    other, others = broker.connect(client_id="other"), 0
    slowest, began = 0.0, time.monotonic()
    while time.monotonic() - began < WARM_UP_SECONDS + SECONDS:
        if not others and time.monotonic() - began > WARM_UP_SECONDS:
            counted_from, counted_at = sum(counts), time.monotonic()
        if time.monotonic() - began > WARM_UP_SECONDS:
            asked = time.monotonic()
            assert produce(other, 10) == 0
            slowest = max(slowest, time.monotonic() - asked)
            others += 1
        time.sleep(0.02)
    rate = (sum(counts) - counted_from) * RECORD / (time.monotonic() - counted_at)
    check_rate(rate, limit, quiet and is_quiet(broker))
    assert slowest < 2.0 or not quiet


def test_a_consumer_reaches_its_quota_and_not_more(broker: QuotaBroker) -> None:
    """A fetch over the quota gets nothing, as in Kafka: fetches are small beside the quota."""
    limit = 40_000.0
    # Small batches: a fetch that ends within a batch has bytes that count and that the consumer cannot use.
    with Producer({"batch.size": RECORD}, bootstrap_servers=broker.bootstrap) as producer:
        for _ in range(int(limit * (WARM_UP_SECONDS + SECONDS + 3) / VALUE)):
            producer.send(TOPIC, b"v" * VALUE)
    quiet = is_quiet(broker)
    broker.set_quota(APP, consumer_byte_rate=limit)
    most = 5 * BATCH
    settings = {"client.id": "app", "max.partition.fetch.bytes": most, "fetch.max.bytes": most}
    with Consumer(settings, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(TOPIC, 0)])
        began = time.monotonic()
        while time.monotonic() - began < WARM_UP_SECONDS:
            consumer.poll(0.1)
        got, counted_at = 0, time.monotonic()
        while time.monotonic() - counted_at < SECONDS:
            got += len(consumer.poll(0.1))
        rate = got * (BATCH + ANSWER / 5) / (time.monotonic() - counted_at)
    check_rate(rate, limit, quiet and is_quiet(broker))


@pytest.mark.long
def test_many_consumers_share_a_quota_and_others_are_not_slowed(broker: QuotaBroker, loads: Loads) -> None:
    limit = 200_000.0
    filler = broker.connect(client_id="filler")
    for _ in range(FETCHED // RECORD + 1):
        produce(filler, VALUE)
    broker.set_quota(APP, consumer_byte_rate=limit)
    quiet = is_quiet(broker)
    counts = [0] * CLIENTS
    for index in range(CLIENTS):
        loads.fetch(broker.connect(), counts, index)
    other = broker.connect(client_id="other")
    time.sleep(WARM_UP_SECONDS)
    counted_from, counted_at, slowest = sum(counts), time.monotonic(), 0.0
    while time.monotonic() - counted_at < SECONDS:
        asked = time.monotonic()
        assert fetch(other, max_bytes=1000).throttle_time_ms == 0
        slowest = max(slowest, time.monotonic() - asked)
        time.sleep(0.02)
    rate = (sum(counts) - counted_from) / (time.monotonic() - counted_at)
    check_rate(rate, limit, quiet and is_quiet(broker))
    assert slowest < 2.0 or not quiet
