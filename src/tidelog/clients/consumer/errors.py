"""What can go wrong with a consumer's positions alone."""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.clients.errors import ClientError
from tidelog.partitions import TopicPartition


class NoOffset(ClientError):
    """A partition has no committed offset, and auto.offset.reset=none forbids to choose one."""


class LogTruncated(ClientError):
    """Records that were read are not in the log any more: another leader took over without them.

    `diverging` holds, for each partition, where the logs part, or None where the broker does not know.
    """

    def __init__(self, message: str, diverging: Mapping[TopicPartition, int | None]) -> None:
        super().__init__(message)
        self.diverging = dict(diverging)
