"""Every message of Apache Kafka, in every version, is read to its values and written to its bytes."""

from __future__ import annotations

import pytest

from tests.protocol.golden import Sample, messages, samples
from tidelog.protocol import Struct, decode
from tidelog.protocol.json import Json, from_json, to_json


def by_name() -> list[list[Sample]]:
    grouped: dict[str, list[Sample]] = {}
    for sample in samples():
        grouped.setdefault(sample.name, []).append(sample)
    return list(grouped.values())


def agree(ours: Json, theirs: Json) -> set[str]:
    """Assert that both are the same but for names that only theirs has, and give those."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        assert ours.keys() <= theirs.keys()
        left_out = theirs.keys() - ours.keys()
        return left_out.union(*(agree(ours[name], theirs[name]) for name in ours))
    if isinstance(ours, list) and isinstance(theirs, list):
        assert len(ours) == len(theirs)
        return set().union(*(agree(a, b) for a, b in zip(ours, theirs, strict=True)))
    assert ours == theirs
    return set()


def tagged_names(cls: type[Struct]) -> set[str]:
    """JSON names of the tagged fields of a message and its structs."""
    nested = [value for value in vars(cls).values() if isinstance(value, type) and issubclass(value, Struct)]
    return {field.json_name for field in cls.FIELDS if field.tag is not None}.union(
        *map(tagged_names, nested)
    )


@pytest.mark.parametrize("group", by_name(), ids=lambda group: group[0].name)
class TestEveryMessage:
    def test_its_bytes_are_read_to_its_values(self, group: list[Sample]) -> None:
        for sample in group:
            message = sample.cls.decode(sample.wire, sample.version)
            assert message == from_json(sample.cls, sample.version, sample.values), sample
            left_out = agree(to_json(message, sample.version), sample.values)
            assert left_out <= tagged_names(sample.cls), sample

    def test_its_values_are_written_to_its_bytes(self, group: list[Sample]) -> None:
        for sample in group:
            message = from_json(sample.cls, sample.version, sample.values)
            assert message.encode(sample.version).hex() == sample.wire.hex(), sample

    def test_what_was_read_is_written_to_the_same_bytes(self, group: list[Sample]) -> None:
        for sample in group:
            message = sample.cls.decode(sample.wire, sample.version)
            assert message.encode(sample.version) == sample.wire, sample
            assert message == from_json(sample.cls, sample.version, sample.values)

    def test_it_is_read_in_place_from_a_larger_buffer(self, group: list[Sample]) -> None:
        for sample in group:
            buffer = memoryview(bytearray(b"\xff" * 7 + sample.wire + b"\xff" * 3))
            message, end = decode(sample.cls, sample.version, buffer, 7)
            assert end == 7 + len(sample.wire)
            assert message == sample.cls.decode(sample.wire, sample.version), sample

    def test_key_and_flexible_versions_are_those_of_kafka(self, group: list[Sample]) -> None:
        for sample in group:
            assert sample.key == sample.cls.KEY
            assert sample.cls.FLEXIBLE.has(sample.version) == sample.flexible, sample


# What an administrator says to a quorum: the samples have none of it, and a running Kafka is asked instead.
NOT_SAMPLED = ("AddRaftVoter", "RemoveRaftVoter", "UnregisterBroker")


def test_all_messages_in_all_versions_are_sampled() -> None:
    assert len(samples()) == 1386
    declared = {
        (name, version)
        for name, cls in messages().items()
        if not name.startswith(NOT_SAMPLED)
        for version in range(cls.VERSIONS.low, cls.VERSIONS.high + 1)
    }
    sampled = {(sample.name, sample.version) for sample in samples()}
    assert declared - sampled == set(), "tests/data/wire.jsonl.gz needs Kafka's bytes of these"
    assert sampled - declared == set(), "protocol/messages lacks versions that Kafka has"
