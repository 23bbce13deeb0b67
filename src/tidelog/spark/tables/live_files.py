"""The files of a table at one version: their paths, sizes, partition values and rows. Without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING
from urllib.parse import unquote

from tidelog.spark.tables.store import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

BATCH_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class LiveFile:
    """One file of a table: its path below the table, and the values of the partition columns."""

    path: str
    size: int
    values: tuple[tuple[str, object], ...] = ()

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def partition(self) -> dict[str, str | None]:
        """The values as Delta's log has them."""
        return {name: partition_text(value) for name, value in self.values}


def live_files(table: DeltaTable) -> list[LiveFile]:
    """The files of a snapshot, from its log alone."""
    import pyarrow as pa

    return files_of(table, pa.table(table.get_add_actions(flatten=True)))


def files_of(table: DeltaTable, actions: pa.Table) -> list[LiveFile]:
    """The files of the flat add actions of a snapshot, in the same order."""
    names = table.metadata().partition_columns
    values = [actions[f"partition.{name}"].to_pylist() for name in names]
    # The log has paths as parts of URIs, and writes those of new actions in that form.
    paths = [unquote(path) for path in actions["path"].to_pylist()]
    rows = zip(paths, actions["size_bytes"].to_pylist(), *values, strict=True)
    return [LiveFile(path, size, tuple(zip(names, found, strict=True))) for path, size, *found in rows]


def live_paths(table: DeltaTable) -> list[str]:
    """The paths of a snapshot's files, relative to the table's folder."""
    return [unquote(str(path)) for path in table.get_add_actions().column("path").to_pylist()]


def rows_of(store: Store, file: LiveFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a file with the columns of a schema.

    Partition columns have the values of the file. A column that the file lacks is null.
    """
    import pyarrow as pa
    from pyarrow import parquet

    values = dict(file.values)
    with store.files().open_input_file(file.path) as stream:
        reader = parquet.ParquetFile(stream, coerce_int96_timestamp_unit="us")
        stored = [name for name in schema.names if name in reader.schema_arrow.names]
        for batch in reader.iter_batches(BATCH_ROWS, columns=stored):
            columns = [
                pa.repeat(pa.scalar(values[field.name], field.type), batch.num_rows)
                if field.name in values
                else batch.column(field.name).cast(field.type)
                if field.name in stored
                else pa.nulls(batch.num_rows, field.type)
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def partition_text(value: object) -> str | None:
    """A partition value as Delta's log has it. Delta cannot tell the empty text from null."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        zoned = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        return zoned.isoformat(" ", "microseconds")
    return value.isoformat() if isinstance(value, date) else str(value)
