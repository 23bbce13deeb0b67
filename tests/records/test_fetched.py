"""The reader of fetched partitions: every record that is there from a position on, and no other."""

from __future__ import annotations

import pickle
import random
import struct
from itertools import pairwise
from types import SimpleNamespace

import pytest

from tidelog.errors import CorruptMessage, InvalidRecord
from tidelog.records.batch import Codec, Record, build_batch, build_end_transaction_marker

Fields = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def some_records(chance: random.Random, first: int, count: int) -> list[Record]:
    """Records with gaps between their offsets, as a cleaned log has them."""
    records = []
    offset = first
    for _ in range(count):
        key = chance.choice([None, b"", chance.randbytes(chance.randrange(20))])
        value = chance.choice([None, b"", chance.randbytes(chance.randrange(300))])
        names = chance.choices(["a", "bb", "\xfc", ""], k=chance.choice([0, 0, 0, 1, 3]))
        headers = tuple((name, chance.choice([None, b"", b"content"])) for name in names)
        records.append(Record(offset, chance.choice([-1, 1000 + offset]), key, value, headers))
        offset += chance.choice([1, 1, 1, 5])
    return records


def some_log(chance: random.Random, batches: int) -> tuple[bytes, list[Record]]:
    data, every, offset = b"", [], 0
    for _ in range(batches):
        records = some_records(chance, offset, chance.randrange(1, 20))
        last = records[-1].offset + chance.choice([0, 0, 3])
        codec = chance.choice(list(Codec))
        data += build_batch(
            records,
            codec=codec,
            base_offset=offset,
            leader_epoch=7,
            last_offset_delta=last - offset,
        )
        every += records
        offset = last + 1
    return data, every


def fields(record: object) -> Fields:
    return (record.offset, record.timestamp, record.key, record.value, record.headers)  # type: ignore[attr-defined]


def everything(reader: object, step: int) -> list[Fields]:
    found: list[Fields] = []
    while taken := reader.take(step):  # type: ignore[attr-defined]
        assert len(taken) <= step
        found += [fields(record) for record in taken]
    assert reader.done  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("seed", range(20))
def test_every_record_from_the_position_on_is_handed_out_once(twin: SimpleNamespace, seed: int) -> None:
    chance = random.Random(seed)
    data, every = some_log(chance, 8)
    position = chance.choice([0, chance.randrange(every[-1].offset)])
    cut = data + data[:40] if seed % 2 else data  # a broker cuts the last batch where its limit is
    reader = twin.RecordReader(cut, "t", 3, position, True, None)
    expected = [tuple(record) for record in every if record.offset >= position]
    assert everything(reader, chance.choice([1, 7, 1000])) == expected
    assert reader.position == reader.next_fetch > every[-1].offset
    assert reader.leader_epoch == 7


def test_a_record_knows_where_it_is_from(twin: SimpleNamespace) -> None:
    data = build_batch(
        [Record(5, 99, b"k", b"value", (("h", b"1"),))], base_offset=5, leader_epoch=2, log_append_time=77
    )
    [record] = twin.RecordReader(memoryview(bytearray(data)), "orders", 1, 0, True, None).take(10)
    assert (record.topic, record.partition, record.offset, record.leader_epoch) == ("orders", 1, 5, 2)
    assert (record.timestamp, record.timestamp_type) == (77, 1)
    assert (record.serialized_key_size, record.serialized_value_size) == (1, 5)
    assert "offset=5" in repr(record)
    again = pickle.loads(pickle.dumps(record))
    assert fields(again) == fields(record)
    assert twin.ConsumerRecord[str, bytes].__origin__ is twin.ConsumerRecord
    record.replace("key", {"a": 1})
    assert (record.key, record.value, record.serialized_key_size, record.serialized_value_size) == (
        "key",
        {"a": 1},
        1,
        5,
    )


def transactional(offset: int, producer_id: int, *values: bytes) -> bytes:
    return build_batch(
        [Record(offset + index, 1, None, value) for index, value in enumerate(values)],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )


def marker(offset: int, producer_id: int, *, commit: bool) -> bytes:
    return build_end_transaction_marker(
        commit=commit,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp=1,
        base_offset=offset,
    )


def test_records_of_aborted_transactions_are_left_out(twin: SimpleNamespace) -> None:
    data = (
        transactional(0, 1, b"aborted")
        + transactional(1, 2, b"committed")
        + transactional(2, 1, b"aborted too")
        + marker(3, 1, commit=False)
        + transactional(4, 1, b"next, committed")
        + marker(5, 2, commit=True)
        + marker(6, 1, commit=True)
        + transactional(7, 2, b"aborted in the end")
        + marker(8, 2, commit=False)
        + build_batch([Record(9, 1, None, b"plain")], base_offset=9)
    )
    reader = twin.RecordReader(data, "t", 0, 0, True, [(0, 1), (7, 2)])
    assert [record.value for record in reader.take(100)] == [b"committed", b"next, committed", b"plain"]
    everybody = twin.RecordReader(data, "t", 0, 0, True, None)
    assert [record.offset for record in everybody.take(100)] == [0, 1, 2, 4, 7, 9]


