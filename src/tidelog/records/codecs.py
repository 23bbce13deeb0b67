"""The four codecs of record batches, in the formats of Kafka's clients.

`decompress` never holds more than its limit: it refuses larger data while it uncompresses, or before, if the
data declares its size. A codec's library is imported on first use; all libraries release the GIL.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from types import ModuleType

from tidelog.errors import CorruptMessage, MessageTooLarge

Buffer = bytes | bytearray | memoryview

# Room for one batch of a large max.message.bytes at a ratio of a hundred to one.
DEFAULT_MAX_UNPACKED = 128 * 1024 * 1024
_CHUNK = 256 * 1024


class Codec(IntEnum):
    """Compression of a batch: the lowest three bits of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """The payload of a batch of that codec; `level` is Kafka's compression.<codec>.level."""
    if codec is Codec.GZIP:
        return _compress_gzip(data, level)
    if codec is Codec.SNAPPY:
        return _compress_snappy(data)
    if codec is Codec.LZ4:
        return _compress_lz4(data, level)
    if codec is Codec.ZSTD:
        import zstandard

        return bytes(zstandard.ZstdCompressor(level=3 if level is None else level).compress(data))
    return bytes(data)


def decompress(codec: Codec, data: Buffer, limit: int = DEFAULT_MAX_UNPACKED) -> Buffer:
    """The uncompressed data. Raises CorruptMessage for invalid data, MessageTooLarge beyond `limit` bytes."""
    if codec is Codec.GZIP:
        return _decompress_gzip(data, limit)
    if codec is Codec.SNAPPY:
        return _decompress_snappy(data, limit)
    if codec is Codec.LZ4:
        return _decompress_lz4(data, limit)
    if codec is Codec.ZSTD:
        return _decompress_zstd(data, limit)
    return data


def _too_large(codec: Codec, limit: int) -> MessageTooLarge:
    return MessageTooLarge(f"the {codec.name.lower()} data unpacks to more than the allowed {limit} bytes")


def _corrupt(codec: Codec, reason: object) -> CorruptMessage:
    return CorruptMessage(f"the {codec.name.lower()} data cannot be unpacked: {reason}")


# gzip


def _compress_gzip(data: Buffer, level: int | None) -> bytes:
    if level is None or level == -1:
        try:
            from isal import isal_zlib
        except ImportError:
            level = -1
        else:
            fast = isal_zlib.compressobj(wbits=31)
            return bytes(fast.compress(data) + fast.flush())
    import zlib

    # igzip's levels differ from zlib's, so a level that the user chose is for zlib.
    packer = zlib.compressobj(level, wbits=31)
    return packer.compress(data) + packer.flush()


def _decompress_gzip(data: Buffer, limit: int) -> bytes:
    import zlib

    inflate: ModuleType = zlib
    try:
        from isal import isal_zlib

        inflate = isal_zlib
    except ImportError:
        pass
    parts: list[bytes] = []
    total = 0
    rest: Buffer = data
    try:
        while True:  # one turn per member: gzip data may have several
            member = inflate.decompressobj(wbits=31)
            chunk = member.decompress(rest, min(limit - total + 1, max(_CHUNK, 4 * len(rest))))
            while True:
                parts.append(chunk)
                total += len(chunk)
                if total > limit:
                    raise _too_large(Codec.GZIP, limit)
                if member.eof:
                    break
                tail = member.unconsumed_tail
                chunk = member.decompress(tail, min(limit - total + 1, 4 * _CHUNK))
                if not chunk and len(member.unconsumed_tail) == len(tail) and not member.eof:
                    raise _corrupt(Codec.GZIP, "it ends too early")
            rest = member.unused_data
            if bytes(rest[:2]) != b"\x1f\x8b":  # ignored after the last member, as in Java
                return parts[0] if len(parts) == 1 else b"".join(parts)
    except (zlib.error, getattr(inflate, "error", zlib.error)) as error:
        raise _corrupt(Codec.GZIP, error) from None


# snappy: librdkafka and others write one raw block, Java's clients write the frames of the xerial library

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 * 1024
_SNAPPY_BEST = 64  # no element of the format yields more than 64 bytes, from at least 2


def _compress_snappy(data: Buffer) -> bytes:
    from cramjam import snappy

    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        parts.append(struct.pack(">i", len(block)))
        parts.append(block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, limit: int) -> Buffer:
    from cramjam import DecompressionError, snappy

    view = memoryview(data)
    blocks = _xerial_blocks(view) if bytes(view[:8]) == _XERIAL_MAGIC else [view]
    sizes = [_snappy_size(block) for block in blocks]
    total = sum(sizes)
    if total > limit:
        raise _too_large(Codec.SNAPPY, limit)
    out = bytearray(total)
    room = memoryview(out)
    pos = 0
    try:
        for block, size in zip(blocks, sizes, strict=True):
            if size:
                snappy.decompress_raw_into(block, room[pos : pos + size])
            pos += size
    except (DecompressionError, ValueError) as error:
        raise _corrupt(Codec.SNAPPY, error) from None
    return out


