"""Transactions of librdkafka: small ones, alone and in parallel, and large ones at full speed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker import Broker
from machine import MEGABYTE
from report import Figure
from suite import Bench, Skipped
from targets import figure

if TYPE_CHECKING:
    from confluent_kafka import Producer

PARTITIONS = 3
MANY = 8
SMALL_SECONDS = 5.0
BULK_BYTES = 400 * MEGABYTE
BULK_TRANSACTION = 20 * MEGABYTE
RECORD = bytes(1000)
TIMEOUT = 30.0


def transactions(bench: Bench) -> list[Figure]:
    """Commits per second of one record in each of three partitions, and the cost for a bulk producer."""
    with bench.source.broker() as broker:
        topic = broker.topic("transactions", PARTITIONS)
        seconds = SMALL_SECONDS / (10 if bench.quick else 1)
        one = [commits_per_second(broker, topic, f"one-{turn}", 1, seconds) for turn in range(bench.rounds)]
        many = [
            commits_per_second(broker, topic, f"many-{turn}", MANY, seconds) for turn in range(bench.rounds)
        ]
        ratios, note = _bulk(bench, broker)
    return [
        figure("transactions", one),
        figure("transactions of 8", many),
        figure("transactions bulk", ratios, note),
    ]


def _producer(broker: Broker, **settings: object) -> Producer:
    try:
        from confluent_kafka import Producer
    except ImportError:
        raise Skipped("confluent-kafka is not installed") from None
    return Producer({"bootstrap.servers": f"{broker.host}:{broker.port}", "linger.ms": 0, **settings})


def commits_per_second(broker: Broker, topic: str, name: str, count: int, seconds: float) -> float:
    """Transactions per second of `count` producers."""
    producers = []
    for number in range(count):
        producer = _producer(broker, **{"transactional.id": f"{name}-{number}"})
        producer.init_transactions(TIMEOUT)
        producers.append(producer)
    done = [0] * count
    until = time.monotonic() + seconds

    def work(slot: int) -> None:
        producer = producers[slot]
        while time.monotonic() < until:
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.produce(topic, b"small", partition=partition)
            producer.commit_transaction(TIMEOUT)
            done[slot] += 1

    _side_by_side(work, count)
    return sum(done) / seconds


def _side_by_side(work: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=work, args=(slot,)) for slot in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _bulk(bench: Bench, broker: Broker) -> tuple[list[float], str]:
    """The speed of transactions of 20 MB relative to the same bytes of an idempotent producer."""
    amount = bench.scaled(BULK_BYTES)
    ratios: list[float] = []
    rates: list[float] = []
    for turn in range(bench.rounds):
        plain = _fill(broker, broker.topic(f"plain{turn}"), amount, "")
        inside = _fill(broker, broker.topic(f"inside{turn}"), amount, f"bulk-{turn}")
        ratios.append(inside / plain * 100)
        rates.append(inside)
    return ratios, f"{max(rates) / MEGABYTE:,.0f} MB/s in transactions"


def _fill(broker: Broker, topic: str, amount: int, transactional_id: str) -> float:
    """Bytes per second of one producer."""
    settings: dict[str, object] = {"enable.idempotence": True, "linger.ms": 5}
    settings["queue.buffering.max.kbytes"] = 256 * 1024
    if transactional_id:
        settings["transactional.id"] = transactional_id
    producer = _producer(broker, **settings)
    if transactional_id:
        producer.init_transactions(TIMEOUT)
    left, in_transaction = amount, 0
    began = time.monotonic()
    while left > 0:
        if transactional_id and not in_transaction:
            producer.begin_transaction()
        try:
            producer.produce(topic, RECORD, partition=0)
        except BufferError:
            producer.poll(0.01)
            continue
        left -= len(RECORD)
        in_transaction += len(RECORD)
        if transactional_id and (in_transaction >= BULK_TRANSACTION or left <= 0):
            producer.commit_transaction(TIMEOUT)
            in_transaction = 0
    producer.flush(TIMEOUT)
    return amount / (time.monotonic() - began)
