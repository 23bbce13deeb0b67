"""AwaitedFollowers: members of an ISR that have not fetched from this broker since it began to lead.

Nothing is committed before their first fetch. A fetch of theirs that waits for records does not name the
partition yet, because they learned of the new leader while it waited. Such a fetch is answered at once, and
the next ones wait for a short time only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from tidelog.clock import Clock
from tidelog.partitions import PartitionKey

WAIT_MS: Final = 20
"""How long a fetch of an awaited follower waits for records, at most."""

AWAITED_SECONDS: Final = 2.0
"""For how long followers are awaited after this broker began to lead. One that is away does not fetch."""


class AwaitedFollowers:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.partitions: dict[int, dict[PartitionKey, None]] = {}
        """By the broker id of the follower."""
        self._until = 0.0
        self.on_awaited: Callable[[Iterable[int]], None] | None = None
        """Called with the followers to expect a fetch of."""

    def expect(self, key: PartitionKey, followers: Iterable[int]) -> None:
        """This broker begins to lead a partition with these followers in the ISR."""
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
        """How long a fetch of the follower may wait."""
        if self.partitions and self._clock.monotonic() >= self._until:
            self.partitions.clear()
        return min(max_wait_ms, WAIT_MS) if follower in self.partitions else max_wait_ms
