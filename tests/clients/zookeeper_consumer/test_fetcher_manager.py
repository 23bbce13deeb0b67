"""The fetcher stops while a stream is full, and goes on when the application has taken records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

import pytest

from tests.clients.zookeeper_consumer.group_world import record
from tidelog.clients.zookeeper_consumer import fetcher_manager
from tidelog.clients.zookeeper_consumer.fetcher_manager import ConsumerFetcherManager
from tidelog.clients.zookeeper_consumer.streams import PartitionTopicInfo, Record, StreamQueue
from tidelog.endpoints import Endpoint
from tidelog.metadata.state import BrokerRegistration
from tidelog.partitions import TopicPartition

CLICKS = TopicPartition("clicks", 0)
BROKER = BrokerRegistration(1, [Endpoint("PLAINTEXT", "PLAINTEXT", "here", 9092)])


class FakeConsumer:
    """Returns one record, and knows which partitions are paused."""

    paused: set[TopicPartition]

    def __init__(self, _settings: Mapping[str, object]) -> None:
        FakeConsumer.paused = set()
        self._records = [record("clicks", 0, 7)]
        self._no_more = asyncio.Event()

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def assign(self, _partitions: Iterable[TopicPartition]) -> None: ...

    def seek(self, _partition: TopicPartition, _offset: int) -> None: ...

    async def poll(self, _timeout: float | None) -> list[Record]:
        if not self._records:
            await self._no_more.wait()
        records, self._records = self._records, []
        return records

    def pause(self, *partitions: TopicPartition) -> None:
        self.paused.update(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self.paused.difference_update(partitions)


class EmptiedQueue(StreamQueue):
    """The thread of the application takes all records right after the question whether the queue is full."""

    is_emptied = False

    @property
    def is_full(self) -> bool:
        is_full = super().is_full
        if is_full and not self.is_emptied:
            self.is_emptied = True
            while self.take() is not None:
                pass
        return is_full


@pytest.mark.parametrize("kind", [StreamQueue, EmptiedQueue])
def test_a_partition_is_fetched_again_whenever_its_records_are_taken(
    monkeypatch: pytest.MonkeyPatch, kind: type[StreamQueue]
) -> None:
    monkeypatch.setattr(fetcher_manager, "AsyncConsumer", FakeConsumer)

    async def story() -> None:
        queue = kind(1)
        calls: list[Callable[[], None]] = []
        queue.call_on_loop = calls.append
        info = PartitionTopicInfo(CLICKS, queue, 7)
        manager = ConsumerFetcherManager({})
        await manager.start_connections([BROKER], [info])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert FakeConsumer.paused == {CLICKS}
        if kind is StreamQueue:
            assert queue.take() is not None
        for call in calls:
            call()
        assert info.consumed == 8
        assert FakeConsumer.paused == set()
        await manager.close()

    asyncio.run(story())
