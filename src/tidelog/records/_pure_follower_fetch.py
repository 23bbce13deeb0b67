"""The fetches of a follower whose session has news of one partition or of none: the request, and its answer.

`_speed` has the same compiled.
"""

from __future__ import annotations

import struct
from typing import Final

from tidelog.records._pure import Buffer
from tidelog.records._pure_fetch_request import REPLICA_STATE_BYTES, REPLICA_STATE_TAG, WantedPartition
from tidelog.records._pure_produce import ElementReader, unsigned

OneFetched = tuple[int, str | bytes | None, int, int, int, int, int]
"""Session id, topic name, or id from version 13 on, or None if there is no partition; partition, high
watermark, log start offset, and where the records begin and end.
"""

_LIMITS: Final = struct.Struct(">iiibii")
_WANTED: Final = struct.Struct(">biiqiqixx")
_STATE: Final = struct.Struct(">bbbiqx")
_ONE, _TWO, _NO_TAGS = b"\1", b"\2", b"\0"


def one_fetch_request(
    version: int,
    replica_id: int,
    replica_epoch: int,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    session_id: int,
    session_epoch: int,
    wanted: WantedPartition | None,
) -> bytes:
    """The body of a follower's fetch of version 12 to 18 that names one partition or none.

    Raises ValueError if the topic is not named as the version names topics.
    """
    if not 12 <= version <= 18:
        raise ValueError(f"a version from 12 to 18 is right, not {version}")
    head = _LIMITS.pack(max_wait_ms, min_bytes, max_bytes, 0, session_id, session_epoch)
    topics = _ONE
    if wanted is not None:
        topic, index, leader_epoch, offset, last_epoch, log_start, most = wanted
        named = _WANTED.pack(2, index, leader_epoch, offset, last_epoch, log_start, most)
        topics = _TWO + _name(topic, version) + named
    if version < 15:
        return replica_id.to_bytes(4, "big", signed=True) + head + topics + _ONE + _ONE + _NO_TAGS
    state = _STATE.pack(1, REPLICA_STATE_TAG, REPLICA_STATE_BYTES, replica_id, replica_epoch)
    return head + topics + _ONE + _ONE + state


def _name(topic: str | bytes, version: int) -> bytes:
    if version >= 13:
        if not isinstance(topic, bytes) or len(topic) != 16:
            raise ValueError(f"a topic id of 16 bytes is right, not {topic!r}")
        return topic
    if not isinstance(topic, str):
        raise ValueError(f"a topic name is right, not {topic!r}")
    name = topic.encode()
    if len(name) > 0x7FFF:
        raise ValueError(f"a topic name of {len(name)} bytes is too long")
    return unsigned(len(name) + 1) + name


def parse_one_fetched(buf: Buffer, pos: int, version: int) -> OneFetched | None:
    """Parse the body of an answer of version 12 to 18 without an error that has one partition or none.

    Returns None for any other body, which the reader of all answers parses or refuses: one with a throttle
    time, with aborted transactions or with tagged fields, too.
    """
    if not 12 <= version <= 18:
        return None
    try:
        return _parse(ElementReader(buf, pos, flexible=True), version)
    except ValueError:
        return None


def _parse(read: ElementReader, version: int) -> OneFetched | None:
    if read.number(4) or read.number(2):
        return None
    session_id = read.number(4)
    topics = read.length(4)
    topic: str | bytes | None = None
    index = high_watermark = log_start = -1
    start = size = 0
    if topics:
        topic = (read.take(16) if version >= 13 else read.string()) if topics == 1 else None
        if topic is None or read.length(4) != 1:
            return None
        index = read.number(4)
        if read.number(2):
            return None
        high_watermark, _, log_start = read.number(8), read.number(8), read.number(8)
        if read.length(4) > 0:
            return None
        read.number(4)
        size = max(0, read.length(4))
        if size:
            start = read.pos
            read.take(size)
        if read.number(1) or read.number(1):
            return None
    if read.number(1) or read.pos != read.end:
        return None
    return session_id, topic, index, high_watermark, log_start, start, start + size
