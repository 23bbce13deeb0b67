"""A consume-transform-produce loop as a process: `python -m tests.exactly_once.mover '{"name": ...}'`.

What it reads of one topic it writes to another, to the partition of the same number, and commits the offsets
that it has read in the same transaction. It goes on until it is stopped (SIGTERM), killed or fenced.

Offsets are committed in the name of the member and generation that the partitions were assigned to. What a
client says of its group later will not do: once a heartbeat has told it that it was thrown out, it names no
member, and offsets in a transaction without a member are taken from anybody (in Kafka too).
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.exactly_once.history import Diary
from tests.exactly_once.sessions import KAFKA_PYTHON_SECONDS, within
from tests.support import secure_clients
from tidelog.simulation.checks.transaction_history import FAIL, INFO, OK, Entry, Line

if TYPE_CHECKING:
    import confluent_kafka
    from kafka.consumer.fetcher import ConsumerRecord
    from kafka.producer.future import FutureRecordMetadata

PATIENCE = 60.0
TRANSACTION_MS = 15_000


@dataclass(slots=True, frozen=True)
class Mover:
    name: str
    flavour: str
    transactional_id: str
    bootstrap: str
    history: str
    group: str
    source: str
    target: str
    batch: int  # records in a transaction, at most
    session_ms: int = 3000

    def text(self) -> str:
        return json.dumps(asdict(self))


class Ended(Exception):
    """This producer cannot go on."""


def transformed(value: bytes) -> bytes:
    return b"moved " + value


class Loop:
    def __init__(self, task: Mover) -> None:
        self.task = task
        self.stopping = False
        self.diary = Diary(Path(task.history))

    def note(self, kind: str, what: str, detail: object = "", moved: tuple[Entry, ...] = ()) -> None:
        self.diary.write(Line(self.task.name, kind, what, "", moved, str(detail).replace("\n", " ")))

    def run(self) -> None:
        """Ends without a farewell: the group and the transaction learn of it by themselves."""
        try:
            self.start()
            self.note(OK, "init")
            while not self.stopping:
                moved = self.move()
                if moved:
                    count = sum(int(entry.value) - entry.offset for entry in moved)
                    self.note(OK, "moved", count, moved)
            self.leave()
        except Ended as error:
            self.note(INFO, "ended", error)

    def start(self) -> None:
        raise NotImplementedError

    def move(self) -> tuple[Entry, ...]:
        """One transaction: of each partition the first offset that it moved, and the one after the last."""
        raise NotImplementedError

    def leave(self) -> None:
        raise NotImplementedError


class ConfluentLoop(Loop):
    def start(self) -> None:
        from confluent_kafka import Consumer, Producer

        task = self.task
        common = {
            "bootstrap.servers": task.bootstrap,
            "client.id": task.name,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "metadata.recovery.strategy": "none",  # as in `sessions`
            "log_level": 0,
        }
        self._consumer = Consumer(
            {
                **common,
                "group.id": task.group,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "session.timeout.ms": task.session_ms,
                "heartbeat.interval.ms": 300,
                "fetch.wait.max.ms": 50,
            }
        )
        self._producer = Producer(
            {
                **common,
                "transactional.id": task.transactional_id,
                "transaction.timeout.ms": TRANSACTION_MS,
                "socket.timeout.ms": 3000,
                "retry.backoff.ms": 20,
                "linger.ms": 1,
            }
        )
        self._call(self._producer.init_transactions)
        self._member: object = None
        self._consumer.subscribe([task.source], on_assign=self._assigned, on_revoke=self._revoked)

    def _assigned(self, consumer: confluent_kafka.Consumer, _: object) -> None:
        self._member = consumer.consumer_group_metadata()

    def _revoked(self, *_: object) -> None:
        self._member = None

    def _call(self, call: Callable[[float], object]) -> bool:
        """Whether it was done; if not, the transaction is to be aborted."""
        from confluent_kafka import KafkaException

        for _ in range(6):
            try:
                call(10.0)
                return True
            except KafkaException as error:
                what = error.args[0]
                if what.txn_requires_abort():
                    self.note(FAIL, "refused", what.str())
                    return False
                if not what.retriable():
                    raise Ended(what.str()) from None
        raise Ended("no answer for a minute")

    def move(self) -> tuple[Entry, ...]:
        from confluent_kafka import TopicPartition

        found = [m for m in self._consumer.consume(self.task.batch, 0.2) if m.error() is None]
        if not found or self._member is None:
            return ()
        self._producer.begin_transaction()
        after: dict[int, int] = {}
        first: dict[int, int] = {}
        for message in found:
            partition, offset = message.partition() or 0, message.offset() or 0
            after[partition] = offset + 1
            first.setdefault(partition, offset)
            self._producer.produce(self.task.target, transformed(message.value() or b""), partition=partition)
        offsets = [TopicPartition(self.task.source, partition, offset) for partition, offset in after.items()]
        if self._call(
            lambda wait: self._producer.send_offsets_to_transaction(offsets, self._member, wait)
        ) and self._call(self._producer.commit_transaction):
            return tuple(Entry(self.task.source, at, first[at], str(after[at])) for at in after)
        self._call(self._producer.abort_transaction)
        self._rewind(first)
        return ()

    def _rewind(self, first: dict[int, int]) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        for partition, offset in first.items():
            try:
                self._consumer.seek(TopicPartition(self.task.source, partition, offset))
            except KafkaException:
                continue  # it belongs to somebody else by now, who begins where it was committed

    def leave(self) -> None:
        self._consumer.close()


class KafkaPythonLoop(Loop):
    def start(self) -> None:
        from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer

        task = self.task
        self._consumer = KafkaConsumer(
            bootstrap_servers=task.bootstrap,
            client_id=task.name,
            group_id=task.group,
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            session_timeout_ms=task.session_ms,
            heartbeat_interval_ms=300,
            max_poll_records=task.batch,
            fetch_max_wait_ms=50,
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=200,
        )
        self._producer = KafkaProducer(
            bootstrap_servers=task.bootstrap,
            transactional_id=task.transactional_id,
            transaction_timeout_ms=TRANSACTION_MS,
            delivery_timeout_ms=TRANSACTION_MS,
            request_timeout_ms=3000,
            max_block_ms=int(PATIENCE * 1000),
            retry_backoff_ms=20,
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=200,
        )
        self._call(self._producer.init_transactions)
        self._member: object = None
        self._is_new = False
        self._joined_at = time.monotonic()
        self._sent: list[FutureRecordMetadata] = []
        loop = self

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_assigned(self, assigned: object) -> None:
                loop._member = loop._consumer.group_metadata()
                loop._is_new = True

            def on_partitions_revoked(self, revoked: object) -> None:
                loop._member = None

        self._consumer.subscribe([task.source], listener=Listener())

    def _call(self, call: Callable[[], object]) -> bool:
        from kafka.errors import KafkaError

        try:
            within(KAFKA_PYTHON_SECONDS, call)
        except TimeoutError:
            raise Ended("no answer") from None
        except KafkaError as error:
            manager = self._producer._transaction_manager
            text = f"{type(error).__name__} {error}"
            if manager.has_fatal_error() or not manager.has_abortable_error():
                raise Ended(text) from None
            self.note(FAIL, "refused", text)
            return False
        return True

    def move(self) -> tuple[Entry, ...]:
        from kafka.errors import KafkaError

        from kafka import OffsetAndMetadata

        try:
            found = self._consumer.poll(timeout_ms=200)
            self._check_joined()
            if self._is_new:
                self._begin_where_it_was_committed()
                return ()
        except KafkaError:
            return ()  # the broker is away
        if not found or self._member is None:
            return ()
        self._call(self._producer.begin_transaction)
        offsets = {}
        for partition, records in found.items():
            offsets[partition] = OffsetAndMetadata(records[-1].offset + 1, "", -1)
            self._call(functools.partial(self._send, partition.partition, records))
        self._call(self._check_sent)
        if not self._call(lambda: self._producer.send_offsets_to_transaction(offsets, self._member)):
            self._call(self._producer.abort_transaction)
            raise Ended("kafka-python would send the refused offsets again with the next ones")
        if self._call(self._producer.commit_transaction):
            return tuple(
                Entry(self.task.source, at.partition, records[0].offset, str(records[-1].offset + 1))
                for at, records in found.items()
            )
        self._call(self._producer.abort_transaction)
        for partition, records in found.items():
            if partition in self._consumer.assignment():
                self._consumer.seek(partition, records[0].offset)
        return ()

    def _check_joined(self) -> None:
        """kafka-python may forget a join whose coordinator is killed, and waits for its end for ever."""
        now = time.monotonic()
        if not self._consumer._coordinator.rejoining:
            self._joined_at = now
        elif now > self._joined_at + KAFKA_PYTHON_SECONDS:
            raise Ended("a join without an end")

    def _begin_where_it_was_committed(self) -> None:
        """kafka-python keeps its position in partitions that it gets back, whoever had them meanwhile."""
        for partition in self._consumer.assignment():
            self._consumer.seek(partition, self._consumer.committed(partition) or 0)
        self._is_new = False

    def _send(self, partition: int, records: Sequence[ConsumerRecord]) -> None:
        for record in records:
            future = self._producer.send(self.task.target, transformed(record.value), partition=partition)
            self._sent.append(future)

    def _check_sent(self) -> None:
        """kafka-python commits a transaction some of whose records it has given up: see for ourselves."""
        sent, self._sent = self._sent, []
        self._producer.flush()
        failed = [future.exception for future in sent if not future.succeeded()]
        if failed:
            raise Ended(f"{len(failed)} of {len(sent)} records were not written: {failed[0]!r}")

    def leave(self) -> None:
        self._consumer.close()


def main() -> None:
    secure_clients.install_if_secured()
    task = Mover(**json.loads(sys.argv[1]))
    loop = {"confluent-kafka": ConfluentLoop, "kafka-python": KafkaPythonLoop}[task.flavour](task)

    def stop(*_: object) -> None:
        loop.stopping = True

    signal.signal(signal.SIGTERM, stop)
    loop.run()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
