"""What was decided: for each name the last batch, its transactions, and the run that may decide, in a topic.

The topic is compacted with the name as key, so that it holds one record for each name. A decision on more
transactions than one record should hold has parts: records under keys of their own, before the record of the
name, which counts them. All records of a decision are written in one transaction of the name's own id: who
takes that id shuts out whoever had it, and then knows what was written last.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

from tidelog.clients.adminclient.configs import ConfigResource, ResourceType
from tidelog.clients.adminclient.topics import NewTopic
from tidelog.clients.consumer.blocking import Consumer
from tidelog.clients.errors import Timeout
from tidelog.clients.producer.blocking import Producer
from tidelog.clients.producer.transaction_values import PreparedTransaction
from tidelog.clients.settings import admin_definition, consumer_definition, producer_definition
from tidelog.errors import InvalidReplicationFactor, TopicAlreadyExists, UnknownTopicOrPartition
from tidelog.spark.options import OptionError
from tidelog.spark.transactions import TransactionManager

log = logging.getLogger("tidelog.spark")

WHOLE = 1
"""The format of a decision in one record; older releases read it."""
IN_PARTS = 2
NO_BATCH = -1
PAST_RUNS = 32
# A quarter of Kafka's default of max.message.bytes, 1 MB: a cluster may have lowered it.
PART_BYTES = 256 << 10
# No name begins so.
PART_KEY = b"\0"
SETTINGS = {
    "cleanup.policy": "compact",
    # Small segments, closed early: what is read at a start stays small.
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.01",
}
REPLICAS = 3
MIN_IN_SYNC = 2
# What a driver that died while it wrote may hold up the others.
DECIDING_MS = 10_000
READ_SECONDS = 60.0


class IncompleteDecision(RuntimeError):
    """Parts of a decision are not in the topic."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The last word on a name: batches up to `batch` are decided, and `run` alone may decide the next one."""

    name: str
    generation: int = 0
    """How many runs there were: part of the transactional ids of the run's tasks."""
    run: str = ""
    past: tuple[str, ...] = ()
    """Runs that were left behind, the newest first."""
    batch: int = NO_BATCH
    transactions: tuple[PreparedTransaction, ...] = ()
    """Those of `batch`; empty when it is known that all are committed."""
    query: str = ""
    """The streaming query inside of which `batch` was written under a name; empty outside of one."""
    owner: str = ""
    """What the driver and the tasks of `run` share."""
    written_at: float = field(default=0.0, compare=False)
    """The time of its record in the topic, in seconds."""

    def claimed_by(self, run: str, owner: str = "") -> Decision:
        """The same with another run, once everything decided is committed."""
        past = ((self.run, *self.past) if self.run else ())[:PAST_RUNS]
        return replace(self, generation=self.generation + 1, run=run, past=past, transactions=(), owner=owner)

    def decided(self, batch: int, transactions: tuple[PreparedTransaction, ...], query: str = "") -> Decision:
        return replace(self, batch=batch, transactions=transactions, query=query)

    def ended(self) -> Decision:
        return replace(self, transactions=())

    def records(self) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values to write, the one that counts the others last."""
        fields = {
            "generation": self.generation,
            "run": self.run,
            "past": self.past,
            "batch": self.batch,
            "query": self.query,
            "owner": self.owner,
        }
        parts = list(_parts(self.transactions))
        if len(parts) <= 1:
            entries = parts[0] if parts else []
            yield self.name.encode(), _json({"version": WHOLE, **fields, "transactions": entries})
            return
        for index, entries in enumerate(parts):
            yield self._part_key(index), _json({"version": IN_PARTS, "transactions": entries})
        yield self.name.encode(), _json({"version": IN_PARTS, **fields, "parts": len(parts)})

    def _part_key(self, index: int) -> bytes:
        """Other decisions of the name have other keys: theirs can be read until this one is complete."""
        return part_keys_of(self.name) + f"{self.generation}.{self.batch}.{index}".encode()

    @classmethod
    def from_records(cls, name: str, records: Mapping[bytes, bytes], written_at: float = 0.0) -> Decision:
        """The decision whose last record is that of the name; raises IncompleteDecision."""
        fields = _checked(name, records[name.encode()])
        known = cls(
            name,
            fields["generation"],
            fields["run"],
            tuple(fields["past"]),
            fields["batch"],
            query=fields.get("query", ""),
            owner=fields.get("owner", ""),
            written_at=written_at,
        )
        entries = list(fields.get("transactions", ()))
        for index in range(fields.get("parts", 0)):
            part = records.get(known._part_key(index))
            if part is None:
                raise IncompleteDecision(
                    f"part {index + 1} of {fields['parts']} of the decision of {name!r} is not in the topic"
                )
            entries += _checked(name, part)["transactions"]
        return replace(known, transactions=tuple(PreparedTransaction(*entry) for entry in entries))


def part_keys_of(name: str) -> bytes:
    """How the keys of all parts of a name's decisions begin."""
    return PART_KEY + name.encode() + PART_KEY


