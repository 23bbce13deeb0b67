"""Clients of a simulated cluster, each in a process of its own. They are our own clients, on virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from tidelog import (
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    ConsumerRebalanceListener,
    NewTopic,
    TopicPartition,
)
from tidelog.clients.admin.topics import NewPartitions
from tidelog.clients.errors import TimeoutException
from tidelog.clients.producer.transaction_values import State
from tidelog.cluster.partition import HEAVY_BYTES
from tidelog.errors import KafkaError
from tidelog.records.loops import RecordMetadata
from tidelog.simulation.checks.ledger import POLL_RECORDS, Ledger
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
from tidelog.simulation.diaries import GroupDiary, TransactionDiary
from tidelog.simulation.process import Process

PATIENCE = 60.0
RECONNECT = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "retry.backoff.ms": 50}
ANSWERS = {"request.timeout.ms": 3000, "socket.connection.setup.timeout.ms": 1000}
LARGE_KEY = bytes(HEAVY_BYTES)
"""A worker writes batches of this size."""
LARGE_SHARE = 0.25


@dataclass(slots=True)
class Orders:
    """What an actor is told while it runs."""

    stopping: bool = False


# -- a group -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Member:
    name: str
    bootstrap: str
    group: str
    topic: str
    strategy: str
    diary: GroupDiary
    orders: Orders

    async def main(self, process: Process) -> None:
        ledger = Ledger(self.name, None, self.diary)
        is_new = self.strategy == "consumer"
        consumer: AsyncConsumer[bytes, bytes] = AsyncConsumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "client.id": self.name,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.max.wait.ms": 500,
                "max.poll.records": POLL_RECORDS,
                "metadata.max.age.ms": 2000,
                "max.poll.interval.ms": 10_000,
                "default.api.timeout.ms": 5000,
                **RECONNECT,
                **ANSWERS,
                **(
                    {"group.protocol": "consumer"}
                    if is_new
                    else {
                        "partition.assignment.strategy": self.strategy,
                        "session.timeout.ms": 4000,
                        "heartbeat.interval.ms": 1000,
                    }
                ),
            }
        )

        class Listener(ConsumerRebalanceListener):
            async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
                await ledger.commit_async(consumer.commit)
                ledger.revoked(partitions)

            async def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
                ledger.lost(partitions)

            async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
                generation = consumer.group_metadata().generation_id
                ledger.assigned(partitions, -1 if is_new else generation)

        ledger.note("started", self.strategy)
        consumer.subscribe([self.topic], listener=Listener())
        while not self.orders.stopping:
            try:
                records = await consumer.poll(0.5)
            except KafkaError as error:
                ledger.note("error", f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.1)
                continue
            for record in records:
                ledger.read(record.topic, record.partition, record.offset, record.value)
            if records and process.rng.random() < 0.5:
                await asyncio.sleep(process.rng.uniform(0.0, 0.8))  # it works on them
            await ledger.commit_async(consumer.commit)
        try:
            await consumer.close()
        except KafkaError as error:
            ledger.note("error", f"{type(error).__name__}: {error}")
        ledger.note("left")


@dataclass(slots=True)
class SteadyWriter:
    """An idempotent producer: a few numbered records to random partitions, again and again."""

    bootstrap: str
    topic: str
    partitions: int
    orders: Orders
    note: Callable[[str], None]
    written: defaultdict[Partition, set[str]] = field(default_factory=lambda: defaultdict(set))
    problems: list[str] = field(default_factory=list)
    acks: str = "all"
    is_idempotent: bool = True
    sent: set[str] = field(default_factory=set)

    async def main(self, process: Process) -> None:
        rng = process.rng
        producer: AsyncProducer[bytes, bytes] = AsyncProducer(
            {
                "bootstrap.servers": self.bootstrap,
                "client.id": "steady",
                "acks": self.acks,
                "enable.idempotence": self.is_idempotent,
                "linger.ms": 1,
                "delivery.timeout.ms": 60_000,
                "max.block.ms": 60_000,
                **RECONNECT,
                **ANSWERS,
            }
        )
        number = 0
        while not self.orders.stopping:
            for _ in range(rng.randrange(1, 4)):
                await self._write(
                    producer,
                    f"n{number}",
                    rng.randrange(self.partitions),
                    is_large=rng.random() < LARGE_SHARE,
                )
                number += 1
            await asyncio.sleep(rng.uniform(0.02, 0.4))
        try:
            await producer.flush(PATIENCE)
            await producer.close()
        except KafkaError as error:
            self.problems.append(f"the steady writer ends with {error!r}")

    async def _write(
        self, producer: AsyncProducer[bytes, bytes], value: str, partition: int, *, is_large: bool
    ) -> None:
        key = LARGE_KEY if is_large else None

        def told(metadata: RecordMetadata | None, error: BaseException | None) -> None:
            if error is None and metadata is not None:
                self.written[self.topic, partition].add(value)
                self.note(f"{value} is at {self.topic}-{partition} {metadata.offset}")
            else:
                self.note(f"{value} is lost: {error!r}")
                if self.is_idempotent:
                    self.problems.append(f"{value} could not be written: {error!r}")

        self.sent.add(value)
        try:
            await producer.send(self.topic, value.encode(), key=key, partition=partition, callback=told)
        except KafkaError as error:
            self.problems.append(f"{value} could not be sent: {error!r}")


@dataclass(slots=True)
class Administrator:
    """Creates topics, adds partitions to them and deletes them. Each name is used once."""

    bootstrap: str
    orders: Orders
    note: Callable[[str], None]
    replicas: int = 1
    partitions: dict[str, int] = field(default_factory=dict)
    """The topics that exist for sure, with the least number of their partitions."""
    deleted: set[str] = field(default_factory=set)
    """The topics that are deleted for sure."""
    doubtful: list[str] = field(default_factory=list)
    """The topics that may exist: nobody knows the outcome of their creation."""

    async def main(self, process: Process) -> None:
        rng = process.rng
        number = 0
        async with AsyncAdmin(
            {"bootstrap.servers": self.bootstrap, "default.api.timeout.ms": 6000, **RECONNECT, **ANSWERS}
        ) as admin:
            while not self.orders.stopping:
                await asyncio.sleep(rng.uniform(0.1, 1.5))
                kind = rng.random()
                if self.doubtful and kind < 0.7:
                    name = self.doubtful.pop()
                    await self._try(f"delete {name}", admin.delete_topics([name]))
                elif kind < 0.5 or not self.partitions:
                    number += 1
                    await self._create(admin, f"made{number}", rng.randint(1, 3))
                elif kind < 0.7:
                    await self._grow(admin, rng.choice(sorted(self.partitions)))
                else:
                    await self._delete(admin, rng.choice(sorted(self.partitions)))

    async def _create(self, admin: AsyncAdmin, name: str, count: int) -> None:
        created = admin.create_topics([NewTopic(name, count, self.replicas)])
        if await self._try(f"create {name} with {count} partitions", created):
            self.partitions[name] = count
        else:
            self.doubtful.append(name)

    async def _grow(self, admin: AsyncAdmin, name: str) -> None:
        wanted = self.partitions[name] + 1
        if await self._try(
            f"let {name} have {wanted} partitions", admin.create_partitions({name: NewPartitions(wanted)})
        ):
            self.partitions[name] = wanted

    async def _delete(self, admin: AsyncAdmin, name: str) -> None:
        del self.partitions[name]
        if await self._try(f"delete {name}", admin.delete_topics([name])):
            self.deleted.add(name)

    async def _try(self, what: str, call: Awaitable[object]) -> bool:
        """Whether the call succeeded; otherwise nobody knows its outcome."""
        self.note(what)
        try:
            await call
        except KafkaError as error:
            self.note(f"{what}: {type(error).__name__}: {error}")
            return False
        self.note(f"{what}: done")
        return True

    def problems(self, found: Mapping[str, int]) -> list[str]:
        """What is wrong with the topics that the cluster has in the end, with their numbers of partitions."""
        lost = [
            f"{name} has {found.get(name)} partitions instead of {count}"
            for name, count in self.partitions.items()
            if found.get(name, 0) < count
        ]
        return lost + [f"{name} was deleted and is there" for name in sorted(self.deleted & found.keys())]


# -- transactions ------------------------------------------------------------------------------------


class Refused(Exception):
    """The transaction was not committed and may be aborted."""


class Ended(Exception):
    """The producer cannot go on; nobody knows the outcome of its last request."""


@dataclass(slots=True)
class TransactionalWriter:
    """One producer of a transactional id. It writes transactions until it is told to stop, or fenced."""

    name: str
    number: int  # of all instances of its transactional id
    transactional_id: str
    bootstrap: str
    partitions: Sequence[Partition]
    diary: TransactionDiary
    orders: Orders
    txn: str = ""
    count: int = 0

    @property
    def group(self) -> str:
        return f"group-{self.transactional_id}"

    def _note(
        self, kind: str, what: str, entries: tuple[Entry, ...] = (), detail: str = "", txn: str | None = None
    ) -> None:
        name = self.txn if txn is None else txn
        self.diary.write(Line(self.name, kind, what, name, entries, detail.replace("\n", " ")))

    async def main(self, process: Process) -> None:
        producer: AsyncProducer[bytes, bytes] = AsyncProducer(
            {
                "bootstrap.servers": self.bootstrap,
                "client.id": self.name,
                "transactional.id": self.transactional_id,
                "transaction.timeout.ms": 8000,
                "linger.ms": 1,
                "delivery.timeout.ms": 10_000,
                "max.block.ms": 5000,
                **RECONNECT,
                **ANSWERS,
            }
        )
        self._note(INVOKE, "init", detail=self.transactional_id)
        try:
            await self._call(producer, producer.init_transactions)
        except (Refused, Ended) as error:
            self._note(INFO, "init", detail=str(error))
            return
        self._note(OK, "init")
        try:
            while not self.orders.stopping:
                await self._transaction(producer, process.rng)
                await asyncio.sleep(process.rng.uniform(0.0, 0.5))
        except Ended as error:
            self._note(INFO, "ended", detail=str(error))

    async def _call(
        self, producer: AsyncProducer[bytes, bytes], call: Callable[[], Awaitable[object]]
    ) -> None:
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while True:
            try:
                await call()
                return
            except KafkaError as error:
                text = f"{type(error).__name__}: {error}"
                if producer._transactions.state is State.ABORTABLE:
                    raise Refused(text) from None
                retriable = isinstance(error, TimeoutException)
                if not retriable or asyncio.get_running_loop().time() > deadline:
                    raise Ended(text) from None

    async def _try(
        self,
        producer: AsyncProducer[bytes, bytes],
        what: str,
        call: Callable[[], Awaitable[object]],
        entries: tuple[Entry, ...] = (),
    ) -> None:
        self._note(INVOKE, what, entries)
        try:
            await self._call(producer, call)
        except Refused as error:
            self._note(FAIL, what, entries, str(error))
            raise
        except Ended as error:
            self._note(INFO, what, entries, str(error))
            raise
        self._note(OK, what, entries)

    async def _transaction(self, producer: AsyncProducer[bytes, bytes], rng: random.Random) -> None:
        self.count += 1
        self.txn = f"{self.name}#{self.count}"
        self._note(INVOKE, "begin")
        try:
            producer.begin_transaction()
            await self._fill(producer, rng)
            if rng.random() < 0.3:
                await self._try(producer, "abort", producer.abort_transaction)
                return
            await self._try(producer, "commit", producer.commit_transaction)
        except Refused:
            try:
                await self._try(producer, "abort", producer.abort_transaction)
            except Refused as error:
                raise Ended(str(error)) from None

    async def _fill(self, producer: AsyncProducer[bytes, bytes], rng: random.Random) -> None:
        places = rng.sample(list(self.partitions), rng.randint(1, min(4, len(self.partitions))))
        number = 0
        for topic, index in places * rng.randint(1, 2):
            count = rng.randint(1, 2)
            entries = tuple(Entry(topic, index, -1, f"{self.txn}.{number + at}") for at in range(count))
            number += count
            self._note(INVOKE, "write", entries)
            for entry in entries:
                await self._call(producer, partial(self._send, producer, entry))
            if rng.random() < 0.2:
                await self._call(producer, lambda: producer.flush(PATIENCE))
        if rng.random() < 0.4:
            offset = self.number * 100_000 + self.count
            offsets = tuple(Entry(topic, index, offset, self.group) for topic, index in places)
            wanted = dict.fromkeys(places, offset)
            await self._try(
                producer,
                "offsets",
                lambda: producer.send_offsets_to_transaction(wanted, self.group),
                offsets,
            )

    async def _send(self, producer: AsyncProducer[bytes, bytes], entry: Entry) -> None:
        txn = self.txn

        def told(metadata: RecordMetadata | None, error: BaseException | None) -> None:
            if error is None and metadata is not None:
                self._note(OK, "write", (entry._replace(offset=metadata.offset),), txn=txn)
            else:
                self._note(INFO, "write", (entry,), repr(error), txn=txn)

        await producer.send(entry.topic, entry.value.encode(), partition=entry.partition, callback=told)


@dataclass(slots=True)
class Reader:
    """Reads every partition from its beginning, and goes on reading."""

    name: str
    bootstrap: str
    partitions: Sequence[Partition]
    isolation: str
    diary: TransactionDiary
    orders: Orders

    async def main(self, process: Process) -> None:
        consumer = plain_consumer(self.bootstrap, self.partitions, self.isolation)
        consumer.seek_to_beginning()
        while not self.orders.stopping:
            try:
                records = await consumer.poll(1.0)
            except KafkaError as error:
                self.diary.write(Line(self.name, INFO, "error", detail=repr(error)))
                continue
            entries = tuple(
                Entry(record.topic, record.partition, record.offset, (record.value or b"").decode())
                for record in records
            )
            if entries:
                self.diary.write(Line(self.name, OK, "read", "", entries, self.isolation))


def plain_consumer(
    bootstrap: str, partitions: Sequence[Partition], isolation: str = COMMITTED
) -> AsyncConsumer[bytes, bytes]:
    """A consumer without a group, assigned to these partitions."""
    consumer: AsyncConsumer[bytes, bytes] = AsyncConsumer(
        {
            "bootstrap.servers": bootstrap,
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "metadata.max.age.ms": 2000,
            "default.api.timeout.ms": 5000,
            **RECONNECT,
            **ANSWERS,
        }
    )
    consumer.assign(partitions)
    return consumer
