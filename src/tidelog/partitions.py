"""The key of a partition: its topic and its number."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class TopicPartition(NamedTuple):
    """A partition of a topic. It is equal to a plain tuple of topic and partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


PartitionKey: TypeAlias = tuple[str, int]
"""A TopicPartition, or a plain tuple of topic and partition."""
