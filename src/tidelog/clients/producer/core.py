"""ProducerCore: the core of the blocking and the asynchronous producer.

It appends records to batches, and flushes them. To send a record is a generator that yields each wait: the
blocking producer blocks there, the asynchronous one awaits.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import SupportsIndex, TypeAlias

from tidelog.clients.errors import (
    ClientClosedException,
    IllegalStateException,
    RecordTooLargeException,
    SerializationException,
    TimeoutException,
)
from tidelog.clients.fair_turns import FairTurns
from tidelog.clients.network import NetworkClient
from tidelog.clients.partition_info import PartitionInfo, partition_infos
from tidelog.clients.producer.accumulator import PartitionQueue, RecordAccumulator, record_size
from tidelog.clients.producer.batch import ProducerBatch, RejectedRecord
from tidelog.clients.producer.interceptors import Interceptors, ProducerRecord
from tidelog.clients.producer.metrics import ProducerMetrics
from tidelog.clients.producer.partitioners import Choose, StickyPartition, partition_for_key, partitioner_of
from tidelog.clients.producer.sender import Sender
from tidelog.clients.producer.sequences import Sequences
from tidelog.clients.producer.transaction_values import State
from tidelog.clients.producer.transactions import TransactionManager
from tidelog.clients.serialization import Serialize, as_bytes, serializer
from tidelog.clients.settings import ProducerSettings
from tidelog.clients.telemetry import Telemetry
from tidelog.errors import KafkaError
from tidelog.records.batch import HEADER_SIZE
from tidelog.records.codecs import Codec
from tidelog.records.loops import EncodedHeaders, OpenBatches, RecordFuture, RecordMetadata

log = logging.getLogger("tidelog.clients")

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
DeliveryCallback: TypeAlias = Callable[[RecordMetadata, "BaseException | None"], object]

# The time limit of close on Ctrl-C.
INTERRUPTED_SECONDS = 3.0

# `send` raises these. Every other error is in the future of the record, as in Kafka's Java client.
RAISED = (ClientClosedException, IllegalStateException, SerializationException)


@dataclass(slots=True, frozen=True)
class TopicWait:
    """Wait for the metadata of a topic, or of one of its partitions."""

    topic: str
    partition: int | None
    timeout: float


@dataclass(slots=True, frozen=True)
class MemoryWait:
    """Wait for buffer.memory."""

    size: int
    timeout: float


@dataclass(slots=True, frozen=True)
class TurnEnd:
    """Let other tasks of the event loop run."""


@dataclass(slots=True, frozen=True)
class RecordFailed:
    """Fail the transaction on the loop: a record could not be added to it."""

    error: KafkaError


Wait = TopicWait | MemoryWait | TurnEnd | RecordFailed


class ProducerCore:
    """Connects the parts of a producer. Started and closed on its loop."""

    def __init__(self, settings: ProducerSettings) -> None:
        self.settings = settings
        self.client = NetworkClient(settings, allow_auto_create=True)
        self.client.topic_idle_ms = settings.metadata_max_idle_ms
        self.metrics = ProducerMetrics()
        self.telemetry = Telemetry(self.client)
        codec = Codec[settings.compression_type.upper()]
        self.accumulator = RecordAccumulator(settings, codec)
        self.transactions: TransactionManager | None = None
        sequences: Sequences | None = None
        if settings.transactional_id is not None:
            self.transactions = TransactionManager(
                self.client,
                self.accumulator,
                settings,
                self.flush,
                lambda: self.sender.wake_on_loop(),
                lambda error: self.sender.abort_waiting(error),
            )
            sequences = self.transactions.sequences
        elif settings.enable_idempotence:
            sequences = Sequences(transactional=False)
        self.sender = Sender(
            self.client,
            self.accumulator,
            settings,
            self.metrics,
            sequences,
            self.transactions,
            _level(settings, codec),
        )
        self.interceptors = Interceptors(settings.interceptor_classes)
        self.closed = False
        self._ended = asyncio.Event()
        self._time_to_close: asyncio.Timeout | None = None
        self.fast: dict[str, ProducerBatch] = {}
        """The open batch of each topic for plain records without a key."""
        self.keyed: dict[str, OpenBatches] = {}
        """The open batches of each topic for plain records with a key."""
        self._serialize_key: Serialize | None = serializer("key.serializer", settings.key_serializer)
        self._serialize_value: Serialize | None = serializer("value.serializer", settings.value_serializer)
        self.choose = partitioner_of(settings.partitioner_class)
        self._sticky: dict[str, StickyPartition] = {}
        self.sending = threading.Lock()
        self.turns = FairTurns()
        self._max_block = settings.max_block_ms / 1000
        self._may_be_fast = not (
            self.interceptors
            or self._serialize_value is not None
            or self._serialize_key is not None
            or self.choose is not None
            or settings.batch_size > settings.max_request_size
        )
        self.sender.deliveries.on_settled = self._forget_batch

    async def start(self) -> None:
        await self.client.start()
        self.sender.start()

    # Sending a record

    def steps(
        self, record: ProducerRecord, callback: DeliveryCallback | None
    ) -> Generator[Wait, None, RecordFuture]:
        """The steps that put a record into a batch. The result is its future."""
        record = self.interceptors.on_send(record)
        on_delivery = (
            self._on_delivery(record, callback) if callback is not None or self.interceptors else None
        )
        try:
            future = yield from self._append_steps(record)
        except KafkaError as error:
            self.metrics.record_error_total += 1
            if self.is_raised(error):
                self.interceptors.on_acknowledgement(_nowhere(record), error)
                raise
            if self.transactions is not None:
                yield RecordFailed(error)
            future = RejectedRecord(record.topic, error).future()
        if on_delivery is not None:
            future.add_done_callback(on_delivery)
        return future

    def is_raised(self, error: KafkaError) -> bool:
        """Whether `send` raises an error instead of keeping it in the future."""
        known = self.transactions is not None and error is self.transactions.error
        return known or isinstance(error, RAISED)

    def _append_steps(self, record: ProducerRecord) -> Generator[Wait, None, RecordFuture]:
        _check(record)
        self.check_open()
        deadline = time.monotonic() + self._max_block
        yield from self.known(record.topic, record.partition, deadline)
        key = self._bytes("key", self._serialize_key, record, record.key)
        value = self._bytes("value", self._serialize_value, record, record.value)
        headers = encoded_headers(record.headers)
        partition = self._partition(record, key, value)
        size = record_size(key, value, headers)
        self.check_size(size)
        timestamp = record.timestamp_ms
        if timestamp is None:
            timestamp = time.time_ns() // 1_000_000
        while True:
            with self.sending:
                self.check_open()
                future = self._append(record.topic, partition, timestamp, key, value, headers, size)
            if future is not None:
                return future
            yield from self.memory(size, deadline)

    def known(self, topic: str, partition: int | None, deadline: float) -> Generator[Wait, None, None]:
        """Wait for the metadata of a topic, or of one of its partitions, if it is missing."""
        count = self.client.view.partition_count(topic)
        if count is None or (partition is not None and partition >= count):
            yield TopicWait(topic, partition, max(0.0, deadline - time.monotonic()))

    def memory(self, size: int, deadline: float) -> Generator[Wait, None, None]:
        """Wait for memory. Wakes the sender, which then sends batches without linger."""
        self.sender.wake()
        yield MemoryWait(max(size, self.settings.batch_size), max(0.0, deadline - time.monotonic()))
        self.check_open()

    def _append(
        self,
        topic: str,
        partition: int | None,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: EncodedHeaders,
        size: int,
    ) -> RecordFuture | None:
        now = time.monotonic()
        if partition is not None:
            queue = self.accumulator.queue(topic, partition)
        else:
            queue = self.sticky_queue(topic)
            batch = self._sticky[topic].batch
            if batch is not None:
                future = batch.append(timestamp, key, value, headers)
                if future is not None:
                    return future
                queue = self.sticky_queue(topic, filled=True)
        future, batch, news = self.accumulator.append(queue, timestamp, key, value, headers, size, now)
        if batch is not None:
            if partition is None:
                self.remember_sticky(topic, batch)
            elif key is not None and self._may_be_fast and not self.settings.partitioner_ignore_keys:
                self._remember_keyed(topic, partition, batch)
            if batch.count == 1:
                self.client.topics[topic] = now
        if news:
            self.announce(queue, now)
        return future

    def announce(self, queue: PartitionQueue, now: float) -> None:
        """Wake the sender for a batch that has begun or is full."""
        if len(queue.batches) > 1 or (queue.batches and queue.batches[0].full):
            # A broker with max.in.flight.requests gets its next batch when it answers.
            if self.client.view.leader(queue.topic, queue.partition) not in self.sender.busy_nodes:
                self.sender.wake()
        else:
            self.sender.wake_for_new(now)

    def sticky_queue(self, topic: str, *, filled: bool = False) -> PartitionQueue:
        """The queue of the sticky partition, for records without a key.

        `filled` says that its open batch has no room for the record.
        """
        sticky = self._sticky.get(topic)
        if sticky is None:
            adaptive = self.settings.partitioner_adaptive_partitioning_enable
            sticky = self._sticky[topic] = StickyPartition(adaptive=adaptive)
        batch, view = sticky.batch, self.client.view
        if batch is not None:
            if not filled and not batch.full:
                return batch.queue
            # A full batch always ends the stay at a partition. A batch that the sender took early counts by
            # its size.
            enough = not batch.sealed
            batch.seal()
            sticky.batch = None
            sticky.produced += batch.size
            if enough or sticky.produced >= self.settings.batch_size:
                sticky.partition = None
        if sticky.partition is None or sticky.partition >= (view.partition_count(topic) or 0):
            sticky.move_on(view, topic, lambda: (self._loads(topic), self._unavailable_partitions(topic)))
        assert sticky.partition is not None
        return self.accumulator.queue(topic, sticky.partition)

    def remember_sticky(self, topic: str, batch: ProducerBatch) -> None:
        """Keep the open batch of the sticky partition."""
        self._sticky[topic].batch = batch
        if self._may_be_fast:
            self.fast[topic] = batch

    def _remember_keyed(self, topic: str, partition: int, batch: ProducerBatch) -> None:
        """Keep the open batch of a partition for records with keys."""
        count = self.client.view.partition_count(topic) or 1
        known = self.keyed.get(topic)
        if known is None or len(known.batches) != count:
            known = self.keyed[topic] = OpenBatches(count)
        if partition < count:
            known.batches[partition] = batch

    def _loads(self, topic: str) -> dict[int, int]:
        queues = self.accumulator.queues
        count = self.client.view.partition_count(topic) or 0
        return {
            partition: len(queue.batches)
            for partition in range(count)
            if (queue := queues.get((topic, partition))) is not None
        }

    def _unavailable_partitions(self, topic: str) -> set[int]:
        brokers = self.sender.unavailable_brokers()
        view = self.client.view.topics.get(topic)
        if not brokers or view is None:
            return set()
        return {index for index, entry in view.partitions.items() if entry.leader in brokers}

    def _partition(self, record: ProducerRecord, key: bytes | None, value: bytes | None) -> int | None:
        """The partition of a record: given, by the partitioner, or by its key; None for the sticky one."""
        if record.partition is not None:
            return record.partition
        if self.choose is not None:
            return self.chosen(self.choose, record.topic, record.key, key, record.value, value)
        if key is not None and not self.settings.partitioner_ignore_keys:
            return partition_for_key(key, self.client.view.partition_count(record.topic) or 1)
        return None

    def chosen(
        self,
        choose: Choose,
        topic: str,
        key: object,
        key_bytes: bytes | None,
        value: object,
        value_bytes: bytes | None,
    ) -> int:
        """The partition that a user-defined partitioner returns."""
        partition = choose(topic, key, key_bytes, value, value_bytes, self.client.view)
        if not isinstance(partition, int) or partition < 0:
            raise ValueError(f"the partitioner chose {partition!r} for topic {topic!r}; expected at least 0")
        return partition

    def _bytes(
        self, what: str, serialize: Serialize | None, record: ProducerRecord, value: object
    ) -> bytes | None:
        try:
            if serialize is not None:
                value = serialize(record.topic, record.headers, value)
            return as_bytes(value)
        except Exception as error:
            raise SerializationException(
                f"the {what} of a record for topic {record.topic!r} cannot be made into bytes: {error}"
            ) from error

    def check_size(self, size: int) -> None:
        size += HEADER_SIZE  # it fits into a batch of its own
        if size > self.settings.max_request_size:
            raise RecordTooLargeException(
                f"a record of {size} bytes is above max.request.size={self.settings.max_request_size}"
            )
        if size > self.settings.buffer_memory:
            raise RecordTooLargeException(
                f"a record of {size} bytes is above buffer.memory={self.settings.buffer_memory}"
            )

    def check_not_closed(self) -> None:
        if self.closed:
            raise ClientClosedException("the producer is closed")

    def check_open(self) -> None:
        self.check_not_closed()
        if self.transactions is not None:
            self.transactions.check_sending()

    def _on_delivery(
        self, record: ProducerRecord, callback: DeliveryCallback | None
    ) -> Callable[[RecordFuture], None]:
        def on_delivery(future: RecordFuture) -> None:
            error = future.exception(0)
            batch = future.batch
            if error is None:
                metadata = future.result(0)
            elif isinstance(batch, ProducerBatch):
                metadata = batch.metadata_of(future)
            else:
                metadata = _nowhere(record)
            self.interceptors.on_acknowledgement(metadata, error)
            if callback is not None:
                try:
                    callback(metadata, error)
                except Exception:
                    log.exception("the callback of a record for topic %s failed", record.topic)

        return on_delivery

    def _forget_batch(self, batch: ProducerBatch) -> None:
        queue = batch.queue
        if self.fast.get(queue.topic) is batch:
            self.fast.pop(queue.topic, None)
        known = self.keyed.get(queue.topic)
        open_there = known.batches[queue.partition : queue.partition + 1] if known is not None else []
        if known is not None and open_there == [batch]:
            known.batches[queue.partition] = None

    # Waits of the steps, on the loop

    async def wait(self, wait: Wait) -> None:
        if isinstance(wait, MemoryWait):
            await self.accumulator.memory.wait_async(wait.size, wait.timeout)
        elif isinstance(wait, TopicWait):
            await self.wait_for_topic(wait.topic, wait.partition, wait.timeout)
        elif isinstance(wait, RecordFailed):
            self.note_failed(wait.error)
        else:
            await self.turns.pass_on()

    def note_failed(self, error: KafkaError) -> None:
        """Fail the transaction: one of its records was rejected before it was in a batch."""
        if self.transactions is not None:
            self.transactions.batch_failed(error)

    async def wait_for_topic(self, topic: str, partition: int | None, timeout: float) -> None:
        client = self.client
        start = time.monotonic()
        await client.topic(topic, timeout=timeout)
        if partition is None or partition < (client.view.partition_count(topic) or 0):
            return
        client.request_refresh((topic,))

        def grown() -> bool:
            if partition < (client.view.partition_count(topic) or 0):
                return True
            client.request_refresh((topic,))
            return False

        remaining = max(0.0, timeout - (time.monotonic() - start))
        count = client.view.partition_count(topic)
        missing = (
            f"partition {partition} of topic {topic!r}, which has {count} partitions, is not in the metadata"
        )
        try:
            await client.wait_for(grown, remaining, missing)
        except TimeoutException:
            raise TimeoutException(f"{missing} after {round(timeout * 1000)} ms") from None

    async def partitions_for(self, topic: str) -> list[PartitionInfo]:
        return partition_infos(await self.client.topic(topic, timeout=self._max_block))

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until every record that was sent before is written or has failed."""
        self.accumulator.flushing += 1
        self.sender.wake_on_loop()
        try:
            async with asyncio.timeout(timeout):
                for batch in list(self.accumulator.incomplete):
                    await batch.ended()
        except TimeoutError:
            raise TimeoutException(f"flush: not every record was written within {timeout} s") from None
        finally:
            self.accumulator.flushing -= 1

    async def close(self, timeout: float | None) -> None:
        """Write waiting records and end. After `timeout` seconds the others fail.

        A second call returns with the first one, and may shorten its timeout.
        """
        if self.closed:
            self._hurry_up(timeout)
            await self._ended.wait()
            return
        with self.sending:  # no record is appended from now on
            self.closed = True
        self.accumulator.memory.close()
        begun = time.monotonic()
        error = ClientClosedException("the producer was closed before the record was written")
        try:
            async with asyncio.timeout(timeout) as self._time_to_close:
                if timeout is None or timeout > 0:
                    await self._finish()
        except TimeoutError:
            passed = time.monotonic() - begun
            error = ClientClosedException(
                f"the producer was closed, and the record was not written within {passed:.1f} s"
            )
        finally:
            self._time_to_close = None
            self.sender.close()
            self.sender.abort_all(error)
            try:
                await self.client.close()
                self.interceptors.close()
            finally:
                self._ended.set()

    def _hurry_up(self, timeout: float | None) -> None:
        limit = self._time_to_close
        if timeout is None or limit is None or limit.expired():
            return
        until, at = limit.when(), asyncio.get_running_loop().time() + timeout
        if until is None or at < until:
            limit.reschedule(at)

    async def _finish(self) -> None:
        transactions = self.transactions
        if transactions is not None and transactions.has_open_transaction:
            try:
                if transactions.state is State.COMMITTING:
                    await transactions.commit()
                else:
                    await transactions.abort()
            except KafkaError as error:
                log.warning("the open transaction could not be ended: %s", error)
        await self.flush()

    def numbers(self) -> dict[str, float]:
        """The metrics under Kafka's names."""
        memory = self.accumulator.memory
        found = self.client.metrics.snapshot() | self.metrics.snapshot()
        found["buffer-total-bytes"] = memory.total
        found["buffer-available-bytes"] = memory.available
        found["buffer-exhausted-total"] = memory.exhausted_total
        found["waiting-threads"] = memory.waiting
        found["requests-in-flight"] = sum(
            link.connection.in_flight for link in self.client.links() if link.connection is not None
        )
        return found


