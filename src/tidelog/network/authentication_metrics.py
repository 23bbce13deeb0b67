"""Counts of authentications and re-authentications of a listener, under Kafka's names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tidelog.metrics.registry import Family, Meter
from tidelog.network.authentication_log import AuthenticationLog

PREFIX = "kafka_server_socket_server_metrics_"


class AuthenticationMetrics:
    """The counts of one listener."""

    def __init__(self) -> None:
        self.successful = Meter()
        self.failed = Meter()
        self.successful_reauthentications = Meter()
        self.failed_reauthentications = Meter()
        self.successful_no_reauth = 0  # by clients that cannot re-authenticate
        self.expired_killed = 0
        self.failures = AuthenticationLog()
        self._latency_seconds = 0.0
        self._longest_seconds = 0.0

    def reauthenticated(self, seconds: float) -> None:
        self.successful_reauthentications.mark()
        self._latency_seconds += seconds
        self._longest_seconds = max(self._longest_seconds, seconds)

    def values(self) -> Iterator[tuple[str, str, float]]:
        """The name, kind and value of each metric."""
        for name, meter in (
            ("successful_authentication", self.successful),
            ("failed_authentication", self.failed),
            ("successful_reauthentication", self.successful_reauthentications),
            ("failed_reauthentication", self.failed_reauthentications),
        ):
            yield f"{name}_total", "counter", meter.count
            yield f"{name}_rate", "gauge", meter.rates()[0]
        yield "successful_authentication_no_reauth_total", "counter", self.successful_no_reauth
        count = self.successful_reauthentications.count
        yield "reauthentication_latency_avg", "gauge", self._latency_seconds * 1000 / count if count else 0.0
        yield "reauthentication_latency_max", "gauge", self._longest_seconds * 1000
        yield "expired_connections_killed_count", "gauge", self.expired_killed


def families(by_listener: Mapping[str, AuthenticationMetrics]) -> Iterator[Family]:
    """The metrics of all listeners that authenticate their clients."""
    samples: dict[tuple[str, str], list[tuple[tuple[tuple[str, str], ...], float]]] = {}
    for listener, metrics in by_listener.items():
        labels = (("listener", listener), ("networkProcessor", "0"))
        for name, kind, value in metrics.values():
            samples.setdefault((name, kind), []).append((labels, value))
    for (name, kind), found in samples.items():
        yield Family(PREFIX + name, kind, found, "Authentications of a listener.")
