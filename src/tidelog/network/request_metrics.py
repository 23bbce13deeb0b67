"""Kafka's RequestMetrics, by API: times of the phases of a request, sizes, versions, errors.

Times have units of 1,024 ns. Phases that nearly always take no time (purgatory, throttling, queues) are
recorded only if they take some. The number of zeros follows from the total when a histogram is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from tidelog.errors import error_name
from tidelog.metrics.registry import Family, Histogram, MetricName, Registry
from tidelog.network.twins import RequestTimes

if TYPE_CHECKING:
    from tidelog.network.request import FastPath, Request

UNIT_MS: Final = 1024 / 1e6
GROUP: Final = "kafka.network"
TYPE: Final = "RequestMetrics"


class _SparseHistogram(Histogram):
    """Records only values above zero; every other request counts as zero."""

    __slots__ = ("_total",)

    def __init__(self, total: Histogram, unit: float, clock: Callable[[], float]) -> None:
        super().__init__(unit, clock=clock)
        self._total = total

    def settle(self) -> None:
        self.buckets[0] = 0
        self.buckets[0] = self._total.count - sum(self.buckets)


class _SumHistogram(Histogram):
    """The sum of other histograms: Fetch is FetchConsumer and FetchFollower."""

    __slots__ = ("_parts",)

    def __init__(self, parts: list[Histogram], unit: float, clock: Callable[[], float]) -> None:
        super().__init__(unit, clock=clock)
        self._parts = parts

    def settle(self) -> None:
        for part in self._parts:
            part.settle()
        columns = (part.buckets for part in self._parts)
        self.buckets[:] = [sum(column) for column in zip(*columns, strict=True)]


class RequestMetrics:
    """The metrics of one kind of request: Produce, FetchConsumer, FetchFollower, Metadata, ..."""

    __slots__ = (
        "errors",
        "failed",
        "local",
        "name",
        "queue",
        "remote",
        "request_bytes",
        "response_queue",
        "send",
        "temporary_memory",
        "throttle",
        "times",
        "total",
    )

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self.name = name
        self.total = Histogram(UNIT_MS, clock=clock)
        self.local = Histogram(UNIT_MS, clock=clock)
        self.send = Histogram(UNIT_MS, clock=clock)
        self.request_bytes = Histogram(clock=clock)
        self.queue = _SparseHistogram(self.total, UNIT_MS, clock)
        self.remote = _SparseHistogram(self.total, UNIT_MS, clock)
        self.throttle = _SparseHistogram(self.total, UNIT_MS, clock)
        self.response_queue = _SparseHistogram(self.total, UNIT_MS, clock)
        self.temporary_memory = _SparseHistogram(self.total, 1.0, clock)
        self.errors: dict[int, int] = {}
        self.failed = 0
        self.times = RequestTimes(
            self.total.buckets,
            self.local.buckets,
            self.send.buckets,
            self.request_bytes.buckets,
            self.queue.buckets,
        )

    def histograms(self) -> dict[str, Histogram]:
        return {
            "RequestQueueTimeMs": self.queue,
            "LocalTimeMs": self.local,
            "RemoteTimeMs": self.remote,
            "ThrottleTimeMs": self.throttle,
            "ResponseQueueTimeMs": self.response_queue,
            "ResponseSendTimeMs": self.send,
            "TotalTimeMs": self.total,
            "RequestBytes": self.request_bytes,
            "TemporaryMemoryBytes": self.temporary_memory,
        }

    def record(self, request: Request, responded_ns: int, send_start_ns: int, sent_ns: int) -> None:
        """Record a request. The last byte of its response was sent at `sent_ns`."""
        request.entry.count += 1
        self.times.record(
            request.size,
            request.received_ns,
            request.started_ns,
            request.local_end_ns or responded_ns,
            send_start_ns,
            sent_ns,
        )
        if send_start_ns != responded_ns:
            self.response_queue.record((send_start_ns - responded_ns) >> 10)
        if request.local_end_ns or request.throttle_ns or request.temporary_bytes or request.errors:
            self._record_unusual(request, responded_ns)

    def _record_unusual(self, request: Request, responded_ns: int) -> None:
        if request.local_end_ns:
            self.remote.record((responded_ns - request.local_end_ns) >> 10)
        if request.throttle_ns:
            self.throttle.record(request.throttle_ns >> 10)
        if request.temporary_bytes:
            self.temporary_memory.record(request.temporary_bytes)
        if request.errors:
            self.failed += 1
            for code, n in request.errors.items():
                self.errors[code] = self.errors.get(code, 0) + n


class ApiVersionEntry:
    """One version of one API in the table of the channels: its header, its fast path and its metrics."""

    __slots__ = (
        "api_key",
        "api_version",
        "count",
        "fast_path",
        "flexible",
        "metrics",
        "name",
        "record_times",
    )

    def __init__(
        self, api_key: int, api_version: int, name: str, flexible: bool, metrics: RequestMetrics
    ) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.name = name
        self.flexible = flexible
        self.metrics = metrics
        self.record_times = metrics.times.record  # bound once: every request calls it
        self.count = 0
        self.fast_path: FastPath | None = None


class RequestChannelMetrics:
    """The RequestMetrics of a broker by name, as the registry shows them."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._by_name: dict[str, RequestMetrics] = {}
        self._entries: dict[tuple[int, int], ApiVersionEntry] = {}
        registry.collect(self._families)

    def of(self, name: str) -> RequestMetrics:
        metrics = self._by_name.get(name)
        if metrics is None:
            metrics = self._by_name[name] = RequestMetrics(name, self._registry.clock)
            self._registry.attach(GROUP, TYPE, metrics.histograms(), request=name)
            if name == "FetchConsumer":
                self.of("FetchFollower")  # dashboards show it, also as long as no follower has fetched
            if name in ("FetchConsumer", "FetchFollower"):
                self._attach_fetch()
        return metrics

    def kinds(self) -> list[RequestMetrics]:
        """The metrics of the kinds of requests that were received."""
        return list(self._by_name.values())

    def entry(self, api_key: int, api_version: int, name: str, flexible: bool) -> ApiVersionEntry:
        entry = self._entries.get((api_key, api_version))
        if entry is None:
            metrics = self.of("FetchConsumer" if name == "Fetch" else name)
            entry = ApiVersionEntry(api_key, api_version, name, flexible, metrics)
            self._entries[api_key, api_version] = entry
        return entry

    def _attach_fetch(self) -> None:
        fetches = [metrics for metrics in self._by_name.values() if metrics.name.startswith("Fetch")]
        columns = [metrics.histograms() for metrics in fetches]
        merged: dict[str, Histogram] = {
            name: _SumHistogram([column[name] for column in columns], first.unit, self._registry.clock)
            for name, first in columns[0].items()
        }
        self._registry.attach(GROUP, TYPE, merged, request="Fetch")

    def _families(self) -> Iterator[Family]:
        requests: list[tuple[tuple[tuple[str, str], ...], float]] = [
            ((("request", entry.name), ("version", str(entry.api_version))), entry.count)
            for entry in self._entries.values()
        ]
        # As in Kafka, fetches also count separately for consumers and followers.
        requests += [
            ((("request", metrics.name),), metrics.total.count)
            for metrics in self._by_name.values()
            if metrics.name in ("FetchConsumer", "FetchFollower")
        ]
        yield Family(MetricName(GROUP, TYPE, "RequestsPerSec"), "counter", requests)
        samples: list[tuple[tuple[tuple[str, str], ...], float]] = []
        for metrics in self._by_name.values():
            counts = {"NONE": metrics.total.count - metrics.failed}
            for code, n in metrics.errors.items():
                name = error_name(code)
                counts[name] = counts.get(name, 0) + n
            samples += [((("request", metrics.name), ("error", error)), n) for error, n in counts.items()]
        yield Family(MetricName(GROUP, TYPE, "ErrorsPerSec"), "counter", samples)
