"""The few admin requests of the benchmark, encoded by hand so that any broker can be measured."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping, Sequence

API_VERSIONS, LIST_OFFSETS, METADATA, LIST_GROUPS = 18, 2, 3, 16
CREATE_TOPICS, DELETE_TOPICS, INCREMENTAL_ALTER_CONFIGS = 19, 20, 44
EARLIEST, LATEST = -2, -1


class WireError(Exception):
    """A broker answered with an error code, or did not answer."""


def _text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack(">h", len(raw)) + raw


class _Answer:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, kind: str) -> int:
        (value,) = struct.unpack_from(">" + kind, self._data, self._at)
        self._at += struct.calcsize(">" + kind)
        return int(value)

    def text(self) -> str | None:
        size = self.number("h")
        if size < 0:
            return None
        self._at += size
        return self._data[self._at - size : self._at].decode()

    def count(self) -> int:
        return max(0, self.number("i"))

    def raw(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]

    def varint(self) -> int:
        value = shift = 0
        while (byte := self.number("B")) >= 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
        return value | byte << shift

    def compact(self) -> bytes:
        """A compact string; a null becomes empty."""
        return self.raw(max(0, self.varint() - 1))

    def skip_tags(self) -> None:
        for _ in range(self.varint()):
            self.varint()
            self.raw(self.varint())


class Client:
    """One blocking connection."""

    def __init__(self, host: str, port: int, timeout: float = 60.0) -> None:
        self._socket = socket.create_connection((host, port), timeout=timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation = 0

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def _call(self, api: int, version: int, body: bytes, header: bytes = b"") -> _Answer:
        """The answer after its correlation id; `header` has the extra header bytes of a flexible request."""
        self._correlation += 1
        head = struct.pack(">hhi", api, version, self._correlation) + _text("bench") + header
        self._socket.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
        (size,) = struct.unpack(">i", self._receive(4))
        answer = _Answer(self._receive(size))
        if answer.number("i") != self._correlation:
            raise WireError("an answer carries another correlation id than its request")
        return answer

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise WireError("the broker closed the connection")
            data += piece
        return bytes(data)

    def api_versions(self) -> int:
        """The number of APIs that the broker supports."""
        answer = self._call(API_VERSIONS, 0, b"")
        if error := answer.number("h"):
            raise WireError(f"ApiVersions answered with error {error}")
        return answer.count()

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        settings = configs or {}
        body = struct.pack(">i", 1) + _text(name) + struct.pack(">ihi", partitions, 1, 0)
        body += struct.pack(">i", len(settings)) + b"".join(_text(k) + _text(v) for k, v in settings.items())
        answer = self._call(CREATE_TOPICS, 2, body + struct.pack(">i?", 60_000, False))
        answer.number("i")
        for _ in range(answer.count()):
            answer.text()
            if error := answer.number("h"):
                raise WireError(f"topic {name} was not created: error {error} {answer.text() or ''}")
            answer.text()

    def delete_topic(self, name: str) -> None:
        self._call(DELETE_TOPICS, 1, struct.pack(">i", 1) + _text(name) + struct.pack(">i", 60_000))

    def alter_topic(self, name: str, setting: str, value: str) -> None:
        body = struct.pack(">ib", 1, 2) + _text(name)
        body += struct.pack(">i", 1) + _text(setting) + b"\0" + _text(value) + b"\0"
        answer = self._call(INCREMENTAL_ALTER_CONFIGS, 0, body)
        answer.number("i")
        answer.count()
        if error := answer.number("h"):
            reason = answer.text() or ""
            raise WireError(f"{setting}={value} of topic {name} was refused: error {error} {reason}")

    def topic_id(self, name: str) -> bytes:
        raw = name.encode()
        topic = bytes(16) + bytes([len(raw) + 1]) + raw + b"\0"
        answer = self._call(METADATA, 10, b"\x02" + topic + b"\0\0\0\0", header=b"\0")
        answer.skip_tags()
        answer.number("i")
        for _ in range(answer.varint() - 1):
            answer.number("i")
            answer.compact()
            answer.number("i")
            answer.compact()
            answer.skip_tags()
        answer.compact()
        answer.number("i")
        answer.varint()
        if error := answer.number("h"):
            raise WireError(f"the id of topic {name} is not known: error {error}")
        answer.compact()
        return answer.raw(16)

    def groups(self) -> tuple[int, int]:
        """The error code, and the number of groups."""
        answer = self._call(LIST_GROUPS, 0, b"")
        return answer.number("h"), answer.count()

    def offset(self, topic: str, partition: int, timestamp: int) -> int:
        error, offset = self.offsets(topic, [partition], timestamp)[0]
        if error:
            raise WireError(f"offset of {topic}-{partition} answered with error {error}")
        return offset

    def offsets(self, topic: str, partitions: Sequence[int], timestamp: int) -> list[tuple[int, int]]:
        """The error code and offset of each partition."""
        body = struct.pack(">ii", -1, 1) + _text(topic) + struct.pack(">i", len(partitions))
        body += b"".join(struct.pack(">iq", partition, timestamp) for partition in partitions)
        answer = self._call(LIST_OFFSETS, 1, body)
        answer.count()
        answer.text()
        found = []
        for _ in range(answer.count()):
            answer.number("i")
            error = answer.number("h")
            answer.number("q")
            found.append((error, answer.number("q")))
        return found
