"""The topic of decisions: for each name the last batch, its transactions, and the run that may decide next.

The topic is compacted with the name as key, so it keeps one record for each name. A decision with too many
transactions for one record has parts: records under their own keys, written before the record of the name,
which has their number. All records of a decision are written in one transaction, whose transactional id
belongs to the name: a driver that takes the id fences the previous one, and can then read its last decision.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self, TypeVar

from tidelog.clients.admin.configs import ConfigResource, ResourceType
from tidelog.clients.admin.topics import NewTopic
from tidelog.clients.consumer.blocking import Consumer
from tidelog.clients.errors import TimeoutException
from tidelog.clients.producer.blocking import Producer
from tidelog.clients.producer.transaction_values import PreparedTxnState
from tidelog.clients.settings import admin_definition, consumer_definition, producer_definition
from tidelog.errors import InvalidReplicationFactor, TopicAlreadyExists, UnknownTopicOrPartition
from tidelog.spark.client_options import on_this_machine
from tidelog.spark.options import OptionError
from tidelog.spark.transactions import TransactionManager

log = logging.getLogger("tidelog.spark")

T = TypeVar("T")

WHOLE = 1
"""The format of a decision in one record. Older releases can read it."""
IN_PARTS = 2
NO_BATCH = -1
PAST_RUNS = 32
# A quarter of Kafka's default of max.message.bytes, 1 MB, since a cluster may have a lower limit.
PART_BYTES = 256 << 10
# No name begins with this prefix.
PART_KEY = b"\0"
SETTINGS = {
    "cleanup.policy": "compact",
    # Small segments that roll early keep short what a driver reads when it starts.
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.01",
}
REPLICAS = 3
MIN_IN_SYNC = 2
# How long a driver that died during a write can block the others.
DECIDING_MS = 10_000
READ_SECONDS = 60.0


class IncompleteDecision(RuntimeError):
    """The topic lacks parts of a decision."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The last decision of a name: batches up to `batch` are decided, and only `run` may decide the next."""

    name: str
    generation: int = 0
    """The number of runs so far. It is part of the transactional ids of the run's tasks."""
    run: str = ""
    past: tuple[str, ...] = ()
    """The earlier runs, the newest first."""
    batch: int = NO_BATCH
    transactions: tuple[PreparedTxnState, ...] = ()
    """The transactions of `batch`; empty once all of them are known to be committed."""
    query: str = ""
    """The streaming query that wrote `batch` under a name; empty outside of a query."""
    owner: str = ""
    """A mark that the driver and the tasks of `run` have in common."""
    written_at: float = field(default=0.0, compare=False)
    """The timestamp of its record in the topic, in seconds."""

    def claimed_by(self, run: str, owner: str = "") -> Decision:
        """This decision for another run. Call it when all transactions are committed."""
        past = ((self.run, *self.past) if self.run else ())[:PAST_RUNS]
        return replace(self, generation=self.generation + 1, run=run, past=past, transactions=(), owner=owner)

    def decided(self, batch: int, transactions: tuple[PreparedTxnState, ...], query: str = "") -> Decision:
        return replace(self, batch=batch, transactions=transactions, query=query)

    def ended(self) -> Decision:
        return replace(self, transactions=())

    def records(self) -> Iterator[tuple[bytes, bytes]]:
        """The keys and values to write. The record with the number of parts comes last."""
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
        """The key of a part. It is new for each decision, so the previous one stays readable meanwhile."""
        return part_keys_of(self.name) + f"{self.generation}.{self.batch}.{index}".encode()

    @classmethod
    def from_records(cls, name: str, records: Mapping[bytes, bytes], written_at: float = 0.0) -> Decision:
        """The decision of a name from the records of the topic. Raises IncompleteDecision."""
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
        return replace(known, transactions=tuple(PreparedTxnState(*entry) for entry in entries))


def part_keys_of(name: str) -> bytes:
    """The prefix of the keys of all parts of a name's decisions."""
    return PART_KEY + name.encode() + PART_KEY


def _parts(transactions: Iterable[PreparedTxnState]) -> Iterator[list[list[str | int]]]:
    """The entries of transactions, in pieces that fit in a record."""
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
            f"the decision of {name!r} has version {fields['version']}; this release reads up to {IN_PARTS}"
        )
    return fields


