"""Merges batches into keyed tables, so that every reader finds one row for each key."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, WriterProperties

from tidelog.spark.tables.delta_log import DeltaLog, Snapshot
from tidelog.spark.tables.errors import TableError
from tidelog.spark.tables.identity import Batch


def merge(log: DeltaLog, snapshot: Snapshot, batch: Batch, rows: pa.Table, keys: Sequence[str]) -> None:
    """Replace the rows of these keys, and insert the new ones, as a batch that `snapshot` did not have.

    A column that the rows lack becomes null. Raises TableError if a key occurs twice.
    """
    _check_unique(log.name, rows, keys)

    def act(table: DeltaTable, properties: CommitProperties) -> None:
        before = table.version()
        if rows.num_rows:
            _merge(table, _with_all_columns(table, rows), keys, properties)
        if table.version() == before:  # Delta commits nothing if nothing changed, not even the batch
            partition_by = table.metadata().partition_columns
            table.create_write_transaction(
                [], "append", table.schema(), partition_by, commit_properties=properties
            )

    log.attempt(snapshot, batch, act, rewrites=True)


def _merge(table: DeltaTable, rows: pa.Table, keys: Sequence[str], properties: CommitProperties) -> None:
    columns = {_quoted(name): f"s.{_quoted(name)}" for name in rows.column_names}
    merger = table.merge(
        rows,
        " AND ".join(_same(rows, key) for key in keys),
        source_alias="s",
        target_alias="t",
        writer_properties=WriterProperties(compression="ZSTD"),
        # With the whole source at hand Delta skips files by its least and largest keys.
        streamed_exec=False,
        commit_properties=properties,
    )
    merger.when_matched_update(columns).when_not_matched_insert(columns).execute()


def _same(rows: pa.Table, key: str) -> str:
    """The condition for the same key. Null is a key like others, but costs the skipping of files."""
    name = _quoted(key)
    if rows[key].null_count:
        return f"(t.{name} = s.{name} OR (t.{name} IS NULL AND s.{name} IS NULL))"
    return f"t.{name} = s.{name}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _with_all_columns(table: DeltaTable, rows: pa.Table) -> pa.Table:
    wanted = pa.schema(table.schema())
    columns = [
        rows[field.name].cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in wanted
    ]
    return pa.table(columns, schema=wanted)


def _check_unique(table: str, rows: pa.Table, keys: Sequence[str]) -> None:
    counted = rows.group_by(list(keys)).aggregate([([], "count_all")])
    if counted.num_rows == rows.num_rows:
        return
    twice = counted.filter(pc.greater(counted["count_all"], 1)).slice(0, 1).to_pylist()[0]
    key = ", ".join(f"{name} {twice[name]!r}" for name in keys)
    raise TableError(
        f"a batch for table {table} has {twice['count_all']} rows with {key}: give it one row for each key"
    )
