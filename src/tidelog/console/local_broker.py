"""LocalBroker: what the console of a broker asks for from the broker's memory.

The console knows no part of the broker: an object that fulfils this protocol asks it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from tidelog.console.records.log_files import LocalLogs
from tidelog.console.snapshot import ClusterSnapshot


@dataclass(slots=True)
class LatencyFigures:
    """Percentiles of a kind of request over about the last minute, in milliseconds, and its count so far.

    The percentiles are None if the last minute had no such request.
    """

    count: int
    p50: float | None
    p95: float | None
    p99: float | None


@dataclass(slots=True)
class LogDirFigures:
    """A log folder of the broker; its disk's bytes are None if they cannot be read."""

    path: str
    error: str | None
    total_bytes: int | None
    free_bytes: int | None
    partitions: int = 0
    bytes: int = 0


@dataclass(slots=True)
class BrokerFigures:
    """Numbers of the broker at one moment. Counts only grow: the caller computes rates."""

    broker_id: int
    version: str
    started_ms: int
    records_in: int
    bytes_in: int
    bytes_out: int
    requests: int
    failed_requests: int
    connections: int
    partitions: int
    leaders: int
    under_replicated: int
    under_min_isr: int
    offline: int
    has_controller: bool
    latency: dict[str, LatencyFigures] = field(default_factory=dict)
    log_dirs: list[LogDirFigures] = field(default_factory=list)


@dataclass(slots=True)
class ConnectionFigures:
    """An open connection of a client."""

    address: str
    listener: str
    principal: str
    client_id: str | None
    software: str
    software_version: str
    idle_seconds: float
    tls: str | None = None


class LocalBroker(LocalLogs, Protocol):
    """The broker that serves this console. It answers in slices below a millisecond."""

    @property
    def reads_files(self) -> bool:
        """Whether the console may read the broker's segment files: no access rules protect topics."""

    @property
    def broker_id(self) -> int: ...

    async def snapshot(self) -> ClusterSnapshot:
        """The cluster from memory. Offsets are None for partitions that the broker does not host."""

    async def figures(self, max_age: float = 0.0) -> BrokerFigures:
        """The numbers of the broker, at most so many seconds old."""

    async def connections(self) -> list[ConnectionFigures]: ...
