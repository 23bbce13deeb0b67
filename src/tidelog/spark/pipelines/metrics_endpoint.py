"""The metrics of running pipelines at `http://host:port/metrics`, as Prometheus text."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tidelog.metrics.http import Health, MetricsServer
from tidelog.metrics.registry import Family, Registry
from tidelog.spark.pipelines.batch_metrics import FlowTotals
from tidelog.spark.pipelines.state import FAILED, FlowStatus

START_SECONDS = 10.0
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class FlowMetrics:
    """One flow at the time of a reading."""

    pipeline: str
    flow: str
    status: FlowStatus
    totals: FlowTotals

    @property
    def labels(self) -> Labels:
        return ("pipeline", self.pipeline), ("flow", self.flow)


def families(flows: Iterable[FlowMetrics]) -> list[Family]:
    """The metrics of the flows. Counters begin at 0 with each run, as Prometheus expects."""
    made: dict[str, Family] = {}

    def add(name: str, kind: str, text: str, labels: Labels, value: float) -> None:
        full = f"tidelog_pipeline_{name}"
        family = made.setdefault(full, Family(full, kind, [], text))
        family.samples.append((labels, value))

    for flow in flows:
        labels, status, totals = flow.labels, flow.status, flow.totals
        up = 0 if status.state == FAILED else 1
        add("flow_up", "gauge", "0 if the flow has failed.", labels, up)
        add("rows_in_total", "counter", "Records read.", labels, status.rows)
        add("batches_total", "counter", "Micro-batches written.", labels, totals.batches)
        add("batch_seconds_total", "counter", "Time of micro-batches' writes.", labels, totals.seconds)
        add("late_rows_total", "counter", "Rows dropped by a watermark.", labels, status.late_rows_dropped)
        if status.lag is not None:
            add("lag", "gauge", "Records in the log that are not read yet.", labels, status.lag)
        for sink, count in totals.sinks.items():
            text = "Rows written to a table or a topic."
            add("rows_out_total", "counter", text, (*labels, ("sink", sink)), count)
        add("quarantined_total", "counter", "Rows in the quarantine.", labels, totals.quarantined)
        for reason, count in totals.reasons.items():
            text = "Rows in the quarantine, by reason."
            add("quarantined_by_reason_total", "counter", text, (*labels, ("reason", reason)), count)
        for name, count in totals.expectations.items():
            text = "Rows that fail an expectation."
            add("expectation_failures_total", "counter", text, (*labels, ("expectation", name)), count)
    return list(made.values())


class MetricsEndpoint:
    """Serves the metrics on a thread of its own, from `open` to `close`."""

    def __init__(self, flows: Callable[[], Iterable[FlowMetrics]], host: str, port: int) -> None:
        self._flows = flows
        registry = Registry()
        registry.collect(lambda: families(flows()))
        self._server = MetricsServer(registry, host, port, self._health)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pipeline-metrics", daemon=True)
        self.url = ""

    def open(self) -> None:
        """Bind the port and serve. Raises OSError if the port is in use."""
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._server.bind(), self._loop).result(START_SECONDS)
        except BaseException:
            self._end_loop()
            raise
        self._server.start()
        self.url = f"{self._server.url}/metrics"

    def close(self) -> None:
        if not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(self._server.close(), self._loop).result(START_SECONDS)
            self._end_loop()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_SECONDS)
        self._loop.close()

    def _health(self) -> Health:
        states = {f"{flow.pipeline}/{flow.flow}": flow.status.state for flow in self._flows()}
        return Health(FAILED not in states.values(), {"flows": states})
