"""Old message sets are read as their brokers meant them, whoever wrote them; hostile ones are refused."""

from __future__ import annotations

import struct
import zlib

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from kafka.record.legacy_records import LegacyRecordBatchBuilder as KafkaPythonBuilder

from tests.legacy.old import LOG_APPEND_TIME, message, records_from, without_time, wrapper
from tests.support.scale import scale
from tidelog.errors import CorruptMessage
from tidelog.records.batch import Record, build_batch
from tidelog.records.codecs import Codec, compress
from tidelog.records.legacy import (
    Entry,
    MessageSet,
    _xxh32_short,
    is_log_append_time,
    iter_entries,
    message_crc_is_valid,
    read_message_set,
)

CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
RECORDS = records_from(70, 25)


def only(data: bytes, **limits: int) -> MessageSet:
    (entry,) = iter_entries(data)
    assert entry.end == len(data)
    return read_message_set(data, entry, **limits)


def everything(data: bytes) -> list[Record]:
    return [record for entry in iter_entries(data) for record in read_message_set(data, entry).records]


# --- by hand


def test_a_message_of_format_0_byte_by_byte() -> None:
    body = bytes.fromhex("00 00 00000001 6b 00000002 7676")
    data = bytes.fromhex("0000000000000007 00000011") + struct.pack(">I", zlib.crc32(body)) + body
    assert only(data) == MessageSet([Record(7, -1, b"k", b"vv")], 0, Codec.NONE, None, 7)


def test_a_message_of_format_1_byte_by_byte() -> None:
    body = bytes.fromhex("01 00 000000000000007b ffffffff 00000000")
    data = bytes.fromhex("0000000000000008 00000016") + struct.pack(">I", zlib.crc32(body)) + body
    assert only(data) == MessageSet([Record(8, 123, None, b"")], 1, Codec.NONE, None, 8)


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_that_stand_alone(magic: int) -> None:
    data = b"".join(message(magic, record) for record in RECORDS)
    assert everything(data) == (RECORDS if magic else without_time(RECORDS))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("step", [1, 3], ids=["dense", "compacted"])
def test_wrappers(magic: int, codec: Codec, step: int) -> None:
    records = records_from(1000, 25, step=step)
    found = only(wrapper(magic, codec, records))
    assert found.records == (records if magic else without_time(records))
    assert (found.codec, found.last_offset, found.log_append_time) == (codec, records[-1].offset, None)


@pytest.mark.parametrize("codec", CODECS)
def test_the_time_of_the_append_is_that_of_all_records(codec: Codec) -> None:
    found = only(wrapper(1, codec, RECORDS, append_time=777))
    assert {record.timestamp for record in found.records} == {777}
    assert found.log_append_time == 777


def test_the_time_of_the_append_of_one_message() -> None:
    data = message(1, RECORDS[0], LOG_APPEND_TIME)
    (entry,) = iter_entries(data)
    assert is_log_append_time(data, entry)
    assert read_message_set(data, entry).log_append_time == RECORDS[0].timestamp


def test_format_0_knows_no_append_time() -> None:
    found = only(message(0, RECORDS[0], LOG_APPEND_TIME))
    assert (found.log_append_time, found.records[0].timestamp) == (None, -1)


def test_a_wrapper_that_a_client_left_at_offset_0_counts_from_there() -> None:
    records = records_from(0, 5)
    found = only(wrapper(1, Codec.GZIP, records, offset=0))
    assert (found.records, found.last_offset) == (records, 4)


def test_a_wrapper_may_end_behind_its_last_message() -> None:
    """What compaction leaves: the end of the log must not move back."""
    found = only(wrapper(0, Codec.GZIP, records_from(10, 3), offset=20))
    assert ([record.offset for record in found.records], found.last_offset) == ([10, 11, 12], 20)


