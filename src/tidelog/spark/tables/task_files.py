"""The Parquet files that Spark's tasks write into a table's folder.

A file belongs to the table once the driver has committed it. Each attempt of a task writes files of its own
names, and the driver hears only of the attempt that counts: what a failed or second attempt left is garbage,
and a vacuum removes it.
"""

from __future__ import annotations

import json
import re
import socket
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelog.spark.tables.errors import TableError
from tidelog.spark.tables.live_files import partition_text
from tidelog.spark.tables.statistics import statistics
from tidelog.spark.tables.store import Store

if TYPE_CHECKING:
    import pyarrow.fs
    from deltalake.transaction import AddAction
    from pyspark.sql import DataFrame

ROW_GROUP_BYTES = 32 << 20
"""Rows are buffered up to this size in Arrow's memory, then written as one row group."""
BUFFER_BYTES = 128 << 20
"""All buffers of a task. Above it the largest one is written, with whatever it has."""
SAMPLE_ROWS = 10_000
DIFFERENT = 0.97
"""With this share of different values in a sample, the whole column has more than 160,000 of them."""
OPEN_FILES = 64
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
ASIDE = "aside"
"""The folder of rows that are put aside. Its name is visible, so that a vacuum removes what a crash left."""
COLUMNS = "path string, size long, rows long, partition string, statistics string, aside boolean"
_TO_ESCAPE = re.compile(r"[^A-Za-z0-9_.\-\u0080-\U0010ffff]")
_RESULT = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("rows", pa.int64()),
        ("partition", pa.string()),
        ("statistics", pa.string()),
        ("aside", pa.bool_()),
    ]
)


@dataclass(frozen=True, slots=True)
class Target:
    """The table that tasks write to: its place, the columns of its folders, and the column of structs that
    says which rows to put aside: those that have one."""

    store: Store
    partition_by: tuple[str, ...] = ()
    aside: str = ""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that a task has written, as the task saw it."""

    path: str
    """Relative to the table's folder."""
    size: int
    rows: int
    partition: Mapping[str, str | None]
    statistics: str
    aside: bool

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> WrittenFile:
        """The file of a row that `write_task` returned."""
        return cls(**{**found, "partition": json.loads(found["partition"])})

    def added(self) -> AddAction:
        """The action that adds the file to its table."""
        from deltalake.transaction import AddAction  # tasks do not need it

        now = int(time.time() * 1000)
        return AddAction(self.path, self.size, dict(self.partition), now, True, self.statistics)


def write_files(rows: DataFrame, target: Target) -> list[WrittenFile]:
    """Write the rows by Spark's tasks. The files are not in the table yet."""
    found = rows.mapInArrow(partial(write_task, target), COLUMNS).collect()
    return [
        WrittenFile(one.path, one.size, one.rows, json.loads(one.partition), one.statistics, one.aside)
        for one in found
    ]


def check_visible(table: str, store: Store, files: Iterable[WrittenFile]) -> None:
    """Raise TableError unless the driver finds every file, with the size that its task saw."""
    expected = list(files)
    found = store.files().get_file_info([file.path for file in expected]) if expected else []
    missing = [
        file
        for file, info in zip(expected, found, strict=True)
        if not info.is_file or (info.size is not None and info.size != file.size)
    ]
    if missing:
        rows = sum(file.rows for file in missing)
        raise TableError(
            f"the tasks have written {len(expected)} files for table {table}, and the driver does not find "
            f"{len(missing)} of them, with {rows} rows, at {store.uri}: the hosts do not share this folder. "
            "Give the tables a path that all of them share. Nothing was committed"
        )


def check_shared(store: Store) -> None:
    """Raise TableError if the host of this task lacks the folder of the table, which the driver has made."""
    if store.is_local and not Path(store.uri).is_dir():
        raise TableError(
            f"a task on {socket.gethostname()} does not find {store.uri}: the hosts do not share this folder."
            " Give the tables a path that all of them share. Nothing was committed"
        )


