"""One client that consumes, as its own process. Prints the records that it read and its CPU time as JSON.

    python bench/consume_load.py CLIENT HOST:PORT TOPIC PARTITIONS RECORDS [--client-config FILE]

All clients assign the partitions by hand, read them from the start, at most 500 records at a time, and access
the value of each record. Otherwise they have their defaults. Columns are read as they arrive.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path

from tidelog.config.properties import read_properties

AT_A_TIME = 500
WAIT_SECONDS = 5.0

Run = Callable[["Work"], None]


class Work:
    """The topic and number of records to read; `begin` marks the end of the warm-up."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, records: int, client: dict[str, str]
    ) -> None:
        self.bootstrap = bootstrap
        self.client = client
        self.settings = {name.replace(".", "_"): value for name, value in client.items()}
        self.topic = topic
        self.partitions = [(topic, partition) for partition in range(partitions)]
        self.records = records
        self.read = 0
        self.cpu = self.seconds = 0.0

    def begin(self, already: int) -> None:
        """Start the clock; `already` records were read before."""
        self.read = -already
        self.seconds, self.cpu = time.perf_counter(), time.process_time()

    def end(self, read: int) -> None:
        self.read += read
        self.seconds, self.cpu = time.perf_counter() - self.seconds, time.process_time() - self.cpu


def tidelog(work: Work) -> None:
    from tidelog.clients.consumer.blocking import Consumer

    with Consumer(
        bootstrap_servers=work.bootstrap,
        auto_offset_reset="earliest",
        max_poll_records=AT_A_TIME,
        **work.settings,
    ) as consumer:
        consumer.assign(work.partitions)
        count = len(consumer.poll(WAIT_SECONDS))
        work.begin(count)
        while count < work.records:
            for record in consumer.poll(WAIT_SECONDS):
                record.value  # noqa: B018  # makes the object
                count += 1
        work.end(count)


def tidelog_columns(work: Work) -> None:
    from tidelog.clients.consumer.blocking import Consumer

    with Consumer(
        bootstrap_servers=work.bootstrap, auto_offset_reset="earliest", **work.settings
    ) as consumer:
        consumer.assign(work.partitions)
        count = consumer.poll_arrow(WAIT_SECONDS, max_records=1).num_rows
        work.begin(count)
        while count < work.records:
            count += consumer.poll_arrow(WAIT_SECONDS).num_rows
        work.end(count)


def tidelog_async(work: Work) -> None:
    from tidelog.clients.consumer.consumer import AsyncConsumer

    async def run() -> None:
        async with AsyncConsumer(
            bootstrap_servers=work.bootstrap,
            auto_offset_reset="earliest",
            max_poll_records=AT_A_TIME,
            **work.settings,
        ) as consumer:
            consumer.assign(work.partitions)
            count = len(await consumer.poll(WAIT_SECONDS))
            work.begin(count)
            while count < work.records:
                for record in await consumer.poll(WAIT_SECONDS):
                    record.value  # noqa: B018
                    count += 1
            work.end(count)

    asyncio.run(run())


def confluent(work: Work) -> None:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": work.bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            **work.client,
        }
    )
    consumer.assign([TopicPartition(*partition, OFFSET_BEGINNING) for partition in work.partitions])
    count = len(consumer.consume(1, WAIT_SECONDS))
    work.begin(count)
    while count < work.records:
        for message in consumer.consume(AT_A_TIME, WAIT_SECONDS):
            message.value()
            count += 1
    work.end(count)
    consumer.close()


def kafka_python(work: Work) -> None:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=work.bootstrap, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(*partition) for partition in work.partitions])
    consumer.seek_to_beginning()
    count = sum(len(found) for found in consumer.poll(1000 * WAIT_SECONDS, max_records=1).values())
    work.begin(count)
    while count < work.records:
        for found in consumer.poll(1000 * WAIT_SECONDS, max_records=AT_A_TIME).values():
            for record in found:
                record.value  # noqa: B018
                count += 1
    work.end(count)
    consumer.close()


def aiokafka(work: Work) -> None:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def run() -> None:
        consumer = AIOKafkaConsumer(bootstrap_servers=work.bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        consumer.assign([TopicPartition(*partition) for partition in work.partitions])
        await consumer.seek_to_beginning()
        first = await consumer.getmany(timeout_ms=round(1000 * WAIT_SECONDS), max_records=1)
        count = sum(len(found) for found in first.values())
        work.begin(count)
        while count < work.records:
            polled = await consumer.getmany(timeout_ms=round(1000 * WAIT_SECONDS), max_records=AT_A_TIME)
            for found in polled.values():
                for record in found:
                    record.value  # noqa: B018
                    count += 1
        work.end(count)
        await consumer.stop()

    asyncio.run(run())


CLIENTS: dict[str, Run] = {
    "tidelog": tidelog,
    "tidelog-columns": tidelog_columns,
    "tidelog-async": tidelog_async,
    "confluent-kafka": confluent,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("client", choices=list(CLIENTS))
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("partitions", type=int)
    parser.add_argument("records", type=int)
    parser.add_argument(
        "--client-config", type=Path, help="a properties file, for example with security settings"
    )
    options = parser.parse_args()
    if options.client_config is not None and options.client in ("kafka-python", "aiokafka"):
        parser.error(f"{options.client} has other names of settings than Kafka")
    client = {} if options.client_config is None else read_properties(options.client_config)
    work = Work(options.bootstrap, options.topic, options.partitions, options.records, client)
    CLIENTS[options.client](work)
    print(json.dumps({"records": work.read, "cpu": work.cpu, "seconds": work.seconds}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
