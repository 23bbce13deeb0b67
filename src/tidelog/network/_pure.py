"""The hot functions of the network in plain Python; `_speed` has the same functions compiled."""

from __future__ import annotations

import struct
from typing import Final, Protocol, TypeVar

from tidelog.metrics.registry import BUCKET_TABLE, BUCKETS, DIRECT, bucket_of

_HEADER: Final = struct.Struct(">iIi")


class Flexible(Protocol):
    @property
    def flexible(self) -> bool: ...


Entry = TypeVar("Entry", bound=Flexible)


def known_header(
    buffer: bytearray, start: int, end: int, entries: dict[int, Entry], client: bytes
) -> tuple[Entry, int, int] | None:
    """Read the usual header of the frame `buffer[start:end]`: (entry, correlation id, start of the body).

    The range includes the size of the frame. Returns None unless it is exactly one frame, `entries` has its
    API key and version (as one number), its client id with length is `client`, and it has no tagged fields.
    """
    size = len(client)
    if size == 0 or start < 0 or end > len(buffer) or end - start < 12 + size:
        return None
    length, key_version, correlation_id = _HEADER.unpack_from(buffer, start)
    if length != end - start - 4 or not buffer.startswith(client, start + 12):
        return None
    entry = entries.get(key_version)
    if entry is None:
        return None
    body_start = 8 + size
    if entry.flexible:
        # An empty tag section is one zero byte.
        if start + 4 + body_start >= end or buffer[start + 4 + body_start]:
            return None
        body_start += 1
    return entry, correlation_id, body_start


class RequestTimes:
    """Records the size and the times of requests in the buckets of histograms."""

    __slots__ = ("_local", "_queue", "_send", "_size", "_total")

    def __init__(
        self, total: list[int], local: list[int], send: list[int], size: list[int], queue: list[int]
    ) -> None:
        for buckets in (total, local, send, size, queue):
            if len(buckets) != BUCKETS:
                raise ValueError(f"{len(buckets)} buckets where {BUCKETS} are right")
        self._total, self._local, self._send, self._size, self._queue = total, local, send, size, queue

    def record(
        self,
        size: int,
        received_ns: int,
        started_ns: int,
        local_end_ns: int,
        send_start_ns: int,
        sent_ns: int,
    ) -> None:
        """Record a request in units of 1,024 ns. A queue time of zero is not recorded."""
        total = (sent_ns - received_ns) >> 10
        local = (local_end_ns - started_ns) >> 10
        send = (sent_ns - send_start_ns) >> 10
        if total < DIRECT and size < DIRECT and min(total, local, send) >= 0:
            self._total[BUCKET_TABLE[total]] += 1
            self._local[BUCKET_TABLE[local]] += 1
            self._send[BUCKET_TABLE[send]] += 1
            self._size[BUCKET_TABLE[size]] += 1
        else:
            self._total[bucket_of(total)] += 1
            self._local[bucket_of(local)] += 1
            self._send[bucket_of(send)] += 1
            self._size[bucket_of(size)] += 1
        queued = (started_ns - received_ns) >> 10
        if queued:
            self._queue[bucket_of(queued)] += 1
