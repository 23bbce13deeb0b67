"""FetcherBackoff: how long a replica fetcher waits after a failed fetch."""

from __future__ import annotations

from typing import Final

from tidelog.cluster.leader_endpoint import LeaderEndPoint

MAX_DOUBLINGS: Final = 20
FIRST_RETRY_SECONDS: Final = 0.01
"""The first wait. Each wait is twice the last, up to the back-off."""
UNKNOWN_LEADER_SECONDS: Final = 0.1
"""How long a fetcher waits for the address of its leader, at most."""


class FetcherBackoff:
    """`failures` counts the failed fetches since the last answer."""

    __slots__ = ("_leader", "_longest", "failures")

    def __init__(self, leader: LeaderEndPoint, backoff_ms: int) -> None:
        self.failures = 0
        self._leader = leader
        self._longest = backoff_ms / 1000

    @property
    def seconds(self) -> float:
        """The wait before the next connection. After a lost connection there is none: the next attempt shows
        whether the leader is alive.
        """
        if not self.failures:
            return 0.0
        doubled = FIRST_RETRY_SECONDS * 2 ** min(self.failures - 1, MAX_DOUBLINGS)
        return float(min(self.longest, doubled))

    @property
    def longest(self) -> float:
        """The longest wait. It is shorter for a leader that is not among the live brokers yet."""
        return self._longest if self._leader.is_known else min(self._longest, UNKNOWN_LEADER_SECONDS)

    @property
    def is_news(self) -> bool:
        """Whether a failure is worth a warning: the first one, and each one while the leader stays away."""
        return not self.failures or self.seconds >= self.longest
