"""What one client writes, every other client reads byte for byte."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.interop.clients import CODECS, Client, Message, all_clients

CLIENTS = all_clients()
TIMESTAMP = 1_760_000_000_000

each_client = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
each_codec = pytest.mark.parametrize("codec", CODECS)


def all_shapes() -> list[Message]:
    """Null, empty, binary and text fields, headers of every kind, and many small records."""
    every_byte = bytes(range(256))
    shapes = [
        Message(None, None),
        Message(b"tombstone", None),
        Message(None, b"no key"),
        Message(b"", b""),
        Message(b"\x00\xff\xfe", every_byte * 5),
        Message("schlüssel".encode(), "wert 値".encode()),
        Message(b"k", b"with headers", (("one", b"1"), ("two", b""), ("one", b"again"), ("ü", b"\x80"))),
        Message(b"k", b"a header without value", (("none", None), ("some", b"1"))),
        Message(None, b"one header", (("trace", b"00-4bf92f-01"),)),
    ]
    many = [Message(b"key-%d" % (i % 7), b"value %d " % i * 3) for i in range(500)]
    return [
        Message(m.key, m.value, m.headers, TIMESTAMP + i) for i, m in enumerate([*shapes, *many, *shapes])
    ]


def large(size: int, seed: int) -> Message:
    return Message(b"large", random.Random(seed).randbytes(size), (), TIMESTAMP)


def assert_same(reader: Client, writer: Client, got: list[Message], wanted: list[Message]) -> None:
    assert len(got) == len(wanted)
    for offset, (seen, sent) in enumerate(zip(got, wanted, strict=True)):
        assert seen.content() == sent.content(), (
            f"{reader.name} read another record {offset} than {writer.name} wrote"
        )
        if writer.sets_timestamps:
            assert seen.timestamp == sent.timestamp, f"offset {offset}: {reader.name} read another timestamp"


@each_codec
@each_client
def test_every_client_reads_what_one_wrote(
    bootstrap: str, new_name: Callable[[str], str], client: Client, codec: str
) -> None:
    topic = new_name(f"written-{codec}")
    messages = [message for message in all_shapes() if client.can_write(message)]
    client.produce(bootstrap, topic, messages, codec=codec)
    for reader in CLIENTS:
        assert_same(reader, client, reader.consume(bootstrap, topic, len(messages)), messages)


@each_client
def test_records_of_a_megabyte_pass_through(
    bootstrap: str, new_name: Callable[[str], str], client: Client
) -> None:
    topic = new_name("large")
    messages = [large(1_000_000, seed) for seed in range(3)]
    for codec, message in zip(("none", "lz4", "zstd"), messages, strict=True):
        client.produce(bootstrap, topic, [message], codec=codec)
    for reader in CLIENTS:
        assert_same(reader, client, reader.consume(bootstrap, topic, 3), messages)


@each_client
def test_an_idempotent_producer_writes_each_record_once(
    bootstrap: str, new_name: Callable[[str], str], client: Client
) -> None:
    topic = new_name("idempotent")
    messages = [Message(b"%d" % i, b"v" * (i % 300), (), TIMESTAMP + i) for i in range(2000)]
    client.produce(bootstrap, topic, messages[:1000], idempotent=True, codec="lz4")
    client.produce(bootstrap, topic, messages[1000:], idempotent=True)
    assert_same(client, client, client.consume(bootstrap, topic, len(messages)), messages)
    assert end_offset(bootstrap, topic) == len(messages)


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@each_client
def test_every_level_of_acknowledgement(
    bootstrap: str, new_name: Callable[[str], str], client: Client, acks: str
) -> None:
    topic = new_name(f"acks-{acks}")
    # The topic is there before: a producer that waits for no answer cannot retry while it is being made.
    client.produce(bootstrap, topic, [Message(None, b"first")])
    client.produce(bootstrap, topic, [Message(None, b"%d" % i) for i in range(100)], acks=acks)
    got = client.consume(bootstrap, topic, 101)
    assert [message.value for message in got] == [b"first"] + [b"%d" % i for i in range(100)]


@each_client
def test_a_reader_may_start_inside_a_batch(
    bootstrap: str, new_name: Callable[[str], str], client: Client
) -> None:
    topic = new_name("inside")
    messages = [Message(b"%d" % i, b"value %d" % i, (), TIMESTAMP + i) for i in range(300)]
    client.produce(bootstrap, topic, messages, codec="gzip")
    for offset in (0, 1, 137, 299):
        got = client.consume(bootstrap, topic, 300 - offset, offset=offset)
        assert_same(client, client, got, messages[offset:])


def end_offset(bootstrap: str, topic: str) -> int:
    import confluent_kafka

    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "not-used"})
    try:
        _low, high = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), timeout=10)
        return int(high)
    finally:
        consumer.close()
