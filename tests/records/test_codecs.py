"""Codecs read what Kafka's clients write, and refuse bombs and garbage without keeping what they made."""

from __future__ import annotations

import gzip
import random
import struct
import tracemalloc

import cramjam
import lz4.frame
import pytest
import zstandard

from tidelog.errors import CorruptMessage, MessageTooLarge
from tidelog.records.codecs import Codec, compress, decompress

CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
TEXT = b"".join(b"record %d of a batch, " % i for i in range(20_000))


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("data", [b"", b"x", TEXT, random.Random(1).randbytes(100_000)], ids=len)
def test_data_comes_back(codec: Codec, data: bytes) -> None:
    assert decompress(codec, compress(codec, data), len(data)) == data
    assert decompress(codec, memoryview(bytearray(compress(codec, data)))) == data


@pytest.mark.parametrize(
    ("codec", "levels"), [(Codec.GZIP, (-1, 1, 9)), (Codec.LZ4, (1, 9, 17)), (Codec.ZSTD, (-131072, 3, 22))]
)
def test_kafkas_levels_are_accepted(codec: Codec, levels: tuple[int, ...]) -> None:
    for level in levels:
        assert decompress(codec, compress(codec, TEXT[:50_000], level)) == TEXT[:50_000]


def test_other_writers_are_understood() -> None:
    assert decompress(Codec.GZIP, gzip.compress(TEXT)) == TEXT
    assert decompress(Codec.GZIP, gzip.compress(b"one") + gzip.compress(b"two")) == b"onetwo"
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))) == TEXT
    for size in (lz4.frame.BLOCKSIZE_MAX64KB, lz4.frame.BLOCKSIZE_MAX4MB):
        packed = lz4.frame.compress(
            TEXT, block_size=size, block_linked=False, content_checksum=True, block_checksum=True
        )
        assert decompress(Codec.LZ4, packed) == TEXT
    streamed = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    assert decompress(Codec.ZSTD, streamed.compress(TEXT) + streamed.flush()) == TEXT
    assert decompress(Codec.ZSTD, compress(Codec.ZSTD, b"one") + compress(Codec.ZSTD, b"two")) == b"onetwo"


def test_snappy_is_written_in_xerial_frames() -> None:
    packed = compress(Codec.SNAPPY, TEXT)
    assert packed[:16] == b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    [length] = struct.unpack_from(">i", packed, 16)
    assert bytes(cramjam.snappy.decompress_raw(packed[20 : 20 + length])) == TEXT[: 32 * 1024]


def test_lz4_frames_are_such_that_java_clients_read_them() -> None:
    packed = compress(Codec.LZ4, TEXT)
    assert packed[:6] == b"\x04\x22\x4d\x18\x60\x40"  # independent blocks of 64 KB, no sizes, no checksums
    with pytest.raises(CorruptMessage, match="depend"):
        decompress(Codec.LZ4, lz4.frame.compress(TEXT, block_linked=True))


@pytest.mark.parametrize("codec", CODECS)
def test_data_that_unpacks_beyond_the_limit_is_refused(codec: Codec) -> None:
    packed = compress(codec, TEXT)
    assert decompress(codec, packed, len(TEXT)) == TEXT
    for limit in (len(TEXT) - 1, len(TEXT) // 2, 1, 0):
        with pytest.raises(MessageTooLarge):
            decompress(codec, packed, limit)


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_is_refused_before_it_fills_memory(codec: Codec) -> None:
    bomb = compress(codec, bytes(64 << 20))
    decompress(codec, compress(codec, b"x"))  # imports are not what is measured
    tracemalloc.start()
    try:
        with pytest.raises(MessageTooLarge):
            decompress(codec, bomb, 4 << 20)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_a_zstd_frame_that_declares_no_size_is_bounded() -> None:
    packer = zstandard.ZstdCompressor(write_content_size=False)
    packed = packer.compress(TEXT)
    assert decompress(Codec.ZSTD, packed, len(TEXT)) == TEXT
    for limit in (len(TEXT) - 1, 1, 0):
        with pytest.raises(MessageTooLarge):
            decompress(Codec.ZSTD, packed, limit)


def test_declared_sizes_are_not_believed() -> None:
    lying_snappy = b"\xff\xff\xff\xff\x07" + b"\0" * 10
    lying_zstd = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 60) + b"\x01\0\0"
    for codec, data in ((Codec.SNAPPY, lying_snappy), (Codec.ZSTD, lying_zstd)):
        with pytest.raises((MessageTooLarge, CorruptMessage)):
            decompress(codec, data)
    with pytest.raises(CorruptMessage):
        decompress(Codec.SNAPPY, b"\x80\x80\x04" + b"\0" * 10)  # 64 KB out of ten bytes
    with pytest.raises(CorruptMessage):
        decompress(Codec.SNAPPY, b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, 2**31 - 1))


@pytest.mark.parametrize("codec", CODECS)
def test_cut_data_is_refused(codec: Codec) -> None:
    packed = compress(codec, TEXT[:3000])
    for cut in range(1, len(packed)):
        if codec is Codec.SNAPPY and cut == 16:
            continue  # a header without blocks is a whole stream of nothing
        with pytest.raises(CorruptMessage):
            decompress(codec, packed[:cut])


@pytest.mark.parametrize("codec", CODECS)
def test_garbage_gives_an_error_or_bounded_data(codec: Codec) -> None:
    rng = random.Random(7)
    packed = compress(codec, TEXT[:4000])
    for _ in range(1500):
        data = bytearray(packed if rng.random() < 0.8 else rng.randbytes(rng.randrange(60)))
        for _ in range(rng.randrange(1, 4)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            assert len(decompress(codec, data, 10_000)) <= 10_000
        except (CorruptMessage, MessageTooLarge):
            pass
