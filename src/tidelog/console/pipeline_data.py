"""What the console shows of pipelines: their status files, and the tables of a local data folder.

Every function blocks and runs on a thread. deltalake and PyArrow are imported when a table is read.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from tidelog.console.errors import ApiError, not_found

if TYPE_CHECKING:
    from tidelog.spark.pipelines.state import PipelineStatus

NEWEST_ROWS: Final = 50
NEWEST_BATCHES: Final = 30
NEWEST_ALERTS: Final = 50
MOST_CHARACTERS: Final = 2_000
ALERT_COLUMNS: Final = (
    "alert_id", "rule", "subject", "window_start", "window_end", "raised_at", "evidence",
)  # fmt: skip
BATCH_COLUMNS: Final = (
    "pipeline", "flow", "batch", "started", "seconds", "rows_in", "rows_out", "quarantined", "late",
)  # fmt: skip


class TableItem(Struct):
    """A Delta table of a data folder. `changed_ms` is the time of its newest file."""

    name: str
    version: int
    rows: int | None
    bytes: int
    files: int
    changed_ms: int | None


class TableAnswer(Struct):
    """The newest rows of a table, as text; None is null."""

    columns: list[str]
    rows: list[list[str | None]]


class AlertItem(Struct):
    """An alert with its evidence, a value of JSON."""

    pipeline: str
    alert_id: str
    rule: str
    subject: str
    window_start: str
    window_end: str
    raised_at: str
    evidence: Any


def statuses(folder: str) -> list[PipelineStatus]:
    """The status of each pipeline on a data folder. Raises ApiError 502 if the folder cannot be read."""
    from tidelog.spark.pipelines.state import StateFolder, store_of

    try:
        state = StateFolder(folder, store_of(folder, {}))
        found = [state.read(name) for name in state.names()]
    except (OSError, ValueError) as error:
        raise ApiError(502, "PIPELINES", f"The folder {folder} cannot be read: {error}") from None
    return [status for status in found if status is not None]


def tables(folder: str) -> list[TableItem]:
    """The Delta tables below a local data folder."""
    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    root = table_root(folder)
    found = []
    for name in table_names(root):
        try:
            table = DeltaTable(str(root / name))
            files = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        except (DeltaError, OSError):
            continue  # it is being made or removed
        counts = [each.get("num_records") for each in files]
        found.append(
            TableItem(
                name,
                table.version(),
                None if any(count is None for count in counts) else sum(counts),
                sum(each.get("size_bytes") or 0 for each in files),
                len(files),
                max((each.get("modification_time") or 0 for each in files), default=None),
            )
        )
    return found


def newest_rows(folder: str, name: str, limit: int = NEWEST_ROWS) -> TableAnswer:
    """The last rows of the newest files of a table. Raises ApiError 404 for an unknown table."""
    import pyarrow as pa
    from deltalake import DeltaTable

    root = table_root(folder)
    if name not in table_names(root):
        raise not_found(f"The table {name}")
    table = DeltaTable(str(root / name))
    dataset = table.to_pyarrow_dataset()
    changed = {
        each["path"]: each.get("modification_time") or 0
        for each in pa.table(table.get_add_actions(flatten=True)).to_pylist()
    }
    fragments = sorted(dataset.get_fragments(), key=lambda each: changed.get(each.path, 0), reverse=True)
    rows: list[list[str | None]] = []
    names = list(dataset.schema.names)
    for fragment in fragments:
        if len(rows) >= limit:
            break
        try:
            found = fragment.to_table(schema=dataset.schema, columns=names)
        except FileNotFoundError:
            continue  # a vacuum removed it
        wanted = limit - len(rows)
        last = found.slice(max(found.num_rows - wanted, 0))
        rows += [[shown(row[column]) for column in names] for row in reversed(last.to_pylist())]
    return TableAnswer(names, rows)


def batches(folder: str, pipeline: str | None, limit: int = NEWEST_BATCHES) -> list[Mapping[str, object]]:
    """The newest micro-batches of a pipeline, or of all, from the table `batch_metrics`."""
    from tidelog.spark.pipelines.report_readers import LocalReader, TablesChanged

    reader = LocalReader(table_root(folder))
    where = {} if pipeline is None else {"pipeline": pipeline}
    try:
        if not reader.columns("batch_metrics") >= set(BATCH_COLUMNS):
            return []
        return reader.top("batch_metrics", BATCH_COLUMNS, "started", limit, where)
    except (TablesChanged, OSError):
        return []


def alerts(folder: str, limit: int = NEWEST_ALERTS, alert_id: str | None = None) -> list[AlertItem]:
    """The newest alerts of all detectors, the newest first; or only those with an id."""
    from tidelog.spark.pipelines.report_facts import ALERT_TABLES, evidence_of
    from tidelog.spark.pipelines.report_readers import LocalReader, TablesChanged

    reader = LocalReader(table_root(folder))
    where = {} if alert_id is None else {"alert_id": alert_id}
    found: list[AlertItem] = []
    for table, pipeline in ALERT_TABLES.items():
        try:
            if not reader.columns(table) >= set(ALERT_COLUMNS):
                continue
            rows: Sequence[Mapping[str, object]] = reader.top(table, ALERT_COLUMNS, "raised_at", limit, where)
        except (TablesChanged, OSError):
            continue
        for row in rows:
            texts = {name: shown(row[name]) or "" for name in ALERT_COLUMNS if name != "evidence"}
            found.append(AlertItem(pipeline, **texts, evidence=evidence_of(row["evidence"])))
    found.sort(key=lambda alert: alert.raised_at, reverse=True)
    return found[:limit]


def report(folder: str) -> str:
    """The report of `tidelog pipeline report` as HTML."""
    from tidelog.spark.pipelines.report import facts
    from tidelog.spark.pipelines.report_page import page

    root = table_root(folder)
    return page(facts(root.parent), folder, datetime.now(UTC).strftime("%Y-%m-%d %H:%M"))


def table_root(folder: str) -> Path:
    """The folder of the tables. Raises ApiError 501 for a store, whose tables need Spark's credentials."""
    from tidelog.spark.pipelines.state import local_path

    local = local_path(folder)
    if local is None:
        raise ApiError(501, "NOT_LOCAL", f"The tables in {folder} are shown only if it is a local folder.")
    return local / "tables"


def table_names(root: Path) -> list[str]:
    if not root.is_dir():
        return []
    return sorted(each.name for each in root.iterdir() if (each / "_delta_log").is_dir())


def shown(value: object) -> str | None:
    """A value of a row as text; None for null."""
    if value is None:
        return None
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, bytes):
        text = value.decode(errors="replace")
    elif isinstance(value, float) and math.isfinite(value):
        text = f"{value:.6g}"
    elif isinstance(value, str | int | bool | date | Decimal | float):
        text = str(value)
    else:
        text = repr(value)
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}..."


def age_seconds(at: float) -> float | None:
    """The time since a moment; None if there was none."""
    return None if at <= 0 else max(time.time() - at, 0.0)
