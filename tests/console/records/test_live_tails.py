"""Browsers that follow the same records share a tail, and a slow one holds up nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tidelog.console.records.browser import TailEvent
from tidelog.console.records.decoder import NOTHING
from tidelog.console.records.live_tails import MOST_WAITING, LiveEvent, LiveTails
from tidelog.console.records.log_record import LogRecord, ShownRecord
from tidelog.errors import UnknownTopicOrPartition


def shown(offset: int) -> ShownRecord:
    return ShownRecord(LogRecord("t", 0, offset, 0, None, None), NOTHING, NOTHING, ())


class Source:
    """Tails whose events come when the test says so."""

    def __init__(self) -> None:
        self.queues: list[asyncio.Queue[TailEvent | Exception]] = []
        self.ended = 0

    def begin(self) -> AsyncIterator[TailEvent]:
        queue: asyncio.Queue[TailEvent | Exception] = asyncio.Queue()
        self.queues.append(queue)
        return self._events(queue)

    async def _events(self, queue: asyncio.Queue[TailEvent | Exception]) -> AsyncIterator[TailEvent]:
        try:
            while True:
                event = await queue.get()
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            self.ended += 1

    def send(self, offset: int) -> None:
        self.queues[-1].put_nowait(TailEvent([shown(offset)], 1, 0))


async def settled() -> None:
    """Let all tasks run until they wait."""
    for _ in range(10):
        await asyncio.sleep(0)


Pending = asyncio.Future[LiveEvent]


def following(events: AsyncIterator[LiveEvent]) -> Pending:
    return asyncio.ensure_future(anext(events))


async def begun(tails: LiveTails, source: Source, key: str, count: int) -> list[AsyncIterator[LiveEvent]]:
    """Followers that have seen a first event."""
    events = [tails.follow(key, source.begin) for _ in range(count)]
    first = [following(each) for each in events]
    await settled()
    source.send(0)
    await asyncio.gather(*first)
    return events


def test_followers_of_the_same_records_share_a_tail_and_its_rendering() -> None:
    async def main() -> None:
        tails, source = LiveTails(), Source()
        same = await begun(tails, source, "a", 3)
        other = tails.follow("b", source.begin)
        waiting = following(other)
        await settled()
        assert (len(source.queues), tails.count) == (2, 2)
        source.queues[0].put_nowait(TailEvent([shown(7)], 1, 0))
        seen = [await anext(events) for events in same]
        rendered: list[int] = []

        def render(records: list[ShownRecord]) -> bytes:
            rendered.append(records[0].record.offset)
            return b"row"

        assert [event.rendered(render) for event in seen] == [b"row"] * 3
        assert rendered == [7]
        assert not waiting.done()
        waiting.cancel()
        await tails.close()

    asyncio.run(main())


def test_the_last_follower_ends_the_tail() -> None:
    async def main() -> None:
        tails, source = LiveTails(), Source()
        first, second = [following(events) for events in await begun(tails, source, "a", 2)]
        first.cancel()
        await settled()
        assert (source.ended, tails.count) == (0, 1)
        second.cancel()
        await settled()
        assert (source.ended, tails.count) == (1, 0)
        await begun(tails, source, "a", 1)
        assert len(source.queues) == 2

    asyncio.run(main())


def test_a_slow_follower_misses_events_and_is_told_how_many_records() -> None:
    async def main() -> None:
        tails, source = LiveTails(), Source()
        slow, fast = await begun(tails, source, "a", 2)
        total = MOST_WAITING + 3
        for number in range(1, total + 1):
            source.send(number)
            assert (await anext(fast)).found.records[0].record.offset == number
        found = [(await anext(slow)).found for _ in range(MOST_WAITING)]
        assert [event.records[0].record.offset for event in found] == list(range(4, total + 1))
        assert [event.skipped for event in found] == [3] + [0] * (MOST_WAITING - 1)
        assert sum(event.read for event in found) == total
        await tails.close()

    asyncio.run(main())


def test_an_error_reaches_all_followers_and_a_close_ends_them() -> None:
    async def main() -> None:
        tails, source = LiveTails(), Source()
        waiting = [following(events) for events in await begun(tails, source, "a", 2)]
        source.queues[-1].put_nowait(UnknownTopicOrPartition("gone"))
        for each in waiting:
            with pytest.raises(UnknownTopicOrPartition):
                await each
        assert tails.count == 0
        [again] = await begun(tails, source, "a", 1)
        await tails.close()
        with pytest.raises(StopAsyncIteration):
            await anext(again)

    asyncio.run(main())
