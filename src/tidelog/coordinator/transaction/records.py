"""The records of `__transaction_state`: a transactional id and what is known of it, in Kafka's own format.

Values are written in version 1, as Kafka does from transaction.version 1 on; Kafka 3.9 reads it too.
Versions 0 and 1 are read.
"""

from __future__ import annotations

import struct

from tidelog.coordinator.transaction.state import Metadata, State, TopicPartition
from tidelog.protocol.messages.transaction_records import TransactionLogKey, TransactionLogValue

# The type of the record stands before its key, the version of the value before that.
_TYPE = struct.pack(">h", 0)
VALUE_VERSION = 1
_VALUE_PREFIX = struct.pack(">h", VALUE_VERSION)
_INT16 = struct.Struct(">h")


def encode_key(transactional_id: str) -> bytes:
    return TransactionLogKey(transactional_id=transactional_id).encode(0, _TYPE)


def decode_key(key: bytes) -> str | None:
    """The transactional id; None for records of a type that we do not know, which stay as they are."""
    if key[:2] != _TYPE:
        return None
    return TransactionLogKey.decode(memoryview(key)[2:], 0).transactional_id


def encode_value(metadata: Metadata) -> bytes:
    return TransactionLogValue(
        producer_id=metadata.producer_id,
        previous_producer_id=metadata.previous_producer_id,
        next_producer_id=metadata.next_producer_id,
        producer_epoch=metadata.producer_epoch,
        next_producer_epoch=metadata.next_producer_epoch,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_status=metadata.state,
        transaction_partitions=None if metadata.state is State.EMPTY else _by_topic(metadata.partitions),
        transaction_last_update_timestamp_ms=metadata.last_update_ms,
        transaction_start_timestamp_ms=metadata.start_ms,
        client_transaction_version=metadata.client_version,
    ).encode(VALUE_VERSION, _VALUE_PREFIX)


def _by_topic(partitions: frozenset[TopicPartition]) -> list[TransactionLogValue.PartitionsSchema]:
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    return [
        TransactionLogValue.PartitionsSchema(topic=topic, partition_ids=indexes)
        for topic, indexes in topics.items()
    ]


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
