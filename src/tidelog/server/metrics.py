"""The metrics of the broker, under the names of Kafka and of kafka_exporter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from tidelog import __version__
from tidelog.cluster.fetch_session import FetchSessionCache
from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.cluster.partition import Partition
from tidelog.cluster.replica_manager import ReplicaManager
from tidelog.metrics.process import ProcessMetrics
from tidelog.metrics.registry import Family, MetricName, Registry
from tidelog.storage.cleaner.log_cleaner import LogCleaner
from tidelog.storage.flush_job import FlushJob
from tidelog.storage.log_dir import LogDir
from tidelog.storage.log_manager_listener import LogManagerListener

Labels = tuple[tuple[str, str], ...]

# Metrics of kafka_exporter with their help texts.
PARTITION_FAMILIES = {
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


# Metrics of each partition.
PARTITION_GAUGES: dict[str, Callable[[Partition], int]] = {
    "UnderReplicated": lambda partition: partition.is_under_replicated,
    "InSyncReplicasCount": lambda partition: len(partition.isr) if partition.is_leader else 0,
    "ReplicasCount": lambda partition: len(partition.replicas) if partition.is_leader else 0,
    "LastStableOffsetLag": _last_stable_offset_lag,
    "UnderMinIsr": _is_under_min_isr,
    "AtMinIsr": _is_at_min_isr,
}


class BrokerMetrics:
    """Registers gauges and families, which read their values from the parts of the broker."""

    def __init__(
        self,
        registry: Registry,
        replicas: ReplicaManager,
        sessions: FetchSessionCache,
        metadata: MetadataCache,
        state: Callable[[], int],
        started_ms: int,
    ) -> None:
        self.registry = registry
        self._replicas = replicas
        self._metadata = metadata
        gauge = registry.gauge
        gauge("kafka.server", "KafkaServer", "BrokerState", state)
        self._replica_gauges()
        for purgatory in (
            replicas.produce_purgatory,
            replicas.fetch_purgatory,
            replicas.delete_records_purgatory,
        ):
            labels = {"delayedOperation": purgatory.name}
            kind = "DelayedOperationPurgatory"
            gauge("kafka.server", kind, "PurgatorySize", lambda p=purgatory: p.watched, **labels)  # type: ignore[misc]
            gauge("kafka.server", kind, "NumDelayedOperations", lambda p=purgatory: p.delayed, **labels)  # type: ignore[misc]
        cache = "FetchSessionCache"
        gauge("kafka.server", cache, "NumIncrementalFetchSessions", lambda: len(sessions))
        gauge(
            "kafka.server", cache, "NumIncrementalFetchPartitionsCached", lambda: sessions.partitions_cached
        )
        gauge("kafka.server", cache, "IncrementalFetchSessionEvictionsPerSec", lambda: sessions.evictions)
        self._controller_gauges()
        self._disk_metrics()
        gauge("kafka.server", "app-info", "start-time-ms", lambda: started_ms)
        registry.collect(self._log_families)
        registry.collect(self._partition_families)
        registry.collect(self._exporter_families)
        registry.collect(self._log_dir_families)
        registry.collect(_version_family)
        registry.collect(ProcessMetrics(started_ms / 1000).families)

    def _replica_gauges(self) -> None:
        replicas, gauge = self._replicas, self.registry.gauge

        def count(wanted: Callable[[Partition], bool]) -> Callable[[], int]:
            return lambda: sum(1 for partition in replicas.partitions() if wanted(partition))

        kind = "ReplicaManager"
        # A broker alone has no followers: these meters stay at 0, for dashboards that show them.
        for name in ("IsrShrinksPerSec", "IsrExpandsPerSec", "FailedIsrUpdatesPerSec"):
            self.registry.meter("kafka.server", kind, name)
        gauge("kafka.server", kind, "PartitionCount", lambda: sum(1 for _ in replicas.partitions()))
        gauge("kafka.server", kind, "LeaderCount", count(lambda p: p.is_leader and not p.offline))
        gauge(
            "kafka.server",
            kind,
            "UnderReplicatedPartitions",
            count(lambda p: p.is_under_replicated),
        )
        gauge(
            "kafka.server",
            kind,
            "ReassigningPartitions",
            count(lambda p: p.is_leader and p.is_reassigning),
        )
        gauge(
            "kafka.server",
            kind,
            "ProducerIdCount",
            lambda: sum(len(p.log.producers.entries) for p in replicas.partitions() if p.log is not None),
        )
        gauge("kafka.server", kind, "OfflineReplicaCount", count(lambda p: p.offline))
        gauge(
            "kafka.server",
            kind,
            "UnderMinIsrPartitionCount",
            count(_is_under_min_isr),
        )
        gauge(
            "kafka.server",
            kind,
            "AtMinIsrPartitionCount",
            count(_is_at_min_isr),
        )

    def _controller_gauges(self) -> None:
        metadata, gauge = self._metadata, self.registry.gauge
        self.registry.meter("kafka.controller", "ControllerStats", "UncleanLeaderElectionsPerSec")
        kind = "KafkaController"
        gauge(
            "kafka.controller",
            kind,
            "ActiveControllerCount",
            lambda: int(metadata.snapshot.controller_id >= 0),
        )
        gauge("kafka.controller", kind, "GlobalTopicCount", lambda: len(metadata.snapshot.topics))
        gauge(
            "kafka.controller",
            kind,
            "GlobalPartitionCount",
            lambda: sum(len(topic.partitions) for topic in metadata.snapshot.topics.values()),
        )
        gauge(
            "kafka.controller",
            kind,
            "OfflinePartitionsCount",
            lambda: sum(
                partition.leader < 0
                for topic in metadata.snapshot.topics.values()
                for partition in topic.partitions.values()
            ),
        )

    def _disk_metrics(self) -> None:
        self._replicas.logs.listen(_FlushTimes(self.registry))
        if _disk_bytes("read_bytes") is not None:
            for field in ("read_bytes", "write_bytes"):
                name = f"linux-disk-{field.replace('_', '-')}"
                self.registry.gauge(
                    "kafka.server",
                    "KafkaServer",
                    name,
                    lambda field=field: _disk_bytes(field) or 0,  # type: ignore[misc]
                )

    def add_cleaner(self, cleaner: LogCleaner, log_dirs: Iterable[LogDir]) -> None:
        gauge, figures = self.registry.gauge, cleaner.figures
        kind = "LogCleaner"
        gauge("kafka.log", kind, "cleaner-recopy-percent", lambda: figures.recopy_percent)
        gauge(
            "kafka.log",
            kind,
            "max-buffer-utilization-percent",
            lambda: figures.max_buffer_utilization_percent,
        )
        gauge("kafka.log", kind, "max-clean-time-secs", lambda: figures.max_clean_time_secs)
        gauge("kafka.log", kind, "max-compaction-delay-secs", lambda: figures.max_compaction_delay_secs)
        gauge("kafka.log", kind, "DeadThreadCount", lambda: 0)  # the cleaner has no threads that could die
        kind = "LogCleanerManager"
        gauge("kafka.log", kind, "max-dirty-percent", lambda: figures.max_dirty_percent)
        gauge("kafka.log", kind, "time-since-last-run-ms", cleaner.ms_since_last_run)
        for log_dir in log_dirs:
            labels = {"logDirectory": log_dir.path}
            gauge(
                "kafka.log",
                kind,
                "uncleanable-partitions-count",
                partial(cleaner.uncleanable_count, log_dir),
                **labels,
            )
            gauge(
                "kafka.log", kind, "uncleanable-bytes", partial(cleaner.uncleanable_bytes, log_dir), **labels
            )

    def _log_families(self) -> Iterator[Family]:
        sizes: list[tuple[Labels, float]] = []
        starts: list[tuple[Labels, float]] = []
        ends: list[tuple[Labels, float]] = []
        segments: list[tuple[Labels, float]] = []
        for partition in self._replicas.partitions():
            log = partition.log
            if log is None or partition.offline:
                continue
            labels = (("topic", partition.topic), ("partition", str(partition.index)))
            sizes.append((labels, log.size))
            starts.append((labels, log.log_start_offset))
            ends.append((labels, log.log_end_offset))
            segments.append((labels, len(log.segments)))
        yield Family(MetricName("kafka.log", "Log", "Size"), "gauge", sizes)
        yield Family(MetricName("kafka.log", "Log", "LogStartOffset"), "gauge", starts)
        yield Family(MetricName("kafka.log", "Log", "LogEndOffset"), "gauge", ends)
        yield Family(MetricName("kafka.log", "Log", "NumLogSegments"), "gauge", segments)

    def _partition_families(self) -> Iterator[Family]:
        """The states of partitions: of followers too, for which most of these are 0, as in Kafka."""
        partitions = [
            (partition, (("topic", partition.topic), ("partition", str(partition.index))))
            for partition in self._replicas.partitions()
        ]
        for name, value in PARTITION_GAUGES.items():
            samples: list[tuple[Labels, float]] = [
                (labels, int(value(partition))) for partition, labels in partitions
            ]
            yield Family(MetricName("kafka.cluster", "Partition", name), "gauge", samples)

    def _exporter_families(self) -> Iterator[Family]:
        """The metrics of kafka_exporter about brokers and partitions."""
        snapshot = self._metadata.snapshot
        yield Family("kafka_brokers", "gauge", [((), len(snapshot.brokers))], "Brokers of the cluster.")
        yield Family(
            "kafka_topic_partitions",
            "gauge",
            [((("topic", name),), len(topic.partitions)) for name, topic in snapshot.topics.items()],
            "Partitions of a topic.",
        )
        families: dict[str, list[tuple[Labels, float]]] = {name: [] for name in PARTITION_FAMILIES}
        for partition in self._replicas.partitions():
            if not partition.is_leader and partition.leader_id >= 0:
                continue  # its leader says more: each partition occurs once in a cluster
            log = partition.log
            labels = (("partition", str(partition.index)), ("topic", partition.topic))
            if log is not None:
                families["current_offset"].append((labels, log.high_watermark))
                families["oldest_offset"].append((labels, log.log_start_offset))
            preferred = bool(partition.replicas) and partition.replicas[0] == partition.leader_id
            families["leader"].append((labels, partition.leader_id))
            families["replicas"].append((labels, len(partition.replicas)))
            families["in_sync_replica"].append((labels, len(partition.isr)))
            families["leader_is_preferred"].append((labels, int(preferred)))
            families["under_replicated_partition"].append(
                (labels, int(len(partition.isr) < len(partition.replicas)))
            )
        for name, samples in families.items():
            yield Family(f"kafka_topic_partition_{name}", "gauge", samples, PARTITION_FAMILIES[name])

    def _log_dir_families(self) -> Iterator[Family]:
        free: list[tuple[Labels, float]] = []
        total: list[tuple[Labels, float]] = []
        offline: list[tuple[Labels, float]] = []
        for log_dir in self._replicas.logs.log_dirs:
            labels = (("logDirectory", log_dir.path),)
            offline.append((labels, int(log_dir.offline is not None)))
            if log_dir.offline is None:
                try:
                    size, usable = self._replicas.logs.disk.usage(log_dir.path)
                except OSError:
                    continue  # the log folder goes offline with the next write to it
                total.append((labels, size))
                free.append((labels, usable))
        yield Family("tidelog_log_dir_bytes", "gauge", total, "Size of the disk that holds a log folder.")
        yield Family("tidelog_log_dir_free_bytes", "gauge", free, "Free bytes of the disk of a log folder.")
        yield Family("tidelog_log_dir_offline", "gauge", offline, "1 where a log folder is offline.")


class _FlushTimes(LogManagerListener):
    """The number and duration of flushes."""

    def __init__(self, registry: Registry) -> None:
        self._times = registry.histogram("kafka.log", "LogFlushStats", "LogFlushRateAndTimeMs", unit=0.001)

    def log_flushed(self, job: FlushJob) -> None:
        self._times.record(round(job.seconds * 1e6))


def _disk_bytes(field: str) -> int | None:
    """The bytes that this process has read from disks, or written; None if the system does not count them."""
    try:
        with open("/proc/self/io") as lines:
            return next((int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), None)
    except OSError:
        return None


def _version_family() -> Iterator[Family]:
    yield Family("tidelog_info", "gauge", [((("version", __version__),), 1)], "The version of the broker.")
