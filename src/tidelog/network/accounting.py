"""What every request cost, by API: times of its phases, bytes, versions, errors, client software.

Times are kept in units of 1,024 ns. The phases that are nearly always zero (waiting in a purgatory,
being throttled, queueing) are counted when they are not; the zeros follow from the total when read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from tidelog.errors import error_name
from tidelog.metrics.registry import Family, Histogram, MetricName, Registry
from tidelog.network.twins import RequestTimes

if TYPE_CHECKING:
    from tidelog.network.request import Request, ShortWay

UNIT_MS: Final = 1024 / 1e6
GROUP: Final = "kafka.network"
TYPE: Final = "RequestMetrics"


class _Phase(Histogram):
    """A histogram that was told only of values above zero; the rest of the requests had none."""

    __slots__ = ("_total",)

    def __init__(self, total: Histogram, unit: float, clock: Callable[[], float]) -> None:
        super().__init__(unit, clock=clock)
        self._total = total

    def settle(self) -> None:
        self.buckets[0] = 0
        self.buckets[0] = self._total.count - sum(self.buckets)


class _Together(Histogram):
    """The sum of other histograms: Fetch is what consumers and followers fetched."""

    __slots__ = ("_parts",)

    def __init__(self, parts: list[Histogram], unit: float, clock: Callable[[], float]) -> None:
        super().__init__(unit, clock=clock)
        self._parts = parts

    def settle(self) -> None:
        for part in self._parts:
            part.settle()
        columns = (part.buckets for part in self._parts)
        self.buckets[:] = [sum(column) for column in zip(*columns, strict=True)]


class RequestKind:
    """The numbers of one name in the request metrics: Produce, FetchConsumer, FetchFollower, Metadata ..."""

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
        self.queue = _Phase(self.total, UNIT_MS, clock)
        self.remote = _Phase(self.total, UNIT_MS, clock)
        self.throttle = _Phase(self.total, UNIT_MS, clock)
        self.response_queue = _Phase(self.total, UNIT_MS, clock)
        self.temporary_memory = _Phase(self.total, 1.0, clock)
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
        """Account a request whose last byte left at `sent_ns`."""
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
    """One version of one API as the channel looks it up: how its header ends, and where it is counted."""

    __slots__ = ("api_key", "api_version", "count", "flexible", "kind", "name", "short_way")

    def __init__(self, api_key: int, api_version: int, name: str, flexible: bool, kind: RequestKind) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.name = name
        self.flexible = flexible
        self.kind = kind
        self.count = 0
        self.short_way: ShortWay | None = None


class RequestAccounting:
    """The request metrics of a broker, and their families in the registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._kinds: dict[str, RequestKind] = {}
        self._entries: dict[tuple[int, int], ApiVersionEntry] = {}
        registry.collect(self._families)

    def kind(self, name: str) -> RequestKind:
        kind = self._kinds.get(name)
        if kind is None:
            kind = self._kinds[name] = RequestKind(name, self._registry.clock)
            self._registry.attach(GROUP, TYPE, kind.histograms(), request=name)
            if name in ("FetchConsumer", "FetchFollower"):
                self._attach_fetch()
        return kind

    def entry(self, api_key: int, api_version: int, name: str, flexible: bool) -> ApiVersionEntry:
        entry = self._entries.get((api_key, api_version))
        if entry is None:
            kind = self.kind("FetchConsumer" if name == "Fetch" else name)
            entry = ApiVersionEntry(api_key, api_version, name, flexible, kind)
            self._entries[api_key, api_version] = entry
        return entry

    def _attach_fetch(self) -> None:
        fetches = [kind for kind in self._kinds.values() if kind.name.startswith("Fetch")]
        columns = [kind.histograms() for kind in fetches]
        merged: dict[str, Histogram] = {
            name: _Together([column[name] for column in columns], first.unit, self._registry.clock)
            for name, first in columns[0].items()
        }
        self._registry.attach(GROUP, TYPE, merged, request="Fetch")

    def _families(self) -> Iterator[Family]:
        yield Family(
            MetricName(GROUP, TYPE, "RequestsPerSec"),
            "counter",
            [
                ((("request", entry.name), ("version", str(entry.api_version))), entry.count)
                for entry in self._entries.values()
            ],
        )
        samples: list[tuple[tuple[tuple[str, str], ...], float]] = []
        for kind in self._kinds.values():
            counts = {"NONE": kind.total.count - kind.failed}
            for code, n in kind.errors.items():
                name = error_name(code)
                counts[name] = counts.get(name, 0) + n
            samples += [((("request", kind.name), ("error", error)), n) for error, n in counts.items()]
        yield Family(MetricName(GROUP, TYPE, "ErrorsPerSec"), "counter", samples)
