"""Turns tables of the old format into Delta tables, in their places.

The files of a plain table stay where they are: the new log names them. A keyed table is written anew, with
one row for each key. The newest batch of each writer becomes a commit of its own, so that the writer's
checkpoint continues as if nothing had happened. A migration that was killed continues when it is run again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from deltalake import CommitProperties, Schema, Transaction
from deltalake.transaction import AddAction

from tidelog.spark.tables import keyed_merge
from tidelog.spark.tables.columns import KEYS
from tidelog.spark.tables.delta_log import MIGRATION, DeltaLog
from tidelog.spark.tables.errors import TableError
from tidelog.spark.tables.identity import Batch
from tidelog.spark.tables.old_format import (
    MIGRATED,
    VERSION,
    OldBatch,
    OldFile,
    OldTable,
    read_old,
    writer_of,
)
from tidelog.spark.tables.statistics import statistics
from tidelog.spark.tables.store import Store
from tidelog.spark.tables.task_files import NULL_FOLDER, Target, in_utc, write_task

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs

BATCH_ROWS = 65_536
PROGRESS_SECONDS = 5.0

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Migrated:
    """A table that was migrated: its rows, and the newest batch of each writer."""

    name: str
    rows: int
    batches: dict[str, int]


class Migration:
    """Migrates the table in one place."""

    def __init__(
        self,
        store: Store,
        *,
        writers: Sequence[str] = (),
        checkpoint: Callable[[str], str] = lambda writer: "",
        progress: Progress = lambda line: None,
    ) -> None:
        """`writers` are names of writers that the old log may have. `checkpoint` gives the id of a writer's
        streaming query, or an empty text."""
        self.store = store
        self._files: pyarrow.fs.FileSystem = store.files()
        self._log = DeltaLog(store.uri, store.options)
        self._writers = tuple(writers)
        self._checkpoint = checkpoint
        self._progress = progress

    def run(self) -> Migrated:
        """Migrate the table. Raises TableError if the old table cannot be read, or the new one does not
        match it."""
        with self.store.errors():
            old = read_old(self.store)
            names = {batch.slug: writer_of(old.name, batch.slug, self._writers) for batch in old.batches}
            apart = self._apart(old)
            self._create(old, apart, names)
            for batch in apart:
                self._commit(old, batch, names[batch.slug])
            rows = self._check(old, names)
            found = {names[batch.slug]: batch.number for batch in old.batches}
            self.store.put(MIGRATED, json.dumps({"rows": rows, "batches": found}).encode())
        return Migrated(old.name, rows, found)

    def _apart(self, old: OldTable) -> list[OldBatch]:
        """The batches that get a commit of their own, oldest first.

        In a keyed table only the newest one: others may have rows that later batches have replaced.
        """
        return list(old.batches[-1:] if old.keys else old.batches)

    def _create(self, old: OldTable, apart: Sequence[OldBatch], names: dict[str, str]) -> None:
        """Create the Delta table, and commit all rows but those of the batches `apart`, at once."""
        configuration = {KEYS: json.dumps(list(old.keys))} if old.keys else {}
        snapshot = self._log.create(
            Schema.from_json(json.dumps(old.columns)), old.partition_by, configuration
        )
        if snapshot.table.transaction_version(MIGRATION) is not None:
            return
        if snapshot.version > 0 or snapshot.table.file_uris():
            raise TableError(
                f"table {old.name} has an old log and a Delta log that is not of a migration: another program"
                f" has written {self.store.uri}. Remove the log that is wrong"
            )
        later = frozenset(name for batch in apart for name in batch.files)
        files = [file for file in old.files if file.name not in later]
        adds = self._newest_rows(old, files) if old.keys else self._references(old, files)
        inside = [batch for batch in old.batches if batch not in apart]
        versions = {MIGRATION: 1}
        for batch in inside:
            versions |= self._batch(batch, names[batch.slug]).transactions
        snapshot.table.create_write_transaction(
            list(adds),
            "append",
            snapshot.table.schema(),
            list(old.partition_by),
            commit_properties=CommitProperties(
                app_transactions=[Transaction(app, version) for app, version in versions.items()]
            ),
        )

    def _batch(self, batch: OldBatch, writer: str) -> Batch:
        return Batch(writer, batch.number, self._checkpoint(writer))

    def _commit(self, old: OldTable, batch: OldBatch, writer: str) -> None:
        """Commit one batch, unless an earlier attempt did."""
        snapshot = self._log.snapshot()
        name = self._batch(batch, writer)
        if snapshot.last_batch(writer) >= batch.number:
            return
        files = [file for file in old.files if file.name in batch.files]
        if old.keys:
            rows = self._table(old, files)
            keyed_merge.merge(self.store, self._log, snapshot, name, rows, old.keys)
        else:
            self._log.commit(snapshot, name, list(self._references(old, files)))

    # -- plain tables: the files stay

    def _references(self, old: OldTable, files: Sequence[OldFile]) -> Iterator[AddAction]:
        from pyarrow import parquet

        said = time.monotonic()
        for number, file in enumerate(files):
            if time.monotonic() - said > PROGRESS_SECONDS:
                said = time.monotonic()
                self._progress(f"{old.name}: {number:,} of {len(files):,} files")
            path = file.path if file.in_place else self._copied(file)
            with self._files.open_input_file(path) as stream:
                footer = parquet.ParquetFile(stream).metadata
            now = int(time.time() * 1000)
            yield AddAction(path, file.size, partition_values(file.folder), now, True, statistics(footer))

    def _copied(self, file: OldFile) -> str:
        """A file that an unfinished compaction has beside the table, in the table."""
        path = "/".join(part for part in (file.folder, f"migrated-{file.name}") if part)
        self._files.copy_file(file.path, path)
        return path

    # -- keyed tables: the newest row of each key

    def _newest_rows(self, old: OldTable, files: Sequence[OldFile]) -> Iterator[AddAction]:
        wanted = self._winners(old, files)
        target = Target(self.store, old.partition_by)
        now = int(time.time() * 1000)
        for result in write_task(target, self._filtered(old, files, wanted)):
            for row in result.to_pylist():
                values = json.loads(row["partition"])
                yield AddAction(row["path"], row["size"], values, now, True, row["statistics"])

    def _winners(self, old: OldTable, files: Sequence[OldFile]) -> pa.Array:
        """For each row of the files, in their order, whether it is the newest of its key.

        The keys of all rows are in memory.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        parts = [self._table(old, [file], (*old.keys, VERSION)) for file in files]
        if not parts:
            return pa.array([], pa.bool_())
        rows = pa.concat_tables(parts)
        order = pc.sort_indices(rows, sort_keys=[(VERSION, "ascending")])
        rank = pc.sort_indices(order)  # the place of each row in the order of versions
        ranked = rows.drop_columns([VERSION]).append_column("rank", pa.chunked_array([rank]))
        newest = ranked.group_by(list(old.keys)).aggregate([("rank", "max")])["rank_max"]
        return pc.is_in(rank, value_set=newest.combine_chunks())

    def _filtered(
        self, old: OldTable, files: Sequence[OldFile], wanted: pa.Array
    ) -> Iterator[pa.RecordBatch]:
        begin = 0
        for file in files:
            for batch in self._batches(old, file):
                kept = batch.filter(wanted.slice(begin, batch.num_rows))
                begin += batch.num_rows
                yield kept.drop_columns([VERSION])

    def _table(self, old: OldTable, files: Sequence[OldFile], columns: Sequence[str] = ()) -> pa.Table:
        """Rows of some files, with all columns of the table or with these."""
        import pyarrow as pa

        schema = self._schema(old)
        names = columns or [name for name in schema.names if name != VERSION]
        found = [batch for file in files for batch in self._batches(old, file)]
        return pa.Table.from_batches(found, schema).select(list(names))

    def _schema(self, old: OldTable) -> pa.Schema:
        """All columns of the old files, with those of their folders."""
        import pyarrow as pa

        schema = pa.schema(Schema.from_json(json.dumps(old.columns)).to_arrow())
        return schema.append(pa.field(VERSION, pa.int64())) if old.keys else schema

    def _batches(self, old: OldTable, file: OldFile) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyarrow import parquet

        schema = self._schema(old)
        values = partition_values(file.folder)
        with self._files.open_input_file(file.path) as stream:
            reader = parquet.ParquetFile(stream, coerce_int96_timestamp_unit="us")
            stored = [name for name in schema.names if name in reader.schema_arrow.names]
            for batch in reader.iter_batches(BATCH_ROWS, columns=stored):
                batch = in_utc(pa.Table.from_batches([batch]))
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.array([values[field.name]] * batch.num_rows, pa.string()).cast(field.type)
                        if field.name in values
                        else batch[field.name].combine_chunks().cast(field.type)
                        if field.name in stored
                        else pa.nulls(batch.num_rows, field.type)
                        for field in schema
                    ],
                    schema=schema,
                )

    # -- the proof

    def _check(self, old: OldTable, names: dict[str, str]) -> int:
        """Compare the new table with the old one: the number of rows, and the newest batches."""
        import pyarrow as pa
        from pyarrow import parquet

        snapshot = self._log.snapshot()
        found = sum(pa.table(snapshot.table.get_add_actions())["num_records"].to_pylist())
        if old.keys:
            rows = int(self._winners(old, old.files).true_count)
        else:
            rows = 0
            for file in old.files:
                with self._files.open_input_file(file.path) as stream:
                    rows += parquet.ParquetFile(stream).metadata.num_rows
        if found != rows:
            raise TableError(
                f"table {old.name} has {rows:,} rows in the old format and {found:,} in the new one: the old"
                f" one has changed meanwhile. Stop what writes it, remove {self.store.uri}/_delta_log, and"
                " begin again"
            )
        for batch in old.batches:
            if snapshot.last_batch(names[batch.slug]) < batch.number:
                raise TableError(f"batch {batch.number} of {names[batch.slug]} is not in table {old.name}")
        return rows


def partition_values(folder: str) -> dict[str, str | None]:
    """The values of a folder such as `day=2026-11-15`."""
    found: dict[str, str | None] = {}
    for part in folder.split("/") if folder else ():
        name, _, value = part.partition("=")
        found[unquote(name)] = None if value == NULL_FOLDER else unquote(value)
    return found
