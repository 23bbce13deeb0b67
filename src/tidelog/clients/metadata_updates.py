"""Which topics a client asks metadata for next, and when: values and a clock, no connection.

A new topic is asked for at once, alone or together with others that came meanwhile, and what is known of the
rest stays. Topics that a broker had no answer for follow after a pause that grows. Everything is asked for
where somebody wants that, and at least every metadata.max.age.ms.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidelog.clients.backoff import Backoff


@dataclass(slots=True, frozen=True)
class MetadataUpdate:
    """One Metadata request: `topics` are its topics, None for all that the client keeps."""

    number: int
    topics: frozenset[str] | None
    only_new: bool


class MetadataUpdates:
    """`take` gives the next update once `due` has come; `succeeded` or `failed` ends it. Times in seconds."""

    def __init__(self, backoff: Backoff, max_age: float) -> None:
        self.full_update = 0
        """The number of the last update of everything that succeeded."""
        self._backoff = backoff
        self._max_age = max_age
        self._number = 0
        self._new: set[str] = set()
        self._again: set[str] = set()
        """Topics that are asked for after the pause."""
        self._full = False
        self._hurry = False
        self._failures = 0
        self._pause_ends = 0.0
        self._last_full = 0.0

    def start(self, now: float) -> None:
        self._last_full = now

    @property
    def number(self) -> int:
        """The number of the last update that was begun."""
        return self._number

    def add(self, topic: str) -> None:
        """Ask for a topic that nothing is known of, at once."""
        self._new.add(topic)
        self._hurry = True

    def ask_again(self, topics: Iterable[str]) -> None:
        """Ask for topics once more after the pause, because something of them is missing."""
        self._again |= set(topics) - self._new

    def ask_all(self, *, hurry: bool = False) -> None:
        """Ask for everything, after the pause or at once."""
        self._full = True
        self._hurry = self._hurry or hurry

    def due(self) -> float:
        """When the next update may begin."""
        if self._hurry:
            return 0.0
        if self._full or self._new or self._again:
            return self._pause_ends
        return self._last_full + self._max_age

    def take(self, now: float, *, everything: bool) -> MetadataUpdate:
        """The update that is due; `everything` where this client asks for no topics by name."""
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
        """An answer is here; `unresolved` are topics in it that the broker could say nothing of yet."""
        if update.topics is None:
            self.full_update = update.number
            self._last_full = now
        else:
            self._again -= update.topics
        unresolved = set(unresolved) - self._new  # those came while the answer was on its way
        self._again |= unresolved
        if not update.only_new:
            self._failures = self._failures + 1 if unresolved else 0
            self._pause(now)
        elif now >= self._pause_ends:
            # Later topics do not put off the topics that wait for the end of a pause.
            self._pause(now)

    def failed(self, update: MetadataUpdate, now: float) -> None:
        """There was no answer: the same is asked again."""
        if update.topics is None:
            self._full = True
        else:
            self._again |= update.topics
        self._failures += 1
        self._pause(now)

    def _pause(self, now: float) -> None:
        self._pause_ends = now + self._backoff.delay(max(0, self._failures - 1))
