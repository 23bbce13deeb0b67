"""What users write and a type checker accepts, with the types that it infers. Read by mypy, never run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_type

from tidelog import (
    AsyncConsumer,
    AsyncProducer,
    CommitFailedException,
    Consumer,
    ConsumerGroupMetadata,
    ConsumerRebalanceListener,
    ConsumerRecord,
    IntegerDeserializer,
    JsonSerializer,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    PartitionInfo,
    Producer,
    ProducerConfig,
    ProducerFenced,
    ProducerRecord,
    RecordFuture,
    RecordMetadata,
    StringDeserializer,
    StringSerializer,
    TopicPartition,
    WakeupException,
)


@dataclass
class Order:
    amount: int


class OrderSerializer:
    def serialize(self, topic: str, headers: object, value: Order | None) -> bytes | None:
        return None if value is None else b"%d" % value.amount


def read_order(data: bytes) -> Order:
    return Order(int(data))


def producers() -> None:
    plain = Producer(bootstrap_servers="localhost:9092", acks="all", linger_ms=20, compression_type="zstd")
    assert_type(plain, Producer[bytes | str, bytes | str])
    assert_type(plain.send("orders", b"one", key="text"), RecordFuture)
    assert_type(plain.send_and_wait("orders", None, b"key"), RecordMetadata)
    assert_type(plain.partitions_for("orders"), list[PartitionInfo])

    typed = Producer(
        bootstrap_servers=["one:9092", "two:9092"],
        key_serializer=StringSerializer(),
        value_serializer=JsonSerializer(),
        security_protocol="SASL_SSL",
        acks=1,
    )
    assert_type(typed, Producer[str, object])
    typed.send("orders", {"amount": 3}, key="alice")

    of_classes = Producer(
        bootstrap_servers="a:1", key_serializer=StringSerializer, value_serializer=OrderSerializer
    )
    assert_type(of_classes, Producer[str, Order | None])
    of_functions = Producer(
        {"bootstrap.servers": "a:1"}, key_serializer=str.encode, value_serializer=json.dumps
    )
    of_functions.send("orders", [1, 2], key="alice")

    settings: ProducerConfig = {"bootstrap_servers": "a:1", "enable_idempotence": True}
    annotated: Producer[str, Order] = Producer({"key.serializer": "StringSerializer"}, **settings)
    annotated.send("orders", Order(1), "alice")
    only_bytes: Producer[bytes, bytes] = plain
    only_bytes.send("orders", b"one")
    assert_type(ProducerRecord("orders", Order(1), "alice"), ProducerRecord[str, Order])


def consumers() -> None:
    plain = Consumer("orders", bootstrap_servers="a:1", group_id="billing", isolation_level="read_committed")
    assert_type(plain, Consumer[bytes, bytes])
    assert_type(plain.poll(timeout=1.0), list[ConsumerRecord[bytes, bytes]])

    typed = Consumer(
        {"bootstrap.servers": "a:1"}, key_deserializer=IntegerDeserializer(), value_deserializer=read_order
    )
    assert_type(typed, Consumer[int, Order])
    for record in typed:
        assert_type(record.key, int | None)
        assert_type(record.value, Order | None)
        typed.commit(record)
        typed.commit({("orders", 0): OffsetAndMetadata(3, "a note"), TopicPartition("orders", 1): 4})
    assert_type(typed.group_metadata(), ConsumerGroupMetadata)
    assert_type(typed.offsets_for_times({("orders", 0): 17}), dict[TopicPartition, OffsetAndTimestamp | None])
    wider: Consumer[object, object] = typed
    wider.close()


async def asynchronous(settings: Mapping[str, object]) -> None:
    async with AsyncProducer(settings, value_serializer=OrderSerializer()) as producer:
        assert_type(producer, AsyncProducer[bytes | str, Order | None])
        future = await producer.send("orders", Order(3))
        assert_type(await future, RecordMetadata)
        assert_type(await producer.send_and_wait("orders", Order(3), "alice"), RecordMetadata)
    async with AsyncConsumer("orders", settings, value_deserializer=StringDeserializer) as consumer:
        assert_type(consumer, AsyncConsumer[bytes, str])
        async for record in consumer:
            assert_type(record, ConsumerRecord[bytes, str])


class Listener(ConsumerRebalanceListener):
    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        print(partitions)


def errors(consumer: Consumer, producer: Producer) -> str:
    try:
        consumer.subscribe(["orders"], listener=Listener())
        consumer.commit()
        producer.send_offsets_to_transaction({("orders", 0): 4}, consumer.group_metadata())
    except (CommitFailedException, ProducerFenced, WakeupException) as error:
        return error.message or ""
    return ""
