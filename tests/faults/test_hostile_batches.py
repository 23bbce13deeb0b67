"""Batches that lie about what they hold, that unpack to gigabytes, or whose numbers are at their ends."""

from __future__ import annotations

import random
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import crc32c
import pytest

from tests.faults.client import Client, batch_of, peak_bytes, produce_request, surprises
from tests.support.broker import Broker
from tests.support.raw import ConnectionClosed
from tests.support.scale import scale
from tidelog.clients.connection import request_frame
from tidelog.errors import ErrorCode
from tidelog.records.batch import BatchHeader, Record, assemble, build_batch
from tidelog.records.codecs import Codec, compress

MEGABYTE = 1 << 20
# What cannot be unpacked is UNKNOWN_SERVER_ERROR, as in Kafka.
UNREADABLE = (
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.INVALID_RECORD,
    ErrorCode.INVALID_TIMESTAMP,
)
LOWEST, HIGHEST = -(2**63), 2**63 - 1
ANY_TIME = {"message.timestamp.before.max.ms": str(HIGHEST), "message.timestamp.after.max.ms": str(HIGHEST)}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("batches")) as running:
        yield running
        assert running.running
        assert surprises(running.log()) == []


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.address) as connection:
        yield connection


def resigned(batch: bytes | bytearray) -> bytes:
    """The batch with the checksum that its bytes have now."""
    data = bytearray(batch)
    struct.pack_into(">I", data, 17, crc32c.crc32c(bytes(data[21:])))
    return bytes(data)


def bomb(codec: Codec, size: int, count: int = 1) -> bytes:
    """A batch of a few megabytes at most that unpacks to `size` bytes."""
    header = BatchHeader(0, 0, -1, 2, 0, int(codec), count - 1, 0, 0, -1, -1, -1, count)
    if codec is Codec.SNAPPY:
        # The block says how large it is; unpacking is refused before a byte is written.
        return bytes(assemble(header, uvarint(size) + b"\xfe\x01\x00" * 1000))
    return bytes(assemble(header, squeezed(codec, size)))


def squeezed(codec: Codec, size: int) -> bytes:
    """`size` zero bytes, packed without ever being whole in memory."""
    piece = bytes(16 * MEGABYTE)
    if codec is Codec.GZIP:
        import gzip

        return gzip.compress(piece) * (size // len(piece))
    if codec is Codec.ZSTD:
        # Frames one after the other without the size of their content.
        import zstandard

        frame = zstandard.ZstdCompressor(level=3, write_content_size=False).compress(piece)
        return frame * (size // len(piece))
    import lz4.frame

    context = lz4.frame.LZ4FrameCompressor(block_size=lz4.frame.BLOCKSIZE_MAX4MB)
    parts = [context.begin()]
    parts += [context.compress(piece) for _ in range(size // len(piece))]
    return b"".join([*parts, context.flush()])


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD], ids=lambda c: c.name)
def test_a_batch_that_would_unpack_to_gigabytes_is_refused_without_unpacking_it(
    broker: Broker, client: Client, codec: Codec
) -> None:
    topic = f"bombed-{codec.name}"
    assert client.create_topic(topic, 1, {"max.message.bytes": str(64 * MEGABYTE)}) == 0
    data = bomb(codec, scale(1, 4) * 1024 * MEGABYTE)
    before = peak_bytes(broker.pid)
    with Client(broker.address) as other:
        for _ in range(5):
            assert client.produce(topic, 0, data).error in UNREADABLE
            assert other.produce(topic, 0, batch_of(b"well")).error == 0
    # The frame itself, twice at most, and the limit of what may be unpacked.
    assert peak_bytes(broker.pid) - before < 2 * len(data) + 160 * MEGABYTE
    assert len(client.read_all(topic, 0)) == 5


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD], ids=lambda c: c.name)
def test_packed_bytes_that_are_damaged_or_cut_are_refused(client: Client, codec: Codec) -> None:
    topic = f"damaged-{codec.name}"
    assert client.create_topic(topic) == 0
    good = build_batch([Record(at, 1, b"k", b"v" * 50 * at) for at in range(20)], codec=codec)
    chance = random.Random(codec)
    accepted = 0
    for _ in range(scale(150, 5000)):
        data = bytearray(good)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(61, len(data))] = chance.randrange(256)
        if chance.random() < 0.3:
            del data[chance.randrange(61, len(data)) :]
            struct.pack_into(">i", data, 8, len(data) - 12)
        answer = client.produce(topic, 0, resigned(data))
        assert answer.error in (0, *UNREADABLE)
        accepted += answer.error == 0
    assert len(client.read_all(topic, 0)) == accepted