def _xerial_blocks(view: memoryview) -> list[memoryview]:
    if len(view) < 16:
        raise _corrupt(Codec.SNAPPY, "its header is truncated")
    blocks: list[memoryview] = []
    pos = 16
    while pos < len(view):
        if bytes(view[pos : pos + 8]) == _XERIAL_MAGIC and len(view) - pos >= 16:
            pos += 16  # a second stream after the first, as in concatenated files
            continue
        if len(view) - pos < 4:
            raise _corrupt(Codec.SNAPPY, "a block length is truncated")
        length: int = struct.unpack_from(">i", view, pos)[0]
        pos += 4
        if not 0 <= length <= len(view) - pos:
            raise _corrupt(Codec.SNAPPY, f"a block of {length} bytes where {len(view) - pos} are left")
        blocks.append(view[pos : pos + length])
        pos += length
    return blocks


def _snappy_size(block: memoryview) -> int:
    """The declared uncompressed size of a block. Raises if it cannot be true."""
    size = shift = 0
    for byte in bytes(block[:5]):
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    else:
        raise _corrupt(Codec.SNAPPY, "a block has no length")
    if size > len(block) * _SNAPPY_BEST:
        raise _corrupt(Codec.SNAPPY, f"{len(block)} bytes cannot hold the declared {size}")
    return size


# lz4: one frame of independent blocks; Kafka's Java client reads no others


def _compress_lz4(data: Buffer, level: int | None) -> bytes:
    from lz4 import frame

    # Kafka's default level selects the fast compressor, other levels high compression.
    chosen = 0 if level is None or level == 9 else max(3, min(level, 12))
    packed = frame.compress(
        data,
        compression_level=chosen,
        block_size=frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=False,
    )
    return bytes(packed)


def _decompress_lz4(data: Buffer, limit: int) -> bytes:
    from lz4 import frame

    view = memoryview(data)
    if len(view) < 7 or bytes(view[:4]) != b"\x04\x22\x4d\x18":
        raise _corrupt(Codec.LZ4, "it does not start with a frame")
    if not view[4] & 0x20:
        raise _corrupt(Codec.LZ4, "its blocks depend on each other, which Kafka's clients cannot read")
    step = _lz4_bound(view)
    if step > 32 * len(view) + _CHUNK:
        step = 4 * len(view) + _CHUNK  # nearly a decompression bomb: take small steps
    parts: list[bytes] = []
    total = 0
    try:
        unpacker = frame.LZ4FrameDecompressor()
        chunk = unpacker.decompress(view, max_length=min(step, limit + 1))
        while True:
            parts.append(chunk)
            total += len(chunk)
            if total > limit:
                raise _too_large(Codec.LZ4, limit)
            if unpacker.eof:
                return parts[0] if len(parts) == 1 else b"".join(parts)
            if unpacker.needs_input:
                raise _corrupt(Codec.LZ4, "it ends too early")
            chunk = unpacker.decompress(b"", max_length=min(step, limit - total + 1))
    except (RuntimeError, ValueError, EOFError) as error:
        raise _corrupt(Codec.LZ4, error) from None


def _lz4_bound(view: memoryview) -> int:
    """The largest uncompressed size of the frame plus one byte, from the lengths of its blocks.

    The library is seven times as fast with a known size as with a growing buffer."""
    flags = view[4]
    largest = 1 << (8 + 2 * (view[5] >> 4 & 7))
    pos = 7 + (8 if flags & 0x08 else 0)
    bound = 1
    while len(view) - pos >= 4:
        word = int.from_bytes(view[pos : pos + 4], "little")
        if word == 0:
            break
        size = word & 0x7FFFFFFF
        bound += size if word >> 31 else min(largest, 255 * size)  # the top bit: an uncompressed block
        pos += 4 + size + (4 if flags & 0x10 else 0)
    return bound


# zstd: one or more frames; Kafka's Java client streams, so it does not declare the size


def _decompress_zstd(data: Buffer, limit: int) -> bytes:
    import zstandard

    parts: list[bytes] = []
    total = 0
    try:
        largest = _zstd_bound(memoryview(data), limit)
        reader = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True)
        step = min(largest, max(_CHUNK, 4 * len(data))) + 1
        while chunk := reader.read(min(step, limit - total + 1)):
            parts.append(chunk)
            total += len(chunk)
            if total > limit:
                raise _too_large(Codec.ZSTD, limit)
    except zstandard.ZstdError as error:
        raise _corrupt(Codec.ZSTD, error) from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _zstd_bound(view: memoryview, limit: int) -> int:
    """The largest uncompressed size of the blocks, from their headers. It also checks that every frame is
    complete: the library accepts a stream that is cut off."""
    import zstandard

    bound = pos = 0
    while pos < len(view):
        if len(view) - pos >= 8 and int.from_bytes(view[pos : pos + 4], "little") >> 4 == 0x184D2A5:
            pos += 8 + int.from_bytes(view[pos + 4 : pos + 8], "little")  # a skippable frame
            continue
        frame = zstandard.get_frame_parameters(view[pos : pos + 18])
        if 0 <= frame.content_size < zstandard.CONTENTSIZE_ERROR and frame.content_size > limit:
            raise _too_large(Codec.ZSTD, limit)
        pos += zstandard.frame_header_size(view[pos : pos + 18])
        last = False
        while not last:
            if len(view) - pos < 3:
                raise _corrupt(Codec.ZSTD, "it ends too early")
            block = int.from_bytes(view[pos : pos + 3], "little")
            last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
            pos += 3 + (1 if kind == 1 else size)  # a run-length block has just one byte
            bound += zstandard.BLOCKSIZE_MAX if kind == 2 else size
        pos += 4 if frame.has_checksum else 0
    if pos != len(view):
        raise _corrupt(Codec.ZSTD, "it ends too early")
    return bound
