"""The twins agree with each other on everything, garbage included, and with Kafka on hashes."""

from __future__ import annotations

import base64
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.records.build import NOW, raw_batch, raw_record
from tests.records.conftest import compiled, pure
from tests.support.scale import scale
from tidelog.records import status as status_of
from tidelog.records._pure import MalformedRecords
from tidelog.records._pure_check import CheckedBatch
from tidelog.records.batch import Record, build_batch
from tidelog.records.partitioning import partition_for_id, partition_for_key

HASHES = json.loads((Path(__file__).parents[1] / "data" / "hashes.json").read_text("utf-8"))
INT64 = st.integers(-(2**63), 2**63 - 1)


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a call gives, or the kind and text of its error."""
    try:
        return function(*arguments)
    except (ValueError, OverflowError) as error:
        return type(error).__name__, str(error)


def agree(name: str, *arguments: Any) -> None:
    assert outcome(getattr(compiled(), name), *arguments) == outcome(getattr(pure(), name), *arguments)


def test_hashes_are_kafkas(twin: SimpleNamespace) -> None:
    for row in HASHES:
        key = base64.b64decode(row["key"])
        assert twin.murmur2(key) == row["murmur2"]
        assert partition_for_key(memoryview(key), 12) == row["partition_of_12"]
        assert partition_for_id(row["group"], 50) == row["coordinator_partition_of_50"]


@settings(max_examples=200, derandomize=True)
@given(st.binary(max_size=40), st.text(max_size=10), INT64)
def test_twins_agree_on_hashes_varints_and_checksums(data: bytes, text: str, number: int) -> None:
    agree("murmur2", data)
    agree("java_string_hash", text)
    agree("encode_varint", number)
    encoded = pure().encode_varint(number)
    assert compiled().read_varint(encoded, 0, len(encoded)) == (number, len(encoded))
    for pos in range(len(data) + 2):
        agree("read_varint", data, pos, len(data))
        agree("crc", data, pos, len(data))


def test_checksums_are_right_at_every_size(twin: SimpleNamespace) -> None:
    data = random.Random(3).randbytes(50_000)
    for size in (*range(40), 767, 768, 769, 4999, 12_287, 12_288, 13_063, 32_768, 49_999):
        assert twin.crc(data, 1, 1 + size) == crc32c.crc32c(data[1 : 1 + size])
    with pytest.raises(ValueError):
        twin.crc(data, 10, 50_001)


def mutated(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        kind = rng.randrange(4)
        pos = rng.randrange(len(changed)) if changed else 0
        if kind == 0 and changed:
            changed[pos] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif kind == 1:
            del changed[pos : pos + rng.randrange(1, 5)]
        elif kind == 2:
            changed[pos:pos] = rng.randbytes(rng.randrange(1, 5))
        else:
            changed += rng.randbytes(rng.randrange(1, 30))
    return bytes(changed)


def samples(rng: random.Random) -> bytes:
    pairs = (("h", b"x"), ("g", None))
    records = [
        Record(
            i, NOW + rng.randrange(-9, 9), rng.choice((None, b"", b"k")), rng.choice((None, b"v" * 90)), pairs
        )
        for i in range(rng.randrange(1, 6))
    ]
    return build_batch(records)


def test_twins_agree_on_mutated_batches() -> None:
    rng = random.Random(11)
    accepted = 0
    for _ in range(scale(4000, 100_000)):
        batch = samples(rng)
        payload = mutated(rng, batch[61:])
        count = rng.choice((1, 2, 3, 4, 5, 0, -1, 2**31 - 1))
        need_key, low, high = rng.random() < 0.3, rng.choice((NOW, -(2**63))), rng.choice((NOW, 2**63 - 1))
        agree("walk", payload, 0, len(payload), count, NOW, need_key, low, high)
        agree("walk_columns", payload, 0, len(payload), count)
        base, append_time = rng.choice((0, 2**63 - 1)), rng.choice((None, 5))
        agree("make_records", Record, payload, 0, len(payload), count, base, NOW, append_time)
        rebuilt = raw_batch(payload, count if -(2**31) <= count < 2**31 else 0)
        for candidate in (rebuilt, mutated(rng, batch), batch):
            limit = rng.choice((len(candidate), 10, 10**6))
            rules = (
                limit, rng.random() < 0.8, rng.random() < 0.8, need_key, rng.choice((0, 2**63 - 1)),
                rng.choice((0, 2**63 - 1)), rng.random() < 0.2, rng.random() < 0.8,
            )  # fmt: skip
            view = memoryview(bytearray(candidate) if rng.random() < 0.8 else candidate)
            found = pure().BatchRules(*rules).look(view, NOW)
            assert compiled().BatchRules(*rules).look(view, NOW) == found
            accepted += isinstance(found, CheckedBatch)
    assert accepted > 100


@settings(max_examples=300, derandomize=True)
@given(st.binary(max_size=90), st.integers(-2, 95), st.integers(-2, 95), st.integers(-3, 100))
def test_twins_agree_on_garbage_and_ranges(data: bytes, start: int, end: int, count: int) -> None:
    agree("walk", data, start, end, count, 0, False, 0, 0)
    agree("walk_columns", data, start, end, count)
    agree("make_records", Record, data, start, end, count, 0, 0, None)
    rules = (1000, True, True, False, 0, 0, False, True)
    assert compiled().BatchRules(*rules).look(data, 0) == pure().BatchRules(*rules).look(data, 0)
    agree("read_varint", data, start, end)


def test_long_batches_are_walked_like_short_ones(twin: SimpleNamespace) -> None:
    payload = b"".join(raw_record(i, i) for i in range(20_000))
    assert twin.walk(payload, 0, len(payload), 20_000, NOW, True, NOW, NOW + 20_000) == (
        status_of.OK, 20_000, NOW + 19_999, 19_999,
    )  # fmt: skip
    status, index, *_ = twin.walk(payload, 0, len(payload), 20_000, NOW, True, NOW, NOW + 10_000)
    assert (status, index) == (status_of.RECORD_ERRORS, 10_001)
    status, index, *_ = twin.walk(payload, 0, len(payload) - 1, 20_000, NOW, True, NOW, NOW)
    assert (status, index) == (status_of.MALFORMED, 19_999)


def test_columns_say_where_everything_lies(twin: SimpleNamespace) -> None:
    payload = b"".join((raw_record(0, 7, b"key", None), raw_record(1, -7, None, b"value")))
    buffer = b"##" + payload + b"##"
    columns = twin.walk_columns(buffer, 2, len(buffer) - 2, 2)
    timestamps, offsets, key_at, key_length, value_at, value_length, _, header_count = columns
    assert (list(timestamps), list(offsets), list(header_count)) == ([7, -7], [0, 1], [0, 0])
    assert list(key_length) == [3, -1]
    assert list(value_length) == [-1, 5]
    assert buffer[key_at[0] : key_at[0] + 3] == b"key"
    assert buffer[value_at[1] : value_at[1] + 5] == b"value"
    assert memoryview(timestamps).itemsize == 8


def test_a_count_that_the_bytes_cannot_hold_allocates_nothing(twin: SimpleNamespace) -> None:
    for call in (
        lambda: twin.walk_columns(b"\0" * 100, 0, 100, 2**31 - 1),
        lambda: twin.make_records(Record, b"\0" * 100, 0, 100, 2**31 - 1, 0, 0, None),
    ):
        with pytest.raises(MalformedRecords):
            call()


@settings(max_examples=100, derandomize=True)
@given(
    st.lists(
        st.tuples(
            st.integers(-1, 50), INT64, st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=9)
        )
    ),
    INT64,
)
def test_twins_build_the_same_bytes(rows: list[tuple], base_timestamp: int) -> None:
    records = [(*row, (("h", row[2]),) if row[2] else ()) for row in rows]
    agree("encode_records", records, 0, base_timestamp)


def test_records_that_are_no_records_are_refused(twin: SimpleNamespace) -> None:
    for bad in ((0, 0, 5, b"", ()), (0, 0, "text", b"", ()), (0, 0, b"", b"", ((b"name", b""),))):
        with pytest.raises((TypeError, AttributeError, ValueError)):
            twin.encode_records([bad], 0, 0)
    for bad_timestamp in (2**63, -(2**63) - 1):
        with pytest.raises(OverflowError):
            twin.encode_records([(0, bad_timestamp, b"", b"", ())], 0, 0)
    assert twin.encode_records([(0, 0, bytearray(b"k"), memoryview(b"v"), ())], 0, 0)[0] == raw_record()


@pytest.mark.parametrize("wanted", ["0", "1"])
def test_plain_python_can_be_asked_for(wanted: str) -> None:
    compiled()
    code = "from tidelog.records import loops; print(loops.COMPILED)"
    environment = {**os.environ, "TIDELOG_PURE": wanted}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == str(wanted == "0")
