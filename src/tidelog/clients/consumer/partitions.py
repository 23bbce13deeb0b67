"""The partitions that a consumer reads: where it stands in each, and what it is subscribed to.

Positions are moved by the thread that polls; everything else happens on the loop. What was fetched before a
position was set anew carries an older `turn` and is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from operator import index
from typing import TYPE_CHECKING, NamedTuple, SupportsIndex

from tidelog.partitions import PartitionKey, TopicPartition

if TYPE_CHECKING:
    from tidelog.clients.consumer.fetcher import Fetched

NO_EPOCH = -1


class OffsetAndTime(NamedTuple):
    """An offset that was looked up by time, and the time of its record."""

    offset: int
    timestamp: int
    leader_epoch: int


def name_of(partition: PartitionKey) -> TopicPartition:
    match partition:
        case (str(topic), SupportsIndex() as number):
            return TopicPartition(topic, index(number))
    raise TypeError(f"expected a partition as (topic, number), not {partition!r}")


def named(partitions: Iterable[PartitionKey]) -> list[TopicPartition]:
    return [name_of(partition) for partition in partitions]


class PartitionState:
    """Where a consumer stands in a partition."""

    __slots__ = (
        "drained", "fetch_offset", "fetched", "high_watermark", "in_flight", "last_stable_offset",
        "leader_epoch", "log_start_offset", "name", "parked", "paused", "position", "position_epoch",
        "replica", "replica_until", "reset_to", "retry_at", "revoking", "turn", "unparked",
        "validating",
    )  # fmt: skip

    def __init__(self, name: TopicPartition) -> None:
        self.name = name
        self.position: int | None = None
        """The offset of the next record to hand out; None until it is known."""
        self.position_epoch = NO_EPOCH
        """The leader epoch of the record before the position."""
        self.leader_epoch = NO_EPOCH
        """The epoch of the leader whose log the position was checked against."""
        self.fetch_offset = -1
        self.fetched = 0  # counted by the loop
        self.drained = 0  # counted by whoever polls, so that neither disturbs the other
        self.in_flight = False
        self.turn = 0
        self.paused = False
        self.parked: list[Fetched] = []
        self.unparked = False
        """Whether parked pieces are waiting again, perhaps behind later ones."""
        self.revoking = False
        self.validating = False
        self.reset_to: int | None = None
        """The timestamp, or Kafka's number for a start or end, that the position is to be set to."""
        self.retry_at = 0.0
        self.replica: int | None = None
        self.replica_until = 0.0
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1

    @property
    def queued(self) -> int:
        """Fetched pieces that wait to be handed out."""
        return self.fetched - self.drained

    @property
    def at_rest(self) -> bool:
        """Whether nothing of it is handed out for now."""
        return self.paused or self.validating or self.revoking

    def seek(self, offset: int, epoch: int = NO_EPOCH) -> None:
        """Go on from an offset, and drop what was fetched."""
        self.forget()
        self.position_epoch = epoch
        self.leader_epoch = NO_EPOCH
        self.fetch_offset = offset
        self.position = offset

    def seek_time(self, timestamp: int) -> None:
        """Go on from the offset of a time, which has to be looked up."""
        self.forget()
        self.position_epoch = NO_EPOCH
        self.reset_to = timestamp

    def forget(self) -> None:
        """Drop the position and what was fetched."""
        self.turn += 1
        self.parked.clear()
        self.position = None
        self.reset_to = None
        self.validating = False
        self.retry_at = 0.0
        self.replica = None
        self.drained = self.fetched

    def __repr__(self) -> str:
        return f"{self.name} at {self.position}"


class Subscription:
    """What a consumer wants (topics, a pattern, partitions by hand) and the partitions that it has."""

    def __init__(self) -> None:
        self.topics: frozenset[str] = frozenset()
        self.pattern: re.Pattern[str] | None = None
        """Matched here against the names of all topics."""
        self.server_pattern: str | None = None
        """Matched by the broker."""
        self.by_hand = False
        self.states: dict[TopicPartition, PartitionState] = {}
        self.wanted: frozenset[str] = frozenset()
        """The topics that match: `topics` themselves, or those that the pattern finds."""

    @property
    def is_subscribed(self) -> bool:
        return bool(self.topics) or self.pattern is not None or self.server_pattern is not None

    def subscribe(
        self, topics: Iterable[str], pattern: re.Pattern[str] | None = None, server_pattern: str | None = None
    ) -> None:
        self.by_hand = False
        self.topics = self.wanted = frozenset(topics)
        self.pattern = pattern
        self.server_pattern = server_pattern

    def clear(self) -> None:
        self.subscribe(())
        self.assign(())

    def assign(self, partitions: Iterable[PartitionKey]) -> None:
        """Have these partitions and no others; what is kept keeps its position."""
        wanted = set(named(partitions))
        for name in list(self.states):
            if name not in wanted:
                self.states.pop(name).forget()
        for name in sorted(wanted):
            if name not in self.states:
                self.states[name] = PartitionState(name)

    def matches(self, names: Iterable[tuple[str, bool]], exclude_internal: bool) -> frozenset[str]:
        """The topics that the pattern finds among names and whether each is internal."""
        if self.pattern is None:
            return self.topics
        return frozenset(
            name
            for name, internal in names
            if not (internal and exclude_internal) and self.pattern.match(name) is not None
        )

    def wants(self, topic: str) -> bool:
        """Whether a topic is subscribed to."""
        if self.pattern is not None:
            return self.pattern.match(topic) is not None
        return self.server_pattern is not None or topic in self.topics

    def positions(self) -> Mapping[TopicPartition, tuple[int, int]]:
        """Offset and leader epoch of every partition that has a position."""
        return {
            name: (state.position, state.position_epoch)
            for name, state in self.states.items()
            if state.position is not None
        }
