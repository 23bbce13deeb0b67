"""The few admin requests of the benchmark, encoded by hand so that any broker can be measured."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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


@dataclass(slots=True)
class ClusterView:
    """A cluster as one of its brokers describes it. The leader of a partition is -1 if it has none."""

    controller: int
    brokers: dict[int, tuple[str, int]]
    leaders: dict[tuple[str, int], int]
    leader_epochs: dict[tuple[str, int], int]
    in_sync: dict[tuple[str, int], int]
    """How many replicas of a partition are in sync."""


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

    def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None, *, replicas: int = 1
    ) -> None:
        settings = configs or {}
        body = _text(name) + struct.pack(">ihi", partitions, replicas, 0)
        body += struct.pack(">i", len(settings)) + b"".join(_text(k) + _text(v) for k, v in settings.items())
        self._create([body])

    def create_topics(self, names: Sequence[str], partitions: int = 1, replicas: int = 1) -> None:
        """Create topics with one request."""
        self._create([_text(name) + struct.pack(">ihii", partitions, replicas, 0, 0) for name in names])

    def create_topic_on(self, name: str, broker_id: int) -> None:
        """Create a topic of one partition on this broker of a cluster."""
        assignment = struct.pack(">iiii", 1, 0, 1, broker_id)
        self._create([_text(name) + struct.pack(">ih", -1, -1) + assignment + struct.pack(">i", 0)])

    def _create(self, topics: Sequence[bytes]) -> None:
        body = struct.pack(">i", len(topics)) + b"".join(topics)
        answer = self._call(CREATE_TOPICS, 2, body + struct.pack(">i?", 60_000, False))
        answer.number("i")
        for _ in range(answer.count()):
            name = answer.text()
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

    def cluster(self, topics: Sequence[str] | None = None) -> ClusterView:
        """The cluster as this broker knows it, with these topics; None for all."""
        body = struct.pack(">i", -1 if topics is None else len(topics))
        answer = self._call(METADATA, 7, body + b"".join(map(_text, topics or ())) + b"\0")
        answer.number("i")
        brokers: dict[int, tuple[str, int]] = {}
        for _ in range(answer.count()):
            broker_id = answer.number("i")
            brokers[broker_id] = (answer.text() or "", answer.number("i"))
            answer.text()
        answer.text()
        view = ClusterView(answer.number("i"), brokers, {}, {}, {})
        for _ in range(answer.count()):
            answer.number("h")
            topic = answer.text() or ""
            answer.number("B")
            for _ in range(answer.count()):
                answer.number("h")
                partition = answer.number("i")
                view.leaders[topic, partition] = answer.number("i")
                view.leader_epochs[topic, partition] = answer.number("i")
                answer.raw(4 * answer.count())
                view.in_sync[topic, partition] = answer.count()
                answer.raw(4 * view.in_sync[topic, partition])
                answer.raw(4 * answer.count())
        return view

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
