"""The table `batch_metrics`: one row for each micro-batch of each flow, with its counts and offsets.

A micro-batch leaves its counts in a small file before Spark commits it, and a replay replaces that file. From
time to time the files become rows of the table in one transaction, which also names the newest batch of each
flow, and are deleted. So a batch has one row, whatever is killed when. This module imports no Spark.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from tidelog.spark.tables.store import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

TABLE = "batch_metrics"
APP_ID = "tidelog-metrics"
FLUSH_SECONDS = 60.0
FLUSH_BATCHES = 200
COMMIT_ATTEMPTS = 20

log = logging.getLogger("tidelog.spark")


@dataclass(slots=True)
class BatchRecord:
    """The counts of one micro-batch."""

    pipeline: str
    flow: str
    query: str
    """The id of the streaming query. A flow whose checkpoint was removed has a new one, from batch 0 on."""
    batch: int
    started: float
    seconds: float
    rows_in: int | None = None
    rows_out: int = 0
    sinks: dict[str, int] = field(default_factory=dict)
    quarantined: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    expectations: dict[str, int] = field(default_factory=dict)
    late: int | None = None
    """Rows that a watermark dropped. Spark reports them after its commit: null if it was killed before."""
    offsets: str = ""

    @property
    def app_id(self) -> str:
        return f"{APP_ID}/{self.pipeline}/{self.flow}/{self.query}"


def arrow_schema() -> pa.Schema:
    import pyarrow as pa

    counts = pa.map_(pa.string(), pa.int64())
    return pa.schema(
        [
            ("pipeline", pa.string()),
            ("flow", pa.string()),
            ("query", pa.string()),
            ("batch", pa.int64()),
            ("started", pa.timestamp("us", "UTC")),
            ("seconds", pa.float64()),
            ("rows_in", pa.int64()),
            ("rows_out", pa.int64()),
            ("sinks", counts),
            ("quarantined", pa.int64()),
            ("reasons", counts),
            ("expectations", counts),
            ("late", pa.int64()),
            ("offsets", pa.string()),
        ]
    )


def arrow_rows(records: Iterable[BatchRecord]) -> pa.Table:
    import pyarrow as pa

    rows = []
    for record in records:
        row: dict[str, object] = asdict(record)
        row["started"] = int(record.started * 1_000_000)
        for name in ("sinks", "reasons", "expectations"):
            row[name] = sorted(getattr(record, name).items())
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=arrow_schema())


class MetricsTable:
    """The table `batch_metrics` as a Delta table.

    It is written as other tables are: delta-rs' own writer takes 18 MB more of the driver.
    """

    def __init__(self, uri: str, storage_options: Mapping[str, str] | None = None) -> None:
        self.uri = uri
        self._store = Store(uri, dict(storage_options or {}))

    def append(self, records: Iterable[BatchRecord]) -> int:
        """Add the records that the table does not have yet; returns their number."""
        from deltalake.exceptions import CommitFailedError

        records = list(records)
        for attempt in range(COMMIT_ATTEMPTS):
            try:
                table = self._opened()
                known = {record.app_id: table.transaction_version(record.app_id) for record in records}
                newest = {app: -1 if version is None else version for app, version in known.items()}
                fresh = [record for record in records if record.batch > newest[record.app_id]]
                if fresh:
                    self._commit(table, fresh)
                return len(fresh)
            except CommitFailedError:  # another process wrote first: look again at what the table has
                if attempt == COMMIT_ATTEMPTS - 1:
                    raise
        return 0

    def _opened(self) -> DeltaTable:
        """The table with all columns. It is created if it does not exist."""
        from deltalake import Schema

        from tidelog.spark.tables.delta_log import DeltaLog

        log = DeltaLog(self.uri, self._store.options)
        return log.with_columns(Schema.from_arrow(arrow_schema())).table

    def _commit(self, table: DeltaTable, records: Sequence[BatchRecord]) -> None:
        from deltalake import CommitProperties, Transaction

        from tidelog.spark.tables.task_files import Target, TaskFiles, WrittenFile

        files = TaskFiles(Target(self._store))
        files.put({}, arrow_rows(records))
        written = [WrittenFile.of(found) for found in files.close()]
        last: dict[str, int] = {}
        for record in records:
            last[record.app_id] = max(record.batch, last.get(record.app_id, -1))
        table.create_write_transaction(
            [file.added() for file in written],
            "append",
            table.schema(),
            [],
            commit_properties=CommitProperties(
                app_transactions=[Transaction(app, batch) for app, batch in last.items()]
            ),
        )


class MetricsFiles:
    """Small files in one place of a store, by their paths below it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._system = store.files()

    def names(self, folder: str) -> list[str]:
        from pyarrow.fs import FileSelector

        found = self._system.get_file_info(FileSelector(folder, allow_not_found=True))
        return sorted(str(entry.base_name) for entry in found)

    def make_folder(self, path: str) -> None:
        if self.store.is_local:  # object stores have no folders
            self._system.create_dir(path)

    def write(self, path: str, text: str) -> None:
        """Write a file, in the place of one that is there."""
        with self.store.remote_errors():
            self.store.put(path, text.encode())

    def read(self, path: str) -> str:
        with self._system.open_input_stream(path) as file:
            return bytes(file.read()).decode(errors="replace")

    def delete(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._system.delete_file(path)


class MetricsLog:
    """The records of micro-batches that are not in the table yet. Used by the threads of all flows."""

    def __init__(self, files: MetricsFiles, table: MetricsTable) -> None:
        self._files = files
        self._table = table
        self._lock = threading.Lock()
        self._waiting: dict[tuple[str, str, int], BatchRecord] = {}
        self._reported: set[tuple[str, str, int]] = set()
        self._next_flush = time.monotonic() + FLUSH_SECONDS

    def recover(self, pipeline: str, flow: str) -> None:
        """Take the records that an earlier process left, and prepare the flow's folder."""
        folder = self._folder_of(pipeline, flow)
        self._files.make_folder(folder)
        for name in self._files.names(folder):
            try:
                record = BatchRecord(**json.loads(self._files.read(f"{folder}/{name}")))
            except (ValueError, TypeError):
                continue  # it was killed in its write, before Spark's commit: the replay writes it again
            with self._lock:
                self._waiting[pipeline, flow, record.batch] = record
                self._reported.add((pipeline, flow, record.batch))

    def put(self, record: BatchRecord) -> None:
        """Keep the record of a micro-batch. A replay of the micro-batch replaces it."""
        with self._lock:
            key = record.pipeline, record.flow, record.batch
            self._waiting[key] = record
            self._reported.discard(key)
            self._save(record)

    def report(self, pipeline: str, flow: str, batch: int, rows: int, late: int) -> BatchRecord | None:
        """Add the numbers that Spark reports after the commit of a micro-batch."""
        with self._lock:
            key = pipeline, flow, batch
            record = self._waiting.get(key)
            if record is None or key in self._reported:
                return None
            self._reported.add(key)
            # Spark counts a source twice if the rows of the micro-batch are computed twice.
            if record.rows_in is None or rows < record.rows_in:
                record.rows_in = rows
            record.late = late
            self._save(record)
            return record

    def flush(self, *, everything: bool = False) -> None:
        """Move records into the table when it is time; with `everything`, all of them now.

        An error is logged, and the records wait for the next time.
        """
        due = time.monotonic() >= self._next_flush or len(self._reported) >= FLUSH_BATCHES
        if not everything and not due:
            return
        self._next_flush = time.monotonic() + FLUSH_SECONDS
        with self._lock:
            keys = sorted(self._waiting if everything else self._reported)
            records = [self._waiting[key] for key in keys]
        if not records:
            return
        try:
            self._table.append(records)
        except Exception as error:
            text = self._files.store.without_secrets(str(error))
            log.warning("the metrics of %d micro-batches are not in the table yet: %s", len(records), text)
            return
        with self._lock:
            for key, record in zip(keys, records, strict=True):
                if self._waiting.get(key) is record:
                    del self._waiting[key]
                    self._reported.discard(key)
                    self._files.delete(self._path(record))

    def _save(self, record: BatchRecord) -> None:
        self._files.write(self._path(record), json.dumps(asdict(record)))

    def _path(self, record: BatchRecord) -> str:
        return f"{self._folder_of(record.pipeline, record.flow)}/{record.batch:010d}.json"

    def _folder_of(self, pipeline: str, flow: str) -> str:
        return f"{pipeline}/{flow}"


@dataclass(slots=True)
class FlowTotals:
    """The counts of a flow since its start, for Prometheus."""

    batches: int = 0
    seconds: float = 0.0
    quarantined: int = 0
    sinks: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    expectations: dict[str, int] = field(default_factory=dict)

    def add(self, record: BatchRecord) -> None:
        self.batches += 1
        self.seconds += record.seconds
        self.quarantined += record.quarantined
        for name in ("sinks", "reasons", "expectations"):
            mine: dict[str, int] = dict(getattr(self, name))  # readers in other threads see one or the other
            for key, count in getattr(record, name).items():
                mine[key] = mine.get(key, 0) + count
            setattr(self, name, mine)