class Decisions:
    """The topic of decisions, created on first use."""

    def __init__(self, client: Mapping[str, str], topic: str, transactions: TransactionManager) -> None:
        self.topic = topic
        self._transactions = transactions
        local = on_this_machine(client)
        common = {name: value for name, value in local.items() if name in admin_definition()}
        self._consumer = {name: value for name, value in common.items() if name in consumer_definition()}
        self._producer = {name: value for name, value in common.items() if name in producer_definition()}
        self._exists = False

    def read(self) -> dict[str, Decision]:
        """The decision of each name. It includes every write that ended before this call."""
        return self._read()[0]

    def _read(self) -> tuple[dict[str, Decision], dict[bytes, bytes]]:
        """The decisions, and every record of the topic."""
        self._make_topic()
        deadline = time.monotonic() + READ_SECONDS
        while True:
            times, records = self._records(deadline)
            names = [key.decode() for key in records if not key.startswith(PART_KEY)]
            try:
                found = {name: Decision.from_records(name, records, times[name.encode()]) for name in names}
                return found, records
            except IncompleteDecision:
                # The topic was compacted during the read. A newer decision replaced this one after that.
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
                    raise TimeoutException(
                        f"topic {self.topic!r} cannot be read up to offset {end}: a transaction of another "
                        f"driver is open in it at {consumer.position(partition)}"
                    )
        return times, found

    def take(self, name: str, transactional_id: str) -> Holder:
        """Take over the right to decide on a name. This fences the previous holder."""
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
        """The end of the topic, with open transactions: committed records may follow an open one."""
        partition = (self.topic, 0)
        admin = self._transactions.admin
        return self._once_known(lambda: admin.list_offsets({partition: -1}))[partition].offset

    def _once_known(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Ask until the broker knows the topic: brokers learn of a new one at different times."""
        deadline = time.monotonic() + READ_SECONDS
        while True:
            try:
                return self._transactions.thread.run(ask())
            except UnknownTopicOrPartition:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _make_topic(self) -> None:
        if self._exists:
            return
        deadline = time.monotonic() + READ_SECONDS
        refused = 0
        while (found := self._settings()) is None:
            # If the topic exists although it was not described, the broker had not heard of it yet.
            try:
                refused = self._create(refused)
            except TopicAlreadyExists:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                if not refused:
                    self._exists = True
                    return
        policy = found.get("cleanup.policy") or "compact"
        if policy != "compact":
            raise OptionError(
                f"the topic of decisions, {self.topic!r}, has cleanup.policy={policy}, which would lose "
                "decisions; expected compact"
            )
        self._warn_of_few_replicas(int(found.get("min.insync.replicas") or 1))
        self._exists = True

    def _create(self, refused: int) -> int:
        """Create the topic with the replicas of Kafka's internal topics, at most one for each broker.

        Returns 0, or the number of replicas that the cluster refused: a broker may have left since they were
        counted. If the same number was `refused` before, the cluster does not replicate so much, and the
        topic gets the default of the brokers.
        """
        transactions = self._transactions
        replicas = min(REPLICAS, transactions.thread.run(transactions.admin.broker_count()))
        by_default = replicas == refused
        safe = {"min.insync.replicas": str(MIN_IN_SYNC)} if replicas == REPLICAS and not by_default else {}
        new = NewTopic(
            self.topic,
            num_partitions=1,
            replication_factor=-1 if by_default else replicas,
            configs={**SETTINGS, **safe},
        )
        try:
            transactions.thread.run(transactions.admin.create_topics([new]))
        except InvalidReplicationFactor:
            if by_default:
                raise
            return replicas
        if by_default:
            self._warn_of_few_replicas(1)
        return 0

    def _warn_of_few_replicas(self, min_in_sync: int) -> None:
        transactions = self._transactions
        described = self._once_known(lambda: transactions.admin.describe_topics([self.topic]))[self.topic]
        wanted = min(REPLICAS, transactions.thread.run(transactions.admin.broker_count()))
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
        """The settings of the topic that matter here; None if the topic does not exist."""
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
    """The right to decide on a name until another driver takes it.

    After that writes raise ProducerFenced, from the coordinator, or InvalidProducerEpoch, from the partition.
    """

    def __init__(self, producer: Producer, topic: str, known: Decision, parts: Iterable[bytes] = ()) -> None:
        self.known = known
        self._producer = producer
        self._topic = topic
        self._parts = tuple(parts)
        """The keys of all parts of the name's decisions in the topic."""

    def write(self, decision: Decision) -> None:
        """Return when the decision is durable. After an error its state is unknown: take the name again."""
        self._send(list(decision.records()))
        self.known = decision

    def forget(self) -> None:
        """Remove all records of the name from the topic."""
        self._send([(self.known.name.encode(), None)])
        self.known = Decision(self.known.name)

    def _send(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Write records in one transaction, and then tombstones for the parts that they replace."""
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
