"""Kafka's own serializers and deserializers by name: the bytes and the mistakes are the Java client's."""

from __future__ import annotations

import struct
import uuid

import pytest

import tidelog
from tidelog.clients.serialization import deserializer, serializer

PACKAGE = "org.apache.kafka.common.serialization."
AN_ID = uuid.UUID("123e4567-e89b-12d3-a456-426614174000")
PAIRS = [
    ("String", "grüße", "grüße".encode()),
    ("String", "", b""),
    ("Short", -2, b"\xff\xfe"),
    ("Integer", 258, b"\0\0\1\2"),
    ("Long", -1, b"\xff" * 8),
    ("Float", 0.5, b"\x3f\0\0\0"),
    ("Double", 0.5, b"\x3f\xe0" + bytes(6)),
    ("Boolean", True, b"\1"),
    ("Boolean", False, b"\0"),
    ("UUID", AN_ID, b"123e4567-e89b-12d3-a456-426614174000"),
]


@pytest.mark.parametrize(("kind", "value", "data"), PAIRS)
def test_a_value_becomes_javas_bytes_and_comes_back(kind: str, value: object, data: bytes) -> None:
    write = serializer("value.serializer", f"{PACKAGE}{kind}Serializer")
    read = deserializer("value.deserializer", f"{PACKAGE}{kind}Deserializer")
    assert write is not None
    assert read is not None
    assert write("t", (), value) == data
    assert read("t", (), data) == value
    assert write("t", (), None) is None
    assert read("t", (), None) is None


@pytest.mark.parametrize(("kind", "value", "data"), PAIRS)
def test_kafkas_classes_can_be_given_as_classes_and_as_objects(kind: str, value: object, data: bytes) -> None:
    write, read = getattr(tidelog, f"{kind}Serializer"), getattr(tidelog, f"{kind}Deserializer")
    for given in (write, write()):
        found = serializer("value.serializer", given)
        assert found is not None
        assert (found("t", (), value), found("t", (), None)) == (data, None)
    for given in (read, read()):
        found = deserializer("value.deserializer", given)
        assert found is not None
        assert (found("t", (), data), found("t", (), None)) == (value, None)


def test_json_is_compact_utf8() -> None:
    value = {"name": "grüße", "amounts": [1, 2.5, None]}
    data = '{"name":"grüße","amounts":[1,2.5,null]}'.encode()
    assert tidelog.JsonSerializer().serialize("t", (), value) == data
    assert tidelog.JsonDeserializer().deserialize("t", (), data) == value
    assert tidelog.JsonSerializer().serialize("t", (), None) is None
    assert tidelog.JsonDeserializer().deserialize("t", (), None) is None


def test_a_serializer_in_the_dict_and_as_a_keyword_is_refused() -> None:
    servers = {"bootstrap.servers": "127.0.0.1:1"}
    twice = r"given twice: in the dict, and as {}="
    with pytest.raises(tidelog.ConfigError, match=twice.format("key_serializer")):
        tidelog.Producer({**servers, "key.serializer": str.encode}, key_serializer=str.encode)
    with pytest.raises(tidelog.ConfigError, match=twice.format("value_deserializer")):
        tidelog.Consumer({**servers, "value.deserializer": bytes.decode}, value_deserializer=bytes.decode)


def test_a_text_that_is_no_utf8_is_read_with_marks_in_it() -> None:
    read = deserializer("value.deserializer", PACKAGE + "StringDeserializer")
    assert read is not None
    assert read("t", (), b"caf\xe9!") == "caf\ufffd!"


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("Boolean", b"\2"),
        ("Boolean", b""),
        ("Boolean", b"\0\0"),
        ("Integer", b"\0\0\1"),
        ("Long", bytes(9)),
        ("UUID", b"x"),
    ],
)
def test_bytes_that_cannot_be_such_a_value_are_refused(kind: str, data: bytes) -> None:
    read = deserializer("value.deserializer", f"{PACKAGE}{kind}Deserializer")
    assert read is not None
    with pytest.raises((ValueError, struct.error)):
        read("t", (), data)
