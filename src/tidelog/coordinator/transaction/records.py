"""The records of `__transaction_state`, in Kafka's format: the state of each transactional id.

Values are written in version 1, as Kafka does from transaction.version 1 on, or in version 0 in a cluster
with Kafka 3.9. Versions 0 and 1 are read.
"""

from __future__ import annotations

import struct
from functools import lru_cache

from tidelog.coordinator.transaction.state import CLASSIC, NO_EPOCH, NO_PRODUCER_ID, Metadata, State
from tidelog.partitions import PartitionKey
from tidelog.protocol.messages.transaction_records import TransactionLogKey, TransactionLogValue
from tidelog.protocol.wire import write_tags, write_uvarint

# A key begins with the type of the record, a value with its version.
_TYPE = struct.pack(">h", 0)
VALUE_VERSION = 1
_INT16 = struct.Struct(">h")
_INT64 = struct.Struct(">q")
# A value: version, producer id, epoch, timeout and state before the partitions, two timestamps after.
_BEFORE, _TIMES = struct.Struct(">hqhib"), struct.Struct(">qq")
# Two timestamps and the tagged fields: their number, then tag, size and value of each. Tag 0 is the previous
# producer id, tag 2 the client's transaction version.
_CLASSIC_END, _END = struct.Struct(">qqBBBq"), struct.Struct(">qqBBBqBBh")
_NULL = b"\0"


@lru_cache(4096)
def encode_key(transactional_id: str) -> bytes:
    return TransactionLogKey(transactional_id=transactional_id).encode(0, _TYPE)


def decode_key(key: bytes) -> str | None:
    """The transactional id, or None for a record of an unknown type."""
    if key[:2] != _TYPE:
        return None
    return TransactionLogKey.decode(memoryview(key)[2:], 0).transactional_id


def encode_value(metadata: Metadata, version: int = VALUE_VERSION) -> bytes:
    """Encode a TransactionLogValue without the generated codec: each transaction writes three.

    Nearly all have a previous producer id and no next one.
    """
    if version == 0:
        return _encode_without_tags(metadata)
    (
        producer_id, epoch, timeout_ms, state, partitions, start_ms, last_update_ms,
        previous_id, next_id, next_epoch, client_version,
    ) = metadata  # fmt: skip
    head = _BEFORE.pack(VALUE_VERSION, producer_id, epoch, timeout_ms, state)
    if state is not State.EMPTY:
        head += _by_topic(partitions)
    else:
        head += _NULL
    if next_id == NO_PRODUCER_ID and next_epoch == NO_EPOCH and previous_id != NO_PRODUCER_ID:
        if client_version == CLASSIC:
            return head + _CLASSIC_END.pack(last_update_ms, start_ms, 1, 0, 8, previous_id)
        return head + _END.pack(last_update_ms, start_ms, 2, 0, 8, previous_id, 2, 2, client_version)
    tags = {}
    if previous_id != NO_PRODUCER_ID:
        tags[0] = _INT64.pack(previous_id)
    if next_id != NO_PRODUCER_ID:
        tags[1] = _INT64.pack(next_id)
    if client_version != CLASSIC:
        tags[2] = _INT16.pack(client_version)
    if next_epoch != NO_EPOCH:
        tags[3] = _INT16.pack(next_epoch)
    return head + _TIMES.pack(last_update_ms, start_ms) + write_tags(tags)


def _encode_without_tags(metadata: Metadata) -> bytes:
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(metadata.partitions):
        topics.setdefault(topic, []).append(index)
    value = TransactionLogValue(
        producer_id=metadata.producer_id,
        producer_epoch=metadata.producer_epoch,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_status=metadata.state,
        transaction_partitions=None
        if metadata.state is State.EMPTY
        else [
            TransactionLogValue.PartitionsSchema(topic=topic, partition_ids=indexes)
            for topic, indexes in topics.items()
        ],
        transaction_last_update_timestamp_ms=metadata.last_update_ms,
        transaction_start_timestamp_ms=metadata.start_ms,
    )
    return value.encode(0, _INT16.pack(0))


@lru_cache(128)
def _by_topic(partitions: frozenset[PartitionKey]) -> bytes:
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    out = [write_uvarint(len(topics) + 1)]
    for topic, indexes in topics.items():
        name = topic.encode()
        out += (write_uvarint(len(name) + 1), name, write_uvarint(len(indexes) + 1))
        out.append(struct.pack(f">{len(indexes)}ib", *indexes, 0))  # no tags
    return b"".join(out)


def decode_value(value: bytes) -> Metadata:
    version: int = _INT16.unpack_from(value)[0]
    found = TransactionLogValue.decode(memoryview(value)[2:], version)
    return Metadata(
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        timeout_ms=found.transaction_timeout_ms,
        state=State(found.transaction_status),
        partitions=frozenset(
            (schema.topic, index)
            for schema in found.transaction_partitions or ()
            for index in schema.partition_ids
        ),
        start_ms=found.transaction_start_timestamp_ms,
        last_update_ms=found.transaction_last_update_timestamp_ms,
        previous_producer_id=found.previous_producer_id,
        next_producer_id=found.next_producer_id,
        next_producer_epoch=found.next_producer_epoch,
        client_version=found.client_transaction_version,
    )