def test_all_formats_follow_each_other() -> None:
    batch = build_batch(records_from(9, 3), base_offset=9, codec=Codec.ZSTD)
    data = (
        message(0, RECORDS[0]) + wrapper(1, Codec.LZ4, records_from(71, 4)) + batch + message(1, RECORDS[9])
    )
    assert [entry.magic for entry in iter_entries(data)] == [0, 1, 2, 1]
    assert [entry.offset for entry in iter_entries(data)] == [70, 74, 9, 79]


def test_a_cut_entry_ends_the_row() -> None:
    data = message(1, RECORDS[0]) + message(1, RECORDS[1])
    for end in range(len(data)):
        whole = list(iter_entries(data[:end]))
        assert [entry.offset for entry in whole] == ([70] if end >= len(message(1, RECORDS[0])) else [])


def test_the_checksum_of_lz4_headers() -> None:
    """Values of the reference implementation of xxHash."""
    assert _xxh32_short(b"") == 0x02CC5D05
    assert _xxh32_short(b"a") == 0x550D7456
    assert _xxh32_short(b"abc") == 0x32D153FF
    assert _xxh32_short(b"Hello, world!") == 0x31B7405D


@pytest.mark.parametrize("size", [False, True])
def test_lz4_frames_of_other_writers_in_format_0(size: bool) -> None:
    from lz4 import frame

    inner = b"".join(message(0, record) for record in RECORDS)
    packed = frame.compress(inner, block_linked=False, store_size=size, content_checksum=size)
    data = message(0, Record(94, -1, None, packed), Codec.LZ4)
    assert only(data).records == without_time(RECORDS)


# --- by other people's code


@pytest.mark.parametrize("builder", [AiokafkaBuilder, KafkaPythonBuilder], ids=["aiokafka", "kafka-python"])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY])
@pytest.mark.parametrize("magic", [0, 1])
def test_what_other_clients_write(builder: type[AiokafkaBuilder], magic: int, codec: Codec) -> None:
    built = builder(magic=magic, compression_type=int(codec), batch_size=1 << 20)  # type: ignore[arg-type]
    records = records_from(0, 30)
    for record in records:
        built.append(record.offset, record.timestamp, record.key, record.value)
    data = bytearray(built.build())
    if codec is not Codec.NONE:
        struct.pack_into(">q", data, 0, records[-1].offset)  # the broker's part
    assert everything(bytes(data)) == (records if magic else without_time(records))


# --- hostile


def resigned(data: bytes) -> bytes:
    changed = bytearray(data)
    struct.pack_into(">I", changed, 12, zlib.crc32(changed[16:]))
    return bytes(changed)


def test_a_changed_byte_is_found() -> None:
    data = wrapper(1, Codec.SNAPPY, RECORDS)
    for position in range(12, len(data)):
        changed = bytearray(data)
        changed[position] ^= 1
        for entry in iter_entries(changed):
            if entry.magic == 2:
                continue  # it is not of our kind any more
            assert not message_crc_is_valid(changed, entry)
            with pytest.raises(CorruptMessage):
                read_message_set(changed, entry)


def nested(magic: int) -> bytes:
    inner = wrapper(magic, Codec.GZIP, RECORDS)
    return message(magic, Record(94, 0, None, compress(Codec.GZIP, inner)), Codec.GZIP)


