"""Topics with records, offsets committed from outside, and consumers that really are members of groups."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.support.wait import eventually
from tidelog import Admin, NewTopic

Partition = tuple[str, int]
SETTLE_SECONDS = 30.0
COORDINATOR_MOVES = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)


class Members:
    """Makes topics, offsets and members on one broker."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def topic(self, name: str, partitions: int, records: int = 0) -> str:
        """A topic with so many records in each partition."""
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            admin.create_topics([NewTopic(name, partitions, 1)])
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for number in range(records):
            for partition in range(partitions):
                producer.produce(name, f"{number}".encode(), partition=partition)
        assert producer.flush(SETTLE_SECONDS) == 0
        return name

    def commit(self, group: str, offsets: Mapping[Partition, int]) -> str:
        """A group without members, with offsets."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
        wanted = [TopicPartition(topic, index, offset) for (topic, index), offset in offsets.items()]

        def done() -> bool:
            try:
                answered = consumer.commit(offsets=wanted, asynchronous=False)
            except KafkaException as error:
                # The first commit of all makes the topic that it is kept in, which may take Kafka a while.
                # librdkafka does not call the errors of a coordinator retriable.
                if error.args[0].retriable() or error.args[0].code() in COORDINATOR_MOVES:
                    return False
                raise
            return all(partition.error is None for partition in answered)

        try:
            eventually(done, f"offsets of {group} are committed", SETTLE_SECONDS, interval=0.1)
        finally:
            consumer.close()
        return group

    def committed(self, group: str, partitions: Sequence[Partition]) -> dict[Partition, int]:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
        try:
            found = consumer.committed(
                [TopicPartition(*partition) for partition in partitions], SETTLE_SECONDS
            )
            return {(partition.topic, partition.partition): partition.offset for partition in found}
        finally:
            consumer.close()

    @contextmanager
    def group(
        self, group: str, topics: Sequence[str], protocol: str = "classic", members: Sequence[str] = ("one",)
    ) -> Iterator[list[Consumer]]:
        """A stable group with a member of each client id; `name@instance` makes it a static one."""
        consumers = [self._consumer(group, topics, protocol, name) for name in members]
        try:
            self._settle(consumers)
            yield consumers
        finally:
            for consumer in consumers:
                consumer.close()

    @contextmanager
    def joining(
        self, group: str, topics: Sequence[str], protocol: str, name: str, beside: list[Consumer]
    ) -> Iterator[Consumer]:
        """One more member, perhaps of another protocol than those that are there."""
        consumer = self._consumer(group, topics, protocol, name)
        try:
            self._settle([*beside, consumer])
            yield consumer
        finally:
            consumer.close()

    def _consumer(self, group: str, topics: Sequence[str], protocol: str, name: str) -> Consumer:
        client_id, _, instance = name.partition("@")
        settings: dict[str, str | bool | int] = {
            "bootstrap.servers": self.bootstrap,
            "group.id": group,
            "client.id": client_id,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "group.protocol": protocol,
        }
        if protocol == "classic":
            settings["heartbeat.interval.ms"] = 100  # so it soon learns of other members
        if instance:
            settings["group.instance.id"] = instance
        consumer = Consumer(settings)
        consumer.subscribe(list(topics))
        return consumer

    def _settle(self, consumers: list[Consumer]) -> None:
        """Poll until everybody has partitions, none of which anybody else has."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            for consumer in consumers:
                consumer.poll(0.05)
            held = [(p.topic, p.partition) for consumer in consumers for p in consumer.assignment()]
            if all(consumer.assignment() for consumer in consumers) and len(held) == len(set(held)):
                return
            assert time.monotonic() < deadline, f"the group did not settle; its members have {held}"
