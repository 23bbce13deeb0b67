"""The progress of each flow, from Spark's reports of micro-batches: rows, rows/s, time and lag."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from tidelog.spark.offsets import lag
from tidelog.spark.pipelines.state import FlowStatus

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

Offsets = Mapping[str, Mapping[str, int]]


def offsets(text: str | None) -> Offsets | None:
    """Spark's offsets of a source, `{"topic": {"0": 42}}`; None if there are none yet."""
    if not text:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    good = isinstance(found, dict) and all(isinstance(value, dict) for value in found.values())
    return found if good else None


class FlowProgress:
    """The numbers of one flow, from the progress of its query."""

    def __init__(self, reported: Callable[[int, int, int], None] | None = None) -> None:
        """`reported` is called with each micro-batch: its number, rows read and late rows dropped."""
        self.flow = FlowStatus()
        self._reported = reported
        self._seen: tuple[int, str] | None = None
        self._looking = threading.Lock()

    def look(self, query: StreamingQuery) -> None:
        """Take the progress of the query since the last call.

        Spark keeps only some micro-batches. So the query's thread calls this before each micro-batch, and the
        run calls it meanwhile.
        """
        with self._looking:
            last = query.lastProgress
            if last is None or _mark(last) == self._seen:
                return
            recent = query.recentProgress
            marks = [_mark(each) for each in recent]
            first = marks.index(self._seen) + 1 if self._seen in marks else 0
            for each in recent[first:]:
                self.take(each)
            self._seen = marks[-1]

    def take(self, progress: StreamingQueryProgress) -> None:
        flow, rows = self.flow, progress["numInputRows"]
        duration = progress["durationMs"].get("triggerExecution", 0)
        flow.rows += rows
        if rows or "addBatch" in progress["durationMs"]:
            flow.batch, flow.batch_ms = progress["batchId"], duration
        flow.rows_per_second = rows / (duration / 1000) if duration else 0.0
        late = sum(state["numRowsDroppedByWatermark"] for state in progress["stateOperators"])
        flow.late_rows_dropped += late
        flow.lag = _lag_of(progress, flow.lag)
        flow.updated_at = time.time()
        if self._reported is not None and "addBatch" in progress["durationMs"]:
            self._reported(progress["batchId"], rows, late)


def _mark(progress: StreamingQueryProgress) -> tuple[int, str]:
    return progress["batchId"], progress["timestamp"]


def _lag_of(progress: StreamingQueryProgress, before: int | None) -> int | None:
    total: int | None = None
    for source in progress["sources"]:
        latest, end = offsets(source["latestOffset"]), offsets(source["endOffset"])
        if latest is not None and end is not None:
            total = (total or 0) + sum(lag(end, latest).values())
    return before if total is None else total


def line(flows: Iterable[tuple[str, FlowStatus]]) -> str:
    """One line for people: `earnings: 12,000 rows/s, lag 340, batch 7 in 0.4 s; ...`."""
    return "; ".join(_one(name, flow) for name, flow in flows)


def _one(name: str, flow: FlowStatus) -> str:
    behind = "lag unknown" if flow.lag is None else f"lag {flow.lag:,}"
    now = running(flow)
    if flow.batch is None:
        if now is not None:
            return f"{name}: {behind}, {now}"
        return f"{name}: {flow.state}" if flow.updated_at == 0 else f"{name}: no rows yet"
    return (
        f"{name}: {flow.rows_per_second:,.0f} rows/s, {behind}, "
        f"batch {flow.batch} in {flow.batch_ms / 1000:.1f} s" + (f", {now}" if now is not None else "")
    )


def running(flow: FlowStatus) -> str | None:
    """The running micro-batch: `batch 8 with 1,200 rows runs for 3 s`; None between micro-batches."""
    if flow.running_batch is None:
        return None
    rows = "" if flow.running_rows is None else f" with {flow.running_rows:,} rows"
    return f"batch {flow.running_batch}{rows} runs for {time.time() - flow.running_since:,.0f} s"


def together(flows: Iterable[FlowStatus]) -> FlowStatus:
    """The flows of a pipeline as one: the sum of rows and lag, the slowest and the longest running batch."""
    flows = tuple(flows)
    lags = [flow.lag for flow in flows if flow.lag is not None]
    batches = [flow.batch for flow in flows if flow.batch is not None]
    at_work = [flow for flow in flows if flow.running_batch is not None]
    longest = min(at_work, key=lambda flow: flow.running_since, default=None)
    return FlowStatus(
        state=flows[0].state if flows else "",
        batch=max(batches) if batches else None,
        rows=sum(flow.rows for flow in flows),
        rows_per_second=sum(flow.rows_per_second for flow in flows),
        batch_ms=max((flow.batch_ms for flow in flows), default=0),
        lag=sum(lags) if lags else None,
        late_rows_dropped=sum(flow.late_rows_dropped for flow in flows),
        updated_at=max((flow.updated_at for flow in flows), default=0.0),
        running_batch=longest.running_batch if longest is not None else None,
        running_since=longest.running_since if longest is not None else 0.0,
        running_rows=longest.running_rows if longest is not None else None,
    )
