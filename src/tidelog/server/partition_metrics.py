"""The metrics of partitions, single and summed up, under the names of Kafka and of kafka_exporter.

One pass over the partitions fills all metrics, in short families. Between two families, a scrape of thousands
of partitions lets other requests run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Literal

from tidelog.cluster.partition import Partition
from tidelog.cluster.replica_manager import ReplicaManager
from tidelog.metrics.registry import Family, MetricName

Labels = tuple[tuple[str, str], ...]
Samples = list[tuple[Labels, float]]

PARTITIONS_PER_FAMILY: Final = 50

# Metrics of kafka_exporter with their help texts.
EXPORTER: Final = {
    "current_offset": "High watermark of a partition.",
    "oldest_offset": "Log start offset of a partition.",
    "leader": "Broker id of the leader of a partition.",
    "replicas": "Replicas of a partition.",
    "in_sync_replica": "Replicas in sync of a partition.",
    "leader_is_preferred": "1 where the first replica leads the partition.",
    "under_replicated_partition": "1 where a replica of the partition is not in sync.",
}


def _is_under_min_isr(partition: Partition) -> bool:
    return partition.is_leader and partition.log is not None and partition.is_under_min_isr


def _is_at_min_isr(partition: Partition) -> bool:
    return partition.is_leader and partition.log is not None and len(partition.isr) == partition.min_isr


def _last_stable_offset_lag(partition: Partition) -> int:
    log = partition.log
    return 0 if log is None else log.high_watermark - log.last_stable_offset


# Metrics of each partition: of followers too, for which most of these are 0, as in Kafka.
STATES: Final[dict[str, Callable[[Partition], int]]] = {
    "UnderReplicated": lambda partition: partition.is_under_replicated,
    "InSyncReplicasCount": lambda partition: len(partition.isr) if partition.is_leader else 0,
    "ReplicasCount": lambda partition: len(partition.replicas) if partition.is_leader else 0,
    "LastStableOffsetLag": _last_stable_offset_lag,
    "UnderMinIsr": _is_under_min_isr,
    "AtMinIsr": _is_at_min_isr,
}

# Sums over all partitions.
COUNTS: Final[dict[str, Callable[[Partition], int]]] = {
    "PartitionCount": lambda partition: 1,
    "LeaderCount": lambda partition: partition.is_leader and not partition.offline,
    "UnderReplicatedPartitions": lambda partition: partition.is_under_replicated,
    "ReassigningPartitions": lambda partition: partition.is_leader and partition.is_reassigning,
    "ProducerIdCount": lambda partition: 0 if partition.log is None else len(partition.log.producers.entries),
    "OfflineReplicaCount": lambda partition: partition.offline,
    "UnderMinIsrPartitionCount": _is_under_min_isr,
    "AtMinIsrPartitionCount": _is_at_min_isr,
}


class PartitionMetrics:
    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    def families(self) -> Iterator[Family]:
        partitions = list(self._replicas.partitions())
        counts = dict.fromkeys(COUNTS, 0)
        for start in range(0, len(partitions), PARTITIONS_PER_FAMILY):
            some: list[tuple[Partition, Labels]] = [
                (partition, (("topic", partition.topic), ("partition", str(partition.index))))
                for partition in partitions[start : start + PARTITIONS_PER_FAMILY]
            ]
            for name, count in COUNTS.items():
                counts[name] += sum(count(partition) for partition, _ in some)
            yield from _logs(some)
            yield from _states(some)
            yield from _exporter(some)
        for name, total in counts.items():
            yield Family(MetricName("kafka.server", "ReplicaManager", name), "gauge", [((), total)])


def _logs(partitions: list[tuple[Partition, Labels]]) -> Iterator[Family]:
    logs = [
        (labels, partition.log)
        for partition, labels in partitions
        if partition.log is not None and not partition.offline
    ]
    columns: dict[str, Samples] = {
        "Size": [(labels, log.size) for labels, log in logs],
        "LogStartOffset": [(labels, log.log_start_offset) for labels, log in logs],
        "LogEndOffset": [(labels, log.log_end_offset) for labels, log in logs],
        "NumLogSegments": [(labels, len(log.segments)) for labels, log in logs],
    }
    for name, samples in columns.items():
        yield Family(MetricName("kafka.log", "Log", name), "gauge", samples)


def _states(partitions: list[tuple[Partition, Labels]]) -> Iterator[Family]:
    for name, value in STATES.items():
        samples: Samples = [(labels, int(value(partition))) for partition, labels in partitions]
        yield Family(MetricName("kafka.cluster", "Partition", name), "gauge", samples)


def _exporter(partitions: list[tuple[Partition, Labels]]) -> Iterator[Family]:
    """Each partition occurs once in a cluster, at its leader."""
    columns: dict[str, Samples] = {name: [] for name in EXPORTER}
    for partition, labels in partitions:
        if not partition.is_leader and partition.leader_id >= 0:
            continue
        log = partition.log
        if log is not None:
            columns["current_offset"].append((labels, log.high_watermark))
            columns["oldest_offset"].append((labels, log.log_start_offset))
        preferred = bool(partition.replicas) and partition.replicas[0] == partition.leader_id
        columns["leader"].append((labels, partition.leader_id))
        columns["replicas"].append((labels, len(partition.replicas)))
        columns["in_sync_replica"].append((labels, len(partition.isr)))
        columns["leader_is_preferred"].append((labels, int(preferred)))
        behind = len(partition.isr) < len(partition.replicas)
        columns["under_replicated_partition"].append((labels, int(behind)))
    for name, samples in columns.items():
        fold: Literal["sum", "nothing"] = "nothing" if name == "leader" else "sum"
        yield Family(f"kafka_topic_partition_{name}", "gauge", samples, EXPORTER[name], fold)
