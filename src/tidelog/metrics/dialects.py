"""Dialects: the names and labels that the exporters of the field give to Kafka's metrics.

`strimzi` has the names of the JMX exporter with Strimzi's rules: lower case, `_total` for `PerSec` and
`_percent` for `Percent`. `confluent` has the names of Confluent's rules, which keep `persec`, of
kafka-lag-exporter and of OpenTelemetry's kafkametrics receiver. Metrics of kafka_exporter and our own keep
their names in both, unless the other exporters have a name for the same number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from tidelog.metrics.registry import MetricName

Labels = tuple[tuple[str, str], ...]

_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class LabelStyle:
    """Labels as text, with the names of a dialect. Remembers each text: many series share their labels."""

    __slots__ = ("_fixed", "_rename", "_texts")

    def __init__(self, rename: Callable[[str], str], fixed: Labels = ()) -> None:
        self._rename = rename
        self._fixed = fixed
        self._texts: dict[Labels, str] = {(): ""} if not fixed else {}

    def text(self, labels: Labels) -> str:
        found = self._texts.get(labels)
        if found is None:
            pairs = [
                f'{self._rename(key)}="{value.translate(_ESCAPES)}"' for key, value in self._fixed + labels
            ]
            found = self._texts[labels] = "{" + ",".join(pairs) + "}"
        return found


Shown = tuple[str, LabelStyle]
"""A name of Prometheus, and the style of its labels."""


class Dialect(Protocol):
    """One scrape makes one dialect: its caches last as long as the scrape."""

    def shown(self, name: MetricName | str, kind: str) -> tuple[Shown, ...]:
        """The names of a metric; none leaves it out. `kind` is counter, gauge or histogram."""

    def count_name(self, histogram: str) -> str:
        """The name of the count of a histogram with this name."""


class Strimzi:
    def __init__(self) -> None:
        self._style = LabelStyle(label_name)

    def shown(self, name: MetricName | str, kind: str) -> tuple[Shown, ...]:
        full = name if isinstance(name, str) else prometheus_name(name, kind)
        return ((full, self._style),)

    def count_name(self, histogram: str) -> str:
        return histogram + "_count"


LAG_EXPORTER: Final = {
    "kafka_consumergroup_lag": "kafka_consumergroup_group_lag",
    "kafka_consumergroup_lag_seconds": "kafka_consumergroup_group_lag_seconds",
    "kafka_consumergroup_lag_sum": "kafka_consumergroup_group_topic_sum_lag",
    "kafka_consumergroup_current_offset": "kafka_consumergroup_group_offset",
    "kafka_consumergroup_max_lag": "kafka_consumergroup_group_max_lag",
    "kafka_consumergroup_max_lag_seconds": "kafka_consumergroup_group_max_lag_seconds",
    "kafka_topic_partition_current_offset": "kafka_partition_latest_offset",
    "kafka_topic_partition_oldest_offset": "kafka_partition_earliest_offset",
}
"""Names of kafka-lag-exporter for names of kafka_exporter."""

OTEL: Final = {
    "kafka_consumergroup_lag": "kafka_consumer_group_lag_ratio",
    "kafka_consumergroup_lag_sum": "kafka_consumer_group_lag_sum_ratio",
    "kafka_consumergroup_current_offset": "kafka_consumer_group_offset_ratio",
    "kafka_consumergroup_members": "kafka_consumer_group_members",
    "kafka_topic_partition_replicas": "kafka_partition_replicas",
    "kafka_topic_partition_in_sync_replica": "kafka_partition_replicas_in_sync",
}
"""Names of OpenTelemetry's receiver, as its exporter for Prometheus writes them."""

SOCKET_SERVER: Final = "kafka_server_socket_server_metrics_"
EXPORTER: Final = ("kafka_consumergroup_", "kafka_topic_partition_")
ONE_MINUTE_RATES: Final = frozenset({"RequestHandlerAvgIdlePercent"})
"""Meters of which Confluent's rules also show the rate of the last minute."""


class Confluent:
    def __init__(self, cluster: str) -> None:
        """`cluster` is the value of the label cluster_name of lags."""
        self._beans = LabelStyle(lambda key: label_name(key).lower())
        self._plain = LabelStyle(label_name)
        self._lag = LabelStyle(_group_label, (("cluster_name", cluster),))
        self._otel = LabelStyle(_group_label)
        self._sockets = LabelStyle(_snake_case)

    def shown(self, name: MetricName | str, kind: str) -> tuple[Shown, ...]:
        if isinstance(name, MetricName):
            full = clean(f"{name.group}_{name.type}_{name.name}").lower()
            if name.name in ONE_MINUTE_RATES:
                return (full, self._beans), (full + "_oneminuterate", self._beans)
            return ((full, self._beans),)
        if name.startswith(SOCKET_SERVER):
            rest = name.removeprefix(SOCKET_SERVER)
            if rest == "connections":
                return ()  # those by TLS cipher, which Confluent's rules leave out
            rest = "connections" if rest == "connections_software" else rest
            return (("kafka_server_socketservermetrics_" + rest, self._sockets),)
        if name.startswith(EXPORTER):
            others: list[Shown] = []
            if name in LAG_EXPORTER:
                others.append((LAG_EXPORTER[name], self._lag))
            if name in OTEL:
                others.append((OTEL[name], self._otel))
            return tuple(others)
        return ((name, self._plain),)

    def count_name(self, histogram: str) -> str:
        return histogram


def prometheus_name(name: MetricName, kind: str) -> str:
    """The name by Strimzi's rules. `kind` is counter, gauge or histogram."""
    last = name.name
    prefix = f"{name.group}_{name.type}_"
    if kind == "counter":
        head, found, _ = last.rpartition("PerSec")
        last = f"{head}_total" if found else f"{last}_count"
    elif kind == "gauge" and "Percent" in last:
        last = last.rpartition("Percent")[0] + "_percent"
    return clean(prefix + last).lower()


def clean(text: str) -> str:
    """The exporter replaces characters that Prometheus refuses in names."""
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in text)


def label_name(key: str) -> str:
    """`broker_id` for `broker-id`."""
    return key if key.isidentifier() and key.isascii() else clean(key)


def _group_label(key: str) -> str:
    return "group" if key == "consumergroup" else label_name(key)


def _snake_case(key: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in key)
