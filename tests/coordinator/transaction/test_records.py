"""Records of transactional ids: written by hand, they are what the definition of the message says."""

from __future__ import annotations

import random

from tidelog.coordinator.transaction.records import decode_key, decode_value, encode_key, encode_value
from tidelog.coordinator.transaction.state import Metadata, State
from tidelog.protocol.messages.transaction_records import TransactionLogValue

VERSION = b"\0\1"


def some_metadata(chance: random.Random) -> Metadata:
    state = chance.choice(list(State))
    topics = ["t", "a.long-name" * 20, "ärger", "__consumer_offsets"][: chance.randrange(5)]
    partitions = {
        (topic, chance.randrange(1 << chance.randrange(1, 31)))
        for topic in topics
        for _ in range(chance.choice([1, 3, 200]))
    }

    def known(most: int) -> int:
        return chance.choice([-1, 0, chance.randrange(most)])

    return Metadata(
        producer_id=chance.randrange(1 << 62),
        producer_epoch=chance.randrange(1 << 15),
        timeout_ms=chance.randrange(1 << 31),
        state=state,
        partitions=frozenset() if state is State.EMPTY else frozenset(partitions),
        start_ms=known(1 << 62),
        last_update_ms=known(1 << 62),
        previous_producer_id=known(1 << 62),
        next_producer_id=known(1 << 62),
        next_producer_epoch=known(1 << 15),
        client_version=chance.randrange(3),
    )


def as_defined(metadata: Metadata) -> bytes:
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(metadata.partitions):
        topics.setdefault(topic, []).append(index)
    schema = TransactionLogValue.PartitionsSchema
    listed = [schema(topic=topic, partition_ids=indexes) for topic, indexes in topics.items()]
    return TransactionLogValue(
        producer_id=metadata.producer_id,
        previous_producer_id=metadata.previous_producer_id,
        next_producer_id=metadata.next_producer_id,
        producer_epoch=metadata.producer_epoch,
        next_producer_epoch=metadata.next_producer_epoch,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_status=metadata.state,
        transaction_partitions=None if metadata.state is State.EMPTY else listed,
        transaction_last_update_timestamp_ms=metadata.last_update_ms,
        transaction_start_timestamp_ms=metadata.start_ms,
        client_transaction_version=metadata.client_version,
    ).encode(1, VERSION)


def test_values_are_written_as_their_message_is_defined_and_read_back() -> None:
    chance = random.Random(1)
    for _ in range(500):
        metadata = some_metadata(chance)
        value = encode_value(metadata)
        assert value == as_defined(metadata)
        assert decode_value(value) == metadata


def test_keys_are_read_back() -> None:
    for transactional_id in ("", "id", "ärger", "x" * 300):
        assert decode_key(encode_key(transactional_id)) == transactional_id
