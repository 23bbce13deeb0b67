"""Readers that follow every partition from its start while transactions come and go, each in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from tests.exactly_once.history import Diary
from tests.exactly_once.outside import GONE, stable_offsets
from tests.support.raw import RawConnection
from tests.support.routing import coordinators_named, routed_connection
from tests.support.wait import eventually
from tidelog.simulation.checks.transaction_history import (
    COMMITTED,
    FAIL,
    INFO,
    INVOKE,
    OK,
    Entry,
    Line,
    Partition,
)

POLL_SECONDS = 0.05
LATE_SECONDS = 0.5


class Reader:
    """`positions` are the offsets behind the last records that it got."""

    def __init__(
        self, name: str, bootstrap: str, partitions: Sequence[Partition], isolation: str, diary: Diary
    ) -> None:
        self.name = name
        self.bootstrap = bootstrap
        self.partitions = partitions
        self.isolation = isolation
        self.positions: dict[Partition, int] = {}
        self.count = 0
        self._diary = diary
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ends.set()
        self._thread.join(30)

    def drain(self, last: Mapping[Partition, int], timeout: float = 30.0) -> None:
        """Until it has read up to these offsets; that it did not is a line of the history."""

        def is_there() -> bool:
            return all(self.positions.get(place, 0) > offset for place, offset in last.items())

        try:
            eventually(is_there, f"{self.name} reads up to {last}", timeout)
        except AssertionError:
            behind = {
                place: self.positions.get(place, 0)
                for place, offset in last.items()
                if self.positions.get(place, 0) <= offset
            }
            self._diary.write(
                Line(self.name, FAIL, "failed", detail=f"it got no further than {behind} of {dict(last)}")
            )

    def _run(self) -> None:
        try:
            self._read_all()
        except Exception as error:
            self._diary.write(Line(self.name, INFO, "failed", detail=f"{type(error).__name__} {error}"))

    def _read_all(self) -> None:
        raise NotImplementedError

    def _got(self, entries: Sequence[Entry]) -> None:
        if entries:
            self._diary.write(Line(self.name, OK, "read", "", tuple(entries), self.isolation))
            self.count += len(entries)
            for entry in entries:
                self.positions[entry.place] = entry.offset + 1


class ConfluentReader(Reader):
    def _read_all(self) -> None:
        from confluent_kafka import Consumer, KafkaError, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "isolation.level": self.isolation,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 50,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        # The logs start at 0. A client that has to ask for the first offset never reads if the broker, which
        # has just started, does not know the partition yet.
        consumer.assign([TopicPartition(topic, index, 0) for topic, index in self.partitions])
        try:
            while not self._ends.is_set():
                found = consumer.consume(500, POLL_SECONDS)
                for message in found:
                    error = message.error()
                    if error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:
                        raise RuntimeError(f"it reads {message.topic()} no further: {error.str()}")
                self._got(
                    [
                        Entry(
                            str(message.topic()),
                            message.partition() or 0,
                            message.offset() or 0,
                            (message.value() or b"").decode(),
                        )
                        for message in found
                        if message.error() is None
                    ]
                )
        finally:
            consumer.close()


class KafkaPythonReader(Reader):
    """Never goes back: kafka-python takes metadata with an older leader epoch, as that of a broker that was
    paused. That broker still answers as the leader, and the offset is out of its range.
    """

    def _read_all(self) -> None:
        from kafka.errors import KafkaError

        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            isolation_level=self.isolation,
            enable_auto_commit=False,
            group_id=None,
            auto_offset_reset="none",
            fetch_max_wait_ms=50,
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=200,
            request_timeout_ms=5000,
        )
        places = [TopicPartition(topic, index) for topic, index in self.partitions]
        consumer.assign(places)
        for place in places:
            consumer.seek(place, 0)
        try:
            while not self._ends.is_set():
                try:
                    found = consumer.poll(timeout_ms=int(POLL_SECONDS * 1000))
                except KafkaError:
                    continue  # the broker is away, or a broker that leads no more has too few records
                self._got(
                    [
                        Entry(record.topic, record.partition, record.offset, record.value.decode())
                        for records in found.values()
                        for record in records
                    ]
                )
        finally:
            consumer.close()


class OffsetReader(Reader):
    """Asks for the stable offsets of groups, again and again.

    A broker that hung while another one became the coordinator answers with what it knew, as in Kafka, until
    it hears the news. After a wait, an answer counts only if all brokers name one coordinator.
    """

    def __init__(
        self, name: str, bootstrap: str, partitions: Sequence[Partition], groups: Sequence[str], diary: Diary
    ) -> None:
        super().__init__(name, bootstrap, partitions, COMMITTED, diary)
        self._groups = groups

    def _read_all(self) -> None:
        connection: RawConnection | None = None
        turn = 0
        while not self._ends.wait(POLL_SECONDS):
            turn += 1
            self._diary.write(Line(self.name, INVOKE, "offsets?"))
            group = self._groups[turn % len(self._groups)]
            begun, is_new = time.monotonic(), connection is None
            try:
                connection = connection or routed_connection(self.bootstrap, timeout=5)
                found = stable_offsets(connection, group, self.partitions)
            except GONE:
                connection = None
                continue
            is_late = is_new or time.monotonic() - begun > LATE_SECONDS
            if is_late and "," in self.bootstrap and len(coordinators_named(self.bootstrap, group)) > 1:
                connection = None
                continue
            self._diary.write(Line(self.name, OK, "offsets?", "", tuple(found)))
            self.count += len(found)
