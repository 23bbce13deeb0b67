"""A stream: a thread that calls its handler with one record after another.

A partition belongs to one worker at a time, so its records are handled in order. The dispatcher writes
`offered`, `full` and `revoked`, the worker everything else: each number has one writer and needs no lock.
Coroutines of a handler run on an event loop of the stream.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tidelog.clients.errors import IllegalStateException, SerializationException
from tidelog.clients.handlers.dead_letters import DeadLetters
from tidelog.clients.handlers.plan import (
    WHAT_HANDLES,
    ErrorPolicy,
    Handle,
    HandlerFailed,
    Reject,
    Stream,
    TopicPlan,
    handle_of,
)
from tidelog.clients.handlers.tracebacks import place_of, without_callers
from tidelog.clients.network import Backoff
from tidelog.clients.serialization import Deserialize
from tidelog.errors import KafkaError
from tidelog.partitions import TopicPartition
from tidelog.records.loops import ConsumerRecord

log = logging.getLogger("tidelog.clients")


class PartitionWork:
    """An assignment of a partition. After a rebalance it is another object."""

    __slots__ = ("committed", "handled", "name", "paused", "revoked", "start", "worker")

    def __init__(self, name: TopicPartition, worker: StreamWorker) -> None:
        self.name = name
        self.worker = worker
        self.revoked = False
        """No other record of it is handled."""
        self.paused = False
        self.handled: ConsumerRecord | None = None
        """The last handled record; all before it are handled, too."""
        self.committed = -1
        self.start: int | None = None
        """The first position, until something is committed."""


@dataclass(slots=True)
class WorkerContext:
    """The objects that all workers share."""

    deserialize_key: Deserialize | None
    deserialize_value: Deserialize | None
    dead_letters: DeadLetters | None
    resume_at: int
    """The number of waiting records below which a full queue is filled again."""
    wake: Callable[[], None]
    """Wakes the dispatcher when a full queue has room."""
    fail: Callable[[BaseException], None]
    """Ends the consumer with an error."""


class StreamWorker:
    """The thread of a stream. `stop` lets it finish the current record."""

    def __init__(self, plan: TopicPlan, stream: Stream, context: WorkerContext) -> None:
        self.stream = stream
        self.errors: ErrorPolicy = plan.errors
        self.offered = 0
        self.passed = 0
        self.handled = 0
        self.retried = 0
        self.dead = 0
        self.full = False
        self.current: PartitionWork | None = None
        self.at: ConsumerRecord | None = None
        """The record being handled since `began`."""
        self.began = 0.0
        self.build_error: BaseException | None = None
        self.built = threading.Event()
        self._builder = plan.builder
        self._context = context
        self._backoff = Backoff(self.errors.backoff_ms, self.errors.backoff_max_ms)
        self._queue: deque[tuple[PartitionWork, list[ConsumerRecord]]] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._runner: asyncio.Runner | None = None
        # A handler that never returns must not keep the program from ending.
        self._thread = threading.Thread(target=self._main, name=f"stream {stream}", daemon=True)

    # Called by the dispatcher

    def start(self) -> None:
        self._thread.start()

    def offer(self, work: PartitionWork, records: list[ConsumerRecord]) -> None:
        with self._changed:
            self.offered += len(records)
            self._queue.append((work, records))
            self._changed.notify_all()

    def revoke(self, work: PartitionWork) -> None:
        """Handle no other record of a partition."""
        with self._changed:
            work.revoked = True
            self._changed.notify_all()

    def wait_until_idle(self, work: PartitionWork, timeout: float) -> bool:
        """Wait until no record of a revoked partition is being handled."""
        with self._changed:
            return self._changed.wait_for(lambda: self.current is not work, timeout)

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def join(self, timeout: float) -> bool:
        """Wait for the end; whether it has ended."""
        if self._thread.ident is not None:
            self._thread.join(max(timeout, 0.0))
        return not self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """Whether the caller is this thread."""
        return threading.current_thread() is self._thread

    @property
    def waiting(self) -> int:
        return self.offered - self.passed

    # The thread

    def _main(self) -> None:
        handler: object = None
        try:
            try:
                handler = self._finished(self._builder(self.stream))
                handle = handle_of(handler, self.stream)
            except BaseException as error:
                self.build_error = without_callers(error)
                return
            finally:
                self.built.set()
            self._work(handle)
        except BaseException as error:
            failed = HandlerFailed(f"stream {self.stream} was ended by its handler: {one_line(error)}")
            failed.__cause__ = without_callers(error)
            self._context.fail(failed)
        finally:
            self._close(handler)

    def _finished(self, result: object) -> object:
        """The result of a call; an awaitable is awaited on the loop of this stream."""
        if result is None or not inspect.isawaitable(result):
            return result
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(_awaited(result))

    def _close(self, handler: object) -> None:
        try:
            self._close_handler(handler)
        finally:
            if self._runner is not None:
                self._runner.close()

    def _close_handler(self, handler: object) -> None:
        # A function has no close, and a handler shared by streams is closed by its maker.
        if self.build_error is not None or inspect.isroutine(handler):
            return
        close = getattr(handler, "close", None)
        if callable(close):
            try:
                self._finished(close())
            except Exception as error:
                log.error(
                    "stream %s: closing its handler failed: %s",
                    self.stream, one_line(error), exc_info=without_callers(error),
                )  # fmt: skip

    def _work(self, handle: Handle) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._queue) or self._stopping)
                if self._stopping:
                    return
                work, records = self._queue.popleft()
                self.current = work
            passed_before = self.passed
            try:
                self._handle_all(handle, work, records)
            finally:
                self.passed = passed_before + len(records)
                self.at = None
                with self._changed:
                    self.current = None
                    self._changed.notify_all()
                if self.full and self.waiting <= self._context.resume_at:
                    self._context.wake()

    def _handle_all(self, handle: Handle, work: PartitionWork, records: list[ConsumerRecord]) -> None:
        for record in records:
            # Checked before each record: the next owner handles the rest.
            if work.revoked or self._stopping or not self._handle(handle, work, record):
                return
            work.handled = record
            self.handled += 1
            self.passed += 1
            if self.full and self.waiting == self._context.resume_at:
                self._context.wake()

    def _handle(self, handle: Handle, work: PartitionWork, record: ConsumerRecord) -> bool:
        """Handle a record, with retries. Returns whether it is handled or a dead letter."""
        key, value = record.key, record.value
        tries = 0
        while True:
            tries += 1
            self.began = time.monotonic()
            self.at = record
            try:
                if tries == 1:
                    self._deserialize(record)
                result = handle(record)
                if result is not None and is_generator(self._finished(result)):
                    return self._give_up(
                        IllegalStateException(
                            f"the handler of stream {self.stream} gave a generator, which nobody runs: "
                            f"{WHAT_HANDLES}"
                        )
                    )
                return True
            except Exception as error:
                if self._stopping:
                    # The stop may have caused the error: the record is handled again after the next start.
                    return False
                without_callers(error)
                hopeless = isinstance(error, Reject | SerializationException)
                if hopeless or tries > self.errors.retries:
                    return self._to_dead_letters(record, key, value, error, tries)
                pause = self._backoff.delay(tries - 1)
                self.retried += 1
                log.warning(
                    "%s: its handler failed, try %d of %d: %s%s; trying again in %.1f s",
                    place(record), tries, self.errors.retries + 1, one_line(error), place_of(error), pause,
                )  # fmt: skip
            if self._pause(work, pause):
                return False

    def _deserialize(self, record: ConsumerRecord[Any, Any]) -> None:
        context = self._context
        if context.deserialize_key is None and context.deserialize_value is None:
            return
        key, value = record.key, record.value
        part = "key"
        try:
            if context.deserialize_key is not None:
                key = context.deserialize_key(record.topic, record.headers, key)
            part = "value"
            if context.deserialize_value is not None:
                value = context.deserialize_value(record.topic, record.headers, value)
        except Exception as error:
            raise SerializationException(f"its {part} cannot be deserialized: {one_line(error)}") from error
        record.replace(key, value)

    def _pause(self, work: PartitionWork, seconds: float) -> bool:
        """Wait before the next attempt. Returns whether the stream or partition has ended."""
        self.at = None
        with self._changed:
            return self._changed.wait_for(lambda: work.revoked or self._stopping, seconds)

    def _to_dead_letters(
        self, record: ConsumerRecord, key: bytes | None, value: bytes | None, error: Exception, tries: int
    ) -> bool:
        """Write a record to the dead letters. Without a dead-letter topic the consumer ends."""
        topic = self.errors.dead_letter_topic
        times = "" if tries == 1 else f" {tries} times"
        reason = f"{place(record)}: its handler failed{times}: {one_line(error)}{place_of(error)}"
        self.at = None
        if topic is None or self._context.dead_letters is None:
            return self._give_up(HandlerFailed(f"{reason}; there is no dead-letter topic to put it"), error)
        try:
            self._context.dead_letters.write(topic, record, key, value, error, tries)
        except KafkaError as problem:
            return self._give_up(
                HandlerFailed(f"{reason}; dead-letter topic {topic} did not take it: {one_line(problem)}"),
                error,
            )
        self.dead += 1
        log.warning("%s; it is in dead-letter topic %s now", reason, topic, exc_info=error)
        return True

    def _give_up(self, error: KafkaError, cause: Exception | None = None) -> bool:
        error.__cause__ = cause
        # At once: later records must not be handled and committed before this one.
        self._stopping = True
        self._context.fail(error)
        return False


async def _awaited(result: Awaitable[object]) -> object:
    return await result


def is_generator(result: object) -> bool:
    """Whether a handler returned a generator, whose body has not run."""
    return inspect.isgenerator(result) or inspect.isasyncgen(result)


def place(record: ConsumerRecord) -> str:
    return f"{record.topic}-{record.partition} offset {record.offset}"


def one_line(error: BaseException) -> str:
    """An error in one line: a KafkaError by its message, others with their class."""
    text = " ".join(str(error).split())
    if isinstance(error, KafkaError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
