"""ConsoleView: answers the questions of the console's process from this broker's memory.

It works on the broker's loop, in slices of a fraction of a millisecond, so that no produce waits for the
figures of thousands of topics.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final, TypeVar

from tidelog import __version__
from tidelog.console.local_broker import (
    BrokerFigures,
    ConnectionFigures,
    LatencyFigures,
    LogDirFigures,
)
from tidelog.metrics.registry import Histogram
from tidelog.slices import Slices, finished

if TYPE_CHECKING:
    from tidelog.network.server import SocketServer
    from tidelog.server.services import Services
    from tidelog.storage.log_dir import LogDir

T = TypeVar("T")

SLICE_NS: Final = 100_000
LATENCIES: Final = ("Produce", "FetchConsumer", "FetchFollower", "Metadata", "OffsetCommit")
QUANTILES: Final = (0.5, 0.95, 0.99)


def latency_figures(count: int, times: Histogram) -> LatencyFigures:
    """The percentiles of a kind of request. A request takes at least a microsecond, so 0 means no request."""
    return LatencyFigures(count, *(found or None for found in times.percentiles(QUANTILES)))


class ConsoleView:
    """Made and used on the broker's loop."""

    def __init__(self, services: Services, server: SocketServer, started_ms: int) -> None:
        self.services = services
        self._server = server
        self._started_ms = started_ms

    async def figures(self) -> BrokerFigures:
        return await finished(self._make_figures(), SLICE_NS)

    def connections(self) -> AsyncIterator[tuple[list[ConnectionFigures], bool]]:
        """The connections in parts; each part is paired with whether it is the last."""
        return in_parts(self._connections())

    def _make_figures(self) -> Slices[BrokerFigures]:
        services = self.services
        replicas = services.replicas
        counts = dict.fromkeys(("partitions", "leaders", "under", "min_isr", "offline"), 0)
        log_dirs = {found.path: self._log_dir(found) for found in services.logs.log_dirs}
        for partition in list(replicas.partitions()):
            if partition.log is not None and (found := log_dirs.get(os.path.dirname(partition.log.dir))):
                found.partitions += 1
                found.bytes += partition.log.size
            leads = partition.is_leader and not partition.offline
            counts["partitions"] += 1
            counts["leaders"] += leads
            counts["under"] += partition.is_under_replicated
            counts["min_isr"] += leads and partition.log is not None and partition.is_under_min_isr
            counts["offline"] += partition.offline
            yield
        requests = failed = 0
        latency: dict[str, LatencyFigures] = {}
        for of_kind in self._server.context.metrics.kinds():
            count = of_kind.total.count
            if count and of_kind.name in LATENCIES:
                latency[of_kind.name] = latency_figures(count, of_kind.total)
            requests += count
            failed += of_kind.failed
            yield
        totals = replicas.topic_metrics.all
        return BrokerFigures(
            broker_id=services.broker_id,
            version=__version__,
            started_ms=self._started_ms,
            records_in=totals.messages_in.count,
            bytes_in=totals.bytes_in.count,
            bytes_out=totals.bytes_out.count,
            requests=requests,
            failed_requests=failed,
            connections=len(self._server.channels),
            partitions=counts["partitions"],
            leaders=counts["leaders"],
            under_replicated=counts["under"],
            under_min_isr=counts["min_isr"],
            offline=counts["offline"],
            has_controller=services.metadata.snapshot.controller_id >= 0,
            latency=latency,
            log_dirs=list(log_dirs.values()),
        )

    def _log_dir(self, log_dir: LogDir) -> LogDirFigures:
        if log_dir.offline is not None:
            return LogDirFigures(log_dir.path, str(log_dir.offline), None, None)
        try:
            total, free = self.services.logs.disk.usage(log_dir.path)
        except OSError as error:
            return LogDirFigures(log_dir.path, error.strerror or str(error), None, None)
        return LogDirFigures(log_dir.path, None, total, free)

    def _connections(self) -> Iterator[ConnectionFigures]:
        now = perf_counter_ns()
        for channel in list(self._server.channels.values()):
            software, version = channel.client_software
            yield ConnectionFigures(
                channel.peer,
                channel.listener,
                str(channel.principal),
                channel.client_id,
                software,
                version,
                (now - channel.last_active_ns) / 1e9,
                None if channel.tls is None else f"{channel.tls.version} {channel.tls.cipher}",
            )


async def in_parts(items: Iterator[T | None]) -> AsyncIterator[tuple[list[T], bool]]:
    """The items without None, as lists; each list is paired with whether it is the last.

    Other tasks of the loop run after each list.
    """
    while True:
        end = perf_counter_ns() + SLICE_NS
        found: list[T] = []
        for item in items:
            if item is not None:
                found.append(item)
            if perf_counter_ns() >= end:
                break
        else:
            yield found, True
            return
        if found:
            yield found, False
        await asyncio.sleep(0)
