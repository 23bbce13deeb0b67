"""LostLeaders: leaders that refuse connections, or whose connection to a replica fetcher was lost.

The process of such a broker has probably ended, and the controller elects another leader in a moment. Until
then, Metadata answers have no leader for its partitions, so that clients ask again soon. With the old leader
in the answer, librdkafka would ask again only after a second. A leader that is alive is connected again
within milliseconds. An unreachable leader is shown again after a while: clients may reach it in another way.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from tidelog.clock import Clock

HIDDEN_SECONDS: Final = 2.0

_NONE: Final[frozenset[int]] = frozenset()


class LostLeaders:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[int, float] = {}

    def lost(self, leader_id: int) -> None:
        """Hide the leader: its connection ended, or nobody listens at its address."""
        self._since.setdefault(leader_id, self._clock.monotonic())

    def reached(self, leader_id: int) -> None:
        """Show the leader again: it accepts connections."""
        self._since.pop(leader_id, None)

    def hidden(self) -> Set[int]:
        """The brokers that Metadata answers do not show as leaders now."""
        if not self._since:
            return _NONE
        now = self._clock.monotonic()
        return {leader for leader, since in self._since.items() if now - since < HIDDEN_SECONDS}
