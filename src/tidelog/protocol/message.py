"""Messages: structs with versions, which are encoded to bytes and decoded from bytes.

Readers and writers are generated for a version when it is first used and kept with the class.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import ClassVar, Self, TypeAlias, TypeVar, cast

from tidelog.protocol.reader import ReaderSource
from tidelog.protocol.schema import Struct, Versions, parse_versions
from tidelog.protocol.source import Layout
from tidelog.protocol.wire import Buffer, FilePart, ProtocolError
from tidelog.protocol.writer import WriterSource

M = TypeVar("M", bound="Message")

Reader: TypeAlias = Callable[[Buffer, int], tuple[M, int]]
Writer: TypeAlias = Callable[[M, bytes], bytes]
PartsWriter: TypeAlias = Callable[[M, bytes], "list[bytes | FilePart]"]
# The same in slices: generators that yield now and then, and return what the plain function returns.
SlicedReader: TypeAlias = Callable[[Buffer, int], Generator[None, None, tuple[M, int]]]
SlicedPartsWriter: TypeAlias = Callable[[M, bytes], Generator[None, None, "list[bytes | FilePart]"]]


class Message(Struct):
    """A request, a response, a header or a stored record."""

    KEY: ClassVar[int | None]
    VERSIONS: ClassVar[Versions]
    FLEXIBLE: ClassVar[Versions]
    _readers: ClassVar[dict[int, object]]
    _writers: ClassVar[dict[int, object]]
    _parts_writers: ClassVar[dict[int, object]]
    _sliced_readers: ClassVar[dict[int, object]]
    _sliced_writers: ClassVar[dict[int, object]]

    def __init_subclass__(cls, *, versions: str, flexible: str, key: int | None = None) -> None:
        cls.KEY = key
        cls.VERSIONS = parse_versions(versions)
        cls.FLEXIBLE = parse_versions(flexible)
        cls._readers, cls._writers, cls._parts_writers = {}, {}, {}
        cls._sliced_readers, cls._sliced_writers = {}, {}

    @classmethod
    def decode(cls, buf: Buffer, version: int) -> Self:
        """Decode a message. ProtocolError if bytes follow it, or if they are not this message."""
        message, end = decoder_for(cls, version)(buf, 0)
        if end != len(buf):
            raise ProtocolError(f"{cls.__qualname__} v{version}: {len(buf) - end} bytes follow the message")
        return message

    def encode(self, version: int, prefix: bytes = b"") -> bytes:
        """The prefix and the bytes of the message."""
        return encoder_for(type(self), version)(self, prefix)


def layout_of(cls: type[Message], version: int) -> Layout:
    """The layout of a version of a message; ProtocolError if the message has no such version."""
    if not cls.VERSIONS.has(version):
        low, high = cls.VERSIONS
        raise ProtocolError(f"{cls.__qualname__} has versions {low} to {high}, not {version}")
    return Layout(version, cls.FLEXIBLE.has(version))


def decoder_for(cls: type[M], version: int) -> Reader[M]:
    """The bare function `(buf, pos) -> (message, end)` of a version."""
    reader = cls._readers.get(version)
    if reader is None:
        reader = cls._readers[version] = ReaderSource(cls, layout_of(cls, version)).names["read"]
    return cast("Reader[M]", reader)


def encoder_for(cls: type[M], version: int) -> Writer[M]:
    """The bare function `(message, prefix) -> bytes` of a version."""
    writer = cls._writers.get(version)
    if writer is None:
        writer = cls._writers[version] = WriterSource(cls, layout_of(cls, version), parts=False).names[
            "write"
        ]
    return cast("Writer[M]", writer)


def parts_encoder_for(cls: type[M], version: int) -> PartsWriter[M]:
    """The bare function `(message, prefix) -> parts` of a version: bytes, and the file parts between them."""
    writer = cls._parts_writers.get(version)
    if writer is None:
        source = WriterSource(cls, layout_of(cls, version), parts=True)
        writer = cls._parts_writers[version] = source.names["write"]
    return cast("PartsWriter[M]", writer)


def sliced_decoder_for(cls: type[M], version: int) -> SlicedReader[M]:
    """The reader of a version for large messages: in slices, and with at most MAX_ELEMENTS elements."""
    reader = cls._sliced_readers.get(version)
    if reader is None:
        source = ReaderSource(cls, layout_of(cls, version), sliced=True)
        reader = cls._sliced_readers[version] = source.names["read"]
    return cast("SlicedReader[M]", reader)


def sliced_encoder_for(cls: type[M], version: int) -> SlicedPartsWriter[M]:
    """The writer of a version for large messages: in slices, to bytes and file parts."""
    writer = cls._sliced_writers.get(version)
    if writer is None:
        source = WriterSource(cls, layout_of(cls, version), parts=True, sliced=True)
        writer = cls._sliced_writers[version] = source.names["write"]
    return cast("SlicedPartsWriter[M]", writer)


def decode(cls: type[M], version: int, buf: Buffer, pos: int = 0) -> tuple[M, int]:
    """The message that starts at a position, and the position after it."""
    return decoder_for(cls, version)(buf, pos)


def encode_parts(message: Message, version: int, prefix: bytes = b"") -> list[bytes | FilePart]:
    """The message as bytes and file parts, in the order in which they go to the socket."""
    return parts_encoder_for(type(message), version)(message, prefix)