def write_task(target: Target, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in a task: writes the rows, and returns a row for each file."""
    check_shared(target.store)
    with target.store.remote_errors():
        files = TaskFiles(target)
        try:
            for batch in batches:
                files.take(batch)
            found = files.close()
        except BaseException:
            files.abandon()
            raise
    if found:
        yield pa.RecordBatch.from_pylist(found, schema=_RESULT)


@dataclass(slots=True)
class _OpenFile:
    """One file of one folder: rows that wait, and the writer once there were enough."""

    path: str
    partition: Mapping[str, str | None]
    aside: bool
    waiting: list[pa.Table] = field(default_factory=list)
    size: int = 0
    footers: list[pq.FileMetaData] = field(default_factory=list)
    stream: pa.NativeFile | None = None
    writer: pq.ParquetWriter | None = None


class TaskFiles:
    """The files of one attempt of a task, or of one merge."""

    def __init__(self, target: Target, file_bytes: int | None = None) -> None:
        """A file of `file_bytes` or more is finished, and the next rows of its folder begin another one."""
        self._target = target
        self._file_bytes = file_bytes
        self._files: pyarrow.fs.FileSystem = target.store.files()
        self._local = target.store.is_local
        self._open: dict[str, _OpenFile] = {}
        self._done: list[dict[str, object]] = []

    def take(self, batch: pa.RecordBatch) -> None:
        rows = in_utc(pa.Table.from_batches([batch]))
        if self._target.aside:
            errors = rows[self._target.aside]
            rows = rows.drop_columns([self._target.aside])
            if errors.null_count < len(errors):
                bad = pc.is_valid(errors)
                self._put(ASIDE, {}, others_of(errors, rows, self._target.partition_by, bad), aside=True)
                rows = rows.filter(pc.invert(bad))
        for partition, part in split(rows, self._target.partition_by):
            self.put(partition, part)

    def put(self, partition: Mapping[str, str | None], rows: pa.Table) -> None:
        """Add rows to the folder of these values. The rows lack the columns of the folders."""
        self._put(folder_of(partition), partition, rows, aside=False)

    def _put(self, folder: str, partition: Mapping[str, str | None], rows: pa.Table, *, aside: bool) -> None:
        if folder not in self._open:
            if len(self._open) >= OPEN_FILES:
                self._finish(self._open.pop(next(iter(self._open))))
            name = f"part-{uuid.uuid4().hex}.zstd.parquet"
            self._open[folder] = _OpenFile(f"{folder}/{name}" if folder else name, partition, aside)
        found = self._open[folder]
        found.waiting.append(rows)
        found.size += rows.nbytes
        if found.size >= ROW_GROUP_BYTES:
            self._flush(found)
            assert found.stream is not None, "rows have been written"
            if self._file_bytes is not None and found.stream.tell() >= self._file_bytes:
                self._finish(self._open.pop(folder))
        while sum(one.size for one in self._open.values()) > BUFFER_BYTES:
            self._flush(max(self._open.values(), key=lambda one: one.size))

    def _flush(self, one: _OpenFile) -> None:
        rows = pa.concat_tables(one.waiting)
        one.waiting, one.size = [], 0
        if one.writer is None:
            folder = one.path.rpartition("/")[0]
            if folder and self._local:  # object stores have no folders
                self._files.create_dir(folder)
            one.stream = self._files.open_output_stream(one.path)
            one.writer = pq.ParquetWriter(
                one.stream,
                rows.schema,
                compression="zstd",
                use_dictionary=dictionary_columns(rows),
                metadata_collector=one.footers,
                store_schema=False,
            )
        groups = max(1, round(rows.nbytes / ROW_GROUP_BYTES))
        one.writer.write_table(rows, row_group_size=max(1, -(-rows.num_rows // groups)))

    def _finish(self, one: _OpenFile) -> None:
        if one.waiting:
            self._flush(one)
        assert one.writer is not None, "a file is opened for its first rows"
        assert one.stream is not None, "a file is opened for its first rows"
        one.writer.close()
        size = one.stream.tell()
        one.stream.close()
        self._done.append(
            {
                "path": one.path,
                "size": size,
                "rows": one.footers[0].num_rows,
                "partition": json.dumps(dict(one.partition)),
                "statistics": statistics(one.footers[0]),
                "aside": one.aside,
            }
        )

    def close(self) -> list[dict[str, object]]:
        while self._open:
            self._finish(self._open.pop(next(iter(self._open))))
        return self._done

    def abandon(self) -> None:
        for one in self._open.values():
            if one.stream is not None and not one.stream.closed:
                one.stream.close()


def dictionary_columns(rows: pa.Table) -> bool | list[str]:
    """The columns to encode with a dictionary; True for all of them.

    Columns of almost only different values have none: it would outgrow its page and be thrown away, after
    it took a fifth of the CPU of the write.
    """
    sample = rows.slice(0, SAMPLE_ROWS)
    if sample.num_rows < SAMPLE_ROWS or any(pa.types.is_nested(field.type) for field in rows.schema):
        return True
    return [
        name
        for name in rows.column_names
        if pc.count_distinct(sample[name], mode="all").as_py() < DIFFERENT * SAMPLE_ROWS
    ]


def others_of(
    errors: pa.ChunkedArray, rows: pa.Table, partition_by: tuple[str, ...], bad: pa.ChunkedArray
) -> pa.Table:
    """The rows that are put aside: the fields of their struct, and the columns of the table's folders."""
    found = pa.Table.from_struct_array(errors.filter(bad))
    for name in partition_by:
        found = found.append_column(name, rows[name].filter(bad))
    return in_utc(found)


def split(rows: pa.Table, partition_by: tuple[str, ...]) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
    """The rows of each combination of values, with the values as texts, and without their columns."""
    if not rows.num_rows:
        return
    if not partition_by:
        yield {}, rows
        return
    columns = list(partition_by)
    values = rows.select(columns)
    counted = _counted(values)
    if len(counted) == 1:
        yield counted[0][0], rows.drop_columns(columns)
        return
    order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in columns])
    stored = rows.drop_columns(columns)
    begin = 0
    for partition, count in _counted(values.take(order)):
        # A copy: a slice would keep the memory of all rows for as long as its own rows wait.
        yield partition, stored.take(order.slice(begin, count))
        begin += count


