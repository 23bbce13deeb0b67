"""ReplicaFetcherManager: the fetchers of the partitions that this broker follows.

Each leader has `num.replica.fetchers` fetchers, and a partition always goes to the same one of them. A
fetcher without partitions ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial

from tidelog.clock import Scheduler
from tidelog.cluster.follower_quota import FollowerQuota
from tidelog.cluster.leader_endpoint import LeaderEndPoint
from tidelog.cluster.lost_leaders import LostLeaders
from tidelog.cluster.partition import Partition
from tidelog.cluster.partition_fetch_state import PartitionFetchState
from tidelog.cluster.replica_fetcher import ReplicaFetcher
from tidelog.cluster.replica_fetcher_settings import ReplicaFetcherSettings
from tidelog.cluster.transport import EndpointOf, Transport
from tidelog.partitions import PartitionKey
from tidelog.records.loops import java_string_hash

log = logging.getLogger("tidelog.cluster.replica_fetcher")

FetcherKey = tuple[int, int]
"""The broker id of a leader, and the number of a fetcher."""


class ReplicaFetcherManager:
    def __init__(
        self,
        broker_id: int,
        scheduler: Scheduler,
        transport_of: Callable[[int], Transport],
        endpoint_of: EndpointOf,
        broker_epoch: Callable[[], int],
        settings: ReplicaFetcherSettings,
        quota: FollowerQuota | None = None,
    ) -> None:
        """`transport_of` gives the transport of a fetcher by its number."""
        self.settings = settings
        self.fetchers: dict[FetcherKey, ReplicaFetcher] = {}
        self.failed: dict[PartitionKey, None] = {}
        """Partitions that are not fetched until the controller sends a new state."""
        self.on_fetched: Callable[[PartitionFetchState, int], None] | None = None
        """Called with the bytes of a partition that were fetched."""
        self.on_started: Callable[[ReplicaFetcher], object] | None = None
        """Called with each new fetcher."""
        self.lost_leaders = LostLeaders(scheduler.clock)
        self._broker_id = broker_id
        self._scheduler = scheduler
        self._transport_of = transport_of
        self._endpoint_of = endpoint_of
        self._broker_epoch = broker_epoch
        self._quota = quota
        self._places: dict[PartitionKey, ReplicaFetcher] = {}
        self._closing: dict[asyncio.Task[None], None] = {}  # each waits for the end of a closed fetcher
        self._is_full = False
        self._closed = False

    def add_no_more(self) -> None:
        """Ignore new partitions from now on: the broker is about to stop.

        It could catch up with a new partition and join its ISR. The leader would then wait for a stopped
        broker.
        """
        self._is_full = True

    def add(self, partitions: Iterable[Partition]) -> None:
        """Fetch partitions from their present leaders."""
        if self._closed or self._is_full:
            return
        added: dict[ReplicaFetcher, list[PartitionFetchState]] = {}
        for partition in partitions:
            key = (partition.topic, partition.index)
            self.remove([key])
            if partition.offline or partition.log is None or partition.leader_id < 0 or partition.is_leader:
                continue
            partition.on_log_start = self._log_start_moved
            fetcher = self._places[key] = self._fetcher_of(partition)
            added.setdefault(fetcher, []).append(PartitionFetchState(partition))
        for fetcher, states in added.items():
            fetcher.add(states)

    def remove(self, keys: Iterable[PartitionKey]) -> None:
        """Stop fetching partitions. An append may still be under way: `AppendQueue.between` waits for it."""
        for key in keys:
            self.failed.pop(key, None)
            fetcher = self._places.pop(key, None)
            if fetcher is not None:
                fetcher.remove(key)

    def end_idle(self) -> None:
        """Close the fetchers without partitions."""
        for place, fetcher in list(self.fetchers.items()):
            if not fetcher.states:
                del self.fetchers[place]
                self._close(fetcher)

    def state_of(self, key: PartitionKey) -> PartitionFetchState | None:
        fetcher = self._places.get(key)
        return None if fetcher is None else fetcher.states.get(key)

    def update_settings(self, settings: ReplicaFetcherSettings) -> None:
        """Apply changed settings; another num.replica.fetchers moves partitions between fetchers."""
        before, self.settings = self.settings.fetchers, settings
        if settings.fetchers == before:
            return
        followed = [
            state.partition for fetcher in self.fetchers.values() for state in fetcher.states.values()
        ]
        log.info("%d partitions go to %d fetchers for each leader", len(followed), settings.fetchers)
        for partition in followed:
            self.remove([(partition.topic, partition.index)])
            partition.appends.between(partial(self.add, [partition]))  # its log end is known then
        self.end_idle()

    def close(self) -> None:
        """Stop fetching."""
        self._closed = True
        for fetcher in self.fetchers.values():
            self._close(fetcher)
        self.fetchers.clear()
        self._places.clear()

    async def wait_closed(self) -> None:
        """Wait for the appends and truncations that have begun."""
        if self._closing:
            await asyncio.wait(list(self._closing))

    def _close(self, fetcher: ReplicaFetcher) -> None:
        fetcher.close()
        ended = asyncio.get_running_loop().create_task(fetcher.wait_closed())
        self._closing[ended] = None
        ended.add_done_callback(lambda _: self._closing.pop(ended, None))

    def _fetcher_of(self, partition: Partition) -> ReplicaFetcher:
        number = (31 * java_string_hash(partition.topic) + partition.index) & 0x7FFFFFFF
        place = (partition.leader_id, number % self.settings.fetchers)
        fetcher = self.fetchers.get(place)
        if fetcher is None:
            fetcher = self.fetchers[place] = self._new_fetcher(*place)
            if self.on_started is not None:
                self.on_started(fetcher)
        return fetcher

    def _new_fetcher(self, leader_id: int, number: int) -> ReplicaFetcher:
        leader = LeaderEndPoint(
            self._broker_id,
            leader_id,
            self._transport_of(number),
            self._endpoint_of,
            self._broker_epoch,
            timeout=self.settings.socket_timeout_ms / 1000,
        )
        return ReplicaFetcher(
            f"ReplicaFetcherThread-{number}-{leader_id}", leader, self._scheduler, self.settings, self
        )

    def _log_start_moved(self, partition: Partition) -> None:
        key = (partition.topic, partition.index)
        fetcher = self._places.get(key)
        if fetcher is not None:
            fetcher.log_start_moved(key)

    # -- replica_fetcher_settings.FetchListener

    def is_throttled(self, state: PartitionFetchState) -> bool:
        return self._quota is not None and self._quota.is_exceeded(state.partition)

    def fetched(self, state: PartitionFetchState, count: int) -> None:
        if self._quota is not None:
            self._quota.record(state.partition, count)
        if self.on_fetched is not None:
            self.on_fetched(state, count)

    def leader_reached(self, leader_id: int) -> None:
        self.lost_leaders.reached(leader_id)

    def leader_lost(self, leader_id: int) -> None:
        self.lost_leaders.lost(leader_id)

    def mark_failed(self, key: PartitionKey) -> None:
        self._places.pop(key, None)
        self.failed[key] = None
