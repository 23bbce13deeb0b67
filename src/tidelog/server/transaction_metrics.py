"""The metrics of the transaction coordinator, under the names of Kafka and of Confluent Server."""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.cluster.replica_manager import ReplicaManager
from tidelog.coordinator.transaction.coordinator import TOPIC, TransactionCoordinator
from tidelog.metrics.registry import Family, Meter, MetricName

COORDINATOR = ("kafka.server", "transaction-coordinator-metrics")
MS_PER_SECOND = 1000


class TransactionMetrics:
    def __init__(self, transactions: TransactionCoordinator, replicas: ReplicaManager) -> None:
        self._transactions = transactions
        self._replicas = replicas
        self._timeouts = Meter(replicas.scheduler.clock.monotonic)

    def families(self) -> Iterator[Family]:
        shards = list(self._transactions.runtime.shards())
        yield _gauge("transactional-id-count", sum(len(shard.transactions) for shard in shards))
        now_ms = self._replicas.scheduler.clock.ms()
        longest = 0
        for shard in shards:
            for transaction in shard.ongoing.values():
                longest = max(longest, now_ms - transaction.metadata.start_ms)
        yield _gauge("active-transaction-total-time-max", longest)
        hosted = self._replicas.topics.get(TOPIC)
        partitions = [] if hosted is None else list(hosted.partitions.values())
        logs = [found.log for found in partitions if found.is_leader and found.log is not None]
        yield _gauge("partitions-total-size", sum(log.size for log in logs))
        self._timeouts.count = self._transactions.timed_out
        yield _gauge("transaction-timeout-count", self._timeouts.count)
        yield _gauge("transaction-timeout-rate", self._timeouts.rates()[0])
        loads = self._transactions.runtime.load_seconds
        if loads:
            yield _gauge("partition-load-time-max", max(loads) * MS_PER_SECOND)
            yield _gauge("partition-load-time-avg", sum(loads) / len(loads) * MS_PER_SECOND)


def _gauge(name: str, value: float) -> Family:
    return Family(MetricName(*COORDINATOR, name), "gauge", [((), value)])
