"""A producer, a consumer and an admin in short words, for tests whose subject is Spark."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tests.support.topics import PatientAdmin
from tidelog import Consumer, NewTopic, Producer
from tidelog.clients.admin import OffsetSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, SparkSession
    from pyspark.sql.streaming import DataStreamReader

_numbers = itertools.count()


class Hands:
    """Works on one cluster, ours or Apache Kafka's."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = PatientAdmin(bootstrap_servers=bootstrap)
        self._producer = Producer(bootstrap_servers=bootstrap, linger_ms=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._producer.close()
        self.admin.close()

    def topic(
        self, partitions: int = 1, configs: Mapping[str, str] | None = None, name: str | None = None
    ) -> str:
        """A fresh topic, whose name no other test has."""
        name = name or f"topic-{next(_numbers)}"
        self.admin.create_topics([NewTopic(name, num_partitions=partitions, configs=dict(configs or {}))])
        return name

    def produce(
        self, topic: str, values: Iterable[object], partition: int = 0, timestamp_ms: int | None = None
    ) -> None:
        """Values as texts, in their order; they are there when it returns."""
        futures = [
            self._producer.send(topic, str(value).encode(), partition=partition, timestamp_ms=timestamp_ms)
            for value in values
        ]
        self._producer.flush()
        for future in futures:
            future.result(30)

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int | None = None,
        headers: list[tuple[str, bytes]] | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        self._producer.send(
            topic, value, key=key, partition=partition, headers=headers or [], timestamp_ms=timestamp_ms
        ).result(30)

    def ends(self, topic: str, partitions: int = 1) -> list[int]:
        found = self.admin.list_offsets({(topic, index): OffsetSpec.LATEST for index in range(partitions)})
        return [found[topic, index].offset for index in range(partitions)]

    def values(
        self, topic: str, *, isolation_level: str = "read_committed", seconds: float = 20
    ) -> list[str]:
        """Every value of a topic, as texts, sorted."""
        return sorted(self.log(topic, isolation_level=isolation_level, seconds=seconds))

    def log(self, topic: str, *, isolation_level: str = "read_committed", seconds: float = 20) -> list[str]:
        """Every value of a topic, as texts; those of a partition in the order of their offsets."""
        partitions = self.admin.describe_topics([topic])[topic].partitions
        keys = [(topic, each.partition) for each in partitions]
        found: list[str] = []
        with Consumer(bootstrap_servers=self.bootstrap, isolation_level=isolation_level) as consumer:
            consumer.assign(keys)
            consumer.seek_to_beginning(*keys)
            ends = self.admin.list_offsets(
                dict.fromkeys(keys, OffsetSpec.LATEST), isolation_level=isolation_level
            )
            while any(consumer.position(key) < ends[key].offset for key in keys):
                found += [(record.value or b"").decode() for record in consumer.poll(timeout=seconds)]
        return found

    def read(self, spark: SparkSession, **options: object) -> DataFrameReader:
        reader = spark.read.format("tidelog").option("kafka.bootstrap.servers", self.bootstrap)
        return reader.options(**{name: str(value) for name, value in options.items()})

    def read_stream(self, spark: SparkSession, **options: object) -> DataStreamReader:
        reader = spark.readStream.format("tidelog").option("kafka.bootstrap.servers", self.bootstrap)
        return reader.options(**{name: str(value) for name, value in options.items()})
