"""Writes and reads the records of a test's broker, in one call each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

from tidelog import Consumer, ConsumerRecord, Producer, RecordMetadata, TimeoutException, TopicPartition

SECONDS = 30.0
CLIENT_ID = "tidelog-testing"


def produce(
    bootstrap_servers: str,
    topic: str,
    values: Sequence[bytes | str | None],
    key: bytes | str | None,
    headers: Sequence[tuple[str, bytes | None]],
    partition: int | None,
    timestamp_ms: int | None,
) -> list[RecordMetadata]:
    """Write a record for each value, and return when all are written."""
    with Producer(
        bootstrap_servers=bootstrap_servers,
        client_id=CLIENT_ID,
        linger_ms=0,
        max_block_ms=int(SECONDS * 1000),
    ) as producer:
        futures = [producer.send(topic, value, key, headers, partition, timestamp_ms) for value in values]
        return [future.result(SECONDS) for future in futures]


def records(
    bootstrap_servers: str,
    topic: str,
    partition: int | None,
    isolation_level: Literal["read_committed", "read_uncommitted"],
) -> list[ConsumerRecord]:
    """Every record of a topic, by partition and offset."""
    with Consumer(
        bootstrap_servers=bootstrap_servers,
        client_id=CLIENT_ID,
        isolation_level=isolation_level,
        allow_auto_create_topics=False,
        fetch_max_wait_ms=20,
    ) as consumer:
        numbers = [info.partition for info in consumer.partitions_for(topic, SECONDS)]
        names = [TopicPartition(topic, number) for number in numbers if partition in (None, number)]
        if not names:
            raise ValueError(f"topic {topic!r} has no partition {partition}: it has {len(numbers)}")
        return _read_to_the_end(consumer, names)


def _read_to_the_end(consumer: Consumer, names: Sequence[TopicPartition]) -> list[ConsumerRecord]:
    consumer.assign(names)
    consumer.seek_to_beginning()
    ends = consumer.end_offsets(names, SECONDS)
    deadline = time.monotonic() + SECONDS
    found: list[ConsumerRecord] = []
    while behind := [name for name in names if consumer.position(name, SECONDS) < ends[name]]:
        if time.monotonic() > deadline:
            raise TimeoutException(
                f"{behind[0]} was not read up to offset {ends[behind[0]]} in {SECONDS:.0f} s"
            )
        found += consumer.poll(0.1, max_records=10_000)
    return sorted(found, key=lambda record: (record.partition, record.offset))
