"""The metrics of replica fetchers, under Kafka's names."""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.cluster.partition_fetch_state import PartitionFetchState
from tidelog.cluster.replica_fetcher import ReplicaFetcher
from tidelog.cluster.replica_fetcher_manager import ReplicaFetcherManager
from tidelog.metrics.registry import Family, Meter, MetricName, Registry

GROUP = "kafka.server"
MANAGER = {"clientId": "Replica"}


class FetcherMetrics:
    """Reads the numbers of fetchers when metrics are requested. A fetch only adds to numbers."""

    def __init__(self, registry: Registry, fetchers: ReplicaFetcherManager) -> None:
        self._registry = registry
        self._fetchers = fetchers
        self._meters: dict[ReplicaFetcher, tuple[Meter, Meter]] = {}
        self._bytes_in = registry.meter(GROUP, "BrokerTopicMetrics", "ReplicationBytesInPerSec")
        self._reassignment = registry.meter(GROUP, "BrokerTopicMetrics", "ReassignmentBytesInPerSec")
        fetchers.on_fetched = self._fetched
        fetchers.on_started = self._started
        kind = "ReplicaFetcherManager"
        registry.gauge(GROUP, kind, "MaxLag", self._max_lag, **MANAGER)
        registry.gauge(GROUP, kind, "MinFetchRate", self._min_fetch_rate, **MANAGER)
        registry.gauge(GROUP, kind, "FailedPartitionsCount", lambda: len(fetchers.failed), **MANAGER)
        registry.gauge(GROUP, kind, "DeadThreadCount", self._dead, **MANAGER)
        registry.collect(self._families)

    def _fetched(self, state: PartitionFetchState, count: int) -> None:
        self._bytes_in.count += count
        if state.partition.broker_id in state.partition.adding:
            self._reassignment.count += count

    def _max_lag(self) -> int:
        fetchers = self._fetchers.fetchers.values()
        return max((state.lag or 0 for fetcher in fetchers for state in fetcher.states.values()), default=0)

    def _min_fetch_rate(self) -> float:
        self._refresh()
        return min((requests.rates()[0] for _, requests in self._meters.values()), default=0.0)

    def _dead(self) -> int:
        return sum(fetcher.is_dead for fetcher in self._fetchers.fetchers.values())

    def _started(self, fetcher: ReplicaFetcher) -> None:
        """Make meters. The meters of an ended fetcher of the same name go first."""
        self._forget_ended()
        self._meters_of(fetcher)

    def _forget_ended(self) -> None:
        running = set(self._fetchers.fetchers.values())
        for fetcher in [fetcher for fetcher in self._meters if fetcher not in running]:
            del self._meters[fetcher]
            self._registry.remove_labelled("clientId", fetcher.name)

    def _refresh(self) -> None:
        """Update the meters of the fetchers, and remove the meters of fetchers that ended."""
        self._forget_ended()
        for fetcher in self._fetchers.fetchers.values():
            bytes_read, requests = self._meters_of(fetcher)
            bytes_read.count, requests.count = fetcher.bytes_fetched, fetcher.answers

    def _meters_of(self, fetcher: ReplicaFetcher) -> tuple[Meter, Meter]:
        found = self._meters.get(fetcher)
        if found is None:
            host, port = fetcher.leader.address
            labels = {"clientId": fetcher.name, "brokerHost": host, "brokerPort": str(port)}
            found = self._meters[fetcher] = (
                self._registry.meter(GROUP, "FetcherStats", "BytesPerSec", **labels),
                self._registry.meter(GROUP, "FetcherStats", "RequestsPerSec", **labels),
            )
        return found

    def _families(self) -> Iterator[Family]:
        self._refresh()
        samples: list[tuple[tuple[tuple[str, str], ...], float]] = [
            (
                (("clientId", fetcher.name), ("partition", str(state.key[1])), ("topic", state.key[0])),
                -1 if state.lag is None else state.lag,
            )
            for fetcher in self._fetchers.fetchers.values()
            for state in fetcher.states.values()
        ]
        yield Family(MetricName(GROUP, "FetcherLagMetrics", "ConsumerLag"), "gauge", samples)
