"""FollowerFetches: the fetches of followers that wait for records.

Each session has one waiting fetch at most, and most waits end with the next append. So these fetches are not
in the purgatory: a wait costs one dict entry, and one timer serves all waits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from tidelog.clock import Scheduler, TimerHandle
from tidelog.cluster.awaited_followers import AwaitedFollowers
from tidelog.cluster.expirations import EARLY_SECONDS
from tidelog.cluster.purgatory import DelayedOperation

if TYPE_CHECKING:
    from tidelog.cluster.fetch_session import FetchedPartition, FetchSession

Waiting = tuple[DelayedOperation, int, float]
"""A fetch, the broker id of the follower, and when the wait is over."""


class FollowerFetches:
    def __init__(self, scheduler: Scheduler, awaited_followers: AwaitedFollowers) -> None:
        self._scheduler = scheduler
        self._clock = scheduler.clock
        self._awaited_followers = awaited_followers
        awaited_followers.on_awaited = self._answer_in_turn
        self.waiting: dict[FetchSession, Waiting] = {}
        """The waiting fetch of each session. A fetch removes itself when it completes."""
        self._woken: dict[FetchSession, None] = {}  # to check in this turn
        self._awaited: dict[int, None] = {}  # followers whose fetches are to be answered in this turn
        self._timer: TimerHandle | None = None
        self._timer_at = math.inf
        self._closed = False
        self.tail: FetchedPartition | None = None
        """The last read of `answer_woken`, shared by the followers that one append has woken."""

    def __len__(self) -> int:
        """How many fetches wait."""
        return len(self.waiting)

    def add(self, session: FetchSession, fetch: DelayedOperation, follower: int, wait_ms: int) -> bool:
        """Let a fetch wait until a partition of its session changes.

        After a shutdown, complete it at once.
        """
        if self._closed:
            return fetch.force_complete()
        if self._awaited_followers.partitions:
            wait_ms = self._awaited_followers.wait_ms(follower, wait_ms)
        # This fetch has just set `last_used`: no need to read the clock.
        now = session.last_used if session.session_id else self._clock.monotonic()
        deadline = now + wait_ms / 1000
        self.waiting[session] = (fetch, follower, deadline)
        session.wake = partial(self.wake, session)
        if deadline < self._timer_at:
            self._set_timer(deadline)
        return False

    def complete(self, session: FetchSession) -> None:
        """Answer the waiting fetch of a session, if there is one, with the records that there are."""
        waiting = self.waiting.get(session)
        if waiting is not None:
            waiting[0].complete()

    def shutdown(self) -> None:
        """Answer every waiting fetch. Later fetches are answered at once."""
        self._closed = True
        for session in list(self.waiting):
            self.complete(session)
        if self._timer is not None:
            self._timer.cancel()

    # -- records

    def wake(self, session: FetchSession) -> None:
        """Check the waiting fetch of a session at the end of this turn of the loop, once for all its
        partitions.
        """
        if not self._woken:
            self._scheduler.call_soon_in_turn(self.answer_woken)
        self._woken[session] = None

    def answer_woken(self) -> None:
        """Check the woken fetches now instead of at the end of the turn."""
        woken, self._woken = self._woken, {}
        for session in woken:
            waiting = self.waiting.get(session)
            if waiting is not None:
                waiting[0].check()
        self.tail = None

    # -- a new leadership

    def _answer_in_turn(self, followers: Iterable[int]) -> None:
        """Answer the waiting fetches of these followers at the end of this turn of the loop."""
        if not self._awaited:
            self._scheduler.call_soon_in_turn(self._answer_awaited)
        self._awaited.update(dict.fromkeys(followers))

    def _answer_awaited(self) -> None:
        awaited, self._awaited = self._awaited, {}
        self._complete_if(lambda waiting: waiting[1] in awaited)

    def _complete_if(self, is_over: Callable[[Waiting], bool]) -> None:
        for session in [session for session, waiting in self.waiting.items() if is_over(waiting)]:
            self.complete(session)

    # -- the end of the time

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._scheduler.schedule(at - self._clock.monotonic(), self._due)

    def _due(self) -> None:
        """Complete the fetches whose wait is over, and set the timer for the next one."""
        end = self._clock.monotonic() + EARLY_SECONDS
        self._timer, self._timer_at = None, math.inf
        first = min((at for _, _, at in self.waiting.values() if at > end), default=math.inf)
        if first != math.inf:
            self._set_timer(first)
        self._complete_if(lambda waiting: waiting[2] <= end)
