"""The settings of replica fetchers, the errors that they expect, and the listener that they report to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tidelog.errors import ErrorCode
from tidelog.partitions import PartitionKey

if TYPE_CHECKING:
    from tidelog.cluster.partition_fetch_state import PartitionFetchState


SESSION_ERRORS = frozenset(
    (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    )
)
QUIET_ERRORS = frozenset((ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_LEADER_EPOCH))
"""Errors that are normal while the leader changes."""


@dataclass(slots=True)
class ReplicaFetcherSettings:
    """The settings replica.fetch.* and replica.socket.timeout.ms."""

    fetchers: int = 1
    backoff_ms: int = 1000
    max_bytes: int = 1 << 20
    min_bytes: int = 1
    response_max_bytes: int = 10 << 20
    wait_max_ms: int = 500
    socket_timeout_ms: int = 30_000


class FetchListener(Protocol):
    """Receives the events of a fetcher."""

    def is_throttled(self, state: PartitionFetchState) -> bool:
        """Whether follower.replication.throttled.rate forbids the fetch of a partition that lags."""

    def fetched(self, state: PartitionFetchState, count: int) -> None:
        """The leader sent `count` bytes of a partition."""

    def leader_reached(self, leader_id: int) -> None:
        """The leader takes connections."""

    def leader_lost(self, leader_id: int) -> None:
        """The connection to the leader ended, or nobody listens at its address."""

    def mark_failed(self, key: PartitionKey) -> None:
        """The partition is not fetched any more, until the controller sends a new state."""
