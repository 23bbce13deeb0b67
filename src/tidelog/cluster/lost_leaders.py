"""LostLeaders: leaders that replica fetchers lost their connection to, or that refuse connections.

The process of such a broker is probably gone, and another leader will be elected in a moment. Metadata says
meanwhile that there is no leader, so that clients ask again soon. Otherwise they would take the old leader
for the newest one: librdkafka asks again after a second then. A leader that lives is connected again within
milliseconds. One that cannot be reached is shown again after a while: clients may have another way to it.
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
        """A connection to the leader ended, or nobody listens at its address."""
        self._since.setdefault(leader_id, self._clock.monotonic())

    def reached(self, leader_id: int) -> None:
        """The leader takes connections."""
        self._since.pop(leader_id, None)

    def hidden(self) -> Set[int]:
        """The brokers that are no leaders for clients now."""
        if not self._since:
            return _NONE
        now = self._clock.monotonic()
        return {leader for leader, since in self._since.items() if now - since < HIDDEN_SECONDS}
