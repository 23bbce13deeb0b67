"""Batches are read as they were built, by us and by others."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from tests.records.build import NOW, record, with_header
from tidelog.errors import CorruptMessage, InvalidRecord
from tidelog.records.batch import (
    HEADER_SIZE,
    EndTransactionMarker,
    Record,
    build_batch,
    build_end_transaction_marker,
    crc_is_valid,
    iter_batches,
    read_control_record,
    read_header,
    read_marker,
    read_records,
    set_log_append_time,
)
from tidelog.records.codecs import Codec

content = st.none() | st.binary(max_size=40)
headers = st.lists(st.tuples(st.text(max_size=8), content), max_size=3).map(tuple)
rows = st.lists(
    st.tuples(st.integers(1, 1000), st.integers(-(2**63), 2**63 - 1), content, content, headers), max_size=20
)


def as_records(drawn: list[tuple[int, int, bytes | None, bytes | None, tuple]]) -> list[Record]:
    records, offset = [], -1
    for gap, timestamp, key, value, pairs in drawn:
        offset += gap
        records.append(Record(offset, timestamp, key, value, pairs))
    return records


@pytest.mark.parametrize("codec", list(Codec))
def test_records_come_back_from_a_batch_as_they_went_in(twin: SimpleNamespace, codec: Codec) -> None:
    records = [
        Record(0, NOW, None, None),
        Record(1, NOW - 5, b"", b"", (("h", None), ("h", b""), ("é", b"\xff"))),
        Record(2, -1, b"k" * 300, b"v" * 70_000),
        Record(9, 2**63 - 1, b"k", b"v"),
    ]
    batch = build_batch(records, codec=codec, base_offset=0)
    header = read_header(batch)
    assert read_records(batch) == records
    assert crc_is_valid(batch, 0, header)
    assert (header.codec, header.record_count, header.last_offset, header.next_offset) == (codec, 4, 9, 10)
    assert header.max_timestamp == 2**63 - 1
    assert header.total_size == len(batch)


@settings(max_examples=100, derandomize=True)
@given(rows, st.sampled_from(list(Codec)), st.integers(0, 2**62))
def test_any_records_come_back(drawn: list, codec: Codec, base: int) -> None:
    records = [r._replace(offset=base + r.offset) for r in as_records(drawn)]
    batch = build_batch(records, codec=codec, base_offset=base)
    assert read_records(batch) == records


def test_header_keys_that_are_not_utf8_survive(twin: SimpleNamespace) -> None:
    name = b"\xff\xfe".decode("utf-8", "surrogateescape")
    batch = build_batch([Record(0, NOW, b"k", b"v", ((name, b"x"),))])
    assert b"\xff\xfe" in batch
    assert read_records(batch)[0].headers == ((name, b"x"),)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_kafka_python_reads_our_batches_and_we_read_its(twin: SimpleNamespace, codec: Codec) -> None:
    pairs = [("a", b"1"), ("b", None)]
    ours = build_batch(
        [Record(i, NOW + i, b"k%d" % i, b"v" * i, tuple(pairs)) for i in range(20)], codec=codec
    )
    theirs = DefaultRecordBatchBuilder(2, int(codec), False, -1, -1, -1, 1 << 20)
    for i in range(20):
        theirs.append(i, NOW + i, b"k%d" % i, b"v" * i, pairs)
    for batch in (ours, bytes(theirs.build())):
        reader = DefaultRecordBatch(batch)
        assert reader.validate_crc()
        expected = [(r.offset, r.timestamp, r.key, r.value, [tuple(h) for h in r.headers]) for r in reader]
        assert [(*r[:4], list(r.headers)) for r in read_records(batch)] == expected


def test_offset_and_epoch_are_patched_without_touching_the_checksum(twin: SimpleNamespace) -> None:
    batch = bytearray(b"before" + build_batch([record(0), record(1)]))
    twin.patch_header(batch, 6, 2**63 - 5, 77)
    header = read_header(batch, 6)
    assert (header.base_offset, header.partition_leader_epoch) == (2**63 - 5, 77)
    assert crc_is_valid(batch, 6, header)
    assert batch[:6] == b"before"


def test_a_header_that_is_not_there_is_not_patched(twin: SimpleNamespace) -> None:
    for pos in (-1, 1, 2**40):
        with pytest.raises(ValueError):
            twin.patch_header(bytearray(61), pos, 0, 0)
    with pytest.raises((TypeError, BufferError)):
        twin.patch_header(bytes(61), 0, 0, 0)


def test_append_time_is_the_timestamp_of_every_record() -> None:
    batch = bytearray(build_batch([record(0), record(1, NOW + 5)]))
    set_log_append_time(batch, 0, NOW + 99)
    header = read_header(batch)
    assert crc_is_valid(batch, 0, header)
    assert header.is_log_append_time
    assert [r.timestamp for r in read_records(batch)] == [NOW + 99, NOW + 99]
    assert build_batch([record(0), record(1, NOW + 5)], log_append_time=NOW + 99) == batch


def test_sequences_start_again_after_the_largest() -> None:
    batch = build_batch(
        [record(i) for i in range(3)], producer_id=5, producer_epoch=1, base_sequence=2**31 - 2
    )
    assert read_header(batch).last_sequence == 0
    assert read_header(build_batch([record()])).last_sequence == -1


def test_iteration_stops_at_a_cut_tail_and_refuses_nonsense() -> None:
    one, two = build_batch([record(0)]), build_batch([record(7)], base_offset=7)
    whole = one + two
    assert [(pos, h.base_offset) for pos, h in iter_batches(whole)] == [(0, 0), (len(one), 7)]
    assert [pos for pos, _ in iter_batches(whole[:-1])] == [0]
    assert [pos for pos, _ in iter_batches(whole, len(one))] == [len(one)]
    assert [pos for pos, _ in iter_batches(whole, 0, len(one))] == [0]
    with pytest.raises(CorruptMessage):
        list(iter_batches(one + bytes(100)))
    with pytest.raises(CorruptMessage):
        list(iter_batches(one[:16] + b"\x01" + one[17:]))


def test_a_changed_byte_is_seen_by_the_checksum() -> None:
    batch = build_batch([record(0, value=b"v" * 5000)])
    header = read_header(batch)
    for pos in range(21, len(batch), 97):
        changed = bytearray(batch)
        changed[pos] ^= 1
        assert not crc_is_valid(changed, 0, header)
    assert not crc_is_valid(batch[:-1], 0, header)


@pytest.mark.parametrize("commit", [True, False])
def test_transaction_markers_say_how_it_ended(commit: bool) -> None:
    marker = build_end_transaction_marker(
        commit=commit, producer_id=9, producer_epoch=2, coordinator_epoch=33, timestamp=NOW, base_offset=70
    )
    header = read_header(marker)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, -1)
    [only] = read_records(marker)
    assert only == Record(70, NOW, b"\0\0\0" + bytes([commit]), b"\0\0\0\0\0\x21")
    assert marker == build_batch(
        [only], base_offset=70, producer_id=9, producer_epoch=2, transactional=True, control=True
    )
    assert read_control_record(only) == EndTransactionMarker(commit, 33)
    assert read_marker(b"..." + marker, 3, header) == EndTransactionMarker(commit, 33)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_markers_that_others_wrote_in_another_way_say_the_same(codec: Codec) -> None:
    for record_ in (
        Record(0, NOW, b"\0\0\0\1", b"\0\0\0\0\0\x21", (("h", None),)),
        Record(0, NOW, b"\0\1\0\1", b"\0\0\0\0\0\x21"),
        Record(0, NOW, b"\0\0\0\1", b"\0\2\0\0\0\x21"),
        Record(0, NOW, b"\0\0\0\1", b"\0\0\0\0\0\x21\0"),
        Record(0, NOW, b"\0\0\0\1\0", b"\0\0\0\0\0\x21"),
    ):
        marker = build_batch([record_], codec=codec, producer_id=9, transactional=True, control=True)
        assert read_marker(marker, 0, read_header(marker)) == EndTransactionMarker(True, 33)


def test_control_batches_that_end_no_transaction_are_left_alone_and_broken_ones_refused() -> None:
    other = build_batch([Record(0, NOW, b"\0\0\0\2", b"\0\0\0\0\0\x21")], control=True)
    assert read_marker(other, 0, read_header(other)) is None
    marker = build_end_transaction_marker(
        commit=True, producer_id=9, producer_epoch=2, coordinator_epoch=33, timestamp=NOW
    )
    with pytest.raises(CorruptMessage):
        read_marker(marker[:-1], 0, read_header(marker))
    with pytest.raises(InvalidRecord):
        read_marker(marker, 0, read_header(marker)._replace(record_count=2))
    changed = bytearray(marker)
    changed[HEADER_SIZE] = 0x1E  # a record that ends before its last byte
    with pytest.raises(InvalidRecord):
        read_marker(changed, 0, read_header(changed))


def test_control_records_of_other_kinds_are_left_alone_and_broken_ones_refused() -> None:
    assert read_control_record(Record(0, NOW, b"\0\0\0\x02", b"")) is None
    for key, value in ((None, b""), (b"\0\0", b""), (b"\0\0\0\x01", b"\0"), (b"\0\0\0\0", None)):
        with pytest.raises(InvalidRecord):
            read_control_record(Record(0, NOW, key, value))


def test_cleaned_batches_keep_their_last_offset_and_horizon(twin: SimpleNamespace) -> None:
    batch = build_batch(
        [record(12, NOW + 3)],
        base_offset=10,
        last_offset_delta=9,
        delete_horizon=NOW + 1000,
        codec=Codec.GZIP,
    )
    header = read_header(batch)
    assert header.has_delete_horizon
    assert (header.base_timestamp, header.last_offset, header.record_count) == (NOW + 1000, 19, 1)
    assert read_records(batch) == [record(12, NOW + 3)]
    empty = build_batch(
        [], base_offset=10, last_offset_delta=9, codec=Codec.ZSTD, producer_id=4, producer_epoch=0
    )
    assert read_records(empty) == []
    assert read_header(empty).last_offset == 19


def test_offsets_that_fall_are_refused(twin: SimpleNamespace) -> None:
    for offsets in ((1, 0), (0, 0), (-1,), (2**31,), (-(2**63),)):
        with pytest.raises(ValueError):
            build_batch([record(o) for o in offsets])


def test_records_other_than_declared_are_refused(twin: SimpleNamespace) -> None:
    batch = build_batch([record(0), record(1)])
    for count in (0, 1, 3, 2**31 - 1, -1):
        with pytest.raises(InvalidRecord):
            read_records(with_header(batch, record_count=count))
    with pytest.raises(CorruptMessage):
        read_records(batch[:-1])
    with pytest.raises(CorruptMessage):
        read_records(with_header(batch, attributes=5))
    with pytest.raises(CorruptMessage):
        read_header(b"x" * 60)


@pytest.mark.parametrize("size", [0, 1, 62, 63, 64, 130, 8_190, 70_000])
def test_a_batch_with_one_record_is_built_in_one_go(twin: SimpleNamespace, size: int) -> None:
    for key, value in ((b"k" * size, b"value"), (b"key", b"v" * size), (b"key", None)):
        assert twin.one_record_batch(key, value, NOW) == build_batch([Record(0, NOW, key, value)])
