"""One consumer as a process of its own: `python -m tests.groups.member '{"name": ...}'`.

It commits synchronously after each poll, and what it reads, intends to commit and knows to be committed is in
the history before it goes on: a read before its commit is sent, an intention before, an outcome after it.
SIGTERM makes it leave its group politely. It ends without leaving when another has its instance id.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.groups.history import Diary
from tests.support import secure_clients
from tidelog.simulation.checks.ledger import POLL_RECORDS, FencedError, Ledger, Partition

POLL_SECONDS = 0.1
# kafka-python forgets its assignment and sends no heartbeats where a poll's time ends just as it has joined.
JOIN_MS = 3000


@dataclass(slots=True, frozen=True)
class Member:
    """Everything that such a process is told."""

    name: str
    client: str
    strategy: str
    bootstrap: str
    group: str
    topic: str
    history: str
    session_ms: int = 2000
    instance: str | None = None
    pattern: bool = False  # the topic is a regular expression

    def text(self) -> str:
        return json.dumps(asdict(self))


def run_confluent(member: Member, ledger: Ledger) -> None:
    import confluent_kafka

    settings: dict[str, object] = {
        "bootstrap.servers": member.bootstrap,
        "group.id": member.group,
        "client.id": member.name,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 50,
        "topic.metadata.refresh.interval.ms": 400,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 100,
        "retry.backoff.ms": 50,
        "max.poll.interval.ms": 10_000,
        "log_level": 0,
    }
    kind, _, strategy = member.strategy.partition(":")
    if kind == "consumer":
        settings |= {"group.protocol": "consumer", "group.remote.assignor": strategy}
    else:
        settings |= {
            "partition.assignment.strategy": member.strategy,
            "session.timeout.ms": member.session_ms,
            "heartbeat.interval.ms": min(300, member.session_ms // 3),
        }
    if os.environ.get("TIDELOG_TEST_DEBUG"):  # into the member's log, beside the history
        settings |= {"debug": "cgrp,topic,fetch,metadata", "log_level": 7}
    if member.instance is not None:
        settings["group.instance.id"] = member.instance
    consumer = confluent_kafka.Consumer(settings)

    def send(offsets: Mapping[Partition, int]) -> None:
        wanted = [confluent_kafka.TopicPartition(*partition, at) for partition, at in offsets.items()]
        for answer in consumer.commit(offsets=wanted, asynchronous=False):
            if answer.error is not None:
                raise RuntimeError(answer.error.name())

    def named(partitions: Iterable[confluent_kafka.TopicPartition]) -> list[Partition]:
        return [(partition.topic, partition.partition) for partition in partitions]

    def without_commit(partitions: list[confluent_kafka.TopicPartition]) -> set[Partition]:
        ends = time.monotonic() + 5
        while time.monotonic() < ends:
            try:
                answers = consumer.committed(partitions, timeout=1)
            except confluent_kafka.KafkaException:
                continue  # the broker is away just now
            if all(answer.error is None for answer in answers):
                return {(answer.topic, answer.partition) for answer in answers if answer.offset < 0}
        return set()

    def on_assign(_consumer: object, partitions: list[confluent_kafka.TopicPartition]) -> None:
        # The logs start at 0, which the client is told so that it does not ask. Where it loses a partition
        # while it is asking for the first offset, it asks again later, also when it has been given the
        # partition anew and reads on from a committed offset: then it goes back to the first.
        new = without_commit(partitions)
        for partition in partitions:
            if (partition.topic, partition.partition) in new:
                partition.offset = 0
        ledger.assigned(named(partitions))
        if kind == "consumer" or member.strategy == "cooperative-sticky":
            consumer.incremental_assign(partitions)
        else:
            consumer.assign(partitions)

    def on_revoke(_consumer: object, partitions: list[confluent_kafka.TopicPartition]) -> None:
        ledger.commit(send)
        ledger.revoked(named(partitions))

    consumer.subscribe(
        [f"^{member.topic}" if member.pattern else member.topic],
        on_assign=on_assign,
        on_revoke=on_revoke,
        on_lost=lambda _consumer, partitions: ledger.lost(named(partitions)),
    )
    while not ledger.stopping:
        wait = POLL_SECONDS  # for the first; then only what is there
        for _ in range(POLL_RECORDS):
            message = consumer.poll(wait)
            if message is None:
                break
            wait = 0.0
            error = message.error()
            if error is None:
                topic, partition, offset = message.topic(), message.partition(), message.offset()
                assert topic is not None
                assert partition is not None
                assert offset is not None
                ledger.read(topic, partition, offset, message.value())
            elif error.code() == confluent_kafka.KafkaError._FATAL:
                raise FencedError(str(error))
            else:
                ledger.note("error", str(error))
        ledger.commit(send)
    consumer.close()


def run_kafka_python(member: Member, ledger: Ledger) -> None:
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
    from kafka.errors import FencedInstanceIdError, KafkaError

    from kafka import ConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata, TopicPartition

    assignors = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
        "cooperative-sticky": CooperativeStickyAssignor,
    }
    consumer = KafkaConsumer(
        bootstrap_servers=member.bootstrap,
        group_id=member.group,
        client_id=member.name,
        group_instance_id=member.instance,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=50,
        max_poll_records=POLL_RECORDS,
        metadata_max_age_ms=400,
        reconnect_backoff_ms=20,
        reconnect_backoff_max_ms=100,
        retry_backoff_ms=50,
        session_timeout_ms=member.session_ms,
        heartbeat_interval_ms=min(300, member.session_ms // 3),
        max_poll_interval_ms=10_000,
        partition_assignment_strategy=(assignors[member.strategy],),
    )

    coordinator = consumer._coordinator
    forget = coordinator.reset_generation

    def reset_generation(*member_id: str, **named_id: str) -> None:
        # It prepares once for each attempt to join. Where the group throws it out meanwhile, it would join
        # as a new member without having lost what it had, and read on from its old positions.
        forget(*member_id, **named_id)
        coordinator.rejoining = False

    coordinator.reset_generation = reset_generation

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        """Called while poll() waits, when nothing that was read is left to commit unless a commit failed."""

        def on_partitions_revoked(self, revoked: Iterable[Partition]) -> None:
            ledger.revoked((topic, partition) for topic, partition in revoked)

        def on_partitions_lost(self, lost: Iterable[Partition]) -> None:
            ledger.lost((topic, partition) for topic, partition in lost)

        def on_partitions_assigned(self, assigned: Iterable[Partition]) -> None:
            # Where a poll ended before the committed offsets came, the client would take that answer for one
            # to the same question in this generation.
            coordinator._offset_fetch_futures.clear()
            # It keeps its position in a partition that it had before, also where it was no member meanwhile
            # and others have read on from there.
            for partition in assigned:
                consumer._subscription.assignment[partition]._position = None
            generation: int = coordinator._generation.generation_id
            ledger.assigned([(topic, partition) for topic, partition in assigned], generation)

    def send(offsets: Mapping[Partition, int]) -> None:
        consumer.commit(
            {TopicPartition(*partition): OffsetAndMetadata(at, "", -1) for partition, at in offsets.items()}
        )

    consumer.subscribe([member.topic], listener=Listener())
    while not ledger.stopping:
        try:
            polled = consumer.poll(timeout_ms=500 if ledger.owns_something else JOIN_MS)
        except FencedInstanceIdError as error:
            raise FencedError(str(error)) from None
        except KafkaError as error:
            ledger.note("error", type(error).__name__)
            continue
        if coordinator._join_task is not None and not coordinator.need_rejoin():
            # It joins where its metadata changed, and forgets that it does where they change back meanwhile.
            coordinator.request_rejoin()
        for records in polled.values():
            for record in records:
                ledger.read(record.topic, record.partition, record.offset, record.value)
        ledger.commit(send)
    consumer.close()


def run_aiokafka(member: Member, ledger: Ledger) -> None:
    asyncio.run(_run_aiokafka(member, ledger))


async def _run_aiokafka(member: Member, ledger: Ledger) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
    from aiokafka.errors import KafkaConnectionError, KafkaError

    from tests.groups import aiokafka_heartbeats

    aiokafka_heartbeats.install()
    assignors = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
    }
    consumer = AIOKafkaConsumer(
        bootstrap_servers=member.bootstrap,
        group_id=member.group,
        client_id=member.name,
        group_instance_id=member.instance,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=50,
        max_poll_records=POLL_RECORDS,
        metadata_max_age_ms=400,
        retry_backoff_ms=50,
        session_timeout_ms=member.session_ms,
        heartbeat_interval_ms=min(300, member.session_ms // 3),
        max_poll_interval_ms=10_000,
        partition_assignment_strategy=(assignors[member.strategy],),
    )
    # The client joins groups in a task of its own, which has to wait until what was read is committed. (Not
    # while it reads: getmany() waits for the task then, however short its time.)
    committing = asyncio.Lock()

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_revoked(self, revoked: Iterable[Partition]) -> None:
            async with committing:
                ledger.revoked((topic, partition) for topic, partition in revoked)

        async def on_partitions_assigned(self, assigned: Iterable[Partition]) -> None:
            async with committing:
                generation: int = consumer._coordinator.generation
                ledger.assigned([(topic, partition) for topic, partition in assigned], generation)

    async def send(offsets: Mapping[Partition, int]) -> None:
        await consumer.commit({TopicPartition(*partition): at for partition, at in offsets.items()})

    consumer.subscribe([member.topic], listener=Listener())
    while True:
        try:
            await consumer.start()
            break
        except KafkaConnectionError:  # the broker may be away just now
            await asyncio.sleep(0.1)
    while not ledger.stopping:
        try:
            polled = await consumer.getmany(timeout_ms=round(POLL_SECONDS * 1000))
        except KafkaError as error:
            ledger.note("error", type(error).__name__)
            await asyncio.sleep(0.05)
            continue
        async with committing:
            for records in polled.values():
                for record in records:
                    ledger.read(record.topic, record.partition, record.offset, record.value)
            await ledger.commit_async(send)
    await consumer.stop()


def run_tidelog(member: Member, ledger: Ledger) -> None:
    import re

    from tidelog import Consumer, ConsumerRebalanceListener, TopicPartition
    from tidelog.errors import FencedInstanceId, KafkaError

    settings: dict[str, object] = {
        "bootstrap.servers": member.bootstrap,
        "group.id": member.group,
        "client.id": member.name,
        "group.instance.id": member.instance,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "fetch.max.wait.ms": 50,
        "max.poll.records": POLL_RECORDS,
        "metadata.max.age.ms": 400,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 100,
        "retry.backoff.ms": 50,
        "max.poll.interval.ms": 10_000,
    }
    kind, _, strategy = member.strategy.partition(":")
    if kind == "consumer":
        settings |= {"group.protocol": "consumer", "group.remote.assignor": strategy}
    else:
        settings |= {
            "partition.assignment.strategy": member.strategy,
            "session.timeout.ms": member.session_ms,
            "heartbeat.interval.ms": min(300, member.session_ms // 3),
        }
    consumer = Consumer(settings)

    class Listener(ConsumerRebalanceListener):
        def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            ledger.commit(consumer.commit)
            ledger.revoked(partitions)

        def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
            ledger.lost(partitions)

        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            generation = consumer.group_metadata().generation_id
            ledger.assigned(partitions, -1 if kind == "consumer" else generation)

    if member.pattern:
        pattern = member.topic if kind == "consumer" else re.compile(member.topic)
        consumer.subscribe(pattern=pattern, listener=Listener())
    else:
        consumer.subscribe([member.topic], listener=Listener())
    while not ledger.stopping:
        try:
            records = consumer.poll(POLL_SECONDS)
        except FencedInstanceId as error:
            raise FencedError(str(error)) from None
        except KafkaError as error:
            ledger.note("error", f"{type(error).__name__}: {error}")
            continue
        for record in records:
            ledger.read(record.topic, record.partition, record.offset, record.value)
        ledger.commit(consumer.commit)
    consumer.close()


RUN: Mapping[str, Callable[[Member, Ledger], None]] = {
    "tidelog": run_tidelog,
    "confluent-kafka": run_confluent,
    "kafka-python": run_kafka_python,
    "aiokafka": run_aiokafka,
}


def print_where(_signal: int, _frame: object) -> None:
    """Print the stacks of all threads, and of all tasks of the loop that runs here, if one does."""
    faulthandler.dump_traceback()
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:
        return
    for task in tasks:
        task.print_stack(file=sys.stderr)


def main() -> int:
    member = Member(**json.loads(sys.argv[1]))
    ledger = Ledger(member.name, member.instance, Diary(Path(member.history)))

    def stop(_signal: int, _frame: object) -> None:
        ledger.stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGUSR1, print_where)
    secure_clients.install_if_secured(member.client)
    ledger.note("started", f"{member.client} {member.strategy}")
    try:
        RUN[member.client](member, ledger)
    except FencedError as error:
        ledger.note("fenced", str(error))
        os._exit(0)  # some clients wait for ever when they are closed now
    except Exception as error:
        ledger.note("failed", f"{type(error).__name__}: {error}")
        raise
    ledger.note("left")
    return 0


if __name__ == "__main__":
    sys.exit(main())
