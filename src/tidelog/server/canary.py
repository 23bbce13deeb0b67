"""Canary: measures latencies and failures like a client, with records that it writes, reads and commits.

It connects to a listener of the broker like any client, through the loop that serves all clients. Its records
go to a partition that this broker leads, so each broker of a cluster measures itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from time import perf_counter
from typing import Final

from tidelog.clients.consumer.consumer import AsyncConsumer
from tidelog.clients.producer.producer import AsyncProducer
from tidelog.controller.interface import NewTopic
from tidelog.errors import KafkaError
from tidelog.metrics.latency import Latency
from tidelog.metrics.registry import Family, HistogramFamily
from tidelog.server.services import Services

log = logging.getLogger("tidelog.server.canary")

ROUND_SECONDS: Final = 10.0
"""A record that is not read within this time counts as lost."""

RETENTION: Final = (("cleanup.policy", "delete"), ("retention.ms", "3600000"), ("segment.ms", "600000"))
PREFIX: Final = "tidelog_end_to_end_"


class Canary:
    """`run` makes rounds until it is cancelled. `families` shows their latencies and failures."""

    def __init__(self, services: Services, bootstrap: str, topic: str, interval_seconds: float) -> None:
        self._services = services
        self._bootstrap = bootstrap
        self._topic = topic
        self._interval = interval_seconds
        self.produce = Latency(
            PREFIX + "produce_latency_seconds", "From the send of the canary's record to its acknowledgement."
        )
        self.roundtrip = Latency(
            PREFIX + "roundtrip_latency_seconds", "From the send of the canary's record to its arrival."
        )
        self.commit = Latency(
            PREFIX + "offset_commit_latency_seconds", "From the commit of the canary's offset to its answer."
        )
        self.produced = self.received = self.lost = self.failures = 0
        self._is_up = False

    def families(self) -> Iterator[Family | HistogramFamily]:
        for latency in (self.produce, self.roundtrip, self.commit):
            yield latency.family()
        for name, value, text in (
            ("messages_produced_total", self.produced, "Records that the canary has written."),
            ("messages_received_total", self.received, "Records that the canary has read."),
            ("messages_lost_total", self.lost, "Records that the canary wrote and did not read in time."),
            ("failures_total", self.failures, "Rounds of the canary that failed."),
        ):
            yield Family(PREFIX + name, "counter", [((), value)], text)
        yield Family(PREFIX + "up", "gauge", [((), int(self._is_up))], "1 if the last round succeeded.")

    async def run(self) -> None:
        while True:
            try:
                await self._rounds()
            except (KafkaError, TimeoutError, OSError) as error:
                self._is_up = False
                self.failures += 1
                log.warning("the canary failed: %s", str(error) or type(error).__name__)
            except Exception:
                self._is_up = False
                self.failures += 1
                log.exception("the canary failed")
            await asyncio.sleep(self._interval)

    async def _rounds(self) -> None:
        """Rounds with the same clients, until one fails."""
        partition = await self._own_partition()
        where = {"bootstrap.servers": self._bootstrap, "client.id": "tidelog-canary"}
        group = f"tidelog-canary-{self._services.broker_id}"
        limits = {"request.timeout.ms": "5000", "delivery.timeout.ms": "10000"}
        producer = AsyncProducer[bytes, bytes]({**where, **limits, "acks": "all"})
        consumer = AsyncConsumer[bytes, bytes](
            {**where, "group.id": group, "enable.auto.commit": "false", "fetch.max.wait.ms": "5000"}
        )
        async with producer, consumer:
            consumer.assign([(self._topic, partition)])
            consumer.seek_to_end()
            async with asyncio.timeout(ROUND_SECONDS):
                await consumer.position((self._topic, partition))
            while True:
                async with asyncio.timeout(ROUND_SECONDS):
                    await self._round(producer, consumer, partition)
                self._is_up = True
                await asyncio.sleep(self._interval)

    async def _round(
        self, producer: AsyncProducer[bytes, bytes], consumer: AsyncConsumer[bytes, bytes], partition: int
    ) -> None:
        began = perf_counter()
        written = await producer.send_and_wait(self._topic, b"canary", partition=partition)
        self.produced += 1
        self.produce.record(perf_counter() - began)
        try:
            while not any(record.offset == written.offset for record in await consumer.poll(ROUND_SECONDS)):
                pass
        except (TimeoutError, asyncio.CancelledError):
            self.lost += 1
            raise
        read = perf_counter()
        self.received += 1
        self.roundtrip.record(read - began)
        await consumer.commit({(self._topic, partition): written.offset + 1})
        self.commit.record(perf_counter() - read)

    async def _own_partition(self) -> int:
        """A partition of the topic that this broker leads. Creates the topic, if it is missing."""
        partitions = max(len(self._services.metadata.snapshot.brokers), 1)
        await self._services.internal_topics.ensure(
            NewTopic(self._topic, num_partitions=partitions, configs=RETENTION)
        )
        async with asyncio.timeout(ROUND_SECONDS):
            while (index := self._led_partition()) is None:
                await asyncio.sleep(0.1)
        return index

    def _led_partition(self) -> int | None:
        hosted = self._services.replicas.topics.get(self._topic)
        partitions = {} if hosted is None else hosted.partitions
        return next((index for index, partition in partitions.items() if partition.is_leader), None)
