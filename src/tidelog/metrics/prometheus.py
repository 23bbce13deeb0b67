"""Metrics as Prometheus text, under the names of a dialect."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, Literal

from tidelog.metrics.dialects import Dialect, Labels, Shown, Strimzi
from tidelog.metrics.registry import (
    Family,
    Gauge,
    Histogram,
    HistogramFamily,
    Metric,
    MetricName,
    Registry,
)
from tidelog.slices import Slices

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

QUANTILES: Final = (
    (0.5, "0.50"),
    (0.75, "0.75"),
    (0.95, "0.95"),
    (0.98, "0.98"),
    (0.99, "0.99"),
    (0.999, "0.999"),
)

METRICS_PER_STEP: Final = 10
SAMPLES_PER_STEP: Final = 100
LINES_PER_PART: Final = 500

_HELP_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n"})


def render(registry: Registry, dialect: Dialect | None = None, *, partitions: bool = True) -> str:
    """All metrics of the registry as one text."""
    text = Text(dialect or Strimzi(), partitions=partitions)
    for _ in text.fill(registry):
        pass
    return "".join(text.parts())


class Text:
    """Samples by family: Prometheus wants all samples of a name together, after its type.

    With `partitions=False` the series of a topic's partitions become one series without the label.
    """

    __slots__ = ("_dialect", "_families", "_folded", "_partitions", "_shown")

    def __init__(self, dialect: Dialect, *, partitions: bool = True) -> None:
        self._dialect = dialect
        self._partitions = partitions
        self._families: dict[str, tuple[str, str, list[str]]] = {}
        self._shown: dict[tuple[str, str, str, str], tuple[Shown, ...]] = {}
        self._folded: dict[MetricName | str, _Folded] = {}

    def fill(self, registry: Registry) -> Slices[None]:
        """Add all metrics. Yields now and then, so that a loop can do other work."""
        for at, (name, metric) in enumerate(registry):
            self._add_metric(name, metric)
            if at % METRICS_PER_STEP == 0:
                yield
        for family in registry.families():
            if isinstance(family, HistogramFamily):
                self._add_buckets(family)
            elif not self._partitions and family.samples and _has_partition(family.samples[0][0]):
                self._fold(family)
            else:
                yield from self._add_family(family)
            yield
        for folded_name, folded in self._folded.items():
            yield from self._add_family(
                Family(folded_name, folded.kind, list(folded.values.items()), folded.help_text)
            )

    @property
    def size(self) -> int:
        """The number of samples."""
        return sum(len(samples) for _, _, samples in self._families.values())

    def parts(self) -> Iterator[str]:
        """The text in parts of limited length."""
        for name, (kind, help_text, samples) in self._families.items():
            yield f"# HELP {name} {help_text.translate(_HELP_ESCAPES)}\n# TYPE {name} {kind}\n"
            for start in range(0, len(samples), LINES_PER_PART):
                yield "".join(samples[start : start + LINES_PER_PART])

    def _add_metric(self, name: MetricName, metric: Metric) -> None:
        if isinstance(metric, Histogram):
            self._add_histogram(name, metric)
        elif isinstance(metric, Gauge):
            value = metric.value
            for full, style in self._names(name, "gauge"):
                self._lines(full, "gauge", name).append(f"{full}{style.text(name.labels)} {number(value)}\n")
        else:
            for full, style in self._names(name, "counter"):
                self._lines(full, "counter", name).append(f"{full}{style.text(name.labels)} {metric.count}\n")

    def _add_histogram(self, name: MetricName, metric: Histogram) -> None:
        values = metric.percentiles(quantile for quantile, _ in QUANTILES)
        for full, style in self._names(name, "histogram"):
            count_name = self._dialect.count_name(full)
            kind = "counter" if count_name != full else "gauge"
            lines = self._lines(count_name, kind, name, ", count" if count_name != full else "")
            lines.append(f"{count_name}{style.text(name.labels)} {metric.count}\n")
            lines = self._lines(full, "gauge", name, ", quantiles")
            for (_, label), value in zip(QUANTILES, values, strict=True):
                text = style.text((*name.labels, ("quantile", label)))
                lines.append(f"{full}{text} {number(value)}\n")

    def _add_family(self, family: Family) -> Slices[None]:
        done = 0
        for full, style in self._names(family.name, family.kind):
            lines = self._lines(full, family.kind, family.name, help_text=family.help)
            for labels, value in family.samples:
                lines.append(f"{full}{style.text(labels)} {number(value)}\n")
                done += 1
                if done % SAMPLES_PER_STEP == 0:
                    yield

    def _add_buckets(self, family: HistogramFamily) -> None:
        name = family.name
        lines = self._lines(name, "histogram", name, help_text=family.help)
        for bound, count in family.buckets:
            lines.append(f'{name}_bucket{{le="{number(bound)}"}} {count}\n')
        lines.append(f"{name}_sum {number(family.total)}\n")
        lines.append(f"{name}_count {family.buckets[-1][1]}\n")

    def _fold(self, family: Family) -> None:
        if family.fold == "nothing":
            return
        folded = self._folded.get(family.name)
        if folded is None:
            folded = self._folded[family.name] = _Folded(family.kind, family.help, family.fold)
        for labels, value in family.samples:
            folded.add(tuple(label for label in labels if label[0] != "partition"), value)

    def _names(self, name: MetricName | str, kind: str) -> tuple[Shown, ...]:
        key = (name, "", "", kind) if isinstance(name, str) else (name.group, name.type, name.name, kind)
        found = self._shown.get(key)
        if found is None:
            found = self._shown[key] = self._dialect.shown(name, kind)
        return found

    def _lines(
        self, full: str, kind: str, name: MetricName | str, suffix: str = "", help_text: str = ""
    ) -> list[str]:
        family = self._families.get(full)
        if family is None:
            if not help_text:
                help_text = (name if isinstance(name, str) else mbean_name(name)) + suffix
            family = self._families[full] = (kind, help_text, [])
        return family[2]


class _Folded:
    """The samples of partitions, as one sample for each topic."""

    __slots__ = ("_fold", "help_text", "kind", "values")

    def __init__(self, kind: str, help_text: str, fold: Literal["sum", "max", "nothing"]) -> None:
        self.kind = kind
        self.help_text = help_text
        self.values: dict[Labels, float] = {}
        self._fold = fold

    def add(self, labels: Labels, value: float) -> None:
        before = self.values.get(labels)
        if before is None:
            self.values[labels] = value
        else:
            self.values[labels] = before + value if self._fold == "sum" else max(before, value)


def _has_partition(labels: Labels) -> bool:
    return any(key == "partition" for key, _ in labels)


def mbean_name(name: MetricName) -> str:
    """The name under which Kafka's documentation explains a metric."""
    return f"{name.group}:type={name.type},name={name.name}"


def number(value: float) -> str:
    """A value as Prometheus reads it."""
    if isinstance(value, int):
        return str(int(value))
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
