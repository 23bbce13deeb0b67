"""What was decided: for each name the last batch, its transactions, and the run that may decide, in a topic.

The topic is compacted with the name as key, so that it holds one record for each name. A record is written
in a transaction of the name's own id: who takes that id shuts out whoever had it, and then knows what was
written last.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from tidelog.clients.adminclient.configs import ConfigResource, ResourceType
from tidelog.clients.adminclient.topics import NewTopic
from tidelog.clients.consumer.face import Consumer
from tidelog.clients.errors import Timeout
from tidelog.clients.producer.face import Producer
from tidelog.clients.producer.transaction_values import PreparedTransaction
from tidelog.clients.settings import admin_definition, consumer_definition, producer_definition
from tidelog.errors import TopicAlreadyExists, UnknownTopicOrPartition
from tidelog.spark.options import OptionError
from tidelog.spark.transactions import TransactionDesk

log = logging.getLogger("tidelog.spark")

FORMAT = 1
NO_BATCH = -1
PAST_RUNS = 32
SETTINGS = {
    "cleanup.policy": "compact",
    # Small segments, closed early: what is read at a start stays small.
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.01",
}
# What a driver that died while it wrote may hold up the others.
DECIDING_MS = 10_000
READ_SECONDS = 60.0


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

    def claimed_by(self, run: str) -> Decision:
        """The same with another run, once everything decided is committed."""
        past = ((self.run, *self.past) if self.run else ())[:PAST_RUNS]
        return replace(self, generation=self.generation + 1, run=run, past=past, transactions=())

    def decided(self, batch: int, transactions: tuple[PreparedTransaction, ...], query: str = "") -> Decision:
        return replace(self, batch=batch, transactions=transactions, query=query)

    def ended(self) -> Decision:
        return replace(self, transactions=())

    def to_bytes(self) -> bytes:
        return json.dumps(
            {
                "version": FORMAT,
                "generation": self.generation,
                "run": self.run,
                "past": self.past,
                "batch": self.batch,
                "transactions": [
                    [entry.transactional_id, entry.producer_id, entry.epoch] for entry in self.transactions
                ],
                "query": self.query,
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def from_bytes(cls, name: str, value: bytes) -> Decision:
        fields = json.loads(value)
        if fields["version"] != FORMAT:
            raise OptionError(
                f"the decision of {name!r} has version {fields['version']}, this release reads {FORMAT}"
            )
        return cls(
            name,
            fields["generation"],
            fields["run"],
            tuple(fields["past"]),
            fields["batch"],
            tuple(PreparedTransaction(*entry) for entry in fields["transactions"]),
            fields.get("query", ""),
        )


class Decisions:
    """The topic of decisions, made when it is first used."""

    def __init__(self, client: Mapping[str, str], topic: str, desk: TransactionDesk) -> None:
        self.topic = topic
        self._desk = desk
        common = {name: value for name, value in client.items() if name in admin_definition()}
        self._consumer = {name: value for name, value in common.items() if name in consumer_definition()}
        self._producer = {name: value for name, value in common.items() if name in producer_definition()}
        self._exists = False

    def read(self) -> dict[str, Decision]:
        """The decision of each name, and everything that was written before this was called."""
        self._make_topic()
        found: dict[str, bytes] = {}
        settings = {**self._consumer, "isolation.level": "read_committed", "enable.auto.commit": "false"}
        settings |= {"allow.auto.create.topics": "false", "fetch.max.wait.ms": "20"}
        partition = (self.topic, 0)
        end = self._end()
        with Consumer(settings) as consumer:
            consumer.assign([partition])
            consumer.seek_to_beginning(partition)
            deadline = time.monotonic() + READ_SECONDS
            while consumer.position(partition) < end:
                for record in consumer.poll(timeout=0.2):
                    name = (record.key or b"").decode()
                    found.pop(name, None)
                    if record.value is not None:
                        found[name] = record.value
                if time.monotonic() > deadline:
                    raise Timeout(
                        f"topic {self.topic!r} cannot be read up to offset {end}: a transaction of another "
                        f"driver is open in it at {consumer.position(partition)}"
                    )
        return {name: Decision.from_bytes(name, value) for name, value in found.items()}

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
            return Holder(producer, self.topic, self.read().get(name, Decision(name)))
        except BaseException:
            producer.close(0)
            raise

    def _end(self) -> int:
        """Where the topic ends, open transactions included: what was committed may stand behind one."""
        partition = (self.topic, 0)
        admin, deadline = self._desk.admin, time.monotonic() + READ_SECONDS
        while True:
            try:
                return self._desk.thread.run(admin.list_offsets({partition: -1}))[partition].offset
            except UnknownTopicOrPartition:
                # Brokers hear of a new topic one after the other.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _make_topic(self) -> None:
        if self._exists:
            return
        admin, deadline = self._desk.admin, time.monotonic() + READ_SECONDS
        while (policy := self._policy()) is None:
            # Where it is there although nobody described it, the broker that was asked had not heard of it.
            try:
                new = NewTopic(self.topic, num_partitions=1, configs=SETTINGS)
                self._desk.thread.run(admin.create_topics([new]))
                policy = "compact"
                break
            except TopicAlreadyExists:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        if policy != "compact":
            raise OptionError(
                f"the topic of decisions, {self.topic!r}, has cleanup.policy={policy}, which would lose "
                "decisions: compact is right"
            )
        self._exists = True

    def _policy(self) -> str | None:
        """How the topic is cleaned; None where it is not there."""
        resource = ConfigResource(ResourceType.TOPIC, self.topic)
        described = self._desk.admin.describe_configs([resource], names=("cleanup.policy",))
        try:
            entry = self._desk.thread.run(described)[resource].get("cleanup.policy")
        except UnknownTopicOrPartition:
            return None
        return "compact" if entry is None or entry.value is None else entry.value


class Holder:
    """The right to decide on a name until somebody else takes it.

    Writes then raise ProducerFenced or InvalidProducerEpoch, after whether coordinator or partition said so.
    """

    def __init__(self, producer: Producer, topic: str, known: Decision) -> None:
        self.known = known
        self._producer = producer
        self._topic = topic

    def write(self, decision: Decision) -> None:
        """Returns when the decision is durable. After an error it may be written or not: take it again."""
        self._send(decision.name, decision.to_bytes())
        self.known = decision

    def forget(self) -> None:
        """Nothing about the name has to be known any more."""
        self._send(self.known.name, None)
        self.known = Decision(self.known.name)

    def _send(self, name: str, value: bytes | None) -> None:
        self._producer.begin_transaction()
        self._producer.send(self._topic, value, name.encode(), partition=0)
        self._producer.commit_transaction()

    def close(self) -> None:
        self._producer.close(5.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
