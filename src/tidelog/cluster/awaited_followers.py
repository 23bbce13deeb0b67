"""AwaitedFollowers: members of an ISR that have not fetched from this broker since it began to lead.

Nothing is committed before the first fetch of each member. A member learns of the new leader while one of its
fetches waits here for records of other partitions; only its next fetch names the new partition. So the
waiting fetch is answered at once, and the next fetches wait for a short time only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from tidelog.clock import Clock
from tidelog.partitions import PartitionKey

WAIT_MS: Final = 20
"""The longest wait of an awaited follower's fetch for records."""

AWAITED_SECONDS: Final = 2.0
"""The time after which missing followers are not awaited any more: a follower that is down does not fetch."""


class AwaitedFollowers:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.partitions: dict[int, dict[PartitionKey, None]] = {}
        """The partitions that each follower has still to fetch, by its broker id."""
        self._until = 0.0
        self.on_awaited: Callable[[Iterable[int]], None] | None = None
        """Called with the followers whose fetches are expected."""

    def expect(self, key: PartitionKey, followers: Iterable[int]) -> None:
        """Await the first fetch of each follower in the ISR: this broker begins to lead the partition."""
        expected = list(followers)
        if not expected:
            return
        self._until = self._clock.monotonic() + AWAITED_SECONDS
        for follower in expected:
            self.partitions.setdefault(follower, {})[key] = None
        if self.on_awaited is not None:
            self.on_awaited(expected)

    def fetched(self, key: PartitionKey, follower: int) -> None:
        expected = self.partitions.get(follower)
        if expected is not None:
            expected.pop(key, None)
            if not expected:
                del self.partitions[follower]

    def wait_ms(self, follower: int, max_wait_ms: int) -> int:
        """The longest wait of a fetch, at most `max_wait_ms`: shorter while the follower is awaited."""
        if self.partitions and self._clock.monotonic() >= self._until:
            self.partitions.clear()
        return min(max_wait_ms, WAIT_MS) if follower in self.partitions else max_wait_ms