def _counted(values: pa.Table) -> list[tuple[dict[str, str | None], int]]:
    """The number of rows of each combination of values, in the order of their first rows."""
    columns = values.column_names
    # Several threads would lose the order.
    found = values.group_by(columns, use_threads=False).aggregate([([], "count_all")])
    return [
        ({name: partition_text(row[name]) for name in columns}, int(row["count_all"]))
        for row in found.to_pylist()
    ]


def folder_of(partition: Mapping[str, str | None]) -> str:
    """The folder of these values, by Hive's convention: `day=2026-11-15`."""
    return "/".join(
        f"{_escaped(name)}={NULL_FOLDER if value is None else _escaped(value)}"
        for name, value in partition.items()
    )


def _escaped(text: str) -> str:
    """A text as part of a path. Spark decodes such codes one by one, so only ASCII may be in them."""
    return _TO_ESCAPE.sub(lambda found: f"%{ord(found[0]):02X}", text)


def in_utc(rows: pa.Table) -> pa.Table:
    """The same rows with timestamps in UTC, whatever the session's time zone is."""
    utc = pa.timestamp("us", "UTC")
    for at, column in enumerate(rows.schema):
        # Other columns are left alone: Arrow does not cast a null struct whose fields are never null.
        if pa.types.is_timestamp(column.type) and column.type.tz is not None:
            rows = rows.set_column(at, column.with_type(utc), rows.column(at).cast(utc))
    return rows
