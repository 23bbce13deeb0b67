"""The message-handler consumer: topics with streams, a handler for each stream, commits after handling.

>>> from tidelog.clients.handlers import HandlerConsumer
>>> from tidelog.clients.producer.blocking import Producer
>>> with Producer(bootstrap_servers=bootstrap) as producer:
...     future = producer.send("parcels", b"a book", key=b"alice")
>>> consumer = HandlerConsumer(bootstrap_servers=bootstrap, group_id="post", auto_offset_reset="earliest")
>>> @consumer.handler("parcels", streams=1)
... def deliver(record):
...     print(record.key, record.value)
...     consumer.stop()
>>> consumer.run()
b'alice' b'a book'
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

from tidelog.clients import setting_tables as tables
from tidelog.clients.consumer.blocking import Consumer
from tidelog.clients.consumer.check_settings import check_settings
from tidelog.clients.errors import IllegalStateException, TimeoutException
from tidelog.clients.handlers.dead_letters import DeadLetters
from tidelog.clients.handlers.dispatcher import Dispatcher, DispatcherSettings
from tidelog.clients.handlers.plan import (
    Builder,
    ErrorPolicy,
    Handle,
    HandlerFailed,
    Stream,
    TopicPlan,
    check_declared,
)
from tidelog.clients.handlers.tracebacks import place_of
from tidelog.clients.handlers.worker import StreamWorker, WorkerContext, one_line
from tidelog.clients.legacy_settings import translate
from tidelog.clients.serialization import deserializer
from tidelog.clients.settings import (
    consumer_definition,
    consumer_settings,
    producer_definition,
    producer_settings,
)
from tidelog.config import ConfigDef, ConfigError
from tidelog.errors import UnknownTopicOrPartition

log = logging.getLogger("tidelog.clients")

T = TypeVar("T", bound="Handle | type[object]")

# After Kafka's default of 5 s, a killed program would handle more records again.
COMMIT_INTERVAL_MS = 1_000
CLOSE_SECONDS = 30.0
# A new topic is not known to every broker at once.
UNKNOWN_TOPIC_SECONDS = 3.0


@dataclass(slots=True, frozen=True)
class Progress:
    """The counts of a handler consumer since its start."""

    handled: int
    retried: int
    dead_letters: int
    waiting: int
    """Records that were fetched and are not handled yet."""
    partitions: int
    lag: int | None
    """Records that were not fetched yet; None while it is not known."""


class HandlerConsumer:
    """Calls handlers with records. Settings are a consumer's, under current names or those of Kafka 0.8.

    `topics` has the number of streams of each topic, and `builder` makes a handler for each stream; `add` and
    the decorator `handler` do it for one topic. `errors` says what happens after a handler failed. `producer`
    has settings of the dead letters' producer, which takes the others from the consumer. Call `run`; or
    `start`, `wait` and `close`; or use `with`.
    """

    def __init__(
        self,
        config: Mapping[str, object] | None = None,
        /,
        *,
        topics: Mapping[str, int] | None = None,
        builder: Builder | None = None,
        errors: ErrorPolicy | None = None,
        producer: Mapping[str, object] | None = None,
        queue_records: int = 1_000,
        slow_handler_ms: int = 30_000,
        **settings: object,
    ) -> None:
        self.errors = errors or ErrorPolicy()
        self.plans: dict[str, TopicPlan] = {}
        self.notes: list[str] = []
        """A line for each setting of Kafka 0.8, with its current name."""
        self._queue_records = max(1, queue_records)
        self._slow_seconds = slow_handler_ms / 1000
        self._config = self._consumer_config(config, settings)
        self._settings = consumer_settings(self._config)
        # Unknown settings have caused warnings now: the clients get the known ones.
        self._config = {name: self._config[name] for name in consumer_definition() if name in self._config}
        self._producer_config = self._letters_config(producer or {})
        self._key = deserializer("key.deserializer", self._settings.key_deserializer)
        self._value = deserializer("value.deserializer", self._settings.value_deserializer)
        self._dispatcher: Dispatcher | None = None
        self._thread: threading.Thread | None = None
        self._stopped = False
        check_settings(self._settings)
        if self._settings.group_id is None:
            raise ConfigError("group.id", None, "needed: handled records are committed for a group")
        for line in self.notes:
            log.warning("%s", line)
        if topics and builder is None:
            raise ConfigError("builder", None, "needed beside topics: what builds a handler for a stream")
        for topic, streams in (topics or {}).items():
            assert builder is not None
            self.add(topic, builder, streams=streams)

    def _consumer_config(
        self, config: Mapping[str, object] | None, settings: Mapping[str, object]
    ) -> dict[str, object]:
        given = {name.replace("_", "."): value for name, value in (config or {}).items()}
        for name, value in settings.items():
            if name.replace("_", ".") in given:
                raise ConfigError(name.replace("_", "."), None, f"given twice: in the dict, and as {name}=")
            given[name.replace("_", ".")] = value
        chosen, lines = translate(given, "consumer")
        self.notes += lines
        if str(chosen.get("enable.auto.commit", "true")).lower() == "false":
            log.warning(
                "enable.auto.commit=false changes nothing: handled records are committed, and no others"
            )
        return chosen

    def _letters_config(self, given: Mapping[str, object]) -> dict[str, object]:
        """The settings of the dead letters' producer: the consumer's common ones, and its own."""
        shared = {name: self._config[name] for name in ConfigDef(tables.COMMON) if name in self._config}
        own, lines = translate({"bootstrap.servers": shared["bootstrap.servers"], **given}, "producer")
        self.notes += lines
        chosen = {**shared, **own}
        producer_settings(chosen)
        return {name: chosen[name] for name in producer_definition() if name in chosen}

    # Handlers

    def add(
        self,
        topic: str,
        builder: Builder,
        *,
        streams: int = 1,
        errors: ErrorPolicy | None = None,
        options: Mapping[str, object] | None = None,
    ) -> None:
        """Read a topic with so many streams; `builder` makes a handler for each stream."""
        if self._dispatcher is not None:
            raise IllegalStateException("topics cannot be added once the consumer has started")
        if topic in self.plans:
            raise ConfigError(f"topic {topic}", None, "given twice")
        self.plans[topic] = TopicPlan(topic, builder, streams, errors or self.errors, dict(options or {}))

    def handler(self, topic: str, *, streams: int = 1, errors: ErrorPolicy | None = None) -> Callable[[T], T]:
        """Decorates a function, which all streams call, or a class, with one object per stream.

        Coroutine functions run on the loop of their stream.
        """

        def declare(given: T) -> T:
            check_declared(f"handler of topic {topic}", given)
            if isinstance(given, type):
                builder: Builder = given
            else:
                function: Handle = given

                def builder(stream: Stream) -> Handle:
                    return function

            self.add(topic, builder, streams=streams, errors=errors)
            return given

        return declare

    # Life

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Build the handlers and start. After an error nothing is left running."""
        if self._dispatcher is not None:
            raise IllegalStateException("the consumer was started before; make a new one")
        if not self.plans:
            raise ConfigError("topics", None, "needed: at least one topic with a handler")
        consumer = Consumer(self._polled_config())
        letters: DeadLetters | None = None
        workers: list[StreamWorker] = []
        try:
            self._check_topics(consumer)
            letters = self._open_letters()
            context = WorkerContext(
                self._key, self._value, letters, self._queue_records // 2, self._wake, self._fail
            )
            workers = [
                StreamWorker(plan, stream, context)
                for plan in self.plans.values()
                for stream in plan.all_streams()
            ]
            self._build(workers)
        except BaseException:
            for worker in workers:
                worker.stop()
            for worker in workers:
                worker.join(1.0)
            if letters is not None:
                letters.close(0)
            consumer.close(0)
            raise
        self._dispatcher = dispatcher = Dispatcher(consumer, workers, self._dispatcher_settings())
        self._thread = threading.Thread(
            target=self._main,
            args=(dispatcher, letters),
            name=f"group {self._settings.group_id}",
            daemon=True,
        )
        self._thread.start()
        if self._stopped:
            dispatcher.stop()

    def _main(self, dispatcher: Dispatcher, letters: DeadLetters | None) -> None:
        try:
            dispatcher.run(list(self.plans), CLOSE_SECONDS)
        finally:
            if letters is not None:
                letters.close(1.0)

    def _polled_config(self) -> dict[str, object]:
        config: dict[str, object] = {"allow.auto.create.topics": False, **self._config}
        # The workers deserialize, so that a bad record goes to the dead letters.
        for name in ("key.deserializer", "value.deserializer"):
            config.pop(name, None)
        config["enable.auto.commit"] = False
        config.pop("auto.commit.interval.ms", None)
        return config

    def _dispatcher_settings(self) -> DispatcherSettings:
        settings = self._settings
        interval = COMMIT_INTERVAL_MS
        if "auto.commit.interval.ms" in settings.given:
            interval = settings.auto_commit_interval_ms
        return DispatcherSettings(
            interval / 1000,
            self._queue_records,
            self._slow_seconds,
            # The group waits this long for its members; a part of it is for the commit.
            settings.max_poll_interval_ms / 1000 * 0.8,
            settings.auto_offset_reset != "earliest",
        )

    def _check_topics(self, consumer: Consumer) -> None:
        servers = ", ".join(self._settings.bootstrap_servers)
        consumer.topics()
        for plan in self.plans.values():
            try:
                partitions = len(consumer.partitions_for(plan.topic, UNKNOWN_TOPIC_SECONDS))
            except TimeoutException:
                raise UnknownTopicOrPartition(f"topic {plan.topic!r} does not exist at {servers}") from None
            if plan.streams > partitions:
                log.warning(
                    "topic %s: %d streams for %d partition%s; %d of them will have nothing to do",
                    plan.topic, plan.streams, partitions, "" if partitions == 1 else "s",
                    plan.streams - partitions,
                )  # fmt: skip

    def _open_letters(self) -> DeadLetters | None:
        names = {plan.errors.dead_letter_topic for plan in self.plans.values()} - {None}
        if not names:
            return None
        assert self._settings.group_id is not None
        letters = DeadLetters(self._producer_config, self._settings.group_id)
        try:
            for name in sorted(str(name) for name in names):
                letters.check(name)
        except BaseException:
            letters.close(0)
            raise
        return letters

    def _build(self, workers: list[StreamWorker]) -> None:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.built.wait()
        for worker in workers:
            error = worker.build_error
            if error is not None:
                raise HandlerFailed(
                    f"the handler of stream {worker.stream} cannot be built: "
                    f"{one_line(error)}{place_of(error)}"
                ) from error

    def _wake(self) -> None:
        if self._dispatcher is not None:
            self._dispatcher.wake()

    def _fail(self, error: BaseException) -> None:
        if self._dispatcher is not None:
            self._dispatcher.fail(error)

    def stop(self) -> None:
        """End soon, without waiting. Handlers and signal handlers may call it."""
        self._stopped = True
        if self._dispatcher is not None:
            self._dispatcher.stop()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has ended; False after `timeout` seconds. Raises the error that ended it."""
        if self._thread is None:
            raise IllegalStateException("the consumer was not started")
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        if self._dispatcher is not None and self._dispatcher.failure is not None:
            raise self._dispatcher.failure
        return True

    def run(self) -> None:
        """Start, run until `stop`, an error or Ctrl-C, and close."""
        self.start()
        try:
            self.wait()
        finally:
            self.close()

    def close(self, timeout: float | None = None) -> None:
        """Finish the records being handled, commit and leave the group, within about `timeout` seconds.

        A record whose handler takes longer is handled again by the next member that gets its partition.
        """
        if self._dispatcher is None or self._thread is None:
            return
        if self._dispatcher.is_current or any(worker.is_current for worker in self._dispatcher.workers):
            raise IllegalStateException(
                "close waits for the handlers; from within one of them stop() ends the consumer"
            )
        seconds = CLOSE_SECONDS if timeout is None else timeout
        self._dispatcher.stop(seconds)
        # The commit and leaving the group have a second each, beyond the time for handlers.
        self._thread.join(seconds + 5.0)

    @property
    def failure(self) -> BaseException | None:
        """The error that ended it, if any."""
        return None if self._dispatcher is None else self._dispatcher.failure

    def progress(self) -> Progress:
        dispatcher = self._dispatcher
        if dispatcher is None:
            return Progress(0, 0, 0, 0, 0, None)
        workers = dispatcher.workers
        dead = sum(worker.dead for worker in workers)
        return Progress(
            handled=sum(worker.handled for worker in workers) - dead,
            retried=sum(worker.retried for worker in workers),
            dead_letters=dead,
            waiting=sum(worker.waiting for worker in workers),
            partitions=len(dispatcher.works),
            lag=dispatcher.lag,
        )
