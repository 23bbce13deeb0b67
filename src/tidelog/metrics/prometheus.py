"""Metrics as Prometheus text, under the names that dashboards for Kafka use.

The names are those of the JMX exporter with Strimzi's rules: lower case, `_total` for `PerSec`, `_percent`
for `Percent`, and quantiles and a `_count` for a histogram.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Final

from tidelog.metrics.registry import Gauge, Histogram, Metric, MetricName, Registry

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

QUANTILES: Final = (
    (0.5, "0.50"),
    (0.75, "0.75"),
    (0.95, "0.95"),
    (0.98, "0.98"),
    (0.99, "0.99"),
    (0.999, "0.999"),
)

METRICS_PER_STEP: Final = 20
SAMPLES_PER_STEP: Final = 500

_HELP_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n"})
_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})

Labels = tuple[tuple[str, str], ...]


def render(registry: Registry) -> str:
    """All metrics of the registry as one text."""
    text = Text()
    for _ in text.fill(registry):
        pass
    return text.finish()


class Text:
    """Samples by family: Prometheus wants all samples of a name together, after its type."""

    __slots__ = ("_families",)

    def __init__(self) -> None:
        self._families: dict[str, tuple[str, str, list[str]]] = {}

    def fill(self, registry: Registry) -> Iterator[None]:
        """Add all metrics. Yields now and then, so that a loop can do other work."""
        done = 0
        for name, metric in registry:
            self._add_metric(name, metric)
            done += 1
            if done % METRICS_PER_STEP == 0:
                yield
        for family in registry.families():
            full, help_text = family.name, family.help
            if isinstance(full, MetricName):
                help_text = help_text or mbean_name(full)
                full = prometheus_name(full, family.kind)
            for labels, value in family.samples:
                self._add(full, family.kind, help_text, labels, value)
                done += 1
                if done % SAMPLES_PER_STEP == 0:
                    yield

    def finish(self) -> str:
        lines: list[str] = []
        for name, (kind, help_text, samples) in self._families.items():
            lines.append(f"# HELP {name} {help_text.translate(_HELP_ESCAPES)}\n# TYPE {name} {kind}\n")
            lines += samples
        return "".join(lines)

    def _add_metric(self, name: MetricName, metric: Metric) -> None:
        help_text = mbean_name(name)
        if isinstance(metric, Histogram):
            base = prometheus_name(name, "histogram")
            self._add(base + "_count", "counter", f"{help_text}, count", name.labels, metric.count)
            values = metric.percentiles(quantile for quantile, _ in QUANTILES)
            for (_, label), value in zip(QUANTILES, values, strict=True):
                labels = (*name.labels, ("quantile", label))
                self._add(base, "gauge", f"{help_text}, quantiles", labels, value)
        elif isinstance(metric, Gauge):
            self._add(prometheus_name(name, "gauge"), "gauge", help_text, name.labels, metric.value)
        else:
            self._add(prometheus_name(name, "counter"), "counter", help_text, name.labels, metric.count)

    def _add(self, name: str, kind: str, help_text: str, labels: Labels, value: float) -> None:
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = (kind, help_text, [])
        family[2].append(f"{name}{_labels(labels)} {_number(value)}\n")


def mbean_name(name: MetricName) -> str:
    """The name under which Kafka's documentation explains a metric."""
    return f"{name.group}:type={name.type},name={name.name}"


def prometheus_name(name: MetricName, kind: str) -> str:
    """The name by the exporter's rules. `kind` is counter, gauge or histogram."""
    last = name.name
    prefix = f"{name.group}_{name.type}_"
    if kind == "counter":
        head, found, _ = last.rpartition("PerSec")
        last = f"{head}_total" if found else f"{last}_count"
    elif kind == "gauge" and "Percent" in last:
        last = last.rpartition("Percent")[0] + "_percent"
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in prefix + last).lower()


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    pairs = (f'{_label_name(key)}="{value.translate(_ESCAPES)}"' for key, value in labels)
    return "{" + ",".join(pairs) + "}"


@cache
def _label_name(key: str) -> str:
    """The exporter writes `broker_id` for `broker-id`: Prometheus refuses a scrape with other characters."""
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in key)


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
