"""Metrics of a client's connections with Kafka's names. Counters are plain integers; a snapshot computes
rates and averages.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Average:
    """The mean and the maximum of the recorded values."""

    count: int = 0
    total: float = 0.0
    greatest: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        if value > self.greatest:
            self.greatest = value

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def milliseconds(self, name: str) -> dict[str, float]:
        """The metrics of a time that was recorded in seconds: NAME-avg and NAME-max in milliseconds."""
        return {f"{name}-avg": self.mean * 1000, f"{name}-max": self.greatest * 1000}


@dataclass(slots=True)
class NetworkMetrics:
    connection_creation_total: int = 0
    connection_close_total: int = 0
    successful_authentication_total: int = 0
    failed_authentication_total: int = 0
    request_total: int = 0
    response_total: int = 0
    outgoing_byte_total: int = 0
    incoming_byte_total: int = 0
    request_latency: Average = field(default_factory=Average)
    throttle_time: Average = field(default_factory=Average)

    def snapshot(self) -> dict[str, float]:
        """Every metric by Kafka's name; times are in milliseconds."""
        return {
            "connection-count": self.connection_creation_total - self.connection_close_total,
            "connection-creation-total": self.connection_creation_total,
            "connection-close-total": self.connection_close_total,
            "successful-authentication-total": self.successful_authentication_total,
            "failed-authentication-total": self.failed_authentication_total,
            "request-total": self.request_total,
            "response-total": self.response_total,
            "network-io-total": self.request_total + self.response_total,
            "outgoing-byte-total": self.outgoing_byte_total,
            "incoming-byte-total": self.incoming_byte_total,
            "request-size-avg": self.outgoing_byte_total / self.request_total if self.request_total else 0.0,
            **self.request_latency.milliseconds("request-latency"),
            **self.throttle_time.milliseconds("throttle-time"),
        }
