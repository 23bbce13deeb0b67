"""The twins of compaction's loops agree with each other on everything, garbage included."""

from __future__ import annotations

import random
import struct
from array import array
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.records.conftest import compiled, pure
from tests.support.scale import scale
from tidelog.records.batch import Record, build_batch, crc_is_valid, iter_batches, read_header, read_records
from tidelog.records.codecs import Codec
from tidelog.records.loops import SLOT_SIZE
from tidelog.records.status import (
    BAD_CRC,
    COMPRESSED,
    DROPPED,
    EMPTIED,
    MAP_FULL,
    NO_ROOM,
    OK,
    REWRITTEN,
    UNCHANGED,
)

KEY = bytes(range(16))
NOW = 1_700_000_000_000


@pytest.fixture(params=["pure", "compiled"])
def loops(request: pytest.FixtureRequest) -> SimpleNamespace:
    return pure() if request.param == "pure" else SimpleNamespace(**vars(compiled()))


def batch(base: int, *records: tuple[bytes | None, bytes | None], **options: object) -> bytes:
    made = [Record(base + at, NOW + at, key, value) for at, (key, value) in enumerate(records)]
    return build_batch(made, base_offset=base, **options)  # type: ignore[arg-type]


def mapped(
    loops: SimpleNamespace, data: bytes, *, slots: int = 64, limit: int = 57, start: int = 0
) -> bytearray:
    table = bytearray(slots * SLOT_SIZE)
    status, at, *_ = loops.map_batches(table, KEY, 0, limit, data, 0, len(data), start)
    assert (status, at) == (OK, len(data))
    return table


def filtered(
    loops: SimpleNamespace,
    table: bytearray,
    data: bytes,
    latest: int,
    *,
    now: int = NOW,
    horizon: int = NOW + 1000,
    retained: list[int] | None = None,
) -> tuple[bytes, list[int]]:
    out = bytearray(4 * len(data) + 100)
    answer = loops.filter_batches(
        table, KEY, data, 0, len(data), out, 0, latest, now, horizon, array("q", retained or []), False, False
    )
    assert answer[:2] == (OK, len(data))
    result = bytes(out[: answer[2]])
    for position, header in iter_batches(result):
        assert crc_is_valid(result, position, header)
    return result, [r.offset for p, _ in iter_batches(result) for r in read_records(result, p)]


def test_the_hash_is_siphash(loops: SimpleNamespace) -> None:
    assert loops.siphash128(KEY, b"").hex() == "a3817f04ba25a8e66df67214c7550293"
    assert loops.siphash128(KEY, b"\0").hex() == "da87c1d86b99af44347659119b22fc45"
    with pytest.raises(ValueError, match="16 bytes"):
        loops.siphash128(b"short", b"")


@settings(max_examples=100, derandomize=True)
@given(st.binary(min_size=16, max_size=16), st.binary(max_size=300))
def test_twins_hash_alike(key: bytes, data: bytes) -> None:
    assert pure().siphash128(key, data) == compiled().siphash128(key, data)


def test_only_the_last_record_of_a_key_stays(loops: SimpleNamespace) -> None:
    data = batch(0, (b"a", b"1"), (b"b", b"1"), (b"a", b"2")) + batch(3, (b"b", b"2"), (b"c", b"1"))
    _, offsets = filtered(loops, mapped(loops, data), data, 4)
    assert offsets == [2, 3, 4]


