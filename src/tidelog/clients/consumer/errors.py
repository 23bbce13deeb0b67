"""The errors of a consumer's positions."""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.clients.errors import ClientError
from tidelog.partitions import TopicPartition


class NoOffsetForPartitionException(ClientError):
    """A partition has no committed offset, and auto.offset.reset=none chooses none."""


class LogTruncationException(ClientError):
    """A new leader does not have records that this consumer has read.

    `divergent_offsets` has the first offset that differs for each partition, None where it is not known.
    """

    def __init__(self, message: str, divergent_offsets: Mapping[TopicPartition, int | None]) -> None:
        super().__init__(message)
        self.divergent_offsets = dict(divergent_offsets)
