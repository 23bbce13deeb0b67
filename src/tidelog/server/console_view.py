"""ConsoleView: what the console reads from this broker's memory, on the broker's loop.

The console runs on a thread of its own. Each call is made on the broker's loop, in slices of a fraction of a
millisecond, so that no produce waits for the figures of thousands of topics.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Coroutine, Iterator
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final, TypeVar

from tidelog import __version__
from tidelog.console.local_broker import (
    BrokerFigures,
    ConnectionFigures,
    LatencyFigures,
    LogDirFigures,
)
from tidelog.console.snapshot import (
    BrokerSnapshot,
    ClusterSnapshot,
    GroupSnapshot,
    PartitionSnapshot,
    TopicSnapshot,
)
from tidelog.coordinator.group.classic import ClassicGroup
from tidelog.coordinator.group.consumer import ConsumerGroup
from tidelog.coordinator.group.records import read_offset_value
from tidelog.partitions import PartitionKey
from tidelog.protocol.wire import uuid_to_text
from tidelog.server.record_counts import LogExtent, RecordCounts, extent_of
from tidelog.slices import Slices

if TYPE_CHECKING:
    from tidelog.cluster.partition import Partition
    from tidelog.cluster.replica_manager import HostedTopic
    from tidelog.metadata.state import ClusterState, PartitionState, TopicState
    from tidelog.network.server import SocketServer
    from tidelog.server.services import Services
    from tidelog.storage.log_dir import LogDir

T = TypeVar("T")

SLICE_NS: Final = 300_000
SWITCH_SECONDS: Final = 0.00005
"""How long the console's thread may keep the interpreter when the broker's loop wants it: about the time of a
produce. Python's 5 ms would delay a produce by that much. It costs only while both have work."""
COUNT_SECONDS: Final = 0.05
"""The time for counting records in a snapshot; the next snapshot goes on."""
LATENCIES: Final = ("Produce", "FetchConsumer", "FetchFollower", "Metadata", "OffsetCommit")
QUANTILES: Final = (0.5, 0.95, 0.99)


