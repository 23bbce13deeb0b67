"""Merges batches into keyed tables, so that every reader finds one row for each key.

A file that has keys of the batch is written again, with the new rows in the places of the old ones. Other
files stay. The files are read and written with PyArrow, which takes half the CPU of the merge in delta-rs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from tidelog.spark.tables.delta_log import DeltaLog, Snapshot
from tidelog.spark.tables.errors import TableError
from tidelog.spark.tables.identity import Batch
from tidelog.spark.tables.key_lookup import KeyLookup, files_with_keys, one_array
from tidelog.spark.tables.live_files import LiveFile, live_paths
from tidelog.spark.tables.store import Store
from tidelog.spark.tables.task_files import Target, TaskFiles, WrittenFile, split

FILE_BYTES = 128 << 20
KEPT_BYTES = 128 << 20
"""Key columns of a file are kept up to this size between the lookup and the rewrite, not read twice."""

Partition = Mapping[str, str | None]


def merge(
    store: Store, log: DeltaLog, snapshot: Snapshot, batch: Batch, rows: pa.Table, keys: Sequence[str]
) -> None:
    """Replace the rows of these keys, and insert the new ones, as a batch that `snapshot` did not have.

    `store` is the place of the table. A column that the rows lack becomes null. Raises TableError if a key
    occurs twice, and Fenced if another driver has written the batch meanwhile.
    """
    rows = _as_stored(snapshot, rows)
    _check_unique(log.name, rows, keys)

    def act(table: DeltaTable, properties: CommitProperties) -> None:
        done = Rewrite(store, table, _with_all_columns(table, rows), keys)
        written = done.run()
        now = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [file.added() for file in written]
        for file in done.replaced:
            actions.append(RemoveAction(file.path, True, now, file.size, file.partition))
        partition_by = table.metadata().partition_columns
        try:
            table.create_write_transaction(
                actions, "append", table.schema(), partition_by, commit_properties=properties
            )
        except CommitFailedError:
            _discard(store, log, written)
            raise

    # Rows that another program appended since the snapshot may have keys of the batch.
    log.attempt(snapshot, batch, act, rewrites=True, serial=True)


class Rewrite:
    """The new files of one merge, from one snapshot."""

    def __init__(self, store: Store, table: DeltaTable, rows: pa.Table, keys: Sequence[str]) -> None:
        self.replaced: list[LiveFile] = []
        self._rows = rows
        self._keys = tuple(keys)
        self._partition_by = tuple(table.metadata().partition_columns)
        self._stored = pa.schema([field for field in rows.schema if field.name not in self._partition_by])
        self._candidates = files_with_keys(table, rows, self._stored_keys) if rows.num_rows else []
        self._source = store.files()
        self._target = TaskFiles(Target(store, self._partition_by), FILE_BYTES)

    @property
    def _stored_keys(self) -> tuple[str, ...]:
        return tuple(key for key in self._keys if key not in self._partition_by)

    def run(self) -> list[WrittenFile]:
        """Write the files. `replaced` has the files that the new ones replace."""
        try:
            if set(self._partition_by) <= set(self._keys):
                self._replace_in_place()
            else:
                self._move()
            return [WrittenFile.of(found) for found in self._target.close()]
        except BaseException:
            self._target.abandon()
            raise

    def _replace_in_place(self) -> None:
        """Merge each folder by itself: all rows of a key are in one folder."""
        folders: dict[frozenset[tuple[str, str | None]], list[LiveFile]] = {}
        for file in self._candidates:
            folders.setdefault(frozenset(file.partition.items()), []).append(file)
        for partition, rows in split(self._rows, self._partition_by):
            files = folders.get(frozenset(partition.items()), [])
            lookup = KeyLookup(rows, self._stored_keys if files else ())
            there = np.zeros(rows.num_rows, bool)
            for file in files:
                for positions, old in self._groups(file, lookup):
                    there[positions.drop_null().to_numpy()] = True
                    self._target.put(partition, _updated(old, positions, rows, self._stored_keys))
            if not there.all():
                self._target.put(partition, rows.filter(pa.array(~there)))

    def _move(self) -> None:
        """Delete the old rows and insert the new ones, which may be in other folders."""
        lookup = KeyLookup(self._rows, self._keys)
        for file in self._candidates:
            for positions, old in self._groups(file, lookup):
                kept = old.filter(pc.is_null(positions))
                if kept.num_rows:
                    self._target.put(file.partition, kept)
        for partition, rows in split(self._rows, self._partition_by):
            self._target.put(partition, rows)

    def _groups(self, file: LiveFile, lookup: KeyLookup) -> Iterator[tuple[pa.Array, pa.Table]]:
        """The row groups of a file, with the row of the batch for each of their rows.

        A file without a key of the batch yields nothing, and is not among the replaced ones.
        """
        with self._source.open_input_file(file.path) as stream:
            reader = pq.ParquetFile(stream, coerce_int96_timestamp_unit="us")
            found: list[pa.Array] = []
            kept: list[pa.Table | None] = []
            size = 0
            for group in range(reader.num_row_groups):
                keys = self._read(reader, group, self._stored_keys)
                found.append(lookup.positions(_with_values(keys, file, self._keys, self._rows.schema)))
                size += keys.nbytes
                kept.append(keys if size <= KEPT_BYTES else None)
            if all(positions.null_count == len(positions) for positions in found):
                return
            self.replaced.append(file)
            for group, (positions, some) in enumerate(zip(found, kept, strict=True)):
                names = [name for name in self._stored.names if some is None or name not in some.column_names]
                rest = self._read(reader, group, names)
                kept[group] = None
                columns = [
                    rest[name] if some is None or name in names else some[name] for name in self._stored.names
                ]
                yield positions, pa.table(columns, schema=self._stored)

    def _read(self, reader: pq.ParquetFile, group: int, names: Sequence[str]) -> pa.Table:
        """These columns of a row group, with the types of the table. A column that the file lacks is null."""
        count = reader.metadata.row_group(group).num_rows
        there = [name for name in names if name in reader.schema_arrow.names]
        stored = reader.read_row_group(group, columns=there) if there else None
        columns = []
        for name in names:
            kind = self._stored.field(name).type
            columns.append(
                pa.chunked_array([pa.nulls(count, kind)])
                if stored is None or name not in there
                else stored[name].cast(kind)
            )
        if not columns:
            return pa.table({_COUNT: pa.nulls(count)}).select([])
        return pa.table(columns, schema=pa.schema([self._stored.field(name) for name in names]))


_COUNT = "count"


def _with_values(keys: pa.Table, file: LiveFile, wanted: Sequence[str], schema: pa.Schema) -> pa.Table:
    """The key columns of a file, also those whose value is only in the name of its folder."""
    values = dict(file.values)
    for name in wanted:
        if name in values:
            value = pa.scalar(values[name], schema.field(name).type)
            keys = keys.append_column(name, pa.repeat(value, keys.num_rows))
    return keys


def _updated(old: pa.Table, positions: pa.Array, rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The rows of a file. A row with a position is replaced by the batch's row at that position."""
    if positions.null_count == len(positions):
        return old
    mask, chosen = pc.is_valid(positions), positions.drop_null()
    columns = []
    for field in old.schema:
        column = old[field.name]
        if field.name not in keys:  # the keys are the same
            new = one_array(rows[field.name])
            if pa.types.is_nested(field.type) or pa.types.is_boolean(field.type):
                column = _taken(column, mask, positions, new)
            else:
                column = pc.replace_with_mask(column, mask, new.take(chosen))
        columns.append(column)
    return pa.table(columns, schema=old.schema)


