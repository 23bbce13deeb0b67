"""The streams of a consumer: each thread of the application iterates over one.

The fetcher puts chunks of records into a StreamQueue, the application takes single records. They may be on
different threads: a chunk has one writer and one reader, and a released partition is marked, not locked.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from tidelog.clients.zookeeper_consumer.errors import ConsumerTimeoutException
from tidelog.partitions import TopicPartition
from tidelog.records.loops import ConsumerRecord

Record: TypeAlias = ConsumerRecord[Any, Any]


class PartitionTopicInfo:
    """A partition that this consumer owns, from one rebalance to the next."""

    __slots__ = ("committed", "consumed", "partition", "queue", "released")

    def __init__(self, partition: TopicPartition, queue: StreamQueue, committed: int | None) -> None:
        self.partition = partition
        self.queue = queue
        self.committed = committed
        """The offset in the tree; None if there is none."""
        self.consumed = committed
        """The offset after the last record that the application took; None until the first is known."""
        self.released = False
        """Whether records that are still in the queue belong to another consumer now."""


class _Chunk:
    """Records of one partition from one fetch."""

    __slots__ = ("info", "records")

    def __init__(self, info: PartitionTopicInfo, records: Iterable[Record]) -> None:
        self.info = info
        self.records: Iterator[Record] = iter(records)


def _nothing() -> None:
    """Nobody waits for room in the queue."""


def _at_once(function: Callable[[], None]) -> None:
    function()


class StreamQueue:
    """The records of a stream between fetcher and application, at most `limit` chunks."""

    def __init__(self, limit: int) -> None:
        self.on_room: Callable[[], None] = _nothing
        """Called on the loop when the queue has room again and the fetcher waits for it."""
        self.wants_room = False
        """Whether the fetcher waits for room."""
        self.call_on_loop: Callable[[Callable[[], None]], None] = _at_once
        """Runs a function on the loop, called by the thread of the application."""
        self._limit = limit
        self._chunks: deque[_Chunk] = deque()
        self._current: _Chunk | None = None
        self._changed = asyncio.Event()
        self._error: BaseException | None = None
        self._closed = False

    # --- on the loop

    def put(self, info: PartitionTopicInfo, records: list[Record]) -> None:
        self._chunks.append(_Chunk(info, records))
        self._changed.set()

    @property
    def is_full(self) -> bool:
        return len(self._chunks) >= self._limit

    def clear(self) -> None:
        """Drop the chunks and the error after the partitions were released."""
        self._chunks.clear()
        self._error = None
        self.wants_room = False

    def fail(self, error: BaseException) -> None:
        """Let the application get an error instead of records."""
        self._error = error
        self._changed.set()

    def close(self) -> None:
        """End the stream."""
        self._closed = True
        self._chunks.clear()
        self._current = None
        self._changed.set()

    async def wait(self, timeout: float | None) -> bool:
        """Wait for records. False if the stream has ended.

        Raises ConsumerTimeoutException after `timeout` seconds, and the error of the fetcher.
        """
        try:
            async with asyncio.timeout(timeout):
                while True:
                    if self._closed:
                        return False
                    if self._error is not None:
                        raise self._error
                    if self._chunks:
                        return True
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise ConsumerTimeoutException(f"no record within {timeout} s (consumer.timeout.ms)") from None

    # --- on the thread of the application

    def take(self) -> Record | None:
        """The next record; None if there is none now. From here on its offset counts as consumed."""
        while True:
            chunk = self._current
            if chunk is None:
                chunk = self._next_chunk()
            if chunk is None:
                return None
            if not chunk.info.released:
                for record in chunk.records:
                    chunk.info.consumed = record.offset + 1
                    return record
            self._current = None

    def _next_chunk(self) -> _Chunk | None:
        try:
            self._current = self._chunks.popleft()
        except IndexError:
            pass
        if self.wants_room and not self.is_full:
            self.wants_room = False
            self.call_on_loop(self.on_room)
        return self._current


class AsyncKafkaStream:
    """`async for record in stream` reads until the connector is shut down."""

    def __init__(self, queue: StreamQueue, timeout: float | None) -> None:
        self.queue = queue
        self.timeout = timeout

    def __aiter__(self) -> AsyncKafkaStream:
        return self

    async def __anext__(self) -> Record:
        """Raises ConsumerTimeoutException if consumer.timeout.ms passes without a record."""
        while True:
            record = self.queue.take()
            if record is not None:
                return record
            if not await self.queue.wait(self.timeout):
                raise StopAsyncIteration