def test_batches_with_any_byte_changed_and_signed_again_never_harm_the_log(client: Client) -> None:
    assert client.create_topic("signed", 1, ANY_TIME) == 0
    chance = random.Random(3)
    good = build_batch([Record(at, at, b"key", b"value", (("h", b"x"),)) for at in range(3)])
    accepted = 0
    for at in range(len(good)):
        for _ in range(scale(3, 60)):
            data = bytearray(good)
            data[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
            if not 17 <= at < 21:
                data = bytearray(resigned(data))
            try:
                accepted += client.produce("signed", 0, bytes(data)).error == 0
            except ConnectionClosed:
                pytest.fail(f"byte {at} changed to {data[at]} closes the connection")
    assert accepted
    assert len(client.read_all("signed", 0)) == accepted


def test_the_numbers_of_a_batch_at_their_ends_get_a_kafka_error_or_are_kept(client: Client) -> None:
    assert client.create_topic("ends", 1, ANY_TIME) == 0
    places = {8: ">i", 12: ">i", 16: ">b", 21: ">h", 23: ">i", 27: ">q", 35: ">q", 43: ">q", 51: ">h"}
    places |= {53: ">i", 57: ">i"}
    good = batch_of(b"one", b"two")
    accepted = 0
    for at, form in places.items():
        bits = struct.calcsize(form) * 8
        for value in (0, 1, -1, -2, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), 2 ** (bits - 1) - 2):
            data = bytearray(good)
            struct.pack_into(form, data, at, value)
            answer = client.produce("ends", 0, resigned(data))
            assert answer.error != ErrorCode.UNKNOWN_SERVER_ERROR or at == 21  # an unknown codec, as in Kafka
            accepted += answer.error == 0
    assert len(client.read_all("ends", 0)) == accepted


def test_times_at_the_ends_of_their_range_are_stored_found_and_survive_a_restart(tmp_path: Path) -> None:
    settings = {**ANY_TIME, "internal.segment.bytes": "300", "index.interval.bytes": "0"}
    settings |= {"segment.ms": "1000", "retention.ms": "-1"}
    times = [0, HIGHEST, HIGHEST - 1, 1, HIGHEST, 0, 5]
    with Broker(tmp_path, {"log.retention.check.interval.ms": "50"}) as broker:
        with Client(broker.address) as client:
            assert client.create_topic("times", 1, settings) == 0
            written = [client.produce("times", 0, batch_of(b"x", timestamp=time)).error for time in times]
            assert written == [0] * len(times)
            before = [client.offset("times", 0, time) for time in (-3, 0, 1, 2, HIGHEST - 1, HIGHEST)]
            assert before[1:] == [0, 1, 1, 1, 1]
        for kill in (True, False):
            broker.restart(kill=kill)
            with Client(broker.address) as client:
                after = [client.offset("times", 0, time) for time in (-3, 0, 1, 2, HIGHEST - 1, HIGHEST)]
                assert after == before
                assert len(client.read_all("times", 0)) == len(times)
                assert client.produce("times", 0, batch_of(b"x", timestamp=LOWEST)).error in (0, 32, 87)
                times = [stored.header.base_offset for stored in client.read_all("times", 0)]
                before = [client.offset("times", 0, time) for time in (-3, 0, 1, 2, HIGHEST - 1, HIGHEST)]
        assert surprises(broker.log()) == []


def test_offsets_and_times_at_their_ends_in_questions(client: Client) -> None:
    from tidelog.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse

    assert client.create_topic("asked") == 0
    assert client.produce("asked", 0, batch_of(b"a", b"b")) == (0, 0)
    for offset in (LOWEST, -1, 3, HIGHEST):
        assert client.fetch("asked", 0, offset).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    for offset in (LOWEST, -2, 3, HIGHEST):
        assert client.delete_records("asked", 0, offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    for timestamp, error in ((LOWEST, 35), (-7, 35), (HIGHEST, 0)):
        wanted = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        named = ListOffsetsRequest.ListOffsetsTopic(name="asked", partitions=[wanted])
        answer = client.ask(ListOffsetsRequest(replica_id=-1, topics=[named]), ListOffsetsResponse, 7)
        found = answer.topics[0].partitions[0]
        assert (found.error_code, found.offset) == (error, -1)
    assert [stored.values for stored in client.read_all("asked", 0)] == [[b"a", b"b"]]


def test_null_and_empty_records_are_refused(client: Client) -> None:
    assert client.create_topic("nothing") == 0
    for records in (None, b"", bytes(61), bytes(12), b"\0"):
        answer = client.produce("nothing", 0, records)
        assert answer.error in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)
    assert client.read_all("nothing", 0) == []


def test_a_small_batch_that_holds_more_than_a_batch_may_unpack_to_says_so(client: Client) -> None:
    """Honest content, too much of it: what is refused is named MESSAGE_TOO_LARGE, not corruption."""
    assert client.create_topic("much", 1, {"max.message.bytes": "1048588"}) == 0
    header = BatchHeader(0, 0, -1, 2, 0, int(Codec.GZIP), 0, 0, 0, -1, -1, -1, 1)
    data = bytes(assemble(header, compress(Codec.GZIP, bytes(600 * MEGABYTE))))
    assert client.produce("much", 0, data).error in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_RECORD)


def test_small_frames_that_unpack_to_a_lot_do_not_make_the_others_wait(
    broker: Broker, client: Client
) -> None:
    """A kilobyte of zstd can hold a hundred megabytes: that is unpacked beside the loop, not on it."""
    assert client.create_topic("patient") == 0
    data = bomb(Codec.ZSTD, 112 * MEGABYTE)
    assert len(data) < 32 * 1024
    frame = request_frame(produce_request("patient", 0, data), 9, 1, "bomber")
    count = scale(8, 100)
    with Client(broker.address) as bomber, Client(broker.address) as other:
        other.offset("patient", 0, -1)
        answered = threading.Thread(
            target=lambda: [bomber.receive_frame(60) for _ in range(count)], daemon=True
        )
        answered.start()
        bomber.send_bytes(frame * count)
        turns = 0
        while answered.is_alive():
            other.offset("patient", 0, -1)
            turns += 1
    assert turns > count
