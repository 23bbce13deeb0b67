"""Keys and values of committed offsets and classic groups, against the generated codec of Kafka's formats."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.coordinator.group.records import (
    CommittedOffset,
    group_key,
    group_value,
    is_plain_offset_value,
    offset_key,
    offset_value,
    read_group_key,
    read_group_value,
    read_offset_key,
    read_offset_value,
)
from tidelog.errors import InvalidGroupId, OffsetMetadataTooLarge
from tidelog.protocol.messages.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from tidelog.protocol.wire import ZERO_UUID, ProtocolError

int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
names = st.text(max_size=300)
topic_ids = st.just(ZERO_UUID) | st.binary(min_size=16, max_size=16)


@given(group=names, topic=names, partition=int32s)
def test_keys_are_those_of_the_codec(group: str, topic: str, partition: int) -> None:
    key = offset_key(group, topic, partition)
    assert key == OffsetCommitKey(group=group, topic=topic, partition=partition).encode(0, b"\0\1")
    assert read_offset_key(key) == (group, topic, partition)


@given(group=names, topic=names, partition=int32s)
def test_keys_of_the_oldest_brokers_are_read(group: str, topic: str, partition: int) -> None:
    key = LegacyOffsetCommitKey(group=group, topic=topic, partition=partition).encode(0, b"\0\0")
    assert read_offset_key(key) == (group, topic, partition)


@given(offset=int64s, epoch=int32s, metadata=st.text(max_size=200), timestamp=int64s, topic_id=topic_ids)
def test_values_are_of_version_4(
    offset: int, epoch: int, metadata: str, timestamp: int, topic_id: bytes
) -> None:
    value = offset_value(offset, epoch, metadata, timestamp, topic_id=topic_id)
    expected = OffsetCommitValue(
        offset=offset, leader_epoch=epoch, metadata=metadata, commit_timestamp=timestamp, topic_id=topic_id
    )
    assert value == expected.encode(4, b"\0\4")
    assert read_offset_value(value) == CommittedOffset(offset, epoch, metadata, timestamp, -1, topic_id)


@given(offset=int64s, metadata=st.text(max_size=200), timestamp=int64s, expires=st.integers(0, 2**63 - 1))
def test_values_with_a_retention_are_of_version_1(
    offset: int, metadata: str, timestamp: int, expires: int
) -> None:
    value = offset_value(offset, 5, metadata, timestamp, expires, b"i" * 16)
    expected = OffsetCommitValue(
        offset=offset, metadata=metadata, commit_timestamp=timestamp, expire_timestamp=expires
    )
    assert value == expected.encode(1, b"\0\1")
    assert read_offset_value(value) == CommittedOffset(offset, -1, metadata, timestamp, expires)


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("length", [0, 1, 126, 127, 128, 4096])
@pytest.mark.parametrize("topic_id", [ZERO_UUID, b"i" * 16])
def test_values_of_every_version_are_read(version: int, length: int, topic_id: bytes) -> None:
    message = OffsetCommitValue(
        offset=12,
        leader_epoch=3,
        metadata="m" * length,
        commit_timestamp=99,
        expire_timestamp=150,
        topic_id=topic_id,
    )
    value = message.encode(version, bytes((0, version)))
    assert read_offset_value(value) == CommittedOffset(
        12,
        3 if version >= 3 else -1,
        "m" * length,
        99,
        150 if version == 1 else -1,
        topic_id if version == 4 else ZERO_UUID,
    )


def test_values_of_the_oldest_brokers_are_read() -> None:
    value = LegacyOffsetCommitValue(offset=5, metadata="m", commit_timestamp=9).encode(0, b"\0\0")
    assert read_offset_value(value) == CommittedOffset(5, -1, "m", 9)


def test_a_tagged_field_of_a_newer_broker_is_passed_over() -> None:
    message = OffsetCommitValue(offset=5, metadata="m", commit_timestamp=9, topic_id=b"i" * 16)
    message.unknown_tags = {4: b"newer"}
    value = message.encode(4, b"\0\4")
    assert not is_plain_offset_value(value)
    assert read_offset_value(value) == CommittedOffset(5, -1, "m", 9, -1, b"i" * 16)


@given(st.binary(max_size=60))
def test_what_is_no_value_is_refused_and_nothing_else_happens(data: bytes) -> None:
    try:
        found = read_offset_value(data)
    except ProtocolError:
        assert not is_plain_offset_value(data)
    else:
        assert isinstance(found.metadata, str)
        assert len(found.topic_id) == 16


@given(st.binary(max_size=60))
def test_what_is_no_key_is_refused_and_nothing_else_happens(data: bytes) -> None:
    try:
        group, topic, partition = read_offset_key(data)
    except ProtocolError:
        return
    assert data[2:].startswith(OffsetCommitKey(group=group, topic=topic, partition=partition).encode(0))


def test_a_newer_version_is_refused() -> None:
    with pytest.raises(ProtocolError, match="version 0 to 4, not 5"):
        read_offset_value(b"\0\5" + bytes(40))


def test_what_the_formats_cannot_hold_is_refused() -> None:
    with pytest.raises(InvalidGroupId):
        offset_key("g" * 32_768, "topic", 0)
    with pytest.raises(OffsetMetadataTooLarge):
        offset_value(1, -1, "m" * 32_768, 5, 10)


def test_groups_are_written_in_version_3_and_read_in_every_one() -> None:
    group = GroupMetadataValue(
        protocol_type="consumer",
        generation=4,
        protocol="range",
        leader="m",
        current_state_timestamp=77,
        members=[
            GroupMetadataValue.MemberMetadata(
                member_id="m", group_instance_id="i", client_id="c", client_host="/h", subscription=b"s"
            )
        ],
    )
    assert group_key("g") == GroupMetadataKey(group="g").encode(0, b"\0\2")
    assert read_group_key(group_key("g")) == "g"
    assert group_value(group) == group.encode(3, b"\0\3")
    for version in range(5):
        found = read_group_value(group.encode(version, bytes((0, version))))
        assert (found.generation, found.members[0].member_id) == (4, "m")
        assert found.current_state_timestamp == (77 if version >= 2 else -1)


@given(offset=int64s, epoch=int32s, metadata=st.text(max_size=200), timestamp=int64s)
def test_beside_kafka_3_9_values_have_its_version(
    offset: int, epoch: int, metadata: str, timestamp: int
) -> None:
    value = offset_value(offset, epoch, metadata, timestamp, topic_id=None)
    expected = OffsetCommitValue(
        offset=offset, leader_epoch=epoch, metadata=metadata, commit_timestamp=timestamp
    )
    assert value == expected.encode(3, b"\0\3")
    assert read_offset_value(value) == CommittedOffset(offset, epoch, metadata, timestamp)
