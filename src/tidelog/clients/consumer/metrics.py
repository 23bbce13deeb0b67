"""The metrics of a consumer under Kafka's names: plain integers, turned into rates on request."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog.clients.network_metrics import Average


@dataclass(slots=True)
class ConsumerMetrics:
    records_consumed_total: int = 0
    bytes_consumed_total: int = 0
    fetch_total: int = 0
    commit_total: int = 0
    commit_failed_total: int = 0
    rebalance_total: int = 0
    failed_rebalance_total: int = 0
    heartbeat_total: int = 0
    poll_total: int = 0
    fetch_latency: Average = field(default_factory=Average)
    fetch_size: Average = field(default_factory=Average)
    commit_latency: Average = field(default_factory=Average)
    rebalance_latency: Average = field(default_factory=Average)
    throttle_time: Average = field(default_factory=Average)

    def snapshot(self) -> dict[str, float]:
        """Every metric by Kafka's name; times in milliseconds."""
        return {
            "records-consumed-total": self.records_consumed_total,
            "bytes-consumed-total": self.bytes_consumed_total,
            "fetch-total": self.fetch_total,
            "commit-total": self.commit_total,
            "commit-failed-total": self.commit_failed_total,
            "rebalance-total": self.rebalance_total,
            "failed-rebalance-total": self.failed_rebalance_total,
            "heartbeat-total": self.heartbeat_total,
            "poll-total": self.poll_total,
            "fetch-size-avg": self.fetch_size.mean,
            "fetch-size-max": self.fetch_size.greatest,
            **self.fetch_latency.milliseconds("fetch-latency"),
            **self.commit_latency.milliseconds("commit-latency"),
            **self.rebalance_latency.milliseconds("rebalance-latency"),
            **self.throttle_time.milliseconds("fetch-throttle-time"),
        }