def close_timeout(kind: type[BaseException] | None) -> float | None:
    """The timeout of close for a `with` block: short if an interruption or cancellation leaves it."""
    return None if kind is None or issubclass(kind, Exception) else INTERRUPTED_SECONDS


def _check(record: ProducerRecord) -> None:
    if not isinstance(record.topic, str) or not record.topic:
        raise ValueError(f"topic {record.topic!r}: a name is needed")
    partition, timestamp = record.partition, record.timestamp_ms
    if partition is not None and not (isinstance(partition, SupportsIndex) and partition >= 0):
        raise ValueError(f"partition {partition!r} of topic {record.topic!r}: expected a number from 0 on")
    if timestamp is not None and not (isinstance(timestamp, SupportsIndex) and 0 <= timestamp < 1 << 63):
        raise ValueError(f"timestamp {timestamp!r}: expected whole milliseconds since 1970")


def encoded_headers(headers: Headers) -> EncodedHeaders:
    if not headers:
        return ()
    try:
        return tuple((name.encode(), as_bytes(content)) for name, content in headers)
    except (TypeError, ValueError, AttributeError):
        raise SerializationException(
            f"headers {headers!r}: expected pairs of a name and bytes, such as [('shop', b'7')]"
        ) from None


def _nowhere(record: ProducerRecord) -> RecordMetadata:
    partition = -1 if record.partition is None else record.partition
    return RecordMetadata(record.topic, partition, -1, -1, -1, -1)


def _level(settings: ProducerSettings, codec: Codec) -> int | None:
    if codec is Codec.GZIP:
        return settings.compression_gzip_level
    if codec is Codec.LZ4:
        return settings.compression_lz4_level
    if codec is Codec.ZSTD:
        return settings.compression_zstd_level
    return None
