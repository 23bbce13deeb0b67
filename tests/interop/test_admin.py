"""Topics made, described, changed and removed by other people's admin clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.interop.clients import Confluent, KafkaPython, Message
from tests.support.own_cluster import broker_count
from tests.support.wait import eventually

NewName = Callable[[str], str]


def test_confluent_kafka_makes_grows_and_removes_a_topic(bootstrap: str, new_name: NewName) -> None:
    from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

    topic = new_name("confluent")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 2, 1, config={"retention.ms": "120000"})])[topic].result(20)
    eventually(lambda: topic in admin.list_topics(timeout=10).topics, "the new topic is listed")
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(20)
    eventually(
        lambda: len(admin.list_topics(topic, timeout=10).topics[topic].partitions) == 5, "five partitions"
    )
    admin.delete_topics([topic])[topic].result(20)
    eventually(lambda: topic not in admin.list_topics(timeout=10).topics, "the topic is gone")


def test_confluent_kafka_sees_a_topic_that_exists_already(bootstrap: str, new_name: NewName) -> None:
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    topic = new_name("twice")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(20)
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(20)
    assert refused.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS


def test_confluent_kafka_changes_a_setting_of_a_topic(bootstrap: str, new_name: NewName) -> None:
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        NewTopic,
        ResourceType,
    )

    topic = new_name("settings")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1, config={"cleanup.policy": "compact"})])[topic].result(20)
    resource = ConfigResource(ResourceType.TOPIC, topic)
    described = admin.describe_configs([resource])[resource].result(20)
    assert described["cleanup.policy"].value == "compact"
    assert described["retention.ms"].value == "604800000"
    assert described["retention.ms"].is_default

    change = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry("retention.ms", "90000", incremental_operation=AlterConfigOpType.SET)
        ],
    )
    admin.incremental_alter_configs([change])[change].result(20)
    eventually(
        lambda: admin.describe_configs([resource])[resource].result(20)["retention.ms"].value == "90000",
        "the changed setting is described",
    )


def test_confluent_kafka_deletes_records_and_lists_offsets(bootstrap: str, new_name: NewName) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec

    topic = new_name("delete-records")
    Confluent().produce(bootstrap, topic, [Message(None, b"%d" % i, (), 1000 + i) for i in range(50)])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    partition = TopicPartition(topic, 0)
    by_time = admin.list_offsets({partition: OffsetSpec.for_timestamp(1040)})[partition].result(20)
    assert (by_time.offset, by_time.timestamp) == (40, 1040)
    admin.delete_records([TopicPartition(topic, 0, 20)])[TopicPartition(topic, 0, 20)].result(20)
    assert admin.list_offsets({partition: OffsetSpec.earliest()})[partition].result(20).offset == 20
    assert admin.list_offsets({partition: OffsetSpec.latest()})[partition].result(20).offset == 50
    assert [m.value for m in Confluent().consume(bootstrap, topic, 30, offset=20)] == [
        b"%d" % i for i in range(20, 50)
    ]


def test_confluent_kafka_describes_the_cluster(bootstrap: str) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap})
    cluster = admin.describe_cluster().result(20)
    assert len(cluster.cluster_id) == 22
    nodes = [f"{node.host}:{node.port}" for node in cluster.nodes]
    assert bootstrap in nodes
    assert len(nodes) == broker_count()
    assert cluster.controller.id in [node.id for node in cluster.nodes]


def test_kafka_python_makes_describes_and_removes_a_topic(bootstrap: str, new_name: NewName) -> None:
    from kafka.admin import KafkaAdminClient, NewTopic

    topic = new_name("kafka-python")
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.create_topics([NewTopic(topic, 3, 1)])
        described = eventually(
            lambda: described_partitions(admin.describe_topics([topic])), "the topic is described"
        )
        assert described == [0, 1, 2]
        admin.delete_topics([topic])
        eventually(lambda: topic not in admin.list_topics(), "the topic is gone")
    finally:
        admin.close()


def described_partitions(topics: list[dict[str, object]]) -> list[object]:
    partitions = topics[0]["partitions"]
    assert isinstance(partitions, list)
    return sorted(partition["partition_index"] for partition in partitions)


def test_aiokafka_makes_describes_and_removes_a_topic(bootstrap: str, new_name: NewName) -> None:
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    topic = new_name("aiokafka")

    async def run() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        try:
            await admin.create_topics([NewTopic(topic, 2, 1)])
            await until(lambda listed: topic in listed, admin)
            (described,) = await admin.describe_topics([topic])
            assert len(described["partitions"]) == 2
            await admin.delete_topics([topic])
            await until(lambda listed: topic not in listed, admin)
        finally:
            await admin.close()

    async def until(condition: Callable[[list[str]], bool], admin: AIOKafkaAdminClient) -> None:
        for _ in range(500):
            if condition(await admin.list_topics()):
                return
            await asyncio.sleep(0.01)
        raise AssertionError("the list of topics did not change in time")

    asyncio.run(run())


def test_kafka_python_finds_offsets_by_time(bootstrap: str, new_name: NewName) -> None:
    from kafka import KafkaConsumer, TopicPartition

    topic = new_name("by-time")
    KafkaPython().produce(bootstrap, topic, [Message(None, b"%d" % i, (), 5000 + 10 * i) for i in range(20)])
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=None)
    try:
        partition = TopicPartition(topic, 0)
        found = consumer.offsets_for_times({partition: 5095})[partition]
        assert (found.offset, found.timestamp) == (10, 5100)
        assert consumer.offsets_for_times({partition: 9999})[partition] is None
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition]) == {partition: 20}
    finally:
        consumer.close()


def test_a_waiting_reader_gets_a_record_when_it_is_written(bootstrap: str, new_name: NewName) -> None:
    import confluent_kafka

    topic = new_name("waiting")
    Confluent().produce(bootstrap, topic, [Message(None, b"first")])
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "not-used",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 20_000,
            "socket.timeout.ms": 30_000,
        }
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 1)])
        assert consumer.poll(0.3) is None
        Confluent().produce(bootstrap, topic, [Message(None, b"second")])
        message = consumer.poll(10)
        assert message is not None
        assert message.value() == b"second"
    finally:
        consumer.close()
