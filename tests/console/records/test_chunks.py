"""Chunks of batches without a broker: old formats, and transactions above the last stable offset."""

from __future__ import annotations

import struct
import zlib

import pytest

from tidelog.console.records.log_record import BatchFacts, TransactionState
from tidelog.console.records.topic_reader import Chunk
from tidelog.records.batch import Record, build_batch, build_end_transaction_marker


def chunk(
    data: bytes, *, fetched: int = 0, high: int = 100, stable: int = 0, committed: bool = False
) -> Chunk:
    return Chunk("t", 0, fetched, data, high, stable, 0, [], committed)


def old_message(offset: int, magic: int, value: bytes) -> bytes:
    times = struct.pack(">q", 1234) if magic else b""
    body = (
        struct.pack(">bb", magic, 0) + times + struct.pack(">i", -1) + struct.pack(">i", len(value)) + value
    )
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def batch(offset: int, value: bytes, *, producer: int = -1) -> bytes:
    return build_batch(
        [Record(offset, 5, None, value)], base_offset=offset, producer_id=producer,
        producer_epoch=0 if producer >= 0 else -1, base_sequence=7 if producer >= 0 else -1,
        transactional=producer >= 0,
    )  # fmt: skip


def marker(offset: int, producer: int, *, commit: bool) -> bytes:
    return build_end_transaction_marker(
        commit=commit,
        producer_id=producer,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp=5,
        base_offset=offset,
    )


def test_old_formats_and_batches_are_read_together() -> None:
    data = old_message(3, 0, b"zero") + old_message(4, 1, b"one") + batch(5, b"two")
    found = chunk(data, fetched=4)
    assert found.next_offset == 6
    assert [(record.offset, record.timestamp, record.value) for record in found.records()] == [
        (4, 1234, b"one"), (5, 5, b"two"),
    ]  # fmt: skip
    assert [record.offset for record in found.records(end=5)] == [4]


def test_a_part_of_a_batch_at_the_end_is_left_for_the_next_fetch() -> None:
    data = batch(0, b"a") + batch(1, b"b")[:-1]
    assert chunk(data).next_offset == 1
    assert [record.offset for record in chunk(data).records()] == [0]


@pytest.mark.parametrize(
    ("end", "high", "state"),
    [
        (marker(1, 9, commit=True), 2, TransactionState.COMMITTED),
        (marker(1, 9, commit=False), 2, TransactionState.ABORTED),
        (marker(1, 8, commit=True), 2, TransactionState.OPEN),
        (b"", 1, TransactionState.OPEN),
        (b"", 50, TransactionState.UNDECIDED),
    ],
)
def test_above_the_last_stable_offset_the_markers_decide(
    end: bytes, high: int, state: TransactionState
) -> None:
    (record,) = chunk(batch(0, b"a", producer=9) + end, high=high).records()
    assert (record.transaction, record.producer_id, record.sequence) == (state, 9, 7)


class Odd:
    """A sieve that lets records with odd offsets pass."""

    def rejects(self, record: Record, batch: BatchFacts) -> bool:
        assert (batch.topic, batch.partition) == ("t", 0)
        return record.offset % 2 == 0


@pytest.mark.parametrize(("stride", "expected"), [(1, list(range(2, 10))), (100, [2, 3, 5, 6, 7, 9])])
def test_heads_are_in_order_and_count_every_record(stride: int, expected: list[int]) -> None:
    data = build_batch([Record(offset, 5, None, b"x") for offset in range(7)]) + marker(7, 9, commit=True)
    data += build_batch([Record(offset, 5, None, b"x") for offset in (8, 9, 10)], base_offset=8)
    heads = list(chunk(data, fetched=2).heads(10, Odd(), control=True, stride=stride))
    assert [head.record.offset for head in heads] == expected
    assert sum(head.passed for head in heads) == 8
    assert [head.record.offset for head in heads if head.may_match] == [3, 5, 7, 9]
