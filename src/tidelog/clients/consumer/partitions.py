"""The subscription of a consumer, and the state of each assigned partition.

The polling thread moves positions; the loop does everything else. A seek raises the `turn` of a partition:
fetches of an earlier turn are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from operator import index
from typing import TYPE_CHECKING, SupportsIndex

from tidelog.clients.offsets import NO_EPOCH
from tidelog.partitions import PartitionKey, TopicPartition

if TYPE_CHECKING:
    from tidelog.clients.consumer.fetcher import CompletedFetch


def name_of(partition: PartitionKey) -> TopicPartition:
    match partition:
        case (str(topic), SupportsIndex() as number):
            return TopicPartition(topic, index(number))
    raise TypeError(f"expected a partition as (topic, number), not {partition!r}")


def named(partitions: Iterable[PartitionKey]) -> list[TopicPartition]:
    return [name_of(partition) for partition in partitions]


class PartitionState:
    """The position in a partition, and its fetches."""

    __slots__ = (
        "drained", "fetch_offset", "fetched", "high_watermark", "in_flight", "last_stable_offset",
        "leader_epoch", "log_start_offset", "name", "parked", "paused", "position", "position_epoch",
        "replica", "replica_until", "reset_to", "retry_at", "revoking", "turn", "unparked",
        "validating",
    )  # fmt: skip

    def __init__(self, name: TopicPartition) -> None:
        self.name = name
        self.position: int | None = None
        """The offset of the next record that a poll returns; None until it is known."""
        self.position_epoch = NO_EPOCH
        """The leader epoch of the record before the position."""
        self.leader_epoch = NO_EPOCH
        """The epoch of the leader that the position was validated with."""
        self.fetch_offset = -1
        self.fetched = 0  # written by the loop
        self.drained = 0  # written by the polling thread
        self.in_flight = False
        self.turn = 0
        self.paused = False
        self.parked: list[CompletedFetch] = []
        self.unparked = False
        """Whether parked fetches are back in `ready`, perhaps behind later ones."""
        self.revoking = False
        self.validating = False
        self.reset_to: int | None = None
        """The timestamp, or EARLIEST or LATEST, to look the position up by."""
        self.retry_at = 0.0
        self.replica: int | None = None
        self.replica_until = 0.0
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1

    @property
    def queued(self) -> int:
        """The number of completed fetches that are not used up."""
        return self.fetched - self.drained

    @property
    def at_rest(self) -> bool:
        """Whether a poll returns no records of this partition for now."""
        return self.paused or self.validating or self.revoking

    def seek(self, offset: int, epoch: int = NO_EPOCH) -> None:
        """Set the position, and drop fetched records."""
        self.forget()
        self.position_epoch = epoch
        self.leader_epoch = NO_EPOCH
        self.fetch_offset = offset
        self.position = offset

    def seek_time(self, timestamp: int) -> None:
        """Request a lookup of the position by a timestamp, and drop fetched records."""
        self.forget()
        self.position_epoch = NO_EPOCH
        self.reset_to = timestamp

    def forget(self) -> None:
        """Drop the position and fetched records."""
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


class SubscriptionState:
    """The subscribed topics or pattern, and the assigned partitions."""

    def __init__(self) -> None:
        self.topics: frozenset[str] = frozenset()
        self.pattern: re.Pattern[str] | None = None
        """A pattern that the client matches against all topics."""
        self.server_pattern: str | None = None
        """A pattern that the broker matches."""
        self.by_hand = False
        self.states: dict[TopicPartition, PartitionState] = {}
        self.wanted: frozenset[str] = frozenset()
        """`topics`, or the topics that match `pattern`."""

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
        """Assign these partitions and no others; partitions that stay keep their positions."""
        wanted = set(named(partitions))
        for name in list(self.states):
            if name not in wanted:
                self.states.pop(name).forget()
        for name in sorted(wanted):
            if name not in self.states:
                self.states[name] = PartitionState(name)

    def matches(self, names: Iterable[tuple[str, bool]], exclude_internal: bool) -> frozenset[str]:
        """The topics that match the pattern, of pairs of a name and whether it is internal."""
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