class ConsoleView:
    """Fulfils `LocalBroker`. Made on the broker's loop, called from the console's."""

    def __init__(self, services: Services, server: SocketServer, started_ms: int) -> None:
        self._services = services
        self._server = server
        self._started_ms = started_ms
        self._loop = asyncio.get_running_loop()
        self._counts = RecordCounts()
        self._counting = asyncio.Lock()
        sys.setswitchinterval(SWITCH_SECONDS)

    @property
    def broker_id(self) -> int:
        return self._services.broker_id

    async def snapshot(self) -> ClusterSnapshot:
        snapshot, extents = await self._on_broker(_in_slices(self._make_snapshot()))
        async with self._counting:
            counts = await asyncio.to_thread(self._counts.count, extents, COUNT_SECONDS)
        for (topic, index), records in counts.items():
            partition = snapshot.topics[topic].partitions[index]
            partition.records = records
            if partition.offset_range:
                partition.last_ms = self._counts.newest_ms((topic, index))
        return snapshot

    async def figures(self) -> BrokerFigures:
        return await self._on_broker(_in_slices(self._make_figures()))

    async def connections(self) -> list[ConnectionFigures]:
        return await self._on_broker(_in_slices(self._make_connections()))

    async def _on_broker(self, work: Coroutine[None, None, T]) -> T:
        """Run a coroutine on the broker's loop. Raises RuntimeError when the broker has stopped."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    # -- on the broker's loop ----------------------------------------------------------------------

    def _make_snapshot(self) -> Slices[tuple[ClusterSnapshot, dict[PartitionKey, LogExtent]]]:
        state = self._services.metadata.snapshot
        hosted = self._services.replicas.topics
        topics: dict[str, TopicSnapshot] = {}
        extents: dict[PartitionKey, LogExtent] = {}
        for name in sorted(state.topics):
            topics[name] = self._topic(state.topics[name], hosted.get(name))
            if name in hosted:
                for index, partition in hosted[name].partitions.items():
                    if partition.log is not None and partition.is_leader and not partition.offline:
                        extents[name, index] = extent_of(partition.log)
            yield
        groups: dict[str, GroupSnapshot] = {}
        for group in self._groups():
            groups[group.group_id] = group
            yield
        controller = state.controller_id
        snapshot = ClusterSnapshot(
            state.cluster_id,
            None if controller < 0 else controller,
            _brokers(state),
            topics,
            groups,
            round(time.time() * 1000),
        )
        extents = {key: extent for key, extent in extents.items() if key[1] < len(topics[key[0]].partitions)}
        return snapshot, extents

    def _topic(self, state: TopicState, hosted: HostedTopic | None) -> TopicSnapshot:
        partitions = [
            _partition(index, found, None if hosted is None else hosted.partitions.get(index))
            for index, found in sorted(state.partitions.items())
        ]
        policy = state.configs.get("cleanup.policy") or ",".join(self._services.config.log_cleanup_policy)
        topic = TopicSnapshot(state.name, uuid_to_text(state.topic_id), state.is_internal, partitions, policy)
        if hosted is not None:
            topic.records_per_s = hosted.metrics.messages_in.rates()[0]
            topic.bytes_in_per_s = hosted.metrics.bytes_in.rates()[0]
            topic.bytes_out_per_s = hosted.metrics.bytes_out.rates()[0]
        return topic

    def _groups(self) -> Iterator[GroupSnapshot]:
        for shard in list(self._services.groups.runtime.shards()):
            for group_id, group in list(shard.groups.items()):
                members = len(group.members) if isinstance(group, ClassicGroup | ConsumerGroup) else None
                offsets = {
                    key: read_offset_value(value).offset
                    for key, value in list(shard.offsets.of_group(group_id).items())
                }
                yield GroupSnapshot(
                    group_id, group.kind, group.state_name, members, self._services.broker_id, offsets
                )

    def _make_figures(self) -> Slices[BrokerFigures]:
        services = self._services
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
                latency[of_kind.name] = LatencyFigures(count, *of_kind.total.percentiles(QUANTILES))
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
            total, free = self._services.logs.disk.usage(log_dir.path)
        except OSError as error:
            return LogDirFigures(log_dir.path, error.strerror or str(error), None, None)
        return LogDirFigures(log_dir.path, None, total, free)

    def _make_connections(self) -> Slices[list[ConnectionFigures]]:
        found = []
        now = perf_counter_ns()
        for channel in list(self._server.channels.values()):
            software, version = channel.client_software
            found.append(
                ConnectionFigures(
                    channel.peer,
                    channel.listener,
                    str(channel.principal),
                    channel.client_id,
                    software,
                    version,
                    (now - channel.last_active_ns) / 1e9,
                    None if channel.tls is None else f"{channel.tls.version} {channel.tls.cipher}",
                )
            )
            yield
        return found


def _partition(index: int, state: PartitionState, hosted: Partition | None) -> PartitionSnapshot:
    partition = PartitionSnapshot(
        index,
        state.leader,
        tuple(state.replicas),
        tuple(state.isr),
        tuple(state.offline_replicas),
        tuple(state.adding),
        tuple(state.removing),
    )
    log = None if hosted is None or hosted.offline else hosted.log
    if log is not None and hosted is not None and hosted.is_leader:
        partition.start = log.log_start_offset
        partition.end = log.high_watermark
        partition.size = log.size
    return partition


def _brokers(state: ClusterState) -> list[BrokerSnapshot]:
    return [
        BrokerSnapshot(broker_id, found.endpoints[0].host, found.endpoints[0].port, found.rack)
        for broker_id, found in sorted(state.brokers.items())
        if found.endpoints
    ]


async def _in_slices(work: Slices[T]) -> T:
    """Do the work; other tasks of the loop run after each slice."""
    while True:
        end = perf_counter_ns() + SLICE_NS
        try:
            while perf_counter_ns() < end:
                next(work)
        except StopIteration as done:
            result: T = done.value
            return result
        await asyncio.sleep(0)