def packed(data: bytes, *, magic: int = 1, offset: int = 94) -> bytes:
    return message(magic, Record(offset, 0, None, compress(Codec.GZIP, data)), Codec.GZIP)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (message(1, Record(5, 0, None, None), Codec.GZIP), "has no value"),
        (message(1, Record(5, 0, None, b"no gzip"), Codec.GZIP), "gzip data cannot be unpacked"),
        (message(0, Record(5, 0, None, b"\x04\x22\x4d\x18"), Codec.LZ4), "lz4 data cannot be unpacked"),
        (message(0, Record(5, 0, None, b"\x04\x22\x4d\x18\x68\x40\x00"), Codec.LZ4), "lz4 data cannot"),
        (message(1, Record(5, 0, None, b""), Codec.SNAPPY), "snappy data cannot|holds 0 messages"),
        (message(1, RECORDS[0], Codec.ZSTD), "has codec 4"),
        (message(0, RECORDS[0], 7), "has codec 7"),
        (nested(0), "holds another wrapper"),
        (nested(1), "holds another wrapper"),
        (packed(b""), "holds 0 messages"),
        (packed(message(1, RECORDS[0]) + b"rest"), "holds 1 messages in"),
        (packed(message(0, RECORDS[0])), "has magic 1, a message in it has 0"),
        (packed(build_batch(RECORDS, base_offset=70)), "has magic 1, a message in it has 2"),
        (packed(message(0, RECORDS[3]) + message(0, RECORDS[2]), magic=0), "offset 72 follows 73"),
        (packed(message(0, RECORDS[3]) * 2, magic=0), "offset 73 follows 73"),
        (packed(message(0, RECORDS[3]), magic=0, offset=72), "holds a message of offset 73"),
        (packed(message(1, RECORDS[3]) + message(1, RECORDS[4]), offset=10), "holds a message of offset 74"),
        (packed(message(1, Record(-5, 0, None, None)), offset=0), "offset -5 follows -1"),
        (packed(message(1, Record(-(2**62), 0, None, None)) * 2, offset=2**62), "follows"),
        (
            resigned(message(1, Record(5, 0, b"k", b"v"))[:-5] + b"\x7f\xff\xff\xffv"),
            "declares 2147483647 bytes, 1 are left",
        ),
    ],
)
def test_nonsense_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(CorruptMessage, match=reason):
        only(data)


def test_a_bomb_is_not_unpacked() -> None:
    inner = message(1, Record(0, 0, None, bytes(50_000_000)))
    for codec in CODECS:
        bomb = message(1, Record(0, 0, None, compress(codec, inner)), codec)
        with pytest.raises(CorruptMessage, match="unpacks to more than the allowed 1000000"):
            only(bomb, max_unpacked=1_000_000)


def test_batches_are_not_taken_for_messages() -> None:
    data = build_batch(RECORDS, base_offset=70)
    with pytest.raises(CorruptMessage, match="has magic 2"):
        only(data)
    with pytest.raises(CorruptMessage, match="is truncated"):
        read_message_set(message(1, RECORDS[0]), Entry(3, 70, 1000, 1))


@seed(4)
@settings(max_examples=scale(300, 5000), deadline=None)
@given(
    st.sampled_from([0, 1]),
    st.sampled_from(CODECS),
    st.data(),
)
def test_garbage_inside_a_valid_wrapper_never_crashes(magic: int, codec: Codec, draw: st.DataObject) -> None:
    """Bytes of the compressed set are changed and everything around it is signed anew."""
    good = b"".join(message(magic, record) for record in records_from(0, 5))
    if draw.draw(st.booleans()):
        inner = bytearray(good)
        for _ in range(draw.draw(st.integers(1, 4))):
            inner[draw.draw(st.integers(0, len(inner) - 1))] = draw.draw(st.integers(0, 255))
        value = compress(codec, bytes(inner))
    else:
        changed = bytearray(compress(codec, good))
        for _ in range(draw.draw(st.integers(1, 4))):
            changed[draw.draw(st.integers(0, len(changed) - 1))] = draw.draw(st.integers(0, 255))
        value = bytes(changed)
    data = message(magic, Record(draw.draw(st.sampled_from([0, 4, 1000])), 0, None, value), codec)
    try:
        found = only(data, max_unpacked=100_000)
    except CorruptMessage:
        return
    offsets = [record.offset for record in found.records]
    assert offsets == sorted(set(offsets))
    assert offsets[-1] <= found.last_offset


@seed(5)
@settings(max_examples=scale(300, 5000), deadline=None)
@given(st.binary(max_size=200))
def test_garbage_never_crashes(data: bytes) -> None:
    for entry in iter_entries(data):
        assert entry.end <= len(data)
        if entry.magic < 2:
            with pytest.raises(CorruptMessage):
                read_message_set(data, entry)
