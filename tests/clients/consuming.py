"""Topics with something in them, and reading until so much is there."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.support.wait import eventually
from tidelog import Admin, NewTopic
from tidelog.clients.consumer.blocking import Consumer
from tidelog.clients.producer.blocking import Producer
from tidelog.errors import UnknownTopicOrPartition
from tidelog.records.loops import ConsumerRecord

LIMIT = 30.0


def make_topic(bootstrap: str, name: str, partitions: int = 1) -> str:
    """A topic that is there when this returns, which Kafka does not promise."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(name, num_partitions=partitions)])

        def led() -> bool:
            try:
                return all(p.leader is not None for p in admin.describe_topics([name])[name].partitions)
            except UnknownTopicOrPartition:
                return False

        eventually(led, f"topic {name} is there", LIMIT, 0.02)
    return name


def fill(bootstrap: str, topic: str, count: int, partition: int = 0, **settings: object) -> list[bytes]:
    """Values that were written to a partition, one after the other."""
    values = [b"%s-%d-%d" % (topic.encode(), partition, number) for number in range(count)]
    with Producer(bootstrap_servers=bootstrap, **settings) as producer:
        for number, value in enumerate(values):
            producer.send(topic, value, partition=partition, timestamp_ms=1000 + number)
    return values


def read(consumer: Consumer, count: int, limit: float = LIMIT) -> list[ConsumerRecord]:
    """So many records, in the order in which they come."""
    found: list[ConsumerRecord] = []
    until = time.monotonic() + limit
    while len(found) < count:
        found += consumer.poll(0.2)
        assert time.monotonic() < until, f"{len(found)} of {count} records came in {limit} s"
    return found


def poll_until(
    consumer: Consumer, condition: Callable[[], bool], what: str, limit: float = LIMIT
) -> list[ConsumerRecord]:
    """Poll until a condition holds; what came meanwhile."""
    found: list[ConsumerRecord] = []
    until = time.monotonic() + limit
    while not condition():
        found += consumer.poll(0.05)
        assert time.monotonic() < until, f"{what}: not within {limit} s"
    return found
