"""Which topics a client requests metadata for, and when. It takes times and has no connection.

A new topic is requested at once, with other topics that are new by then; the rest of the view stays. Topics
that a broker could not describe follow after a growing pause. All topics are requested on demand, and at
least every metadata.max.age.ms.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidelog.clients.backoff import Backoff


@dataclass(slots=True, frozen=True)
class MetadataUpdate:
    """One Metadata request. `topics` are its topics, None for all topics of the client."""

    number: int
    topics: frozenset[str] | None
    only_new: bool


class MetadataUpdates:
    """`take` returns the next update at `due`; `succeeded` or `failed` ends it. Times are in seconds."""

    def __init__(self, backoff: Backoff, max_age: float) -> None:
        self.full_update = 0
        """The number of the last successful update of all topics."""
        self._backoff = backoff
        self._max_age = max_age
        self._number = 0
        self._new: set[str] = set()
        self._again: set[str] = set()
        """The topics to request after the pause."""
        self._full = False
        self._hurry = False
        self._failures = 0
        self._pause_ends = 0.0
        self._last_full = 0.0

    def start(self, now: float) -> None:
        self._last_full = now

    @property
    def number(self) -> int:
        """The number of the last started update."""
        return self._number

    def add(self, topic: str) -> None:
        """Request an unknown topic at once."""
        self._new.add(topic)
        self._hurry = True

    def ask_again(self, topics: Iterable[str]) -> None:
        """Request topics again after the pause, because their metadata is incomplete."""
        self._again |= set(topics) - self._new

    def ask_all(self, *, hurry: bool = False) -> None:
        """Request all topics, after the pause or at once."""
        self._full = True
        self._hurry = self._hurry or hurry

    def due(self) -> float:
        """The time at which the next update may start."""
        if self._hurry:
            return 0.0
        if self._full or self._new or self._again:
            return self._pause_ends
        return self._last_full + self._max_age

    def take(self, now: float, *, everything: bool) -> MetadataUpdate:
        """The update that is due. Pass `everything` if the client does not request topics by name."""
        paused = now < self._pause_ends
        full = everything or self._full or (not self._new and not self._again)
        topics = frozenset(self._new if paused else self._new | self._again)
        only_new = not full and topics == self._new
        self._hurry = False
        self._new.clear()
        if full:
            self._full = False
            self._again.clear()
        else:
            self._again -= topics
        self._number += 1
        return MetadataUpdate(self._number, None if full else topics, only_new)

    def succeeded(self, update: MetadataUpdate, unresolved: Iterable[str], now: float) -> None:
        """The update was answered. `unresolved` has the topics that the broker could not describe yet."""
        if update.topics is None:
            self.full_update = update.number
            self._last_full = now
        else:
            self._again -= update.topics
        unresolved = set(unresolved) - self._new  # new topics are requested anyway
        self._again |= unresolved
        if not update.only_new:
            self._failures = self._failures + 1 if unresolved else 0
            self._pause(now)
        elif now >= self._pause_ends:
            # A later topic does not extend the pause of the topics that wait already.
            self._pause(now)

    def failed(self, update: MetadataUpdate, now: float) -> None:
        """The update was not answered: the same topics are requested again."""
        if update.topics is None:
            self._full = True
        else:
            self._again |= update.topics
        self._failures += 1
        self._pause(now)

    def _pause(self, now: float) -> None:
        self._pause_ends = now + self._backoff.delay(max(0, self._failures - 1))
