"""Transactional producers of several makes behind one face, for the writers of a story.

`Refused` tells that the transaction was not committed and may be aborted; `Ended` that the producer cannot go
on, and that nobody knows what became of the last thing it asked for.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from tests.exactly_once.by_hand import HandProducer
from tests.exactly_once.by_hand import Refused as HandRefused
from tidelog.simulation.checks.transaction_history import Entry, Partition

if TYPE_CHECKING:
    import confluent_kafka

PATIENCE = 60.0
KAFKA_PYTHON_SECONDS = 30.0
TRANSACTION_MS = 8_000
# Shorter than a pause of the broker: what was asked for is asked for again, and may happen twice.
ANSWER_MS = 1_500

Told = Callable[[Entry, str], None]  # a record with its offset, and the error if it was not written


class Refused(Exception):
    pass


class Ended(Exception):
    pass


def within(seconds: float, call: Callable[[], object]) -> None:
    """Call what may wait for ever, as kafka-python does for the end of a transaction that it has lost."""
    errors: list[BaseException] = [TimeoutError()]

    def run() -> None:
        try:
            call()
            errors.clear()
        except Exception as error:
            errors[0] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]


class Session(Protocol):
    def init(self) -> str:
        """Take the transactional id; a mark of the transaction that was kept, if any."""

    def mark(self) -> str:
        """What a later owner of a prepared transaction knows it by."""

    def begin(self) -> None: ...

    def write(self, entries: Sequence[Entry]) -> None:
        """Begin to write; `told` hears of each."""

    def flush(self) -> None:
        """Until everything is written, or known not to be."""

    def offsets(self, group: str, offsets: Mapping[Partition, int]) -> None: ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def read(self) -> list[Entry]:
        """Some committed records that came since the last time."""


class ConfluentReader:
    """A reader of committed records from now on."""

    def __init__(self, bootstrap: str, partitions: Sequence[Partition]) -> None:
        from confluent_kafka import OFFSET_END, Consumer, TopicPartition

        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 50,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(topic, index, OFFSET_END) for topic, index in partitions])

    def read(self) -> list[Entry]:
        return [
            Entry(
                str(found.topic()),
                found.partition() or 0,
                found.offset() or 0,
                (found.value() or b"").decode(),
            )
            for found in self._consumer.consume(50, 0.05)
            if found.error() is None
        ]


class ConfluentSession:
    def __init__(
        self, bootstrap: str, transactional_id: str, partitions: Sequence[Partition], padding: int, told: Told
    ) -> None:
        from confluent_kafka import Producer

        self._bootstrap = bootstrap
        self._partitions = partitions
        self._padding = b"." * padding
        self._told = told
        self._reader: ConfluentReader | None = None
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": TRANSACTION_MS,
                "socket.timeout.ms": ANSWER_MS,
                "linger.ms": 1,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 20,
                # With the other strategy librdkafka 2.16 may wait for ever for a coordinator it has given up.
                "metadata.recovery.strategy": "none",
                # Into the log of the process, beside the history.
                **(
                    {"debug": "eos,broker,protocol", "log_level": 7}
                    if os.environ.get("TIDELOG_TEST_DEBUG")
                    else {"log_level": 0}
                ),
            }
        )

    def _call(self, call: Callable[[float], object]) -> None:
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                call(10.0)
                return
            except KafkaException as error:
                what: confluent_kafka.KafkaError = error.args[0]
                if what.txn_requires_abort():
                    raise Refused(what.name()) from None
                if not what.retriable() or time.monotonic() > deadline:
                    raise Ended(f"{what.name()} {what.str()}") from None

    def init(self) -> str:
        self._call(self._producer.init_transactions)
        return ""

    def mark(self) -> str:
        return ""

    def begin(self) -> None:
        self._call(lambda _: self._producer.begin_transaction())

    def write(self, entries: Sequence[Entry]) -> None:
        from confluent_kafka import KafkaException

        for entry in entries:

            def delivered(error: object, message: confluent_kafka.Message, entry: Entry = entry) -> None:
                offset = -1 if error is not None else message.offset()
                self._told(entry._replace(offset=-1 if offset is None else offset), str(error or ""))

            try:
                self._producer.produce(
                    entry.topic,
                    entry.value.encode(),
                    self._padding,
                    entry.partition,
                    on_delivery=delivered,
                )
            except (KafkaException, BufferError) as error:
                raise Refused(str(error)) from None
        self._serve(lambda: self._producer.poll(0))

    def _serve(self, serve: Callable[[], object]) -> None:
        """Deliver what has come; a fatal error comes out here."""
        from confluent_kafka import KafkaError

        try:
            serve()
        except KafkaError as error:  # type: ignore[misc]  # it is one, whatever its stubs say
            raise Ended(error.str()) from None

    def flush(self) -> None:
        self._serve(lambda: self._producer.flush(PATIENCE))

    def offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": group, "log_level": 0})
        try:
            metadata = consumer.consumer_group_metadata()
            wanted = [TopicPartition(topic, index, offset) for (topic, index), offset in offsets.items()]
            self._call(lambda wait: self._producer.send_offsets_to_transaction(wanted, metadata, wait))
        finally:
            consumer.close()

    def commit(self) -> None:
        self._call(self._producer.commit_transaction)

    def abort(self) -> None:
        self._call(self._producer.abort_transaction)

    def read(self) -> list[Entry]:
        if self._reader is None:
            self._reader = ConfluentReader(self._bootstrap, self._partitions)
        return self._reader.read()


class KafkaPythonSession:
    def __init__(
        self, bootstrap: str, transactional_id: str, partitions: Sequence[Partition], padding: int, told: Told
    ) -> None:
        from kafka import KafkaConsumer, KafkaProducer, TopicPartition

        self._padding = b"." * padding or None
        self._told = told
        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=TRANSACTION_MS,
            request_timeout_ms=ANSWER_MS,
            delivery_timeout_ms=TRANSACTION_MS,
            max_block_ms=int(PATIENCE * 1000),
            retry_backoff_ms=20,
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=200,
        )
        self._consumer = KafkaConsumer(
            bootstrap_servers=bootstrap,
            isolation_level="read_committed",
            enable_auto_commit=False,
            group_id=None,
            fetch_max_wait_ms=50,
            reconnect_backoff_max_ms=200,
        )
        self._consumer.assign([TopicPartition(topic, index) for topic, index in partitions])
        self._has_begun_to_read = False
        self._has_refused_offsets = False
        self._failure = ""

    def _call(self, call: Callable[[], object]) -> None:
        from kafka.errors import KafkaError

        try:
            within(KAFKA_PYTHON_SECONDS, call)
        except TimeoutError:
            raise Ended("no answer") from None
        except KafkaError as error:
            text = f"{type(error).__name__} {error}"
            manager = self._producer._transaction_manager
            if manager.has_fatal_error() or not manager.has_abortable_error():
                raise Ended(text) from None
            raise Refused(text) from None

    def init(self) -> str:
        self._call(self._producer.init_transactions)
        return ""

    def mark(self) -> str:
        return ""

    def begin(self) -> None:
        if self._has_refused_offsets:
            # kafka-python would send them again, in the next transaction that has offsets.
            raise Ended("offsets of an aborted transaction are left over")
        self._failure = ""
        self._call(self._producer.begin_transaction)

    def write(self, entries: Sequence[Entry]) -> None:
        for entry in entries:

            def succeeded(metadata: object, entry: Entry = entry) -> None:
                self._told(entry._replace(offset=getattr(metadata, "offset", -1)), "")

            def failed(error: object, entry: Entry = entry) -> None:
                self._failure = f"{type(error).__name__} {error}"
                self._told(entry, self._failure)

            def send(entry: Entry = entry) -> None:
                future = self._producer.send(
                    entry.topic, entry.value.encode(), self._padding, partition=entry.partition
                )
                future.add_callback(succeeded, entry=entry)
                future.add_errback(failed, entry=entry)

            self._call(send)

    def flush(self) -> None:
        self._call(self._producer.flush)

    def offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        from kafka import OffsetAndMetadata, TopicPartition

        wanted = {
            TopicPartition(topic, index): OffsetAndMetadata(offset, "", -1)
            for (topic, index), offset in offsets.items()
        }
        self._has_refused_offsets = True
        self._call(lambda: self._producer.send_offsets_to_transaction(wanted, group))
        self._has_refused_offsets = False

    def commit(self) -> None:
        self.flush()
        if self._failure:
            # kafka-python would commit the others of them.
            raise Refused(self._failure)
        self._call(self._producer.commit_transaction)

    def abort(self) -> None:
        self._call(self._producer.abort_transaction)

    def read(self) -> list[Entry]:
        from kafka.errors import KafkaError

        try:
            if not self._has_begun_to_read:
                self._consumer.seek_to_end()
                self._has_begun_to_read = True
            found = self._consumer.poll(timeout_ms=50, max_records=50)
        except KafkaError:
            return []
        return [
            Entry(record.topic, record.partition, record.offset, record.value.decode())
            for records in found.values()
            for record in records
        ]


class HandSession:
    """The newer protocol, which neither of the clients speaks; with two-phase commits if asked for."""

    def __init__(
        self,
        bootstrap: str,
        transactional_id: str,
        partitions: Sequence[Partition],
        told: Told,
        *,
        two_phase: bool,
    ) -> None:
        self._told = told
        self._bootstrap = bootstrap
        self._partitions = partitions
        self._reader: ConfluentReader | None = None
        self._producer = HandProducer(
            bootstrap,
            transactional_id,
            two_phase=two_phase,
            timeout_ms=TRANSACTION_MS,
            answer_seconds=ANSWER_MS / 1000,
        )

    def _call(self, call: Callable[[], object], *, refusal: type[Exception] = Ended) -> None:
        try:
            call()
        except HandRefused as error:
            raise refusal(str(error)) from None
        except AssertionError as error:
            raise Ended(str(error)) from None  # no answer for a long time

    def init(self) -> str:
        kept: list[tuple[int, int] | None] = []
        self._call(lambda: kept.append(self._producer.init(keep=self._producer.two_phase)))
        return "" if kept[0] is None else f"{kept[0][0]}:{kept[0][1]}"

    def mark(self) -> str:
        return f"{self._producer.producer_id}:{self._producer.epoch}"

    def begin(self) -> None:
        pass

    def write(self, entries: Sequence[Entry]) -> None:
        for entry in entries:

            def send(entry: Entry = entry) -> None:
                offset = self._producer.write(entry.place, [entry.value])
                self._told(entry._replace(offset=offset), "")

            self._call(send, refusal=Refused)

    def flush(self) -> None:
        pass

    def offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        self._call(lambda: self._producer.commit_offsets(group, offsets), refusal=Refused)

    def commit(self) -> None:
        self._call(lambda: self._producer.end(commit=True))

    def abort(self) -> None:
        self._call(lambda: self._producer.end(commit=False))

    def read(self) -> list[Entry]:
        if self._reader is None:
            self._reader = ConfluentReader(self._bootstrap, self._partitions)
        return self._reader.read()


def make_session(
    flavour: str,
    bootstrap: str,
    transactional_id: str,
    partitions: Sequence[Partition],
    padding: int,
    told: Told,
) -> Session:
    if flavour == "confluent-kafka":
        return ConfluentSession(bootstrap, transactional_id, partitions, padding, told)
    if flavour == "kafka-python":
        return KafkaPythonSession(bootstrap, transactional_id, partitions, padding, told)
    assert flavour in ("by-hand", "two-phase"), flavour
    two_phase = flavour == "two-phase"
    return HandSession(bootstrap, transactional_id, partitions, told, two_phase=two_phase)
