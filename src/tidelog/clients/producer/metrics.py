"""The metrics of a producer under Kafka's names: plain integers, turned into rates on request."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog.clients.network_metrics import Average


@dataclass(slots=True)
class ProducerMetrics:
    record_send_total: int = 0
    record_error_total: int = 0
    record_retry_total: int = 0
    batch_split_total: int = 0
    batch_size: Average = field(default_factory=Average)
    records_per_request: Average = field(default_factory=Average)
    record_queue_time: Average = field(default_factory=Average)
    request_latency: Average = field(default_factory=Average)
    compression_rate: Average = field(default_factory=Average)
    throttle_time: Average = field(default_factory=Average)

    def snapshot(self) -> dict[str, float]:
        """Every metric by Kafka's name; times in milliseconds."""
        return {
            "record-send-total": self.record_send_total,
            "record-error-total": self.record_error_total,
            "record-retry-total": self.record_retry_total,
            "batch-split-total": self.batch_split_total,
            "batch-size-avg": self.batch_size.mean,
            "batch-size-max": self.batch_size.greatest,
            "records-per-request-avg": self.records_per_request.mean,
            "compression-rate-avg": self.compression_rate.mean,
            **self.record_queue_time.milliseconds("record-queue-time"),
            **self.request_latency.milliseconds("request-latency"),
            **self.throttle_time.milliseconds("produce-throttle-time"),
        }
