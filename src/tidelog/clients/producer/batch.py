"""ProducerBatch: filled by sending threads, closed and signed by the sender, then written or failed.

A future has a batch and an index. A split batch forwards its futures to its parts.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING

from tidelog.errors import KafkaError
from tidelog.records import loops
from tidelog.records.batch import (
    HEADER_SIZE,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_FLAG,
)
from tidelog.records.codecs import Codec, compress
from tidelog.records.loops import RecordFuture, RecordMetadata

if TYPE_CHECKING:
    from tidelog.clients.producer.accumulator import PartitionQueue

log = logging.getLogger("tidelog.clients")

SendCallback = Callable[[RecordFuture], object]


class ProducerBatch(loops.BatchBuffer):
    """A batch of one partition. Times are seconds of the loop's clock."""

    __slots__ = (
        "_callbacks", "_event", "_guard_done", "_signed", "_waiters", "attempts", "base_offset",
        "base_sequence", "created", "drained", "error", "finished", "last_error", "log_append_time", "parts",
        "producer_epoch", "producer_id", "queue", "record_errors", "reserved", "retry_at",
        "sequence_reset", "split", "wire",
    )  # fmt: skip

    def __init__(
        self, limit: int, queue: PartitionQueue, created: float, reserved: int, guard: threading.Lock
    ) -> None:
        super().__init__(limit)
        self.queue = queue
        self.created = created
        self.reserved = reserved
        self.drained = 0.0
        self.attempts = 0
        self.retry_at = 0.0
        self.last_error: KafkaError | None = None
        """The error of the last attempt."""
        self.split = False
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_PRODUCER_EPOCH
        self.base_sequence = NO_SEQUENCE
        self.sequence_reset = False
        self.wire: bytearray | memoryview | None = None
        self.finished = False
        self.error: BaseException | None = None
        self.record_errors: Mapping[int, BaseException] | None = None
        self.base_offset = -1
        self.log_append_time = -1
        self.parts: list[tuple[int, ProducerBatch]] | None = None
        self._signed: tuple[int, int, int, int] | None = None
        self._guard_done = guard
        self._event: threading.Event | None = None
        self._callbacks: list[tuple[RecordFuture, SendCallback]] = []
        self._waiters: list[asyncio.Future[None]] = []

    # Sending

    def close(self, codec: Codec, level: int | None) -> int:
        """Close the batch for appends and compress it. Returns its size on the wire."""
        if self.wire is None:
            self.seal()
            records = self.bytes_view()
            if codec is Codec.NONE:
                self.wire = records
            else:
                packed = compress(codec, records[HEADER_SIZE:], level)
                self.wire = bytearray(HEADER_SIZE)
                self.wire += packed
        return len(self.wire)

    def sign(self, codec: Codec, *, transactional: bool) -> memoryview | bytearray:
        """The bytes for the wire, with the current producer id and sequence number."""
        assert self.wire is not None
        attributes = int(codec) | (TRANSACTIONAL_FLAG if transactional else 0)
        wanted = (attributes, self.producer_id, self.producer_epoch, self.base_sequence)
        if wanted != self._signed:
            loops.sign_batch(
                self.wire, attributes, self.count, self.base_timestamp, self.max_timestamp,
                self.producer_id, self.producer_epoch, self.base_sequence,
            )  # fmt: skip
            self._signed = wanted
        return self.wire

    @property
    def has_sequence(self) -> bool:
        return self.base_sequence != NO_SEQUENCE

    @property
    def last_sequence(self) -> int:
        return (self.base_sequence + self.count - 1) & 0x7FFFFFFF

    def take_sequence(self, producer_id: int, epoch: int, sequence: int, *, reset: bool = False) -> None:
        self.producer_id, self.producer_epoch, self.base_sequence = producer_id, epoch, sequence
        self.sequence_reset = reset

    # The end

    def complete(self, base_offset: int, log_append_time: int) -> bool:
        """Mark the batch as written. Returns False if it had ended before."""
        if self.finished:
            return False
        self.base_offset, self.log_append_time = base_offset, log_append_time
        self._finish()
        return True

    def fail(self, error: BaseException, record_errors: Mapping[int, BaseException] | None = None) -> bool:
        """Fail a batch that was not written, or perhaps not. Returns False if it had ended before."""
        if self.finished:
            return False
        self.error, self.record_errors = error, record_errors
        self._finish()
        return True

    def replace_by(self, parts: list[ProducerBatch]) -> None:
        """Replace the batch by smaller ones with the same records in the same order."""
        start = 0
        placed: list[tuple[int, ProducerBatch]] = []
        for part in parts:
            placed.append((start, part))
            start += part.count
        with self._guard_done:
            self.parts = placed
            callbacks, self._callbacks = self._callbacks, []
        for future, function in callbacks:
            part, _ = self._part_of(future)
            part._callbacks.append((future, function))
        self._wake()
        self.wire = None
        self.release()

    def _finish(self) -> None:
        self.finished = True
        self.wire = None
        self.release()
        while True:
            with self._guard_done:
                callbacks, self._callbacks = self._callbacks, []
            if not callbacks:
                break
            for future, function in callbacks:
                try:
                    function(future)
                except BaseException as error:
                    # SystemExit would end the producer's thread, not the program, and leave every sender
                    # waiting.
                    if not isinstance(error, Exception) and _on_main_thread():
                        raise
                    log.exception("a callback for topic %s failed", self.queue.topic)
        self._wake()

    def _wake(self) -> None:
        with self._guard_done:
            event, self._event = self._event, None
            waiters, self._waiters = self._waiters, []
        if event is not None:
            event.set()
        for waiter in waiters:
            loop = waiter.get_loop()
            try:
                loop.call_soon_threadsafe(_release, waiter)
            except RuntimeError:
                pass  # the loop of the waiting coroutine is closed

    # Futures

    def _part_of(self, future: RecordFuture) -> tuple[ProducerBatch, RecordFuture]:
        assert self.parts is not None
        start, part = next(entry for entry in reversed(self.parts) if entry[0] <= future.index)
        shifted = RecordFuture(
            part, future.index - start, future.timestamp, future.key_size, future.value_size
        )
        return part, shifted

    def future_done(self, future: RecordFuture) -> bool:
        if self.parts is not None:
            part, shifted = self._part_of(future)
            return part.future_done(shifted)
        return self.finished

    def future_exception(self, future: RecordFuture, timeout: float | None = None) -> BaseException | None:
        if self.parts is None and not self.finished:
            deadline = None if timeout is None else time.monotonic() + timeout
            self.wait(timeout)
            timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        if self.parts is not None:
            part, shifted = self._part_of(future)
            return part.future_exception(shifted, timeout)
        if self.record_errors is not None:
            return self.record_errors.get(future.index, self.error)
        return self.error

    def future_result(self, future: RecordFuture, timeout: float | None = None) -> RecordMetadata:
        error = self.future_exception(future, timeout)
        if error is not None:
            raise error
        return self.metadata_of(future)

    def metadata_of(self, future: RecordFuture) -> RecordMetadata:
        """The metadata of a record; -1 for an unknown offset or timestamp."""
        if self.parts is not None:
            part, shifted = self._part_of(future)
            return part.metadata_of(shifted)
        queue = self.queue
        if self.error is not None:
            return RecordMetadata(queue.topic, queue.partition, -1, -1, -1, -1)
        return RecordMetadata(
            queue.topic,
            queue.partition,
            self.base_offset + future.index if self.base_offset >= 0 else -1,
            self.log_append_time if self.log_append_time != -1 else future.timestamp,
            future.key_size,
            future.value_size,
        )

    def future_callback(self, future: RecordFuture, function: SendCallback) -> None:
        with self._guard_done:
            if self.parts is None and not self.finished:
                self._callbacks.append((future, function))
                return
        if self.parts is not None and not self.future_done(future):
            part, _ = self._part_of(future)
            part.future_callback(future, function)
        else:
            function(future)

    def future_await(self, future: RecordFuture) -> Generator[object, None, RecordMetadata]:
        yield from self.ended().__await__()
        return self.future_result(future, 0)

    def wait(self, timeout: float | None) -> None:
        """Block until the batch has ended or was split. Raises TimeoutError after `timeout` seconds."""
        with self._guard_done:
            if self.finished or self.parts is not None:
                return
            if self._event is None:
                self._event = threading.Event()
            event = self._event
        if not event.wait(timeout):
            raise TimeoutError(f"the record was not acknowledged within {timeout} s")

    async def ended(self) -> None:
        """Wait until the batch and all its parts have ended."""
        if not self.finished and self.parts is None:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            with self._guard_done:
                waiting = not self.finished and self.parts is None
                if waiting:
                    self._waiters.append(waiter)
            if waiting:
                await waiter
        for _, part in self.parts or ():
            await part.ended()


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class RejectedRecord:
    """The source of the future of a record that was rejected before it was in a batch."""

    __slots__ = ("error", "topic")

    def __init__(self, topic: str, error: KafkaError) -> None:
        self.topic = topic
        self.error = error

    def future(self) -> RecordFuture:
        return RecordFuture(self, 0, -1, -1, -1)

    def future_done(self, future: RecordFuture) -> bool:
        return True

    def future_exception(self, future: RecordFuture, timeout: float | None = None) -> BaseException | None:
        return self.error

    def future_result(self, future: RecordFuture, timeout: float | None = None) -> RecordMetadata:
        raise self.error

    def future_callback(self, future: RecordFuture, function: SendCallback) -> None:
        function(future)

    def future_await(self, future: RecordFuture) -> Generator[object, None, RecordMetadata]:
        yield from asyncio.sleep(0).__await__()
        raise self.error
