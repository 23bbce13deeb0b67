"""Meters of bytes, messages and requests, for each topic and for all topics together."""

from __future__ import annotations

from tidelog.metrics.registry import Meter, Registry

GROUP, TYPE = "kafka.server", "BrokerTopicMetrics"


class TopicMetrics:
    """The meters of one topic, or of all topics. Produce and fetch add to `.count` directly."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "bytes_rejected",
        "failed_fetches",
        "failed_produces",
        "fetches",
        "invalid_crc",
        "invalid_magic",
        "invalid_offset_or_sequence",
        "messages_in",
        "no_key_compacted",
        "produces",
    )

    def __init__(self, registry: Registry, **labels: str) -> None:
        def meter(name: str) -> Meter:
            return registry.meter(GROUP, TYPE, name, **labels)

        self.messages_in = meter("MessagesInPerSec")
        self.bytes_in = meter("BytesInPerSec")
        self.bytes_out = meter("BytesOutPerSec")
        self.bytes_rejected = meter("BytesRejectedPerSec")
        self.produces = meter("TotalProduceRequestsPerSec")
        self.fetches = meter("TotalFetchRequestsPerSec")
        self.failed_produces = meter("FailedProduceRequestsPerSec")
        self.failed_fetches = meter("FailedFetchRequestsPerSec")
        self.no_key_compacted = meter("NoKeyCompactedTopicRecordsPerSec")
        self.invalid_magic = meter("InvalidMagicNumberRecordsPerSec")
        self.invalid_crc = meter("InvalidMessageCrcRecordsPerSec")
        self.invalid_offset_or_sequence = meter("InvalidOffsetOrSequenceRecordsPerSec")


class AllTopicMetrics:
    """The meters of all topics together, and of each topic on this broker."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.all = TopicMetrics(registry)
        # Bytes for followers are counted for all topics together, as in Kafka.
        self.replication_bytes_out = registry.meter(GROUP, TYPE, "ReplicationBytesOutPerSec")
        self.reassignment_bytes_out = registry.meter(GROUP, TYPE, "ReassignmentBytesOutPerSec")

    def of(self, topic: str) -> TopicMetrics:
        return TopicMetrics(self._registry, topic=topic)

    def forget(self, topic: str) -> None:
        self._registry.remove_labelled("topic", topic)