def _parts(transactions: Iterable[PreparedTransaction]) -> Iterator[list[list[str | int]]]:
    """The entries of transactions, as many at a time as a record should hold."""
    part: list[list[str | int]] = []
    size = 0
    for entry in transactions:
        fields: list[str | int] = [entry.transactional_id, entry.producer_id, entry.epoch]
        length = len(_json(fields)) + 1
        if part and size + length > PART_BYTES:
            yield part
            part, size = [], 0
        part.append(fields)
        size += length
    if part:
        yield part


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _checked(name: str, value: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(value)
    if fields["version"] not in (WHOLE, IN_PARTS):
        raise OptionError(
            f"the decision of {name!r} has version {fields['version']}, this release reads {IN_PARTS}"
        )
    return fields


class Decisions:
    """The topic of decisions, made when it is first used."""

    def __init__(self, client: Mapping[str, str], topic: str, transactions: TransactionManager) -> None:
        self.topic = topic
        self._transactions = transactions
        common = {name: value for name, value in client.items() if name in admin_definition()}
        self._consumer = {name: value for name, value in common.items() if name in consumer_definition()}
        self._producer = {name: value for name, value in common.items() if name in producer_definition()}
        self._exists = False

    def read(self) -> dict[str, Decision]:
        """The decision of each name, and everything that was written before this was called."""
        return self._read()[0]

    def _read(self) -> tuple[dict[str, Decision], dict[bytes, bytes]]:
        """The decisions, and every record that stands in the topic."""
        self._make_topic()
        deadline = time.monotonic() + READ_SECONDS
        while True:
            times, records = self._records(deadline)
            names = [key.decode() for key in records if not key.startswith(PART_KEY)]
            try:
                found = {name: Decision.from_records(name, records, times[name.encode()]) for name in names}
                return found, records
            except IncompleteDecision:
                # The topic was compacted while it was read, and what replaces the decision came after.
                if time.monotonic() > deadline:
                    raise

    def _records(self, deadline: float) -> tuple[dict[bytes, float], dict[bytes, bytes]]:
        """The time and the value of the last record under each key."""
        times: dict[bytes, float] = {}
        found: dict[bytes, bytes] = {}
        settings = {**self._consumer, "isolation.level": "read_committed", "enable.auto.commit": "false"}
        settings |= {"allow.auto.create.topics": "false", "fetch.max.wait.ms": "20"}
        partition = (self.topic, 0)
        end = self._end()
        with Consumer(settings) as consumer:
            consumer.assign([partition])
            consumer.seek_to_beginning(partition)
            while consumer.position(partition) < end:
                for record in consumer.poll(timeout=0.2):
                    key = record.key or b""
                    found.pop(key, None)
                    if record.value is not None:
                        found[key], times[key] = record.value, record.timestamp / 1000
                if time.monotonic() > deadline:
                    raise Timeout(
                        f"topic {self.topic!r} cannot be read up to offset {end}: a transaction of another "
                        f"driver is open in it at {consumer.position(partition)}"
                    )
        return times, found

    def take(self, name: str, transactional_id: str) -> Holder:
        """Take over the right to decide: who had it before cannot write any more."""
        self._make_topic()
        producer = Producer(
            {
                **self._producer,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": DECIDING_MS,
                "linger.ms": 0,
            }
        )
        try:
            producer.init_transactions()
            found, records = self._read()
            parts = [key for key in records if key.startswith(part_keys_of(name))]
            return Holder(producer, self.topic, found.get(name, Decision(name)), parts)
        except BaseException:
            producer.close(0)
            raise

    def _end(self) -> int:
        """Where the topic ends, open transactions included: what was committed may stand behind one."""
        partition = (self.topic, 0)
        admin, deadline = self._transactions.admin, time.monotonic() + READ_SECONDS
        while True:
            try:
                return self._transactions.thread.run(admin.list_offsets({partition: -1}))[partition].offset
            except UnknownTopicOrPartition:
                # Brokers hear of a new topic one after the other.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _make_topic(self) -> None:
        if self._exists:
            return
        deadline = time.monotonic() + READ_SECONDS
        while (found := self._settings()) is None:
            # Where it is there although nobody described it, the broker that was asked had not heard of it.
            try:
                self._create()
                self._exists = True
                return
            except (TopicAlreadyExists, InvalidReplicationFactor):
                # A broker may have ended since they were counted.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        policy = found.get("cleanup.policy") or "compact"
        if policy != "compact":
            raise OptionError(
                f"the topic of decisions, {self.topic!r}, has cleanup.policy={policy}, which would lose "
                "decisions: compact is right"
            )
        self._warn_of_few_replicas(int(found.get("min.insync.replicas") or 1))
        self._exists = True

    def _create(self) -> None:
        """As many replicas as Kafka's own topics have, and so few as there are brokers."""
        transactions = self._transactions
        replicas = min(REPLICAS, transactions.thread.run(transactions.admin.broker_count()))
        safe = {"min.insync.replicas": str(MIN_IN_SYNC)} if replicas == REPLICAS else {}
        new = NewTopic(
            self.topic, num_partitions=1, replication_factor=replicas, configs={**SETTINGS, **safe}
        )
        transactions.thread.run(transactions.admin.create_topics([new]))

    def _warn_of_few_replicas(self, min_in_sync: int) -> None:
        transactions = self._transactions
        try:
            described = transactions.thread.run(transactions.admin.describe_topics([self.topic]))[self.topic]
            wanted = min(REPLICAS, transactions.thread.run(transactions.admin.broker_count()))
        except UnknownTopicOrPartition:  # brokers hear of a new topic one after the other
            return
        replicas = len(described.partitions[0].replicas)
        if replicas < wanted:
            log.warning(
                "the topic of decisions, %r, has %d of %d replicas: decisions are lost with the brokers that"
                " have them. Give it more with a reassignment of its partition",
                self.topic,
                replicas,
                wanted,
            )
        elif replicas >= REPLICAS and min_in_sync < MIN_IN_SYNC:
            log.warning(
                "the topic of decisions, %r, has min.insync.replicas=%d: a decision may be on one broker"
                " alone. Set it to %d",
                self.topic,
                min_in_sync,
                MIN_IN_SYNC,
            )

    def _settings(self) -> dict[str, str | None] | None:
        """The topic's settings that matter here; None where it is not there."""
        resource = ConfigResource(ResourceType.TOPIC, self.topic)
        names = ("cleanup.policy", "min.insync.replicas")
        try:
            found = self._transactions.thread.run(
                self._transactions.admin.describe_configs([resource], names=names)
            )
        except UnknownTopicOrPartition:
            return None
        return {name: entry.value for name, entry in found[resource].items()}


class Holder:
    """The right to decide on a name until somebody else takes it.

    Writes then raise ProducerFenced or InvalidProducerEpoch, after whether coordinator or partition said so.
    """

    def __init__(self, producer: Producer, topic: str, known: Decision, parts: Iterable[bytes] = ()) -> None:
        self.known = known
        self._producer = producer
        self._topic = topic
        self._parts = tuple(parts)
        """The keys of all parts of the name's decisions that stand in the topic."""

    def write(self, decision: Decision) -> None:
        """Returns when the decision is durable. After an error it may be written or not: take it again."""
        self._send(list(decision.records()))
        self.known = decision

    def forget(self) -> None:
        """Nothing about the name has to be known any more."""
        self._send([(self.known.name.encode(), None)])
        self.known = Decision(self.known.name)

    def _send(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Write records in one transaction, and tombstones for the parts that they replace after them."""
        keys = [key for key, _ in records]
        old = [key for key in self._parts if key not in keys]
        self._producer.begin_transaction()
        for key, value in (*records, *((key, None) for key in old)):
            self._producer.send(self._topic, value, key, partition=0)
        self._producer.commit_transaction()
        self._parts = tuple(key for key in keys if key.startswith(PART_KEY))

    def close(self) -> None:
        self._producer.close(5.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
