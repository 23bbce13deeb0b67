"""The loads of several benchmarks, each with one set of options."""

from __future__ import annotations

from collections.abc import Mapping

import load
from broker import Broker
from load import Load
from suite import CONNECTIONS

BULK_CONNECTIONS = 4
# Batches of close to 1 MB, below the default max.message.bytes.
MEGABYTE_OF_1000 = {"records": 990, "record_size": 1000}
MEGABYTE_OF_100 = {"records": 9_000, "record_size": 100}
FETCHED_BATCH = {"records": 64, "record_size": 1000}
FETCHED_BATCH_BYTES = 64 << 10  # room for one such batch, not for two
MEBIBYTE = 1 << 20
ALL_REPLICAS = -1
# A topic for a fast producer over a long time: it keeps 512 MB, and the broker often checks retention.
KEEP_LITTLE = {
    "retention_bytes": str(512 << 20),
    "segment_bytes": str(128 << 20),
    "file_delete_delay_ms": "100",
}
RETAIN_OFTEN = {"log.retention.check.interval.ms": "1000"}


def one_record(broker: Broker, topic: str, requests: int, **options: object) -> Load:
    """Produce requests of one record with acks=1, a closed loop on 16 connections."""
    return load.run(broker, "produce", topic=topic, connections=CONNECTIONS, requests=requests, **options)


def idempotent_record(broker: Broker, topic: str, requests: int) -> Load:
    """One-record requests of a client with default settings: acks=all, a producer id for each connection."""
    return one_record(broker, topic, requests, idempotent=True, acks=ALL_REPLICAS)


def transactional_record(broker: Broker, topic: str, requests: int) -> Load:
    """One-record requests in transactions: each connection commits all its requests in one."""
    return one_record(broker, topic, requests, transactional=True, acks=ALL_REPLICAS)


def one_connection(broker: Broker, topic: str, requests: int) -> Load:
    """Produce requests of one record, one after the other on one connection."""
    return load.run(broker, "latency", topic=topic, requests=requests, warmup=500)


def bulk(broker: Broker, topic: str, amount: int, batch: Mapping[str, int]) -> Load:
    """Produce requests of one batch each on 4 connections."""
    return load.run(broker, "produce", topic=topic, connections=BULK_CONNECTIONS, bytes=amount, **batch)


def fill(broker: Broker, topic: str, amount: int) -> int:
    """Write the log that `fetch` reads, in batches of 64 KB; returns the log end offset."""
    written = load.run(broker, "produce", topic=topic, bytes=amount, **FETCHED_BATCH)
    return written.requests * FETCHED_BATCH["records"]


def fetch(broker: Broker, topic: str, end: int, amount: int, max_bytes: int = MEBIBYTE) -> Load:
    """Fetch requests in order through the log, again from its start after its end."""
    return load.run(broker, "fetch", topic=topic, to=end, bytes=amount, max_bytes=max_bytes)


def session(broker: Broker, topic: str, partitions: int, batches: int, seconds: float) -> Load:
    """Fetch requests in one incremental session: each returns one batch of partition 0, the others are idle.

    Partition 0 has `batches` batches of one record, the others have one each; see `fill_session`.
    """
    with broker.client() as client:
        topic_id = client.topic_id(topic).hex()
    return load.run(
        broker,
        "session",
        topic=topic,
        topic_id=topic_id,
        partitions=partitions,
        idle_at=1,
        to=batches,
        max_bytes=1,
        seconds=seconds,
    )


def fill_session(broker: Broker, topic: str, partitions: int, batches: int) -> None:
    """Write one record to every partition, and `batches` batches of one record to partition 0."""
    load.run(broker, "produce", topic=topic, partitions=partitions, requests=partitions)
    load.run(broker, "produce", topic=topic, requests=batches - 1)
