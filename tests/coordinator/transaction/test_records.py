"""Records of transactional ids: written by hand, they are what the definition of the message says."""

from __future__ import annotations

import random
from pathlib import Path

from tests.coordinator.transaction.stage import TransactionStage
from tidelog.coordinator.transaction.records import decode_key, decode_value, encode_key, encode_value
from tidelog.coordinator.transaction.state import Metadata, State
from tidelog.errors import ConcurrentTransactions
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


def test_beside_kafka_3_9_values_have_no_tagged_fields() -> None:
    chance = random.Random(2)
    for _ in range(200):
        metadata = some_metadata(chance)
        value = encode_value(metadata, 0)
        assert value[:2] == b"\0\0"
        untagged = metadata._replace(
            previous_producer_id=-1, next_producer_id=-1, next_producer_epoch=-1, client_version=0
        )
        assert decode_value(value) == untagged


def test_beside_kafka_3_9_a_fence_bumps_the_epoch_without_the_newer_protocol(tmp_path: Path) -> None:
    stage = TransactionStage(tmp_path / "data")
    stage.coordinator.settings.transaction_version = 0
    stage.world.advance()
    producer = stage.producer()
    assert stage.add(producer).kind is None
    assert stage.init().kind is ConcurrentTransactions
    stage.world.advance(0.2)
    assert stage.known() == stage.loaded_anew()["id"]._replace(
        previous_producer_id=stage.known().previous_producer_id
    )
    assert (stage.known().state, stage.known().client_version) == (State.COMPLETE_ABORT, 0)
    assert stage.known().producer_epoch == producer.epoch + 1
    stage.close()
