"""The headers of requests and responses, read and written without an object per header.

Which header a message has follows from its API and version: flexible requests carry tagged fields behind the
client id, flexible responses behind the correlation id. An ApiVersions response never does, because the
client reads it before it knows what the broker speaks.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tidelog.protocol.api import API, NEVER, ApiKey
from tidelog.protocol.wire import Buffer, ProtocolError, read_uvarint

MAX_TAGGED_FIELDS = 1_000
"""A header with more is refused: Kafka declares at most one, and each takes time to skip."""

_FIXED = struct.Struct(">hhih")
_PREFIX = struct.Struct(">hhi")
_CORRELATION = struct.Struct(">i")
_FLEXIBLE_RESPONSE = struct.Struct(">ix")

# First version with tagged fields in the header of the request, and of the response.
_REQUEST_FLEXIBLE_FROM = {int(key): info.flexible_from for key, info in API.items()}
_RESPONSE_FLEXIBLE_FROM = {**_REQUEST_FLEXIBLE_FROM, int(ApiKey.API_VERSIONS): NEVER}


class RequestHeader(NamedTuple):
    """A request header; `size` is the number of bytes that it took."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    size: int


def read_request_header(buf: Buffer, pos: int = 0) -> tuple[int, int, int, str | None, int]:
    """API key, API version, correlation id, client id, and the position at which the body starts.

    An unknown API key is read as if it were not flexible, so that the caller can name it.
    """
    try:
        key, version, correlation_id, length = _FIXED.unpack_from(buf, pos)
    except struct.error:
        return _read_short_header(buf, pos)
    if key == 7 and version == 0:  # ControlledShutdown v0 is older than client ids
        return key, version, correlation_id, None, pos + 8
    pos += 10
    if length < 0:
        client_id = None
    else:
        end = pos + length
        if end > len(buf):
            raise ProtocolError(
                f"request header: a client id of {length} bytes where {len(buf) - pos} are left"
            )
        client_id = str(buf[pos:end], "utf-8", "replace")
        pos = end
    if version >= _REQUEST_FLEXIBLE_FROM.get(key, NEVER):
        try:
            count = buf[pos]
            pos = pos + 1 if count == 0 else _skip_tags(buf, pos)
        except IndexError:
            raise ProtocolError("request header: the bytes end within its tagged fields") from None
    return key, version, correlation_id, client_id, pos


def _read_short_header(buf: Buffer, pos: int) -> tuple[int, int, int, str | None, int]:
    if len(buf) - pos >= 8:
        key, version, correlation_id = _PREFIX.unpack_from(buf, pos)
        if key == 7 and version == 0:
            return key, version, correlation_id, None, pos + 8
    raise ProtocolError(f"request header: {max(len(buf) - pos, 0)} bytes where at least 10 are expected")


def _skip_tags(buf: Buffer, pos: int) -> int:
    count, pos = read_uvarint(buf, pos)
    if count > MAX_TAGGED_FIELDS:
        raise ProtocolError(f"header: {count} tagged fields where at most {MAX_TAGGED_FIELDS} are read")
    for _ in range(count):
        _, pos = read_uvarint(buf, pos)
        size, pos = read_uvarint(buf, pos)
        if size > len(buf) - pos:
            raise ProtocolError(f"header: a tagged field of {size} bytes where {len(buf) - pos} are left")
        pos += size
    return pos


def parse_request_header(buf: Buffer, pos: int = 0) -> RequestHeader:
    """The header as a RequestHeader. Slower than `read_request_header` by a few hundred nanoseconds."""
    key, version, correlation_id, client_id, end = read_request_header(buf, pos)
    return RequestHeader(key, version, correlation_id, client_id, end - pos)


def request_header(key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """The bytes of a request header."""
    if key == 7 and version == 0:
        return _PREFIX.pack(key, version, correlation_id)
    name = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(name)
    tags = b"\0" if version >= _REQUEST_FLEXIBLE_FROM.get(key, NEVER) else b""
    return _FIXED.pack(key, version, correlation_id, length) + name + tags


def response_header(key: int, version: int, correlation_id: int) -> bytes:
    """The bytes of a response header."""
    if version >= _RESPONSE_FLEXIBLE_FROM[key]:
        return _FLEXIBLE_RESPONSE.pack(correlation_id)
    return _CORRELATION.pack(correlation_id)


def read_response_header(key: int, version: int, buf: Buffer, pos: int = 0) -> tuple[int, int]:
    """The correlation id, and the position at which the body starts."""
    try:
        (correlation_id,) = _CORRELATION.unpack_from(buf, pos)
        pos += 4
        if version >= _RESPONSE_FLEXIBLE_FROM[key]:
            pos = pos + 1 if buf[pos] == 0 else _skip_tags(buf, pos)
    except (struct.error, IndexError):
        raise ProtocolError(f"response header: cut short, {max(len(buf) - pos, 0)} bytes are there") from None
    return correlation_id, pos
