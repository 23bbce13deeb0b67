"""The metrics of the broker, under the names of Kafka and of kafka_exporter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from functools import partial

from tidelog import __version__
from tidelog.cluster.fetch_session import FetchSessionCache
from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.cluster.purgatory import Purgatory
from tidelog.cluster.replica_manager import ReplicaManager
from tidelog.metrics.process import ProcessMetrics
from tidelog.metrics.registry import Family, MetricName, Registry
from tidelog.server.partition_metrics import PartitionMetrics
from tidelog.storage.cleaner.log_cleaner import LogCleaner
from tidelog.storage.flush_job import FlushJob
from tidelog.storage.log_dir import LogDir
from tidelog.storage.log_manager_listener import LogManagerListener

Labels = tuple[tuple[str, str], ...]

TOPICS_PER_FAMILY = 500


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
        self._still_metrics()
        for purgatory in (
            replicas.produce_purgatory,
            replicas.fetch_purgatory,
            replicas.delete_records_purgatory,
        ):
            # The fetches of followers wait beside the purgatory.
            self._purgatory_gauges(
                purgatory, replicas.follower_fetches if purgatory is replicas.fetch_purgatory else ()
            )
        cache = "FetchSessionCache"
        gauge("kafka.server", cache, "NumIncrementalFetchSessions", lambda: len(sessions))
        gauge(
            "kafka.server", cache, "NumIncrementalFetchPartitionsCached", lambda: sessions.partitions_cached
        )
        gauge("kafka.server", cache, "IncrementalFetchSessionEvictionsPerSec", lambda: sessions.evictions)
        self._controller_gauges()
        self._disk_metrics()
        gauge("kafka.server", "app-info", "start-time-ms", lambda: started_ms)
        registry.collect(PartitionMetrics(replicas).families)
        registry.collect(self._exporter_families)
        registry.collect(self._log_dir_families)
        registry.collect(_version_family)
        registry.collect(ProcessMetrics(started_ms / 1000).families)

    def _purgatory_gauges(self, purgatory: Purgatory, others: Sized) -> None:
        """The gauges of a purgatory, which count `others`, too."""
        kind, labels = "DelayedOperationPurgatory", {"delayedOperation": purgatory.name}
        gauge = self.registry.gauge
        gauge("kafka.server", kind, "PurgatorySize", lambda: purgatory.watched + len(others), **labels)
        gauge("kafka.server", kind, "NumDelayedOperations", lambda: purgatory.delayed + len(others), **labels)

    def _still_metrics(self) -> None:
        # A broker alone has no followers: these meters stay at 0, for dashboards that show them.
        for name in ("IsrShrinksPerSec", "IsrExpandsPerSec", "FailedIsrUpdatesPerSec"):
            self.registry.meter("kafka.server", "ReplicaManager", name)
        # A broker in a cluster replaces these gauges by those of its fetchers.
        for name in ("MaxLag", "MinFetchRate", "FailedPartitionsCount", "DeadThreadCount"):
            self.registry.gauge("kafka.server", "ReplicaFetcherManager", name, lambda: 0, clientId="Replica")
        # The broker stores batches in the format in which they come, so it converts none.
        for name in ("ProduceMessageConversionsPerSec", "FetchMessageConversionsPerSec"):
            self.registry.meter("kafka.server", "BrokerTopicMetrics", name)

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
        # A broker alone is the preferred leader of all its partitions.
        gauge("kafka.controller", kind, "PreferredReplicaImbalanceCount", lambda: 0)
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

    def _exporter_families(self) -> Iterator[Family]:
        """The metrics of kafka_exporter about brokers and topics."""
        snapshot = self._metadata.snapshot
        yield Family("kafka_brokers", "gauge", [((), len(snapshot.brokers))], "Brokers of the cluster.")
        addresses: list[tuple[Labels, float]] = [
            ((("id", str(broker_id)), ("address", f"{endpoint.host}:{endpoint.port}")), 1)
            for broker_id, broker in snapshot.brokers.items()
            for endpoint in broker.endpoints[:1]
        ]
        yield Family("kafka_broker_info", "gauge", addresses, "Brokers of the cluster, with their addresses.")
        topics = list(snapshot.topics.items())
        for start in range(0, len(topics), TOPICS_PER_FAMILY):
            sizes: list[tuple[Labels, float]] = [
                ((("topic", name),), len(topic.partitions))
                for name, topic in topics[start : start + TOPICS_PER_FAMILY]
            ]
            yield Family("kafka_topic_partitions", "gauge", sizes, "Partitions of a topic.")

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
        kind = "LogManager"
        yield Family(MetricName("kafka.log", kind, "LogDirectoryOffline"), "gauge", offline)
        failed = sum(value for _, value in offline)
        yield Family(MetricName("kafka.log", kind, "OfflineLogDirectoryCount"), "gauge", [((), failed)])
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