def _taken(column: pa.ChunkedArray, mask: pa.Array, positions: pa.Array, new: pa.Array) -> pa.ChunkedArray:
    """A column of lists, maps, structs or booleans, with these rows replaced.

    Arrow does not replace nested values by a mask, and PyArrow 23 makes invalid arrays of booleans.
    """
    count = len(column)
    own: npt.NDArray[np.int64] = np.arange(count)
    others = positions.fill_null(0).to_numpy().astype(np.int64) + count
    order = np.where(mask.to_numpy(zero_copy_only=False), others, own)
    return pa.chunked_array([*column.chunks, new], column.type).take(pa.array(order))


def _as_stored(snapshot: Snapshot, rows: pa.Table) -> pa.Table:
    """The rows with null for an empty text that names a folder: Delta's log cannot tell them apart."""
    for name in snapshot.partition_by:
        if name in rows.column_names and _is_text(rows.schema.field(name).type):
            at = rows.column_names.index(name)
            empty = pc.fill_null(pc.equal(rows[name], ""), False)
            rows = rows.set_column(at, name, pc.if_else(empty, None, rows[name]))
    return rows


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


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
    if len(keys) == 1 and len(pc.unique(rows[keys[0]])) == rows.num_rows:
        return
    counted = rows.group_by(list(keys)).aggregate([([], "count_all")])
    if counted.num_rows == rows.num_rows:
        return
    twice = counted.filter(pc.greater(counted["count_all"], 1)).slice(0, 1).to_pylist()[0]
    key = ", ".join(f"{name} {twice[name]!r}" for name in keys)
    raise TableError(
        f"a batch for table {table} has {twice['count_all']} rows with {key}: give it one row for each key"
    )


def _discard(store: Store, log: DeltaLog, files: Sequence[WrittenFile]) -> None:
    """Delete files of a commit that was refused, unless the store has taken it and its answer was lost."""
    present = set(live_paths(log.snapshot().table))
    system = store.files()
    for file in files:
        if file.path not in present:
            with suppress(OSError):  # a vacuum deletes it later
                system.delete_file(file.path)
