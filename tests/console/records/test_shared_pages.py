"""Searches of the same records share a page; what was not found, or is old or large, is read again."""

from __future__ import annotations

import asyncio

import pytest

from tidelog.console.records import shared_pages
from tidelog.console.records.browser import RecordPage
from tidelog.console.records.decoder import NOTHING
from tidelog.console.records.log_record import LogRecord, ShownRecord
from tidelog.console.records.shared_pages import MOST_BYTES, MOST_KEPT, SharedPages
from tidelog.errors import UnknownTopicOrPartition


def page(size: int = 1) -> RecordPage:
    shown = ShownRecord(LogRecord("t", 0, 0, 0, None, b"x" * size), NOTHING, NOTHING, ())
    return RecordPage([shown], None, None, None, 1, size, True, {}, {}, {})


class Maker:
    """Makes pages, and waits before if the test says so."""

    def __init__(self, size: int = 1) -> None:
        self.made = 0
        self.size = size
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def __call__(self) -> RecordPage:
        self.made += 1
        await self.go_on.wait()
        return page(self.size)


def test_a_search_under_way_is_shared_and_survives_a_browser_that_leaves() -> None:
    async def main() -> None:
        pages, maker = SharedPages(), Maker()
        maker.go_on.clear()
        first, second = (asyncio.create_task(pages.get("a", maker)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        maker.go_on.set()
        assert (await second) is (await pages.get("a", maker))
        assert maker.made == 1
        await pages.get("b", maker)
        assert maker.made == 2

    asyncio.run(main())


def test_old_large_failed_and_too_many_pages_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        pages, small, large = SharedPages(), Maker(), Maker(MOST_BYTES + 1)
        for _ in range(2):
            await pages.get("large", large)
        assert large.made == 2

        async def failing() -> RecordPage:
            raise UnknownTopicOrPartition("gone")

        with pytest.raises(UnknownTopicOrPartition):
            await pages.get("a", failing)
        for number in range(MOST_KEPT + 1):
            await pages.get(number, small)
        await pages.get(MOST_KEPT, small)
        assert small.made == MOST_KEPT + 1
        await pages.get(0, small)
        assert small.made == MOST_KEPT + 2
        monkeypatch.setattr(shared_pages, "KEPT_SECONDS", 0.0)
        await pages.get(0, small)
        assert small.made == MOST_KEPT + 3
        await pages.close()

    asyncio.run(main())
