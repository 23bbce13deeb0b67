"""RecordAccumulator: the records that wait to be sent, in a queue of batches for each partition, within
buffer.memory.

Sending threads append records, and the loop takes batches. The begin of a batch needs a lock, an append to it
does not.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque

from tidelog.clients.errors import BufferExhaustedException, ClientClosedException
from tidelog.clients.producer.batch import ProducerBatch
from tidelog.clients.settings import ProducerSettings
from tidelog.records.batch import HEADER_SIZE, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Record
from tidelog.records.codecs import Codec
from tidelog.records.loops import BufferPool, EncodedHeaders, RecordFuture

# The most bytes of a record beside its contents: attributes, deltas and lengths.
RECORD_OVERHEAD = 21
# The allocator keeps smaller freed buffers, and returns larger ones to the system.
POOLED_FROM = 128 * 1024
COMPRESSION_MARGIN = 1.05
# The estimated compression ratio falls by small steps, and rises at once.
RATIO_STEP_DOWN = 0.005
RATIO_STEP_UP = 0.05


class PartitionQueue:
    """The batches of a partition that wait or are in flight, and its sequence number."""

    __slots__ = (
        "batches", "epoch", "in_flight", "last_acked_offset", "last_acked_sequence", "muted", "next_sequence",
        "partition", "producer_id", "topic", "unresolved_until",
    )  # fmt: skip

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.batches: deque[ProducerBatch] = deque()
        self.muted = False
        self.producer_id = NO_PRODUCER_ID
        self.epoch = NO_PRODUCER_EPOCH
        self.next_sequence = 0
        self.last_acked_sequence = -1
        self.last_acked_offset = -1
        self.in_flight: list[ProducerBatch] = []
        """Batches with a sequence number that are in flight or wait for a retry, in its order."""
        self.unresolved_until: int | None = None

    def __repr__(self) -> str:
        return f"{self.topic}-{self.partition}"


class BufferMemory:
    """The memory of buffer.memory (Kafka's BufferPool).

    A batch takes it at its begin and returns it at its end.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.available = total
        self.waiting = 0
        self.exhausted_total = 0
        self._closed = False
        self._condition = threading.Condition()
        self._tasks: list[asyncio.Future[None]] = []

    def take(self, size: int) -> bool:
        with self._condition:
            if size > self.available:
                return False
            self.available -= size
            return True

    def give_back(self, size: int) -> None:
        with self._condition:
            self.available += size
            if self.waiting:
                self._wake()

    def close(self) -> None:
        """Wake up every waiting sender."""
        with self._condition:
            self._closed = True
            self._wake()

    def wait(self, size: int, timeout: float) -> None:
        """Block until `size` bytes may be free. Raises BufferExhaustedException after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        with self._condition:
            self.waiting += 1
            try:
                while not self._free(size):
                    remaining = deadline - time.monotonic()
                    if remaining <= 0 or not self._condition.wait(remaining):
                        raise self._exhausted(size)
            finally:
                self.waiting -= 1

    async def wait_async(self, size: int, timeout: float) -> None:
        """`wait` for a coroutine on the producer's loop."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        self.waiting += 1
        try:
            while not self._free(size):
                waiter: asyncio.Future[None] = loop.create_future()
                self._tasks.append(waiter)
                try:
                    async with asyncio.timeout_at(deadline):
                        await waiter
                except TimeoutError:
                    raise self._exhausted(size) from None
        finally:
            self.waiting -= 1

    def _free(self, size: int) -> bool:
        if self._closed:
            raise ClientClosedException("the producer was closed while a record waited for memory")
        # Waiting for more than one batch saves a wake-up per batch while the buffer is full.
        return self.available >= min(max(size, self.total // 8), self.total)

    def _wake(self) -> None:
        self._condition.notify_all()
        tasks, self._tasks = self._tasks, []
        for waiter in tasks:
            if not waiter.done():
                waiter.set_result(None)

    def _exhausted(self, size: int) -> BufferExhaustedException:
        self.exhausted_total += 1
        return BufferExhaustedException(
            f"no {size} bytes of buffer.memory={self.total} became free within max.block.ms: "
            "records come faster than the brokers take them"
        )


class RecordAccumulator:
    """`append` returns a future, or None if there is no memory."""

    def __init__(self, settings: ProducerSettings, codec: Codec) -> None:
        self.lock = threading.Lock()
        self.queues: dict[tuple[str, int], PartitionQueue] = {}
        self.active: dict[PartitionQueue, None] = {}
        """Queues that may have batches to send."""
        self.incomplete: dict[ProducerBatch, None] = {}
        self.memory = BufferMemory(settings.buffer_memory)
        self.batch_size = settings.batch_size
        self._most = min(self.memory.total // 16, settings.max_request_size)
        self.flushing = 0
        self.codec = codec
        self._ratios: dict[str, float] = {}
        self._pool = BufferPool(self.batch_size)
        self._guard_done = threading.Lock()

    def queue(self, topic: str, partition: int) -> PartitionQueue:
        found = self.queues.get((topic, partition))
        if found is None:
            found = self.queues.setdefault((topic, partition), PartitionQueue(topic, partition))
        return found

    def append(
        self,
        queue: PartitionQueue,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: EncodedHeaders,
        size: int,
        now: float,
    ) -> tuple[RecordFuture | None, ProducerBatch | None, bool]:
        """The future of the record, its batch, and whether to wake the sender."""
        with self.lock:
            full = False
            if queue.batches:
                last = queue.batches[-1]
                future = last.append(timestamp, key, value, headers)
                if future is not None:
                    return future, last, last.full
                last.seal()
                full = True
            batch = self._begin(queue, size, now)
            if batch is None:
                return None, None, full
            try:
                return batch.append(timestamp, key, value, headers), batch, True
            except BaseException:
                self._withdraw(batch)  # the sender would never remove an empty batch
                raise

    def begin(self, queue: PartitionQueue, size: int, now: float) -> ProducerBatch | None:
        """The open batch of a queue, a new one if needed; None if there is no memory."""
        with self.lock:
            if queue.batches and not queue.batches[-1].full:
                return queue.batches[-1]
            if queue.batches:
                queue.batches[-1].seal()
            return self._begin(queue, size, now)

    def start_next(self, queue: PartitionQueue, size: int, now: float) -> ProducerBatch | None:
        """A new batch at the end of a queue; None if there is no memory."""
        with self.lock:
            if queue.batches:
                queue.batches[-1].seal()
            return self._begin(queue, size, now)

    def _begin(self, queue: PartitionQueue, size: int, now: float) -> ProducerBatch | None:
        limit = self.batch_size
        if self.codec is not Codec.NONE:
            # As many bytes as are expected to compress to batch.size, but neither a large part of the buffer
            # nor enough for a record above max.request.size.
            expected = int(limit / (self.ratio(queue.topic) * COMPRESSION_MARGIN))
            limit = min(expected, max(limit, self._most))
        reserved = min(max(limit, size + HEADER_SIZE), self.memory.total)
        if not self.memory.take(reserved):
            return None
        batch = ProducerBatch(limit, queue, now, reserved, self._guard_done)
        if limit == self.batch_size >= POOLED_FROM:
            batch.reuse(self._pool)
        queue.batches.append(batch)
        self.active[queue] = None
        self.incomplete[batch] = None
        return batch

    def _withdraw(self, batch: ProducerBatch) -> None:
        queue = batch.queue
        queue.batches.remove(batch)
        if not queue.batches:
            self.active.pop(queue, None)
        self.settle(batch)

    def settle(self, batch: ProducerBatch) -> None:
        """Return the memory of a batch that has ended."""
        if self.incomplete.pop(batch, 0) is None:
            self.memory.give_back(batch.reserved)

    def put_back(self, batch: ProducerBatch, *, in_order: bool) -> None:
        """Put a batch back to be retried, in front of others and in the order of sequence numbers."""
        queue = batch.queue
        with self.lock:
            at = 0
            if in_order and batch.has_sequence:
                while at < len(queue.batches) and _before(queue.batches[at], batch):
                    at += 1
            queue.batches.insert(at, batch)
            self.active[queue] = None

    def split(self, batch: ProducerBatch, records: list[Record]) -> list[ProducerBatch]:
        """The records of a batch that is too large, in batches of at most batch.size and half its size."""
        parts: list[ProducerBatch] = []
        size = min(self.batch_size, max(batch.size // 2, HEADER_SIZE + 1))
        for record in records:
            headers = tuple(
                (name.encode("utf-8", "surrogateescape"), content) for name, content in record.headers
            )
            fields = (record.timestamp, record.key, record.value, headers)
            if not parts or parts[-1].append(*fields) is None:
                part = ProducerBatch(size, batch.queue, batch.created, 0, self._guard_done)
                part.append(*fields)
                part.split = True
                part.last_error = batch.last_error
                parts.append(part)
        return parts

    def replace(self, batch: ProducerBatch, parts: list[ProducerBatch]) -> None:
        """Queue the parts of a split batch in its place. The last part returns its memory."""
        self._ratios.pop(batch.queue.topic, None)  # it compressed less than expected
        parts[-1].reserved = batch.reserved
        for part in parts:
            part.seal()
        with self.lock:
            self.incomplete.pop(batch, None)
            for part in parts:
                self.incomplete[part] = None
        for part in reversed(parts):
            self.put_back(part, in_order=True)
        batch.replace_by(parts)

    def ratio(self, topic: str) -> float:
        """The estimated compression ratio of a topic."""
        return self._ratios.get(topic, 1.0)

    def learn_ratio(self, topic: str, seen: float) -> None:
        expected = self._ratios.get(topic, 1.0)
        if seen > expected:
            expected = max(expected + RATIO_STEP_UP, seen)
        else:
            expected = max(expected - RATIO_STEP_DOWN, seen)
        self._ratios[topic] = max(expected, 0.02)

    def has_undrained(self) -> bool:
        return any(queue.batches for queue in self.queues.values())


def _before(first: ProducerBatch, second: ProducerBatch) -> bool:
    return first.has_sequence and first.base_sequence < second.base_sequence


def record_size(key: bytes | None, value: bytes | None, headers: EncodedHeaders) -> int:
    """The most bytes that a record can take in a batch."""
    size = RECORD_OVERHEAD + (len(key) if key is not None else 0) + (len(value) if value is not None else 0)
    for name, content in headers:
        size += 10 + len(name) + (len(content) if content is not None else 0)
    return size
