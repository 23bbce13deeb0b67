"""How a partition is named everywhere: by its topic and its number."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class TopicPartition(NamedTuple):
    """A partition of a topic; a plain tuple of the two is as good."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


PartitionKey: TypeAlias = tuple[str, int]
"""A TopicPartition, or a plain tuple of the same two."""
