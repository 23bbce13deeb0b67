"""What is written is read back, in every version of every message, whatever the values."""

from __future__ import annotations

import pytest

from tests.protocol.golden import messages
from tests.protocol.values import Values
from tests.support.scale import scale
from tidelog.protocol import Message, encode_parts
from tidelog.protocol.json import from_json, to_json

EVERY_MESSAGE = pytest.mark.parametrize("cls", messages().values(), ids=lambda cls: cls.__name__)


def versions(cls: type[Message]) -> range:
    return range(cls.VERSIONS.low, cls.VERSIONS.high + 1)


@EVERY_MESSAGE
def test_written_messages_are_read_back(cls: type[Message]) -> None:
    values = Values(seed=1)
    for version in versions(cls):
        for _ in range(scale(5, 300)):
            message = values.message(cls, version)
            assert cls.decode(message.encode(version), version) == message


@EVERY_MESSAGE
def test_parts_joined_are_the_bytes(cls: type[Message]) -> None:
    values = Values(seed=2)
    for version in versions(cls):
        message = values.message(cls, version)
        assert encode_parts(message, version, b"before") == [b"before" + message.encode(version)]


@EVERY_MESSAGE
def test_messages_survive_json(cls: type[Message]) -> None:
    values = Values(seed=3, tame=True)
    for version in versions(cls):
        message = values.message(cls, version)
        assert from_json(cls, version, to_json(message, version)) == message


@EVERY_MESSAGE
def test_a_message_made_of_defaults_travels_in_every_version(cls: type[Message]) -> None:
    for version in versions(cls):
        message = cls()
        for field in cls.FIELDS:
            if field.kind == "records" and field.present(version) and not field.nullable(version):
                setattr(message, field.name, b"")
        assert cls.decode(message.encode(version), version) == message
