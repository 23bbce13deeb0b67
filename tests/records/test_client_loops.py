"""Batches that a producer fills and Arrow's columns: both twins make the same bytes, and good ones."""

from __future__ import annotations

import struct
from array import array
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.records.conftest import compiled, pure
from tests.support.scale import scale
from tidelog.records._pure_client import encode_headers
from tidelog.records.batch import HEADER_SIZE, Record, crc_is_valid, read_header, read_records
from tidelog.records.partitioning import partition_for_key

BYTES = st.none() | st.binary(max_size=300)
TIMES = st.integers(0, 2**62)
HEADERS = st.lists(st.tuples(st.binary(max_size=20).map(lambda b: b.hex().encode()), BYTES), max_size=3).map(
    tuple
)
RECORDS = st.lists(st.tuples(TIMES, BYTES, BYTES, HEADERS), min_size=1, max_size=50)
QUICK = settings(
    max_examples=scale(60, 2000),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def filled(
    twin: SimpleNamespace, records: list[tuple], limit: int
) -> tuple[int, bytes, tuple[int, int, int]]:
    """How many records found room, the signed batch, and its count and times."""
    batch = twin.BatchBuffer(limit)
    taken = 0
    for fields in records:
        future = batch.append(*fields)
        if future is None:
            break
        assert (future.index, future.timestamp) == (taken, fields[0])
        assert future.key_size == (-1 if fields[1] is None else len(fields[1]))
        taken += 1
    batch.seal()
    view = batch.bytes_view()
    twin.sign_batch(view, 0, batch.count, batch.base_timestamp, batch.max_timestamp, 5, 6, 7)
    result = bytes(view), (batch.count, batch.base_timestamp, batch.max_timestamp)
    view.release()
    return taken, *result


@QUICK
@given(records=RECORDS, limit=st.integers(0, 2000))
def test_the_twins_fill_the_same_batch(records: list[tuple], limit: int) -> None:
    assert filled(pure(), records, limit) == filled(compiled(), records, limit)


@QUICK
@given(records=RECORDS)
def test_what_was_appended_can_be_read(twin: SimpleNamespace, records: list[tuple]) -> None:
    taken, data, (count, base, greatest) = filled(twin, records, 1 << 20)
    header = read_header(data)
    assert taken == count == len(records)
    assert crc_is_valid(data, 0, header)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 6, 7)
    assert (base, greatest) == (records[0][0], max(record[0] for record in records))
    assert read_records(data) == [
        Record(index, time, key, value, tuple((name.decode(), content) for name, content in headers))
        for index, (time, key, value, headers) in enumerate(records)
    ]


def test_a_batch_takes_its_first_record_whatever_its_size_and_then_keeps_to_its_limit(
    twin: SimpleNamespace,
) -> None:
    batch = twin.BatchBuffer(100)
    assert batch.append(1, None, b"x" * 500, ()) is not None
    assert batch.full
    assert batch.append(1, None, b"", ()) is None
    small = twin.BatchBuffer(HEADER_SIZE + 16)
    assert small.append_value(b"x") is not None
    assert small.append_value(b"y") is not None
    assert not small.sealed
    assert small.append_value(b"z") is None
    assert small.count == 2


def test_a_sealed_batch_takes_nothing_and_an_open_one_shows_nothing(twin: SimpleNamespace) -> None:
    batch = twin.BatchBuffer(1000)
    batch.append_value(b"v")
    with pytest.raises(BufferError):
        batch.bytes_view()
    batch.seal()
    assert batch.append_value(b"v") is None
    assert batch.append(0, None, b"v", ()) is None
    assert len(batch.bytes_view()) == batch.size
    batch.release()
    with pytest.raises(BufferError):
        batch.bytes_view()


