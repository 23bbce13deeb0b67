"""Clients that go on while the security of their cluster changes: idempotent producers, groups, a copy loop.

Each tells what was acknowledged, what was read, and that it was refused.
"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, Self

import confluent_kafka

from tests.support.wait import eventually
from tidelog import Consumer, Producer
from tidelog.errors import (
    GroupAuthorizationFailed,
    KafkaError,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
)

Partition = tuple[str, int]
QUICK = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "retry.backoff.ms": 50}
PAUSE_SECONDS = 0.02
READING = {
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
}
CLASSIC = {"group.protocol": "classic", "session.timeout.ms": 10_000}
CONSUMER = {"group.protocol": "consumer"}
DENIED = (TopicAuthorizationFailed, GroupAuthorizationFailed, TransactionalIdAuthorizationFailed)
THEIR_DENIED = (
    confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED,
    confluent_kafka.KafkaError.GROUP_AUTHORIZATION_FAILED,
)


class Progress(Protocol):
    """Something that goes on; `count` grows as it does, and `denied` as it is refused."""

    name: str
    denied: int
    failure: BaseException | None

    @property
    def count(self) -> int: ...


def await_progress(clients: Sequence[Progress], limit: float, more: int = 5) -> None:
    """Wait until each has done so much more."""
    before = {client.name: client.count for client in clients}

    def behind() -> list[str]:
        return [client.name for client in clients if client.count < before[client.name] + more]

    _await_none(clients, behind, "go on", limit)


def await_denied(clients: Sequence[Progress], limit: float) -> None:
    """Wait until each was refused for want of a rule."""
    before = {client.name: client.denied for client in clients}
    _await_none(
        clients,
        lambda: [client.name for client in clients if client.denied == before[client.name]],
        "are refused",
        limit,
    )


def _await_none(
    clients: Sequence[Progress], behind: Callable[[], list[str]], what: str, limit: float
) -> None:
    def none() -> bool:
        for client in clients:
            if client.failure is not None:
                raise client.failure
        return not behind()

    try:
        eventually(none, f"all clients {what}", limit, 0.05)
    except AssertionError as error:
        error.add_note(f"not yet: {behind()}")
        raise


class Running:
    """A client in a thread; `failure` is what must not happen."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.denied = 0
        self.failure: BaseException | None = None
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)

    def start(self) -> Self:
        self._thread.start()
        return self

    def end(self) -> None:
        """Let it end after what it has begun."""
        self._ends.set()

    def stop(self) -> None:
        """End it, and wait until it has ended."""
        self.end()
        self._thread.join(120)
        assert not self._thread.is_alive(), f"{self.name} does not end"
        if self.failure is not None:
            raise self.failure

    def _live(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self.failure = error

    def run(self) -> None:
        raise NotImplementedError


class Writer(Running):
    """Writes numbered records, one after the other, to the partitions in turn."""

    def __init__(self, name: str, topic: str, partitions: int) -> None:
        super().__init__(name)
        self.acknowledged: defaultdict[Partition, list[str]] = defaultdict(list)
        self._topic = topic
        self._partitions = partitions

    @property
    def count(self) -> int:
        return sum(map(len, list(self.acknowledged.values())))

    def run(self) -> None:
        for number in itertools.count():
            if self._ends.wait(PAUSE_SECONDS):
                return
            partition = number % self._partitions
            value = f"{self.name} {number:08d}"
            if self.write(partition, value):
                self.acknowledged[self._topic, partition].append(value)
            else:
                self.denied += 1

    def write(self, partition: int, value: str) -> bool:
        """Whether it was acknowledged; else it was refused for want of a rule."""
        raise NotImplementedError


class OurWriter(Writer):
    def __init__(self, name: str, topic: str, partitions: int, settings: Mapping[str, object]) -> None:
        super().__init__(name, topic, partitions)
        wanted = {"enable.idempotence": True, "acks": "all", "metadata.max.age.ms": 1000, **QUICK}
        self.producer: Producer[bytes, bytes] = Producer({**settings, **wanted})

    def write(self, partition: int, value: str) -> bool:
        try:
            self.producer.send(self._topic, value.encode(), partition=partition).result(120)
        except TopicAuthorizationFailed:
            return False
        return True

    def stop(self) -> None:
        super().stop()
        self.producer.close()


class ConfluentWriter(Writer):
    def __init__(self, name: str, topic: str, partitions: int, settings: Mapping[str, object]) -> None:
        super().__init__(name, topic, partitions)
        wanted = {"enable.idempotence": True, "linger.ms": 0, "topic.metadata.refresh.interval.ms": 1000}
        self._producer = confluent_kafka.Producer({**settings, **wanted, **QUICK, "log_level": 0})

    def write(self, partition: int, value: str) -> bool:
        outcomes: list[confluent_kafka.KafkaError | None] = []
        try:
            self._producer.produce(
                self._topic,
                value.encode(),
                partition=partition,
                on_delivery=lambda error, _: outcomes.append(error),
            )
        except confluent_kafka.KafkaException as refusal:  # as long as its metadata say that it may not
            outcomes.append(refusal.args[0])
        assert self._producer.flush(120) == 0, f"{value} has no outcome"
        (error,) = outcomes
        if error is not None and error.code() != confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise AssertionError(f"{value}: {error}")
        return error is None

    def stop(self) -> None:
        super().stop()
        del self._producer  # it would go on to log in


class Reader(Running):
    """A member of a group: what it has read, with commits on the way.

    A group of the classic protocol or, with `protocol=CONSUMER`, of the new one.
    """

    def __init__(
        self,
        name: str,
        topic: str,
        group: str,
        settings: Mapping[str, object],
        protocol: Mapping[str, object] = CLASSIC,
    ) -> None:
        super().__init__(name)
        self.read: set[str] = set()
        self.errors: set[str] = set()
        self._topic = topic
        self._settings = {**settings, **READING, **QUICK, **protocol, "group.id": group}

    @property
    def count(self) -> int:
        return len(self.read)


class OurReader(Reader):
    def run(self) -> None:
        with Consumer[bytes, bytes]({**self._settings, "metadata.max.age.ms": 1000}) as consumer:
            consumer.subscribe([self._topic])
            while not self._ends.is_set():
                try:
                    records = consumer.poll(0.2)
                    self.read.update((record.value or b"").decode() for record in records)
                    if records:
                        consumer.commit()
                except DENIED:
                    self.denied += 1
                    self._ends.wait(0.1)
                except KafkaError as error:  # a rebalance, a coordinator that moves
                    self.errors.add(f"{type(error).__name__}: {error}")


class ConfluentReader(Reader):
    def run(self) -> None:
        classic = self._settings["group.protocol"] == "classic"
        wanted = {"partition.assignment.strategy": "range"} if classic else {}
        more = {"topic.metadata.refresh.interval.ms": 1000, "log_level": 0}
        consumer = confluent_kafka.Consumer({**self._settings, **wanted, **more})
        consumer.subscribe([self._topic])
        try:
            while not self._ends.is_set():
                message = consumer.poll(0.2)
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    self.read.add((message.value() or b"").decode())
                    consumer.commit(message, asynchronous=True)
                elif error.code() in THEIR_DENIED:
                    self.denied += 1
                else:
                    self.errors.add(str(error))
        finally:
            consumer.close()


class Copier(Running):
    """Copies a topic to another one in transactions, which also commit the offsets of its group.

    After an error it begins anew with what its group has committed. The values in `copied` are committed.
    """

    def __init__(
        self, name: str, source: str, target: str, transactional_id: str, settings: Mapping[str, object]
    ) -> None:
        super().__init__(name)
        self.copied: set[str] = set()
        self.errors: set[str] = set()
        self._source, self._target = source, target
        quick = {**settings, **QUICK, "metadata.max.age.ms": 1000}
        self._reading = {**quick, **READING, **CLASSIC, "group.id": transactional_id}
        self._reading["isolation.level"] = "read_committed"
        self._writing = {**quick, "transactional.id": transactional_id, "transaction.timeout.ms": 20_000}

    @property
    def count(self) -> int:
        return len(self.copied)

    def run(self) -> None:
        while not self._ends.is_set():
            try:
                with (
                    Producer[bytes, bytes](self._writing) as producer,
                    Consumer[bytes, bytes](self._reading) as consumer,
                ):
                    producer.init_transactions()
                    consumer.subscribe([self._source])
                    while not self._ends.is_set():
                        self._copy(producer, consumer)
            except DENIED:
                self.denied += 1
                self._ends.wait(0.1)
            except KafkaError as error:  # a rebalance, a coordinator that moves, a fenced epoch
                self.errors.add(f"{type(error).__name__}: {error}")

    def _copy(self, producer: Producer[bytes, bytes], consumer: Consumer[bytes, bytes]) -> None:
        records = consumer.poll(0.2)
        if not records:
            return
        with producer.transaction():
            for record in records:
                producer.send(self._target, record.value, partition=record.partition)
            after = {(record.topic, record.partition): record.offset + 1 for record in records}
            producer.send_offsets_to_transaction(after, consumer.group_metadata())
        self.copied.update((record.value or b"").decode() for record in records)
