"""Fetch answers written straight from what was read are those that the declared message has."""

from __future__ import annotations

import asyncio
from itertools import groupby
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.cluster.fetch_session import FetchedPartition, FetchPartition
from tidelog.errors import OffsetOutOfRange, UnknownTopicOrPartition
from tidelog.network.output import COPIED_BYTES
from tidelog.network.request import part_size
from tidelog.protocol.message import encode_parts
from tidelog.protocol.messages.fetch import FetchResponse
from tidelog.server.apis.fetch_answer import writer_for
from tidelog.slices import finished
from tidelog.storage.disk import DiskFile
from tidelog.storage.file_slice import FileSlice

VERSIONS = range(4, 19)
NO_FILE = cast("DiskFile", None)
OFFSETS = st.integers(-1, 2**63 - 1)


@st.composite
def answers(draw: st.DrawFn) -> FetchedPartition:
    """What a read can give; topics are few, so that some follow themselves and some come again."""
    topic = draw(st.sampled_from(["a", "b", "ü" * 100]))
    answer = FetchedPartition(FetchPartition(topic, draw(st.integers(0, 2**31 - 1)), 0, 0))
    error = draw(st.sampled_from([None, None, None, OffsetOutOfRange(), UnknownTopicOrPartition()]))
    if error is not None:
        answer.error = error
        answer.aborted = [] if answer.is_unknown else None
        return answer
    answer.high_watermark, answer.last_stable_offset = draw(OFFSETS), draw(OFFSETS)
    answer.log_start_offset = draw(OFFSETS)
    answer.aborted = draw(st.none() | st.lists(st.tuples(OFFSETS, OFFSETS), max_size=200))
    size = draw(st.sampled_from([0, 1, 126, 127, 128, 16_382, 16_383, 1 << 20, 2**31 - 2]))
    if size:
        answer.records = FileSlice(NO_FILE, 0, size)
    elif draw(st.booleans()):
        answer.diverging = draw(st.tuples(st.integers(0, 2**31 - 1), OFFSETS))
    return answer


def declared(error: int, session_id: int, found: list[FetchedPartition], version: int) -> FetchResponse:
    responses = []
    for topic, run in groupby(found, key=lambda answer: answer.wanted.topic):
        entry = FetchResponse.FetchableTopicResponse(partitions=[_declared(one, version) for one in run])
        if version >= 13:
            entry.topic_id = _id_of(topic)
        else:
            entry.topic = str(topic)
        responses.append(entry)
    return FetchResponse(error_code=error, session_id=session_id, responses=responses)


def _declared(answer: FetchedPartition, version: int) -> FetchResponse.PartitionData:
    data = FetchResponse.PartitionData(
        partition_index=answer.wanted.partition,
        error_code=0 if answer.error is None else answer.error.code,
        high_watermark=answer.high_watermark,
        last_stable_offset=answer.last_stable_offset,
        log_start_offset=answer.log_start_offset,
        records=b"" if answer.records is None else answer.records,
        aborted_transactions=None
        if answer.aborted is None
        else [FetchResponse.AbortedTransaction(producer_id=p, first_offset=o) for p, o in answer.aborted],
    )
    if answer.diverging is not None and version >= 12:
        epoch, end_offset = answer.diverging
        data.diverging_epoch = FetchResponse.EpochEndOffset(epoch=epoch, end_offset=end_offset)
    return data


def _id_of(topic: str | bytes) -> bytes:
    return str(topic).encode()[:16].ljust(16, b"\0")


@given(st.lists(answers(), max_size=6), st.integers(0, 2**31 - 1), st.sampled_from(VERSIONS))
def test_an_answer_has_the_bytes_of_the_declared_message(
    found: list[FetchedPartition], session_id: int, version: int
) -> None:
    expected = declared(0, session_id if version >= 7 else 0, found, version)
    if version >= 13:
        for answer in found:
            answer.wanted.topic = _id_of(answer.wanted.topic)
    written = writer_for(version).write(b"header", 0, session_id, found)
    assert written == encode_parts(expected, version, b"header")
    assert writer_for(version).size(found) == sum(map(part_size, written)) - len(b"header")
    in_slices = writer_for(version).write_in_slices(b"header", 0, session_id, found * 100)
    assert asyncio.run(finished(in_slices)) == writer_for(version).write(
        b"header", 0, session_id, found * 100
    )


class Cached:
    """A file whose records the page cache has, in part, or not at all."""

    def __init__(self, data: bytes | None) -> None:
        self._data = data

    def pread_cached(self, size: int, position: int) -> bytes | None:
        return self._data

    def pread(self, size: int, position: int) -> bytes:
        assert self._data is not None
        return self._data


@given(
    answers(), st.integers(0, 2**31 - 1), st.sampled_from(VERSIONS), st.sampled_from([1, 127, COPIED_BYTES])
)
def test_an_answer_in_one_piece_has_the_same_bytes(
    answer: FetchedPartition, session_id: int, version: int, size: int
) -> None:
    if version >= 13:
        answer.wanted.topic = _id_of(answer.wanted.topic)
    is_plain = answer.error is None and answer.diverging is None
    writer = writer_for(version)
    for data, expected in ((bytes(size), size), (bytes(size - 1), size), (None, size)):
        answer.records = FileSlice(cast("DiskFile", Cached(data)), 0, expected)
        frame = writer.frame_of_one(b"header", 0, session_id, answer)
        if not is_plain or data is None or len(data) != expected:
            assert frame is None
            continue
        parts = writer.write(b"header", 0, session_id, [answer])
        whole = b"".join(
            part.read() if isinstance(part, FileSlice) else cast("bytes", part) for part in parts
        )
        assert frame == len(whole).to_bytes(4, "big") + whole
    answer.records = FileSlice(NO_FILE, 0, COPIED_BYTES + 1)
    assert writer.frame_of_one(b"", 0, session_id, answer) is None
    answer.records = None
    assert writer.frame_of_one(b"", 0, session_id, answer) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_an_error_of_the_session_stands_alone(version: int) -> None:
    expected = FetchResponse(error_code=71 if version >= 7 else 0, session_id=9 if version >= 7 else 0)
    written = writer_for(version).write(b"", 71, 9, [])
    assert written == encode_parts(expected, version)
    assert writer_for(version).size([]) == sum(map(part_size, written))
