"""One client that produces, as its own process. Prints the records that it sent and its CPU time as JSON.

    python bench/client_load.py CLIENT HOST:PORT TOPIC RECORDS SIZE [--keyed] [--client-config FILE]

All clients have acks=all, batches of 1,000,000 bytes and 5 ms of linger, and otherwise their defaults.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path

from tidelog.config.properties import read_properties

BATCH = 1_000_000
REQUEST = 1_048_576
LINGER = 5
ROWS = 50_000

Run = Callable[["Work"], None]


class Work:
    """The work of a client; `begin` marks the end of the warm-up, `end` the last acknowledgement."""

    def __init__(
        self, bootstrap: str, topic: str, records: int, size: int, keyed: bool, client: dict[str, str]
    ) -> None:
        self.bootstrap = bootstrap
        self.client = client
        self.settings = {name.replace(".", "_"): value for name, value in client.items()}
        self.topic = topic
        self.records = records
        self.value = b"x" * size
        self.keys = [b"key-%d" % number for number in range(1000)] if keyed else None
        self.cpu = self.seconds = 0.0

    def begin(self) -> None:
        self.seconds, self.cpu = time.perf_counter(), time.process_time()

    def end(self) -> None:
        self.seconds, self.cpu = time.perf_counter() - self.seconds, time.process_time() - self.cpu


def tidelog(work: Work) -> None:
    from tidelog.clients.producer.blocking import Producer

    with Producer(
        bootstrap_servers=work.bootstrap, batch_size=BATCH, linger_ms=LINGER, **work.settings
    ) as producer:
        producer.send(work.topic, work.value).result(30)
        send, topic, value, keys = producer.send, work.topic, work.value, work.keys
        work.begin()
        if keys is None:
            for _ in range(work.records):
                send(topic, value)
        else:
            for number in range(work.records):
                send(topic, value, keys[number % 1000])
        producer.flush()
        work.end()
        assert producer.metrics()["record-error-total"] == 0


def tidelog_columns(work: Work) -> None:
    import pyarrow as pa

    from tidelog.clients.producer.blocking import Producer

    columns = {"value": pa.array([work.value] * ROWS, pa.binary())}
    if work.keys is not None:
        columns["key"] = pa.array([work.keys[number % 1000] for number in range(ROWS)], pa.binary())
    table = pa.table(columns)
    with Producer(
        bootstrap_servers=work.bootstrap, batch_size=BATCH, linger_ms=LINGER, **work.settings
    ) as producer:
        producer.send(work.topic, work.value).result(30)
        work.begin()
        for start in range(0, work.records, ROWS):
            producer.send_arrow(table.slice(0, min(ROWS, work.records - start)), work.topic)
        producer.flush()
        work.end()
        assert producer.metrics()["record-error-total"] == 0


def tidelog_async(work: Work) -> None:
    from tidelog.clients.producer.producer import AsyncProducer

    async def run() -> None:
        async with AsyncProducer(
            bootstrap_servers=work.bootstrap, batch_size=BATCH, linger_ms=LINGER, **work.settings
        ) as producer:
            await (await producer.send(work.topic, work.value))
            send, topic, value, keys = producer.send, work.topic, work.value, work.keys
            work.begin()
            for number in range(work.records):
                await send(topic, value, key=None if keys is None else keys[number % 1000])
            await producer.flush()
            work.end()

    asyncio.run(run())


def confluent(work: Work) -> None:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": work.bootstrap,
            "acks": "all",
            "batch.size": BATCH,
            "linger.ms": LINGER,
            "queue.buffering.max.messages": 1_000_000,
            **work.client,
        }
    )
    producer.produce(work.topic, work.value)
    producer.flush()
    produce, topic, value, keys = producer.produce, work.topic, work.value, work.keys
    work.begin()
    for number in range(work.records):
        while True:
            try:
                if keys is None:
                    produce(topic, value)
                else:
                    produce(topic, value, keys[number % 1000])
                break
            except BufferError:
                producer.poll(0.01)
    producer.flush()
    work.end()


def kafka_python(work: Work) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=work.bootstrap, acks="all", batch_size=BATCH, linger_ms=LINGER)
    producer.send(work.topic, work.value).get(30)
    send, topic, value, keys = producer.send, work.topic, work.value, work.keys
    work.begin()
    for number in range(work.records):
        send(topic, value, None if keys is None else keys[number % 1000])
    producer.flush()
    work.end()
    producer.close()


def aiokafka(work: Work) -> None:
    from aiokafka import AIOKafkaProducer

    async def run() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=work.bootstrap, acks="all", max_batch_size=BATCH, linger_ms=LINGER
        )
        await producer.start()
        await producer.send_and_wait(work.topic, work.value)
        send, topic, value, keys = producer.send, work.topic, work.value, work.keys
        work.begin()
        for number in range(work.records):
            await send(topic, value, None if keys is None else keys[number % 1000])
        await producer.flush()
        work.end()
        await producer.stop()

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
    parser.add_argument("records", type=int)
    parser.add_argument("size", type=int)
    parser.add_argument("--keyed", action="store_true")
    parser.add_argument(
        "--client-config", type=Path, help="a properties file, for example with security settings"
    )
    options = parser.parse_args()
    if options.client_config is not None and options.client in ("kafka-python", "aiokafka"):
        parser.error(f"{options.client} has other names of settings than Kafka")
    client = {} if options.client_config is None else read_properties(options.client_config)
    work = Work(options.bootstrap, options.topic, options.records, options.size, options.keyed, client)
    CLIENTS[options.client](work)
    print(json.dumps({"records": work.records, "cpu": work.cpu, "seconds": work.seconds}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
