"""Rows of an offset range: those between its ends, with the columns that were asked for."""

from __future__ import annotations

import random
from array import array
from types import SimpleNamespace

import pytest

from tests.records.test_fetched import some_log, some_records
from tidelog.errors import CorruptMessage
from tidelog.records.batch import Record, build_batch


def filled(
    twin: SimpleNamespace, data: bytes, start: int, end: int, step: int, **wanted: bool
) -> list[SimpleNamespace]:
    """The sinks that a range fills, each with at most `step` rows."""
    reader = twin.RecordReader(data, "t", 0, start, True, None)
    sinks = []
    while not reader.done:
        sink = twin.RowSink(end, **wanted)
        assert sink.fill(reader, step) == sink.rows <= step
        if sink.rows:
            sinks.append(sink)
        if sink.ended or not sink.rows:
            break
    return sinks


def longs(sinks: list[SimpleNamespace], name: str) -> list[int]:
    return [number for sink in sinks for number in array("q", bytes(sink.buffers()[name]))]


def cells(sink: SimpleNamespace, name: str, rows: int) -> list[bytes | None]:
    buffers = sink.buffers()
    ends, data = array("i", bytes(buffers[f"{name} ends"])), bytes(buffers[f"{name} data"])
    bits = bytes(buffers[f"{name} bits"]) if f"{name} bits" in buffers else b"\xff" * rows
    return [data[ends[i] : ends[i + 1]] if bits[i >> 3] >> (i & 7) & 1 else None for i in range(rows)]


@pytest.mark.parametrize("seed", range(8))
def test_rows_are_the_records_of_the_range(twin: SimpleNamespace, seed: int) -> None:
    chance = random.Random(seed)
    data, every = some_log(chance, 12)
    start, end = sorted(chance.sample(range(every[-1].offset + 5), 2))
    expected = [record for record in every if start <= record.offset < end]
    sinks = filled(twin, data, start, end, chance.choice([1, 7, 1000]), headers=True)
    assert longs(sinks, "offset") == [record.offset for record in expected]
    assert longs(sinks, "timestamp") == [1000 * record.timestamp for record in expected]
    found_keys, found_values, found_headers = [], [], []
    for sink in sinks:
        found_keys += cells(sink, "key", sink.rows)
        found_values += cells(sink, "value", sink.rows)
        found_headers += headers(sink)
    assert found_keys == [record.key for record in expected]
    assert found_values == [record.value for record in expected]
    assert found_headers == [record.headers or None for record in expected]
    assert sum(sink.null_headers for sink in sinks) == found_headers.count(None)


def headers(sink: SimpleNamespace) -> list[tuple[tuple[str, bytes | None], ...] | None]:
    buffers = sink.buffers()
    ends, bits = array("i", bytes(buffers["headers ends"])), bytes(buffers["headers bits"])
    names = [(name or b"").decode() for name in cells(sink, "header key", sink.header_rows)]
    pairs = list(zip(names, cells(sink, "header value", sink.header_rows), strict=True))
    return [
        tuple(pairs[ends[i] : ends[i + 1]]) if bits[i >> 3] >> (i & 7) & 1 else None for i in range(sink.rows)
    ]


def test_what_is_not_asked_for_is_not_made(twin: SimpleNamespace) -> None:
    data = build_batch(some_records(random.Random(1), 0, 20))
    (sink,) = filled(twin, data, 0, 1000, 1000, keys=False, values=False)
    assert sorted(sink.buffers()) == ["offset", "timestamp", "timestampType"]
    assert sink.null_keys == sink.null_values == 0


def test_rows_say_who_gave_them_their_time(twin: SimpleNamespace) -> None:
    first = build_batch([Record(0, 5, None, b"a")])
    second = build_batch([Record(1, 5, None, b"b")], base_offset=1, log_append_time=77)
    (sink,) = filled(twin, first + second, 0, 10, 10)
    assert array("i", bytes(sink.buffers()["timestampType"])).tolist() == [0, 1]
    assert longs([sink], "timestamp") == [5000, 77000]


def test_rows_before_a_broken_batch_are_handed_out_first(twin: SimpleNamespace) -> None:
    good = build_batch([Record(0, 5, None, b"a")])
    bad = bytearray(build_batch([Record(1, 5, None, b"b")], base_offset=1))
    bad[-2] ^= 1
    reader = twin.RecordReader(good + bytes(bad), "t", 0, 0, True, None)
    sink = twin.RowSink(10)
    assert sink.fill(reader, 10) == 1
    with pytest.raises(CorruptMessage, match="offset 1 does not match its CRC"):
        twin.RowSink(10).fill(reader, 10)


def test_times_that_microseconds_cannot_hold_are_told(twin: SimpleNamespace) -> None:
    most = (2**63 - 1) // 1000
    for times, expected in (
        ((0, most, -1, -most), (-1, 0)),
        ((5, most + 1, most + 2), (1, most + 1)),
        ((-most - 1,), (0, -most - 1)),
    ):
        batch = build_batch([Record(offset, time, None, b"v") for offset, time in enumerate(times)])
        (sink,) = filled(twin, batch, 0, 10, 100)
        assert (sink.rows, sink.beyond, sink.beyond_time) == (len(times), *expected)
