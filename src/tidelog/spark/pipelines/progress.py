"""How far each flow is, gathered from what Spark tells of every micro-batch: rows, rows/s, time and lag."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from tidelog.spark.pipelines.state import FlowStatus

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryListener, StreamingQueryProgress

Offsets = Mapping[str, Mapping[str, int]]


def lag(latest: Offsets, end: Offsets) -> int:
    """How many records lie between where a micro-batch ended and the end of the log."""
    return sum(
        max(0, last - end.get(topic, {}).get(partition, 0))
        for topic, partitions in latest.items()
        for partition, last in partitions.items()
    )


def offsets(text: str | None) -> Offsets | None:
    """Spark's offsets of a source, `{"topic": {"0": 42}}`; None where it has none yet."""
    if not text:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    good = isinstance(found, dict) and all(isinstance(value, dict) for value in found.values())
    return found if good else None


class Progress:
    """The numbers of flows by the name of their query. Spark tells from a thread of its own."""

    def __init__(self) -> None:
        self._flows: dict[str, FlowStatus] = {}
        self._lock = threading.Lock()

    def expect(self, query: str) -> None:
        self._flows[query] = FlowStatus()

    def set_state(self, query: str, state: str) -> None:
        with self._lock:
            self._flows[query].state = state

    def of(self, query: str) -> FlowStatus:
        with self._lock:
            flow = self._flows[query]
            return FlowStatus(**{name: getattr(flow, name) for name in FlowStatus.__slots__})

    def take(self, query: str, told: StreamingQueryProgress) -> None:
        with self._lock:
            flow = self._flows.get(query)
            if flow is None:
                return
            rows = told.numInputRows
            flow.rows += rows
            duration = told.durationMs.get("triggerExecution", 0)
            if rows or "addBatch" in told.durationMs:
                flow.batch, flow.batch_ms = told.batchId, duration
            flow.rows_per_second = rows / (duration / 1000) if duration else 0.0
            flow.late_rows_dropped += sum(state.numRowsDroppedByWatermark for state in told.stateOperators)
            flow.lag = _lag_of(told, flow.lag)
            flow.updated_at = time.time()

    def listener(self) -> StreamingQueryListener:
        return _listener(self.take)


def _lag_of(told: StreamingQueryProgress, before: int | None) -> int | None:
    total: int | None = None
    for source in told.sources:
        latest, end = offsets(source.latestOffset), offsets(source.endOffset)
        if latest is not None and end is not None:
            total = (total or 0) + lag(latest, end)
    return before if total is None else total


def _listener(take: Callable[[str, StreamingQueryProgress], None]) -> StreamingQueryListener:
    from pyspark.sql.streaming import listener as spark_listener

    class Listener(spark_listener.StreamingQueryListener):
        def onQueryStarted(self, event: spark_listener.QueryStartedEvent) -> None:
            pass

        def onQueryProgress(self, event: spark_listener.QueryProgressEvent) -> None:
            if event.progress.name is not None:
                take(event.progress.name, event.progress)

        def onQueryIdle(self, event: spark_listener.QueryIdleEvent) -> None:
            pass

        def onQueryTerminated(self, event: spark_listener.QueryTerminatedEvent) -> None:
            pass

    return Listener()


def line(flows: Iterable[tuple[str, FlowStatus]]) -> str:
    """One line for people: `earnings: 12,000 rows/s, lag 340, batch 7 in 0.4 s; ...`."""
    return "; ".join(_one(name, flow) for name, flow in flows)


def _one(name: str, flow: FlowStatus) -> str:
    if flow.batch is None:
        return f"{name}: {flow.state}" if flow.updated_at == 0 else f"{name}: no rows yet"
    behind = "lag unknown" if flow.lag is None else f"lag {flow.lag:,}"
    return (
        f"{name}: {flow.rows_per_second:,.0f} rows/s, {behind}, "
        f"batch {flow.batch} in {flow.batch_ms / 1000:.1f} s"
    )


def together(flows: Iterable[FlowStatus]) -> FlowStatus:
    """The flows of a pipeline as one: rows and lag added, the slowest micro-batch."""
    flows = tuple(flows)
    lags = [flow.lag for flow in flows if flow.lag is not None]
    batches = [flow.batch for flow in flows if flow.batch is not None]
    return FlowStatus(
        state=flows[0].state if flows else "",
        batch=max(batches) if batches else None,
        rows=sum(flow.rows for flow in flows),
        rows_per_second=sum(flow.rows_per_second for flow in flows),
        batch_ms=max((flow.batch_ms for flow in flows), default=0),
        lag=sum(lags) if lags else None,
        late_rows_dropped=sum(flow.late_rows_dropped for flow in flows),
        updated_at=max((flow.updated_at for flow in flows), default=0.0),
    )
