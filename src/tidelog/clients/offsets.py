"""Offsets as consumers commit them and look them up, and the group member that commits them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tidelog.errors import KafkaError
from tidelog.partitions import PartitionKey, TopicPartition

NO_EPOCH = -1


@dataclass(slots=True, frozen=True)
class OffsetAndMetadata:
    """A committed offset, which is the next one to read. `leader_epoch` is None if it is unknown."""

    offset: int
    metadata: str = ""
    leader_epoch: int | None = None


Offsets: TypeAlias = Mapping[PartitionKey, int | OffsetAndMetadata]
"""Offsets to commit."""
OffsetCommitCallback: TypeAlias = Callable[
    [Mapping[TopicPartition, OffsetAndMetadata], KafkaError | None], object
]


class OffsetAndTimestamp(NamedTuple):
    """An offset that was looked up by time, and the timestamp of its record."""

    offset: int
    timestamp: int
    leader_epoch: int | None = None


@dataclass(slots=True, frozen=True)
class ConsumerGroupMetadata:
    """The consumer that commits offsets. With only the id of the group it is not a member."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


def checked_offset(partition: tuple[str, int], entry: OffsetAndMetadata | int) -> OffsetAndMetadata:
    """The offset to commit for a partition. Raises ValueError below 0, which a broker would store."""
    made = OffsetAndMetadata(entry) if isinstance(entry, int) else entry
    if made.offset < 0:
        raise ValueError(f"offset {made.offset} of {partition[0]}-{partition[1]}: expected 0 or more")
    return made


def known_epoch(number: int) -> int | None:
    """A leader epoch from a message, where -1 means unknown."""
    return None if number < 0 else number


def epoch_number(epoch: int | None) -> int:
    """A leader epoch for a message, where -1 means unknown."""
    return NO_EPOCH if epoch is None else epoch
