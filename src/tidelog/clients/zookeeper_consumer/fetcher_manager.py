"""ConsumerFetcherManager: fetches the owned partitions with an AsyncConsumer, for the streams' queues."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Protocol

from tidelog.clients.consumer.consumer import AsyncConsumer
from tidelog.clients.errors import TimeoutException
from tidelog.clients.zookeeper_consumer.streams import PartitionTopicInfo, Record, StreamQueue
from tidelog.errors import KafkaError
from tidelog.metadata.state import BrokerRegistration
from tidelog.partitions import TopicPartition

log = logging.getLogger("tidelog.clients")


class FetcherManager(Protocol):
    """Reads records of partitions into the queues of their streams."""

    async def start_connections(
        self, brokers: Collection[BrokerRegistration], infos: Sequence[PartitionTopicInfo]
    ) -> None:
        """Fetch these partitions from their consumed offsets on, or by auto.offset.reset."""

    async def stop_connections(self) -> None:
        """Fetch nothing any more: no queue gets a record after this call."""

    async def close(self) -> None: ...


class ConsumerFetcherManager:
    """`settings` are settings of AsyncConsumer. The brokers come from the tree."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        self._settings = dict(settings)
        self._consumer: AsyncConsumer[Any, Any] | None = None
        self._servers: frozenset[str] = frozenset()
        self._infos: dict[TopicPartition, PartitionTopicInfo] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start_connections(
        self, brokers: Collection[BrokerRegistration], infos: Sequence[PartitionTopicInfo]
    ) -> None:
        consumer = await self._connected(brokers)
        self._infos = {info.partition: info for info in infos}
        consumer.assign(self._infos)
        for info in infos:
            if info.consumed is not None:
                consumer.seek(info.partition, info.consumed)
        for queue in {info.queue for info in infos}:
            queue.on_room = partial(self._resume, queue)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._fetch(consumer), name="zookeeper consumer fetcher")]
        self._tasks += [
            loop.create_task(self._note_reset(consumer, info)) for info in infos if info.consumed is None
        ]

    async def _connected(self, brokers: Collection[BrokerRegistration]) -> AsyncConsumer[Any, Any]:
        """The consumer that fetches. A new one if none of the brokers that the last one knew is left."""
        servers = self._addresses(brokers)
        if self._consumer is not None and servers & self._servers:
            return self._consumer
        if self._consumer is not None:
            await self._consumer.close()
        self._servers = servers
        self._consumer = AsyncConsumer({"bootstrap.servers": ",".join(sorted(servers)), **self._settings})
        await self._consumer.start()
        return self._consumer

    def _addresses(self, brokers: Collection[BrokerRegistration]) -> frozenset[str]:
        protocol = str(self._settings.get("security.protocol", "PLAINTEXT")).upper()
        endpoints = [
            next((each for each in broker.endpoints if each.security_protocol == protocol), None)
            for broker in brokers
        ]
        found = frozenset(
            f"[{each.host}]:{each.port}" if ":" in each.host else f"{each.host}:{each.port}"
            for each in endpoints
            if each is not None
        )
        if not found:
            raise TimeoutException(f"no broker in ZooKeeper has a listener with {protocol}")
        return found

    async def stop_connections(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._infos = {}
        if self._consumer is not None:
            self._consumer.assign(())

    async def close(self) -> None:
        await self.stop_connections()
        if self._consumer is not None:
            await self._consumer.close()
            self._consumer = None

    # --- fetching

    async def _fetch(self, consumer: AsyncConsumer[Any, Any]) -> None:
        try:
            while True:
                records = await consumer.poll(None)
                for partition, chunk in groupby(records, _partition_of):
                    self._deliver(consumer, self._infos[partition], list(chunk))
        except KafkaError as error:
            log.error("the consumer on ZooKeeper stops fetching: %s", error)
            for queue in {info.queue for info in self._infos.values()}:
                queue.fail(error)

    def _deliver(
        self, consumer: AsyncConsumer[Any, Any], info: PartitionTopicInfo, records: list[Record]
    ) -> None:
        if info.consumed is None:
            info.consumed = records[0].offset
        queue = info.queue
        queue.put(info, records)
        # Before the question: after it the application may empty the queue from its thread, and then wait.
        queue.wants_room = True
        if queue.is_full:
            consumer.pause(*self._partitions(queue))
        else:
            queue.wants_room = False

    def _resume(self, queue: StreamQueue) -> None:
        partitions = self._partitions(queue)
        if self._consumer is not None and partitions:
            self._consumer.resume(*partitions)

    def _partitions(self, queue: StreamQueue) -> list[TopicPartition]:
        return [partition for partition, info in self._infos.items() if info.queue is queue]

    async def _note_reset(self, consumer: AsyncConsumer[Any, Any], info: PartitionTopicInfo) -> None:
        """Note where auto.offset.reset begins, so that the next owner begins there as well."""
        while info.consumed is None:
            try:
                position = await consumer.position(info.partition)
            except TimeoutException:
                continue  # the partition has no leader
            except KafkaError as error:
                log.warning("%s has no position: %s", info.partition, error)
                return
            if info.consumed is None:
                info.consumed = position


def _partition_of(record: Record) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)