def column(twin: SimpleNamespace, cells: list[bytes | None], *, wide: bool, first: int) -> object:
    """A column in Arrow's layout, its rows behind `first` that are not part of it."""
    padded = [b"not here"] * first + cells
    offsets, data, bits = [0], bytearray(), bytearray((len(padded) + 7) // 8)
    for row, cell in enumerate(padded):
        if cell is not None:
            data += cell
            bits[row >> 3] |= 1 << (row & 7)
        offsets.append(len(data))
    packed = struct.pack(f"<{len(offsets)}{'q' if wide else 'i'}", *offsets)
    validity = bytes(bits) if None in cells else None
    return twin.ArrowColumn(packed, bytes(data), validity, first, len(cells), wide)


def from_columns(
    twin: SimpleNamespace, rows: list[tuple[bytes | None, bytes | None]], wide: bool, first: int, limit: int
) -> tuple[list[bytes], list[list[int]], int]:
    """Batches with all of the rows, and which rows belong to which of three partitions."""
    keys = column(twin, [key for key, _ in rows], wide=wide, first=first)
    values = column(twin, [value for _, value in rows], wide=wide, first=first)
    times = struct.pack(f"<{len(rows) + first}q", *range(-first, len(rows)))
    columns = twin.ArrowColumns(keys, values, times, first, ((b"h", b"1"),))
    assert [columns.row(number) for number in range(len(rows))] == rows
    for outside in (-1, len(rows)):
        with pytest.raises(IndexError):
            columns.row(outside)
    made = []
    at = 0
    while at < len(rows):
        batch = twin.BatchBuffer(limit)
        before, at = at, batch.append_rows(columns, None, at, len(rows), 0)
        assert at > before
        assert batch.last_future().index == at - before - 1
        batch.seal()
        view = batch.bytes_view()
        twin.sign_batch(view, 0, batch.count, batch.base_timestamp, batch.max_timestamp, -1, -1, -1)
        made.append(bytes(view))
    return made, [list(found) for found in columns.rows_by_partition(3)], columns.largest()


@QUICK
@given(
    rows=st.lists(st.tuples(BYTES, BYTES), min_size=1, max_size=40),
    wide=st.booleans(),
    first=st.integers(0, 9),
    limit=st.integers(0, 1500),
)
def test_columns_become_batches(
    rows: list[tuple[bytes | None, bytes | None]], wide: bool, first: int, limit: int
) -> None:
    batches, partitions, largest = from_columns(compiled(), rows, wide, first, limit)
    assert (batches, partitions, largest) == from_columns(pure(), rows, wide, first, limit)
    found = [record for batch in batches for record in read_records(batch)]
    assert [(record.key, record.value) for record in found] == rows
    assert [record.timestamp for record in found] == list(range(len(rows)))
    assert {record.headers for record in found} == {(("h", b"1"),)}
    assert sorted(row for rows_of in partitions for row in rows_of) == list(range(len(rows)))
    assert partitions[3] == [row for row, (key, _) in enumerate(rows) if key is None]
    assert largest == max(len(key or b"") + len(value or b"") for key, value in rows) + 5


def test_chosen_rows_go_in_their_order(twin: SimpleNamespace) -> None:
    values = column(twin, [b"%d" % number for number in range(10)], wide=False, first=0)
    nothing = twin.ArrowColumn(None, None, None, 0, 10, False)
    columns = twin.ArrowColumns(nothing, values, None, 0, ())
    assert not columns.has_keys
    batch = twin.BatchBuffer(1000)
    assert batch.append_rows(columns, array("i", [7, 0, 3]), 0, 3, 99) == 3
    batch.seal()
    assert batch.append_rows(columns, None, 0, 10, 99) == 0
    view = batch.bytes_view()
    twin.sign_batch(view, 0, 3, 99, 99, -1, -1, -1)
    assert [(record.value, record.timestamp) for record in read_records(bytes(view))] == [
        (b"7", 99),
        (b"0", 99),
        (b"3", 99),
    ]


def test_rows_have_their_own_headers_or_those_of_all(twin: SimpleNamespace) -> None:
    values = column(twin, [b"0", b"1", b"2"], wide=False, first=2)
    nothing = twin.ArrowColumn(None, None, None, 0, 3, False)
    own = column(twin, [None, encode_headers(((b"a", b"x" * 100), (b"b", None))), b""], wide=False, first=1)
    columns = twin.ArrowColumns(nothing, values, None, 0, ((b"all", b"1"),), own)
    assert columns.largest() == 1 + len(encode_headers(((b"a", b"x" * 100), (b"b", None))))
    batch = twin.BatchBuffer(1000)
    assert batch.append_rows(columns, None, 0, 3, 99) == 3
    batch.seal()
    view = batch.bytes_view()
    twin.sign_batch(view, 0, 3, 99, 99, -1, -1, -1)
    assert [(record.value, record.headers) for record in read_records(bytes(view))] == [
        (b"0", (("all", b"1"),)),
        (b"1", (("a", b"x" * 100), ("b", None))),
        (b"2", (("all", b"1"),)),
    ]
    with pytest.raises(ValueError, match="2 rows of headers and 3 values"):
        short = column(twin, [None, None], wide=False, first=0)
        twin.ArrowColumns(nothing, values, None, 0, (), short)


@pytest.mark.parametrize(
    ("offsets", "data", "validity", "rows"),
    [
        ([0, 5], b"1234", None, 1),
        ([0, 4, 2], b"1234", None, 2),
        ([-1, 4], b"1234", None, 1),
        ([0, 4], b"1234", None, 2),
        ([0] * 10, b"", b"\xff", 9),
    ],
)
def test_columns_that_point_outside_of_their_buffers_are_refused(
    twin: SimpleNamespace, offsets: list[int], data: bytes, validity: bytes | None, rows: int
) -> None:
    packed = struct.pack(f"<{len(offsets)}i", *offsets)
    with pytest.raises(ValueError):
        twin.ArrowColumn(packed, data, validity, 0, rows, False)


def test_rows_that_are_not_there_are_refused(twin: SimpleNamespace) -> None:
    values = column(twin, [b"a", b"b"], wide=False, first=0)
    columns = twin.ArrowColumns(twin.ArrowColumn(None, None, None, 0, 2, False), values, None, 0, ())
    batch = twin.BatchBuffer(1000)
    for rows, stop in ((None, 3), (array("i", [2]), 1), (array("i", [-1]), 1), (array("i", [0]), 2)):
        with pytest.raises(ValueError):
            batch.append_rows(columns, rows, 0, stop, 0)
    with pytest.raises(ValueError):
        twin.ArrowColumns(twin.ArrowColumn(None, None, None, 0, 3, False), values, None, 0, ())
    with pytest.raises(ValueError):
        twin.ArrowColumns(twin.ArrowColumn(None, None, None, 0, 2, False), values, bytes(8), 0, ())


@QUICK
@given(keys=st.lists(st.binary(max_size=20), max_size=30), partitions=st.integers(1, 7))
def test_keys_find_the_open_batch_of_their_partition(
    twin: SimpleNamespace, keys: list[bytes], partitions: int
) -> None:
    open_batches = twin.OpenBatches(partitions)
    assert open_batches.append(b"key", b"value") is None
    batches = [twin.BatchBuffer(1 << 16) for _ in range(partitions)]
    open_batches.batches[:] = batches
    for key in keys:
        future = open_batches.append(key, b"value")
        assert future.batch is batches[partition_for_key(key, partitions)]
        assert (future.key_size, future.value_size) == (len(key), 5)
    for batch in batches:
        batch.seal()
    assert open_batches.append(b"key", b"value") is None
    with pytest.raises(ValueError):
        twin.OpenBatches(0)


def test_a_buffer_is_used_again_once_nobody_looks_at_it() -> None:
    twin = compiled()
    pool = twin.BufferPool(2000)

    def filled_batch(byte: bytes) -> object:
        batch = twin.BatchBuffer(2000)
        batch.reuse(pool)
        while batch.append_value(byte * 100) is not None:
            pass
        batch.seal()
        return batch

    first = filled_batch(b"a")
    view = first.bytes_view()  # type: ignore[attr-defined]
    first.release()  # type: ignore[attr-defined]
    assert pool.held == 0
    assert bytes(view[100:110]) == b"a" * 10
    second = filled_batch(b"b")
    second.release()  # type: ignore[attr-defined]
    assert pool.held == 1
    third = filled_batch(b"c")
    assert pool.held == 0
    assert b"b" not in bytes(third.bytes_view())[HEADER_SIZE:]  # type: ignore[attr-defined]
    small = twin.BatchBuffer(1000)
    small.reuse(pool)
    small.append_value(b"v")
    small.release()
    assert pool.held == 0
