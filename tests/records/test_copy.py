"""The batches that a follower copies: columns, checksums and changes are the same in both twins."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from tests.records.build import NOW, record
from tests.records.conftest import compiled, pure
from tidelog.records import status
from tidelog.records.batch import build_batch, build_end_transaction_marker
from tidelog.records.loops import COPIED_FIELDS, ProducerEntry


def batch(
    base: int,
    count: int = 1,
    *,
    epoch: int = 0,
    producer: tuple[int, ...] = (-1, -1, -1),
    transactional: bool = False,
) -> bytes:
    records = [record(at, NOW + at) for at in range(base, base + count)]
    producer_id, producer_epoch, sequence = producer
    return bytes(
        build_batch(
            records,
            base_offset=base,
            leader_epoch=epoch,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
    )


def rows(columns: list[int]) -> list[list[int]]:
    return [list(columns[at : at + COPIED_FIELDS]) for at in range(0, len(columns), COPIED_FIELDS)]


def test_columns_have_the_fields_of_each_header(twin: SimpleNamespace) -> None:
    first, second = batch(5, 3, epoch=2), batch(10, producer=(7, 1, 4), transactional=True)
    code, columns, size = twin.copied_batches(first + second)
    assert (code, size) == (status.OK, len(first + second))
    assert rows(columns) == [
        [5, 7, len(first), 2, NOW + 7, 0, -1, -1, -1],
        [10, 10, len(second), 0, NOW + 10, 0x10, 7, 1, 4],
    ]


@pytest.mark.parametrize("missing", [1, 30, 60])
def test_an_incomplete_last_batch_is_left_out(twin: SimpleNamespace, missing: int) -> None:
    first, second = batch(0), batch(1)
    code, columns, size = twin.copied_batches((first + second)[:-missing])
    assert (code, len(rows(columns)), size) == (status.OK, 1, len(first))
    assert twin.copied_batches(b"")[2] == 0


def test_bytes_that_are_no_batch_have_a_status(twin: SimpleNamespace) -> None:
    good = batch(0)
    short, old, new = bytearray(batch(1)), bytearray(batch(1)), bytearray(batch(1))
    short[8:12] = (48).to_bytes(4, "big")
    old[16], new[16] = 1, 3
    for bad, code in ((short, status.BAD_LENGTH), (old, status.OLD_MAGIC), (new, status.UNKNOWN_MAGIC)):
        assert twin.copied_batches(good + bytes(bad))[0] == code
        assert twin.copied_batches(good + bytes(bad))[2] == len(good)


def test_offsets_have_to_rise(twin: SimpleNamespace) -> None:
    for data in (batch(3) + batch(3), batch(3, 2) + batch(4), batch(3) + batch(2)):
        assert twin.copied_batches(data)[0] == status.BAD_OFFSET_RANGE
    assert twin.copied_batches(batch(3) + batch(40))[0] == status.OK
    too_far = bytearray(batch(0, 2))
    too_far[:8] = ((1 << 63) - 1).to_bytes(8, "big")
    assert twin.copied_batches(bytes(too_far))[0] == status.BAD_OFFSET_RANGE


@pytest.mark.parametrize("count", [1, 4000])
def test_the_first_wrong_crc_is_found(twin: SimpleNamespace, count: int) -> None:
    first, second = batch(0, count), bytearray(batch(count, count))
    assert twin.first_bad_crc(first + bytes(second)) == -1
    second[-1] ^= 1
    assert twin.first_bad_crc(first + bytes(second)) == len(first)


def test_a_run_ends_where_its_segment_ends(twin: SimpleNamespace) -> None:
    data = [batch(at) for at in range(4)]
    size = len(data[0])
    _, columns, _ = twin.copied_batches(b"".join(data))
    far = 1 << 40
    assert twin.copied_run(columns, 0, (0, far, far * 4, far)) == (4, 4 * size)
    assert twin.copied_run(columns, 1, (size, 3 * size, far * 4, far)) == (3, 2 * size)
    assert twin.copied_run(columns, 0, (0, 10, far * 4, far)) == (1, size)  # the first one fits anyhow
    assert twin.copied_run(columns, 0, (size, far, NOW + 1, far)) == (2, 2 * size)
    assert twin.copied_run(columns, 0, (0, far, NOW, 2)) == (1, size)
    assert twin.copied_run(columns, 0, (0, far, far * 4, 2)) == (3, 3 * size)
    with pytest.raises(ValueError, match="batches 5"):
        twin.copied_run(columns, 5, (0, far, far, far))


def test_a_batch_that_begins_or_ends_a_transaction_is_not_noted(twin: SimpleNamespace) -> None:
    begin = batch(0, producer=(7, 0, 0), transactional=True)
    marker = bytes(
        build_end_transaction_marker(
            producer_id=7, producer_epoch=0, commit=True, coordinator_epoch=0, timestamp=NOW
        )
    )
    for data in (begin, marker):
        _, columns, _ = twin.copied_batches(data)
        assert twin.note_copied(columns, 0, 1, (0, 0, 100, -1, 0), -1, {})[0] == 0
    entry = twin.ProducerEntry(7, 0)
    entry.transaction_start = 0
    _, columns, _ = twin.copied_batches(begin)
    assert twin.note_copied(columns, 0, 1, (0, 0, 100, -1, 0), -1, {7: entry})[0] == 1
    assert entry.last_sequence == 0


def test_both_twins_note_the_same() -> None:
    fast, plain = compiled(), pure()
    rng = random.Random(5)
    for _ in range(50):
        data, offset = b"", rng.randrange(5)
        for _ in range(rng.randrange(1, 30)):
            count = rng.randrange(1, 4)
            producer = (
                (rng.randrange(3), rng.randrange(2), rng.randrange(9)) if rng.random() < 0.6 else (-1,) * 3
            )
            data += batch(offset, count, epoch=rng.randrange(4), producer=producer)
            offset += count + rng.randrange(2)
        seen = []
        for twin in (fast, plain):
            code, columns, size = twin.copied_batches(data)
            entries: dict[int, ProducerEntry] = {}
            noted = twin.note_copied(
                columns, 0, len(columns) // COPIED_FIELDS, (7, 50, 200, -1, 3), 0, entries
            )
            producers = {pid: (entry.epoch, entry.batches) for pid, entry in entries.items()}
            seen.append((code, columns, size, noted, producers))
        assert seen[0] == seen[1]
