"""confluent-kafka, the Python client on librdkafka, behind the tasks of the other clients."""

from __future__ import annotations

import time
from contextlib import ExitStack

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from tests.other_clients.programs import (
    MEMBERS,
    QUICK_SECONDS,
    TASK_SECONDS,
    Administered,
    Cluster,
    Read,
    Task,
)
from tests.support.wait import eventually

# With TLS 1.3 a broker refuses a certificate after the handshake, which librdkafka reports as _TRANSPORT.
REFUSALS = (KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError._TRANSPORT)


def connection(task: Task) -> dict[str, str]:
    settings = {} if task.security is None else task.security.of_librdkafka()
    return settings | {"bootstrap.servers": task.bootstrap}


class Confluent:
    name = "confluent-kafka"

    def missing(self) -> str | None:
        return None

    def build(self) -> None:
        """confluent-kafka comes with the other packages for the tests."""

    def metadata(self, task: Task) -> Cluster:
        found = AdminClient(connection(task)).list_topics(task.topic, TASK_SECONDS)
        leaders = {number: entry.leader for number, entry in found.topics[task.topic].partitions.items()}
        return Cluster(frozenset(found.brokers), found.controller_id, leaders)

    def refusal(self, task: Task) -> str:
        errors: list[KafkaError] = []
        admin = AdminClient({**connection(task), "error_cb": errors.append, "log_level": 0})

        def refused() -> list[str]:
            admin.poll(0.1)
            return [error.str() for error in errors if error.code() in REFUSALS]

        return eventually(refused, "the client reports the refusal", QUICK_SECONDS)[0]

    def produce(self, task: Task) -> None:
        settings = {
            **connection(task),
            "acks": "all",
            "enable.idempotence": task.mode != "plain",
        }
        if task.mode == "transactional":
            settings["transactional.id"] = f"{task.topic}-confluent"
        producer = Producer(settings)
        errors: list[object] = []

        def delivered(error: object, _message: object) -> None:
            if error is not None:
                errors.append(error)

        def send(what: str) -> None:
            for partition, values in enumerate(task.values(what)):
                for value in values:
                    producer.produce(task.topic, value, partition=partition, on_delivery=delivered)
            assert producer.flush(TASK_SECONDS) == 0

        if task.mode == "transactional":
            producer.init_transactions(TASK_SECONDS)
            producer.begin_transaction()
            send("aborted")
            producer.abort_transaction(TASK_SECONDS)
            producer.begin_transaction()
            send(task.mode)
            producer.commit_transaction(TASK_SECONDS)
        else:
            send(task.mode)
        assert not errors, errors

    def consume(self, task: Task) -> list[Read]:
        settings = {
            **connection(task),
            "group.id": task.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "heartbeat.interval.ms": 300,
            "fetch.wait.max.ms": 100,
        }
        reads: list[Read] = []
        deadline = time.monotonic() + TASK_SECONDS
        with ExitStack() as stack:
            members = {name: Consumer(settings) for name in MEMBERS[: task.members]}
            for member in members.values():
                stack.callback(member.close)
                member.subscribe([task.topic])
            while len(reads) < task.count:
                assert time.monotonic() < deadline, f"read {len(reads)} of {task.count} records"
                for name, member in members.items():
                    message = member.poll(0.05)
                    if message is None:
                        continue
                    assert message.error() is None, message.error()
                    member.commit(message=message, asynchronous=False)
                    partition, offset, value = message.partition(), message.offset(), message.value()
                    assert partition is not None
                    assert offset is not None
                    assert value is not None
                    reads.append(Read(name, partition, offset, value.decode()))
        return reads

    def administer(self, task: Task) -> Administered:
        admin = AdminClient(connection(task))
        topic = NewTopic(task.topic, task.partitions, task.replication, config={"retention.ms": "120000"})
        admin.create_topics([topic])[task.topic].result(TASK_SECONDS)
        described = admin.describe_topics(TopicCollection([task.topic]))[task.topic].result(TASK_SECONDS)
        resource = ConfigResource(ResourceType.TOPIC, task.topic)
        configs = admin.describe_configs([resource])[resource].result(TASK_SECONDS)
        partitions = [TopicPartition(task.topic, number) for number in range(task.partitions)]
        offsets = [TopicPartition(task.topic, number, number + 10) for number in range(task.partitions)]
        group = ConsumerGroupTopicPartitions(task.group, offsets)
        admin.alter_consumer_group_offsets([group])[task.group].result(TASK_SECONDS)
        asked = [ConsumerGroupTopicPartitions(task.group)]
        fetched = admin.list_consumer_group_offsets(asked)[task.group].result(TASK_SECONDS)
        listed = admin.list_offsets({partition: OffsetSpec.latest() for partition in partitions})
        groups = admin.list_consumer_groups().result(TASK_SECONDS).valid
        admin.delete_consumer_groups([task.group])[task.group].result(TASK_SECONDS)
        admin.delete_topics([task.topic])[task.topic].result(TASK_SECONDS)
        return Administered(
            [len(partition.replicas) for partition in described.partitions],
            configs["retention.ms"].value,
            {entry.partition: entry.offset for entry in fetched.topic_partitions},
            {entry.partition: future.result(TASK_SECONDS).offset for entry, future in listed.items()},
            task.group in {entry.group_id for entry in groups},
        )
