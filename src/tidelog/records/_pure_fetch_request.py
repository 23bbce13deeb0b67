"""Fetch requests that name one partition or none, in plain Python; `_speed` has the same compiled."""

from __future__ import annotations

from typing import Final

from tidelog.records._pure import Buffer
from tidelog.records._pure_produce import ElementReader

REPLICA_STATE_TAG: Final = 1
REPLICA_STATE_BYTES: Final = 13

WantedPartition = tuple[str | bytes, int, int, int, int, int, int]
"""Topic name, or id from version 13 on, partition, leader epoch, fetch offset, last fetched epoch, log start
offset, most bytes.
"""

OneFetch = tuple[int, int, int, int, int, int, int, int, str, WantedPartition | None]
"""Replica id and epoch, most time to wait in ms, least and most bytes, isolation level, session id and epoch,
rack, the partition if there is one.
"""


def parse_one_fetch(buf: Buffer, pos: int, version: int) -> OneFetch | None:
    """Parse the body of a Fetch request of version 12 to 18 that names one partition or none.

    Returns None for any other body, which the reader of all requests parses or refuses: one with forgotten
    topics or with other tagged fields than the state of a follower, too.
    """
    if not 12 <= version <= 18:
        return None
    try:
        return _parse(ElementReader(buf, pos, flexible=True), version)
    except ValueError:
        return None


def _parse(read: ElementReader, version: int) -> OneFetch | None:
    replica_id = -1 if version >= 15 else read.number(4)
    replica_epoch = -1
    max_wait_ms, min_bytes, max_bytes = read.number(4), read.number(4), read.number(4)
    isolation_level, session_id, session_epoch = read.number(1), read.number(4), read.number(4)
    topics = read.length(4)
    wanted = _wanted(read, version) if topics == 1 else None
    if topics != (0 if wanted is None else 1) or read.length(4) != 0:
        return None
    rack = read.string()
    if rack is None:
        return None
    tags = read.unsigned()
    if tags:
        if tags != 1 or version < 15 or read.unsigned() != REPLICA_STATE_TAG:
            return None
        if read.unsigned() != REPLICA_STATE_BYTES or read.end - read.pos != REPLICA_STATE_BYTES:
            return None
        replica_id, replica_epoch = read.number(4), read.number(8)
        if read.number(1):
            return None
    if read.pos != read.end:
        return None
    return (
        replica_id,
        replica_epoch,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        session_id,
        session_epoch,
        rack,
        wanted,
    )


def _wanted(read: ElementReader, version: int) -> WantedPartition | None:
    topic = read.take(16) if version >= 13 else read.string()
    if topic is None or read.length(4) != 1:
        return None
    partition, leader_epoch, offset = read.number(4), read.number(4), read.number(8)
    last_epoch, log_start, max_bytes = read.number(4), read.number(8), read.number(4)
    read.tags()
    read.tags()
    return topic, partition, leader_epoch, offset, last_epoch, log_start, max_bytes
