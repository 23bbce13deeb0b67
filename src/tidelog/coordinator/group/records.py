"""The records of committed offsets and classic groups in `__consumer_offsets`, in Kafka's formats.

Offsets are written as Kafka 4.3 does: in version 4 with the topic id, or in version 1 if the commit has a
retention time. In a cluster with Kafka 3.9 they are written in version 3 instead of 4. All versions that a
broker ever wrote are read. Each commit and each record of a load uses struct instead of the generated codec,
which is faster.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tidelog.errors import InvalidGroupId, OffsetMetadataTooLarge
from tidelog.protocol.messages.group_records import GroupMetadataKey, GroupMetadataValue, OffsetCommitValue
from tidelog.protocol.wire import ZERO_UUID, ProtocolError

OFFSET_COMMIT = 1
"""The type of the keys of committed offsets; very old brokers wrote 0."""

GROUP_METADATA = 2

GROUP_METADATA_VERSION = 3
"""The version of the value: the newest without tagged fields, which all brokers since 2.3 write."""

NO_TIMESTAMP = -1
LAST_TIMESTAMP = 2**63 - 1
NO_LEADER_EPOCH = -1


_VERSION = struct.Struct(">h")
_LENGTH = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_TWO_INT64 = struct.Struct(">qq")
# Values of version 3 and 4 begin with version, offset and leader epoch.
_HEAD = struct.Struct(">hqi")
# Values of version 0 to 2 begin with version and offset.
_OLD_HEAD = struct.Struct(">hq")
# One tagged field, number 0, of 16 bytes: the topic id.
_TOPIC_ID_TAG = b"\x01\x00\x10"
_NO_TAGS = b"\x00"

_LONGEST_STRING = 32_767

_NEWEST_OFFSET_VERSION = 4
_RETENTION_VERSION = 1


class CommittedOffset(NamedTuple):
    """The committed offset of a partition. `expire_timestamp` is -1 without a retention time."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp: int = NO_TIMESTAMP
    expire_timestamp: int = NO_TIMESTAMP
    topic_id: bytes = ZERO_UUID


# -- committed offsets ---------------------------------------------------------------------------------


def offset_key(group_id: str, topic: str, partition: int) -> bytes:
    group, name = group_id.encode(), topic.encode()
    if len(group) > _LONGEST_STRING:
        raise InvalidGroupId(f"a group id of {len(group)} bytes is longer than {_LONGEST_STRING}")
    return b"\x00\x01%b%b%b%b%b" % (
        _LENGTH.pack(len(group)),
        group,
        _LENGTH.pack(len(name)),
        name,
        _INT32.pack(partition),
    )


def read_offset_key(key: bytes) -> tuple[str, str, int]:
    """Group, topic and partition of a key of type 0 or 1, which have the same format."""
    try:
        group_end = 4 + (key[2] << 8 | key[3])
        topic_end = group_end + 2 + (key[group_end] << 8 | key[group_end + 1])
        (partition,) = _INT32.unpack_from(key, topic_end)
        return key[4:group_end].decode(), key[group_end + 2 : topic_end].decode(), partition
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"a key of {len(key)} bytes is not that of a committed offset: {error}") from None


def offset_value(
    offset: int,
    leader_epoch: int,
    metadata: str,
    commit_timestamp: int,
    expire_timestamp: int = NO_TIMESTAMP,
    topic_id: bytes | None = ZERO_UUID,
) -> bytes:
    """The value of a committed offset; with None as topic id in the version of Kafka 3.9."""
    text = metadata.encode()
    if expire_timestamp != NO_TIMESTAMP or topic_id is None:
        if len(text) > _LONGEST_STRING:
            raise OffsetMetadataTooLarge(f"metadata of {len(text)} bytes is longer than {_LONGEST_STRING}")
        if expire_timestamp == NO_TIMESTAMP:
            head, times = _HEAD.pack(3, offset, leader_epoch), _INT64.pack(commit_timestamp)
        else:
            head = _OLD_HEAD.pack(_RETENTION_VERSION, offset)
            times = _TWO_INT64.pack(commit_timestamp, expire_timestamp)
        return b"%b%b%b%b" % (head, _LENGTH.pack(len(text)), text, times)
    return b"%b%b%b%b%b" % (
        _HEAD.pack(_NEWEST_OFFSET_VERSION, offset, leader_epoch),
        _compact_length(len(text)),
        text,
        _INT64.pack(commit_timestamp),
        _NO_TAGS if topic_id == ZERO_UUID else _TOPIC_ID_TAG + topic_id,
    )


def _compact_length(length: int) -> bytes:
    remaining = length + 1
    if remaining < 128:
        return remaining.to_bytes(1, "big")
    out = bytearray()
    while remaining >= 128:
        out.append(remaining & 127 | 128)
        remaining >>= 7
    out.append(remaining)
    return bytes(out)


def read_offset_value(value: bytes) -> CommittedOffset:
    """Decode the value of a committed offset of any version; ProtocolError if it is malformed."""
    if is_plain_offset_value(value):
        _, offset, leader_epoch = _HEAD.unpack_from(value)
        end = 14 + value[14]
        return CommittedOffset(
            offset,
            leader_epoch,
            str(value[15:end], "utf-8", "replace"),
            _INT64.unpack_from(value, end)[0],
            NO_TIMESTAMP,
            value[end + 11 :] if len(value) > end + 9 else ZERO_UUID,
        )
    version = value_version(value)
    if version > _NEWEST_OFFSET_VERSION:
        raise ProtocolError(f"committed offsets have values of version 0 to 4, not {version}")
    found = OffsetCommitValue.decode(memoryview(value)[2:], version)
    return CommittedOffset(
        found.offset,
        found.leader_epoch,
        found.metadata,
        found.commit_timestamp,
        found.expire_timestamp,
        found.topic_id,
    )


def is_plain_offset_value(value: bytes) -> bool:
    """Whether `offset_value` could have written this value, with less than 127 bytes of metadata."""
    size = len(value)
    if size < 24 or value[1] != _NEWEST_OFFSET_VERSION or value[0] or not 0 < value[14] < 128:
        return False
    tags = 22 + value[14]
    if size == tags + 1:
        return value[tags] == 0
    return size == tags + 19 and value[tags : tags + 3] == _TOPIC_ID_TAG


def value_version(value: bytes) -> int:
    """The version at the beginning of a value."""
    if len(value) < 2:
        raise ProtocolError(f"a value of {len(value)} bytes has no version")
    (version,) = _VERSION.unpack_from(value)
    if version < 0:
        raise ProtocolError(f"the version of a value cannot be {version}")
    return int(version)


# -- classic groups ------------------------------------------------------------------------------------


def group_key(group_id: str) -> bytes:
    return GroupMetadataKey(group=group_id).encode(0, _VERSION.pack(GROUP_METADATA))


def read_group_key(key: bytes) -> str:
    return GroupMetadataKey.decode(memoryview(key)[2:], 0).group


def group_value(group: GroupMetadataValue) -> bytes:
    return group.encode(GROUP_METADATA_VERSION, _VERSION.pack(GROUP_METADATA_VERSION))


def read_group_value(value: bytes) -> GroupMetadataValue:
    return GroupMetadataValue.decode(memoryview(value)[2:], value_version(value))