@pytest.mark.parametrize("seed", range(20))
def test_a_copy_goes_on_from_where_it_was_made_and_leaves_the_other_there(
    twin: SimpleNamespace, seed: int
) -> None:
    chance = random.Random(seed)
    data, every = some_log(chance, 6)
    data += (
        transactional(every[-1].offset + 10, 1, b"aborted")
        + marker(every[-1].offset + 11, 1, commit=False)
        + transactional(every[-1].offset + 12, 1, b"committed")
    )
    reader = twin.RecordReader(data, "t", 0, 0, True, [(every[-1].offset + 10, 1)])
    found: list[Fields] = []
    while not reader.done:
        rest = everything(reader.copy(), 1000)
        position, epoch = reader.position, reader.leader_epoch
        assert everything(reader.copy(), 3) == rest
        assert (reader.position, reader.leader_epoch) == (position, epoch)
        assert (reader.copy().position, reader.copy().leader_epoch) == (position, epoch)
        found += [fields(record) for record in reader.take(chance.randrange(1, 10))]
        assert len(found) + len(everything(reader.copy(), 7)) == len(every) + 1
    assert [offset for offset, *_ in found] == [record.offset for record in every] + [every[-1].offset + 12]


def test_a_position_moves_past_what_is_left_out(twin: SimpleNamespace) -> None:
    data = transactional(0, 1, b"aborted") + marker(1, 1, commit=False)
    reader = twin.RecordReader(data, "t", 0, 0, True, [(0, 1)])
    assert reader.take(10) == []
    assert reader.position == 2


def test_a_wrong_checksum_is_told_after_what_is_good(twin: SimpleNamespace) -> None:
    good = build_batch([Record(0, 1, None, b"good")])
    bad = bytearray(build_batch([Record(1, 1, None, b"bad")], base_offset=1))
    bad[-2] ^= 1
    reader = twin.RecordReader(good + bad, "t", 0, 0, True, None)
    assert [record.value for record in reader.take(10)] == [b"good"]
    for _ in range(2):
        with pytest.raises(CorruptMessage, match="t-0: the batch at offset 1"):
            reader.take(10)
    assert reader.position == 1
    assert not reader.done
    unchecked = twin.RecordReader(good + bytes(bad), "t", 0, 0, False, None)
    assert len(unchecked.take(10)) == 2


@pytest.mark.parametrize("way", ["take", "columns"])
def test_bytes_that_are_no_records_are_told(twin: SimpleNamespace, way: str) -> None:
    data = bytearray(build_batch([Record(0, 1, None, b"a"), Record(1, 1, None, b"b")]))
    struct.pack_into(">i", data, 57, 9)  # more records than there are
    reader = twin.RecordReader(data, "t", 0, 0, False, None)

    def take() -> int:
        if way == "take":
            return len(reader.take(10))
        return int(reader.take_columns(twin.ColumnSink(), 10))

    assert take() == 2
    with pytest.raises(InvalidRecord, match="t-0: the record at or after offset 2"):
        take()


@pytest.mark.parametrize(("position", "value", "reason"), [(16, 1, "magic 1"), (11, 3, "length of 3")])
def test_batches_that_cannot_be_read_are_told(
    twin: SimpleNamespace, position: int, value: int, reason: str
) -> None:
    data = bytearray(build_batch([Record(0, 1, None, b"a")]))
    data[8:12] = bytes(4) if position == 11 else data[8:12]
    data[position] = value
    with pytest.raises(CorruptMessage, match=reason):
        twin.RecordReader(data, "t", 0, 0, True, None).take(1)


@pytest.mark.parametrize("seed", range(100))
def test_garbage_never_does_worse_than_raise(twin: SimpleNamespace, seed: int) -> None:
    chance = random.Random(seed)
    data = bytearray(some_log(chance, 3)[0])
    for _ in range(chance.randrange(1, 6)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    for way in ("take", "columns"):
        reader = twin.RecordReader(bytes(data), "t", 0, 0, False, [(0, 1)])
        sink = twin.ColumnSink()
        try:
            for _ in range(200):
                taken = reader.take(5) if way == "take" else reader.take_columns(sink, 5)
                if not taken:
                    break
                if way == "take":
                    [fields(record) for record in taken]
        except (CorruptMessage, InvalidRecord):
            pass


@pytest.mark.parametrize("seed", range(10))
def test_columns_hold_the_same(twin: SimpleNamespace, seed: int) -> None:
    chance = random.Random(seed)
    data, every = some_log(chance, 8)
    reader = twin.RecordReader(data, "t", 3, 0, True, None)
    sink = twin.ColumnSink()
    while reader.take_columns(sink, chance.choice([1, 13, 1000])):
        pass
    assert sink.rows == len(every)
    found = {name: bytes(buffer) for name, buffer in sink.buffers().items()}

    def cells(name: str, rows: int) -> list[bytes | None]:
        ends = struct.unpack(f"={rows + 1}i", found[f"{name} ends"])
        bits = found.get(f"{name} bits")
        return [
            found[f"{name} data"][ends[row] : ends[row + 1]]
            if bits is None or bits[row >> 3] >> (row & 7) & 1
            else None
            for row in range(rows)
        ]

    assert cells("key", sink.rows) == [record.key for record in every]
    assert cells("value", sink.rows) == [record.value for record in every]
    assert struct.unpack(f"={sink.rows}q", found["offset"]) == tuple(record.offset for record in every)
    assert struct.unpack(f"={sink.rows}q", found["timestamp"]) == tuple(record.timestamp for record in every)
    assert set(struct.unpack(f"={sink.rows}i", found["partition"])) == {3}
    pairs = [pair for record in every for pair in record.headers]
    assert sink.header_rows == len(pairs)
    assert cells("header key", len(pairs)) == [name.encode() for name, _ in pairs]
    assert cells("header value", len(pairs)) == [content for _, content in pairs]
    counts = [len(record.headers) for record in every]
    ends = struct.unpack(f"={sink.rows + 1}i", found["headers ends"])
    assert [after - before for before, after in pairwise(ends)] == counts
    assert sink.null_keys == sum(record.key is None for record in every)
    assert sink.null_timestamps == sum(record.timestamp == -1 for record in every)
