"""SharedPages: browsers that search the same records in the same way share a page, and the reading for it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable

from tidelog.console.records.browser import RecordPage

MOST_KEPT = 16
KEPT_SECONDS = 10.0
"""A page stays right as long as its logs begin and end where they did, but for compaction."""

MOST_BYTES = 1 << 20
"""The records of a page that is kept; a larger one is shared only while it is made."""


class SharedPages:
    """The last pages of searches, also those under way, of one cluster as one principal sees it."""

    def __init__(self) -> None:
        self._pages: OrderedDict[Hashable, tuple[float, asyncio.Task[RecordPage]]] = OrderedDict()

    async def get(self, key: Hashable, make: Callable[[], Awaitable[RecordPage]]) -> RecordPage:
        """The page with this key, which `make` reads if it is not known. Raises what `make` raises."""
        now = asyncio.get_running_loop().time()
        for known, (made_at, _) in list(self._pages.items()):
            if now - made_at >= KEPT_SECONDS:
                del self._pages[known]
        found = self._pages.get(key)
        if found is None:
            task = asyncio.create_task(self._make(key, make))
            task.add_done_callback(_take_error)
            self._pages[key] = now, task
            while len(self._pages) > MOST_KEPT:
                self._pages.popitem(last=False)
        else:
            task = found[1]
        # A browser that goes away does not end the search of the others.
        return await asyncio.shield(task)

    async def _make(self, key: Hashable, make: Callable[[], Awaitable[RecordPage]]) -> RecordPage:
        is_kept = False
        try:
            page = await make()
            is_kept = _size(page) <= MOST_BYTES
            return page
        finally:
            known = self._pages.get(key)
            if not is_kept and known is not None and known[1] is asyncio.current_task():
                del self._pages[key]

    async def close(self) -> None:
        """End the searches that are under way."""
        tasks = [task for _, task in self._pages.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _size(page: RecordPage) -> int:
    records = (shown.record for shown in page.records)
    return sum(max(record.key_size, 0) + max(record.value_size, 0) for record in records)


def _take_error(task: asyncio.Task[RecordPage]) -> None:
    """Take the error of a search whose browsers went away."""
    if not task.cancelled():
        task.exception()
