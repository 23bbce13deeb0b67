"""Readers and writers in slices do what the plain ones do, in pieces, and within bounds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

import pytest

from tests.protocol.golden import samples
from tidelog.protocol import ProtocolError
from tidelog.protocol.message import (
    decode,
    encode_parts,
    sliced_decoder_for,
    sliced_encoder_for,
)
from tidelog.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from tidelog.protocol.messages.metadata import MetadataRequest
from tidelog.protocol.reader import MAX_ELEMENTS
from tidelog.protocol.source import ELEMENTS_PER_SLICE
from tidelog.slices import ITEMS_PER_TURN, REST_SECONDS, Slices, TaskSlices, in_slices, in_turns, mapped

R = TypeVar("R")


def run(work: Slices[R]) -> tuple[R, int]:
    """The result, and how often the work let others go on."""
    pauses = 0
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value, pauses
        pauses += 1


def test_kafkas_messages_are_read_and_written_the_same_in_slices() -> None:
    for sample in samples():
        plain = decode(sample.cls, sample.version, sample.wire)
        sliced, _ = run(sliced_decoder_for(sample.cls, sample.version)(sample.wire, 0))
        assert sliced == plain, sample
        parts, _ = run(sliced_encoder_for(sample.cls, sample.version)(plain[0], b"head"))
        assert parts == encode_parts(plain[0], sample.version, b"head"), sample


@pytest.mark.parametrize("version", [1, 9])
def test_a_large_message_is_read_and_written_in_pieces(version: int) -> None:
    count = 10 * ELEMENTS_PER_SLICE
    message = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=f"t{n}") for n in range(count)]
    )
    (parts, pauses) = run(sliced_encoder_for(MetadataRequest, version)(message, b""))
    assert pauses == 10
    (data,) = parts
    assert isinstance(data, bytes)
    (found, end), pauses = run(sliced_decoder_for(MetadataRequest, version)(data, 0))
    assert (found.topics, end, pauses) == (message.topics, len(data), 10)


def test_the_elements_of_all_arrays_count_together() -> None:
    def request(topics: int, each: int) -> bytes:
        topic = DescribeLogDirsRequest.DescribableLogDirTopic(topic="t", partitions=list(range(each)))
        return DescribeLogDirsRequest(topics=[topic] * topics).encode(2)

    read = sliced_decoder_for(DescribeLogDirsRequest, 2)
    half = MAX_ELEMENTS // 2 - 1
    (message, _), _ = run(read(request(2, half), 0))
    assert message.topics is not None
    assert [len(topic.partitions) for topic in message.topics] == [half, half]
    for topics, each in ((2, half + 1), (1, MAX_ELEMENTS), (MAX_ELEMENTS + 1, 0)):
        with pytest.raises(ProtocolError, match=f"more than {MAX_ELEMENTS} elements"):
            run(read(request(topics, each), 0))


def test_unknown_tagged_fields_count_as_elements() -> None:
    message = MetadataRequest(topics=[])
    message.unknown_tags = {100 + n: b"" for n in range(MAX_ELEMENTS + 1)}
    with pytest.raises(ProtocolError, match=f"{MAX_ELEMENTS + 1} tagged fields"):
        run(sliced_decoder_for(MetadataRequest, 9)(message.encode(9), 0))


def test_a_coroutine_gives_the_loop_back_when_a_slice_is_over() -> None:
    async def main() -> tuple[int, int]:
        turns, is_done = 0, False

        async def others() -> None:
            nonlocal turns
            while not is_done:
                turns += 1
                await asyncio.sleep(0)

        ticking = asyncio.ensure_future(others())
        await asyncio.sleep(0)
        slices = TaskSlices(slice_ns=0)
        for _ in range(100):
            await slices.item()
        short, turns = turns, 0
        slices = TaskSlices(slice_ns=1 << 60)
        for _ in range(100):
            await slices.item()
        is_done = True
        await ticking
        return short, turns

    short, long = asyncio.run(main())
    assert short >= 100
    assert long <= 1


def test_a_change_of_many_partitions_leaves_the_core_to_others_between_its_slices() -> None:
    async def seconds(work: Awaitable[object]) -> float:
        began = time.monotonic()
        await work
        return time.monotonic() - began

    async def items(slices: TaskSlices) -> None:
        for _ in range(20):
            await slices.item()

    async def lists() -> None:
        async for _ in in_slices(range(20 * ITEMS_PER_TURN)):
            pass

    async def main() -> None:
        rests = 20 * REST_SECONDS
        assert await seconds(items(TaskSlices(slice_ns=0))) >= rests
        assert await seconds(lists()) >= rests
        assert await seconds(in_turns(mapped(abs, range(20 * ITEMS_PER_TURN)))) >= rests

    asyncio.run(main())


def test_the_slices_of_a_coroutine_end_by_count_on_a_loop_that_says_so() -> None:
    class Loop(asyncio.SelectorEventLoop):
        items_per_slice = 7

    async def main() -> list[int]:
        handled: list[int] = []
        now = 0

        def end_turn() -> None:
            nonlocal now
            handled.append(now)
            now = 0
            asyncio.get_running_loop().call_soon(end_turn)

        asyncio.get_running_loop().call_soon(end_turn)
        slices = TaskSlices(slice_ns=0)
        for _ in range(70):
            now += 1
            await slices.item()
        return handled

    with asyncio.Runner(loop_factory=Loop) as runner:
        assert set(runner.run(main())) == {0, 7}