def test_records_behind_the_map_stay_and_so_do_keys_it_does_not_know(loops: SimpleNamespace) -> None:
    data = batch(0, (b"a", b"1"), (b"z", b"1"))
    later = batch(2, (b"a", b"2")) + batch(3, (b"a", b"3"))
    table = mapped(loops, later[: len(later) // 2])
    _, offsets = filtered(loops, table, data + later, 2)
    assert offsets == [1, 2, 3]


def test_records_without_a_key_go(loops: SimpleNamespace) -> None:
    data = batch(0, (None, b"1"), (b"a", b"1"))
    assert filtered(loops, mapped(loops, data), data, 1)[1] == [1]


def test_what_is_rewritten_keeps_its_offsets_timestamps_and_producer(loops: SimpleNamespace) -> None:
    data = batch(
        10,
        (b"a", b"1"),
        (b"b", b"1"),
        (b"a", b"2"),
        (b"b", b"2"),
        producer_id=7,
        producer_epoch=1,
        base_sequence=5,
    )
    table = mapped(loops, data + batch(14, (b"b", b"3")))
    result, offsets = filtered(loops, table, data, 14)
    header = read_header(result)
    assert offsets == [12]
    assert (header.base_offset, header.last_offset, header.base_sequence, header.last_sequence) == (
        10,
        13,
        5,
        8,
    )
    assert header.base_timestamp == header.max_timestamp == NOW + 2
    assert read_records(result)[0].timestamp == NOW + 2


def test_a_batch_that_loses_nothing_is_left_as_it_is(loops: SimpleNamespace) -> None:
    data = batch(0, (b"a", b"1"), (b"b", b"1"))
    assert filtered(loops, mapped(loops, data), data, 1)[0] == data


def test_tombstones_get_a_horizon_and_go_behind_it(loops: SimpleNamespace) -> None:
    data = batch(0, (b"a", None), (b"b", b"1"))
    table = mapped(loops, data)
    once, offsets = filtered(loops, table, data, 1, now=NOW, horizon=NOW + 1000)
    header = read_header(once)
    assert offsets == [0, 1]
    assert header.has_delete_horizon
    assert header.base_timestamp == NOW + 1000
    assert [record.timestamp for record in read_records(once)] == [NOW, NOW + 1]
    assert filtered(loops, table, once, 1, now=NOW + 999, horizon=NOW + 9999)[0] == once
    gone, offsets = filtered(loops, table, once, 1, now=NOW + 1000)
    assert offsets == [1]
    assert read_header(gone).base_timestamp == NOW + 1000
    assert read_header(gone).max_timestamp == NOW + 1


def test_append_time_stays_that_of_the_batch(loops: SimpleNamespace) -> None:
    data = batch(0, (b"a", b"1"), (b"b", None), (b"a", b"2"), log_append_time=NOW + 77)
    result, _ = filtered(loops, mapped(loops, data), data, 2)
    assert [record.timestamp for record in read_records(result)] == [NOW + 77] * 2
    assert read_header(result).max_timestamp == NOW + 77


def test_an_empty_batch_is_kept_where_an_offset_asks_for_it(loops: SimpleNamespace) -> None:
    data = batch(0, (b"a", b"1"), (b"a", b"2"), producer_id=3, producer_epoch=2, base_sequence=9)
    table = mapped(loops, data + batch(2, (b"a", b"3")))
    result, offsets = filtered(loops, table, data, 2, retained=[-5, 1, 8])
    header = read_header(result)
    assert offsets == []
    assert (header.record_count, header.last_offset, header.last_sequence) == (0, 1, 10)
    assert (header.base_timestamp, header.max_timestamp) == (-1, NOW + 1)
    assert filtered(loops, table, data, 2, retained=[0, 2])[0] == b""
    assert filtered(loops, table, result, 2)[0] == b""


def test_batches_that_need_more_are_left_to_the_caller(loops: SimpleNamespace) -> None:
    plain = batch(0, (b"a", b"1"))
    for odd in (
        batch(1, (b"b", b"1"), codec=Codec.LZ4),
        batch(1, (b"b", b"1"), transactional=True, producer_id=1, producer_epoch=0, base_sequence=0),
    ):
        data = plain + odd
        table = bytearray(64 * SLOT_SIZE)
        assert loops.map_batches(table, KEY, 0, 9, data, 0, len(data), 0) == (COMPRESSED, len(plain), 1, 0, 1)
        out = bytearray(1000)
        answer = loops.filter_batches(
            table, KEY, data, 0, len(data), out, 0, 1, NOW, NOW, array("q"), False, False
        )
        assert answer == (COMPRESSED, len(plain), len(plain), 1, 1)


def test_a_bad_checksum_stops_everything(loops: SimpleNamespace) -> None:
    data = bytearray(batch(0, (b"a", b"1")))
    data[-2] ^= 1
    table = bytearray(SLOT_SIZE * 8)
    assert loops.map_batches(table, KEY, 0, 7, data, 0, len(data), 0)[0] == BAD_CRC
    out = bytearray(1000)
    assert (
        loops.filter_batches(table, KEY, data, 0, len(data), out, 0, 9, NOW, NOW, array("q"), False, False)[0]
        == BAD_CRC
    )


def test_a_full_map_says_how_far_it_came(loops: SimpleNamespace) -> None:
    data = batch(0, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"), (b"a", b"3"))
    table = bytearray(SLOT_SIZE * 4)
    assert loops.map_batches(table, KEY, 0, 2, data, 0, len(data), 0) == (MAP_FULL, 0, 2, 2, 3)
    assert filtered(loops, table, data, 2)[1] == [1, 2, 3, 4]


def test_no_room_leaves_the_batch_for_the_next_call(loops: SimpleNamespace) -> None:
    data = batch(0, (b"a", b"1")) + batch(1, (b"b", b"1"))
    table = mapped(loops, data)
    half = len(data) // 2
    out = bytearray(half + 10)
    answer = loops.filter_batches(
        table, KEY, data, 0, len(data), out, 0, 1, NOW, NOW, array("q"), False, False
    )
    assert answer[:3] == (NO_ROOM, half, half)


def test_a_single_batch_tells_its_fate(loops: SimpleNamespace) -> None:
    data = batch(0, (b"a", b"1"), (b"b", b"1"))
    table = mapped(loops, data + batch(2, (b"a", b"2")))
    out = bytearray(1000)

    def fate(piece: bytes, *, retain: bool = False, latest: int = 9) -> int:
        answer = loops.filter_batches(
            table, KEY, piece, 0, len(piece), out, 0, latest, NOW, NOW, array("q"), True, retain
        )
        return int(answer[0])

    assert fate(data) == REWRITTEN
    assert fate(data, latest=-1) == UNCHANGED
    assert fate(batch(1, (b"a", b"x"))) == DROPPED
    assert fate(batch(1, (b"a", b"x")), retain=True) == EMPTIED


def test_index_entries_follow_the_interval(loops: SimpleNamespace) -> None:
    pieces = [batch(at, (b"k%d" % at, b"v" * 50)) for at in range(6)]
    data, size = b"".join(pieces), len(pieces[0])
    entries, since, greatest, offset = loops.index_batches(data, 0, len(data), 1000, 2 * size - 1, 0, -1, 0)
    assert entries == [(2, 1000 + 2 * size, NOW, 0), (4, 1000 + 4 * size, NOW, 0)]
    assert (since, greatest, offset) == (2 * size, NOW, 0)
    with pytest.raises(ValueError, match="no whole batch"):
        loops.index_batches(data, 0, len(data) - 1, 0, 0, 0, -1, 0)


def random_batch(rng: random.Random, base: int) -> bytes:
    count = rng.randint(1, 6)
    records = [
        (
            None if rng.random() < 0.1 else b"k%d" % rng.randint(0, 8),
            None if rng.random() < 0.3 else rng.randbytes(rng.randint(0, 20)),
        )
        for _ in range(count)
    ]
    made = [
        Record(
            base + at,
            NOW + rng.randint(-(10**6), 10**6),
            key,
            value,
            (("h", b"x"),) if rng.random() < 0.2 else (),
        )
        for at, (key, value) in enumerate(records)
    ]
    return build_batch(
        made,
        base_offset=base,
        delete_horizon=NOW + rng.randint(-5, 5) if rng.random() < 0.3 else None,
        log_append_time=NOW if rng.random() < 0.2 else None,
        producer_id=rng.choice([-1, 4]),
        last_offset_delta=count - 1 + rng.choice([0, 0, 3]),
    )


# 603 has an offset below zero, and a map that is full.
@pytest.mark.parametrize("seed", sorted({*range(scale(60, 2000)), 603}))
def test_twins_agree_on_random_batches_and_on_damaged_ones(seed: int) -> None:
    rng = random.Random(seed)
    data, base = b"", rng.randint(0, 100)
    for _ in range(rng.randint(1, 8)):
        data += random_batch(rng, base)
        base += 10
    damaged = bytearray(data)
    if rng.random() < 0.5:
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(damaged))
            damaged[at] = rng.randrange(256)
        position = 0
        for position, header in list(iter_batches(data)):  # signed anew, so that the damage is looked at
            end = position + header.total_size
            struct.pack_into(">I", damaged, position + 17, compiled().crc(damaged, position + 21, end))
    del damaged[len(damaged) - rng.choice([0, 0, 5]) :]
    slots, limit = rng.choice([(16, 14), (4, 3), (8, 8)])
    start = rng.randint(0, 120)
    tables = bytearray(slots * SLOT_SIZE), bytearray(slots * SLOT_SIZE)
    twins = pure(), compiled()
    answers = [
        twin.map_batches(table, KEY, 0, limit, damaged, 0, len(damaged), start)
        for twin, table in zip(twins, tables, strict=True)
    ]
    assert answers[0] == answers[1]
    assert tables[0] == tables[1]
    retained = array("q", sorted(rng.sample(range(200), 40)))
    latest, now, horizon = rng.randint(-1, 150), NOW + rng.randint(-3, 3), NOW + rng.randint(0, 10**7)
    room = rng.choice([len(data) * 2, len(data), 100])
    single = rng.random() < 0.3
    results = []
    for twin in twins:
        out = bytearray(room)
        end = read_header(data).total_size if single else len(damaged)
        arguments = (tables[0], KEY, bytes(damaged), 0, min(end, len(damaged)), out, 0, latest, now, horizon)
        answer = twin.filter_batches(*arguments, retained, single, seed % 2 == 0)
        results.append((answer, bytes(out[: answer[2]])))
    assert results[0] == results[1]
    good = results[0][1] if results[0][0][0] == OK else data
    assert pure().index_batches(good, 0, len(good), 5, 80, 0, -1, 0) == compiled().index_batches(
        good, 0, len(good), 5, 80, 0, -1, 0
    )
