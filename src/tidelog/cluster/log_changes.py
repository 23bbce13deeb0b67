"""LogChanges: truncates and syncs the logs of followed partitions, each in a turn of its append queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice

from tidelog.clock import Scheduler
from tidelog.cluster.follower_append import FollowerFlush, FollowerTruncation, LogChange
from tidelog.cluster.partition_fetch_state import PartitionFetchState

SETTLING_AT_ONCE = 4
"""Logs that are truncated or synced side by side: the threads for the disk have other work, too."""

OnChanged = Callable[[PartitionFetchState, int, bool, BaseException | None], None]
"""Called with the log end offset, whether the log was synced, and the error of the change."""


class UnfinishedWork:
    """Counts the appends, truncations and syncs that are under way."""

    __slots__ = ("_on_finished", "count")

    def __init__(self) -> None:
        self.count = 0
        self._on_finished: asyncio.Event | None = None

    def end(self) -> None:
        self.count -= 1
        if not self.count and self._on_finished is not None:
            self._on_finished.set()

    async def wait(self) -> None:
        """Wait until all work has ended."""
        while self.count:
            self._on_finished = asyncio.Event()
            await self._on_finished.wait()


class LogChanges:
    """`waiting` has the partitions whose logs are truncated or synced before their first fetch."""

    def __init__(
        self,
        scheduler: Scheduler,
        work: UnfinishedWork,
        is_current: Callable[[PartitionFetchState], bool],
        on_changed: OnChanged,
    ) -> None:
        """`is_current` says whether a partition is still fetched with this state."""
        self.waiting: dict[PartitionFetchState, None] = {}
        self._scheduler = scheduler
        self._work = work
        self._is_current = is_current
        self._on_changed = on_changed

    async def change_waiting_logs(self) -> None:
        """Truncate the waiting logs whose leader epochs cannot show a divergence, and sync the others."""
        while self.waiting:
            states = list(islice(self.waiting, SETTLING_AT_ONCE))
            for state in states:
                del self.waiting[state]
            await self._change_all(state for state in states if state.is_truncating)
            await self._change_all(
                state
                for state in states
                if not state.is_truncating and state.is_flushing and self._is_current(state)
            )

    async def _change_all(self, states: Iterable[PartitionFetchState]) -> None:
        """Truncate, or else sync, these logs side by side."""
        changes = [
            self._begin(
                state,
                partial(FollowerTruncation, offset=state.fetch_offset)
                if state.is_truncating
                else FollowerFlush,
            )
            for state in states
        ]
        for end_of_change in changes:
            await end_of_change

    async def truncate(self, state: PartitionFetchState, offset: int, *, fully: bool = False) -> None:
        """Truncate a log to `offset`, or drop all its records and begin at `offset` (`fully`)."""
        await self._begin(state, partial(FollowerTruncation, offset=offset, fully=fully))

    def _begin(
        self, state: PartitionFetchState, change_type: Callable[..., LogChange]
    ) -> asyncio.Future[None]:
        """Change a log when the turn of the partition comes. The future is done at the end of the change."""
        end_of_change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._work.count += 1

        def done(end: int, error: BaseException | None) -> None:
            self._work.end()
            if not end_of_change.done():  # the fetcher may be closed meanwhile
                end_of_change.set_result(None)
            if self._is_current(state):
                self._on_changed(state, end, change_type is FollowerFlush, error)

        state.partition.appends.put(change_type(state.partition, state.leader_epoch, self._scheduler, done))
        return end_of_change
