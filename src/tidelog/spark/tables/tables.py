"""Tables for micro-batches: Delta tables below one folder, each batch in them once.

A batch is identified by its writer and its number. A batch that a table has already is skipped. After a crash
at any point the table is as before the batch, and the batch's replay completes it. Spark's tasks write the
files, the driver commits them through `delta_log`; no jar is needed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.spark.tables import keyed_merge
from tidelog.spark.tables.columns import Shape, declared, nullable, shape_of
from tidelog.spark.tables.compactor import Compactor
from tidelog.spark.tables.delta_log import DeltaLog, Snapshot
from tidelog.spark.tables.errors import TableError, VersionGone
from tidelog.spark.tables.frames import frame, plain_reader
from tidelog.spark.tables.identity import Batch, Commit
from tidelog.spark.tables.live_files import LiveFile, live_files, live_paths
from tidelog.spark.tables.store import Store
from tidelog.spark.tables.task_files import Target, WrittenFile, check_visible, in_utc, write_files
from tidelog.spark.tables.task_reads import frame_of_files, spark_reads

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

log = logging.getLogger("tidelog.spark")

_TABLE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Aside:
    """A write that puts rows aside."""

    written: int | None
    """The number of rows in the table; None for a batch that the table had already."""
    rows: DataFrame | None
    """The rows that were put aside; None if there are none."""


class Tables:
    """The tables below one folder: a local or shared folder, S3 or HDFS."""

    def __init__(self, spark: SparkSession, root: str, written: set[str] | None = None) -> None:
        """`written` takes the names of the tables that are written through this object."""
        self.spark = spark
        self.written: set[str] = set() if written is None else written
        self.store = Store.of(spark, root)
        self.root = self.store.spark_uri

    def names(self) -> list[str]:
        return [name for name in self.store.names() if _TABLE_NAME.fullmatch(name) and self.exists(name)]

    def exists(self, table: str) -> bool:
        with self.store.errors():
            return self._log(table).exists()

    def uri(self, table: str) -> str:
        """The address of a table for other readers of Delta."""
        return self._log(table).uri

    def delta(self, table: str) -> DeltaTable:
        """A fresh snapshot of a table in delta-rs."""
        return self._snapshot(table).table

    def write(
        self,
        rows: DataFrame,
        table: str,
        *,
        writer: str,
        batch: int,
        partition_by: Sequence[str] = (),
        keys: Sequence[str] = (),
        checkpoint: str = "",
        offsets: str = "",
    ) -> int | None:
        """Write the rows as this batch of this writer, unless the table has the batch.

        Returns the number of rows, or None for a batch that the table has already.
        With `keys` the rows replace the rows of the same keys; a batch has at most one row for each key.
        `checkpoint`, the id of the streaming query, and `offsets`, the range that the batch was planned with,
        are recorded, and a batch with others is refused: TableError. Fenced means that another driver has
        written this batch meanwhile.
        """
        name = Batch(writer, batch, checkpoint, offsets)
        target = self._log(table)
        self.written.add(table)
        with self.store.errors():
            snapshot = declared(
                target, Shape(rows.schema, tuple(partition_by), tuple(keys)), self.store.check_commits
            )
            if snapshot.has(name):
                return None
        if keys:
            changed = in_utc(rows.toArrow())
            with self.store.errors():
                keyed_merge.merge(self.store.below(table), target, snapshot, name, changed, tuple(keys))
            return int(changed.num_rows)
        files = write_files(rows, Target(self.store.below(table), tuple(partition_by)))
        self._commit(target, snapshot, name, files)
        return sum(file.rows for file in files)

    @contextmanager
    def write_aside(
        self,
        rows: DataFrame,
        table: str,
        *,
        writer: str,
        batch: int,
        partition_by: Sequence[str] = (),
        aside: str,
        checkpoint: str = "",
        offsets: str = "",
    ) -> Iterator[Aside]:
        """Write the rows whose `aside`, a struct, is null, and yield the structs of the others.

        The yielded rows have the fields of the struct and the columns of `partition_by`. The table's files do
        not have the struct. The rows are computed once for both: the others wait in files that the commit
        names, and that are deleted after the `with` block. If that fails, they wait for the replay, which may
        come from another version of the code. A replay computes the rows again only if the files are gone.
        """
        name = Batch(writer, batch, checkpoint, offsets)
        target = self._log(table)
        self.written.add(table)
        stored, others = _split_schema(rows.schema, aside, partition_by)
        with self.store.errors():
            snapshot = declared(target, Shape(stored, tuple(partition_by)), self.store.check_commits)
            replayed = snapshot.has(name)
        place = self.store.below(table)
        written: int | None = None
        if replayed:
            waiting = self._left_aside(snapshot, name, place)
            if waiting is None:
                again = rows.where(f"`{aside}` IS NOT NULL").select(f"{aside}.*", *partition_by)
                yield Aside(None, None if again.isEmpty() else again)
                return
        else:
            files = write_files(rows, Target(place, tuple(partition_by), aside))
            waiting = [LiveFile(file.path, file.size) for file in files if file.aside]
            good = [file for file in files if not file.aside]
            self._commit(target, snapshot, name, good, [file.path for file in waiting])
            written = sum(file.rows for file in good)
        yield Aside(written, self._waiting(place, waiting, others) if waiting else None)
        self._delete(place, [file.path for file in waiting])

    def _left_aside(self, snapshot: Snapshot, name: Batch, place: Store) -> Sequence[LiveFile] | None:
        """The files that the commit of a batch put aside; None if it is not known, or they are gone."""
        with self.store.errors():
            commit = snapshot.commit_of(name.writer, name.number)
        return None if commit is None or commit.aside is None else self._files(place, commit.aside)

    def _files(self, place: Store, paths: Sequence[str]) -> Sequence[LiveFile] | None:
        """The files of these paths, with their sizes; None if one is gone."""
        with self.store.errors():
            found = place.files().get_file_info(list(paths))
        if not all(one.is_file for one in found):
            return None
        return [LiveFile(path, one.size or 0) for path, one in zip(paths, found, strict=True)]

    def _waiting(self, place: Store, files: Sequence[LiveFile], schema: StructType) -> DataFrame:
        if spark_reads(self.spark, place):
            paths = [f"{place.spark_uri}/{file.path}" for file in files]
            return plain_reader(self.spark, schema).parquet(*paths)
        return frame_of_files(self.spark, place, files, schema)

    def delete(self, table: str, chosen: Callable[[Mapping[str, object]], bool]) -> bool:
        """Delete the partitions whose values `chosen` accepts, without a batch. Their files are not read.

        False if another writer has replaced files of the table meanwhile: nothing is deleted then.
        """
        with self.store.errors():
            return self._log(table).delete(self._snapshot(table), chosen)

    def has(self, table: str, *, writer: str, batch: int, checkpoint: str = "", offsets: str = "") -> bool:
        """Whether a table has this batch.

        Raises TableError if `write` would refuse it because of its checkpoint or its offsets.
        """
        return self.exists(table) and self._snapshot(table).has(Batch(writer, batch, checkpoint, offsets))

    def read(
        self,
        table: str,
        *,
        without: tuple[str, int] | None = None,
        version: int | None = None,
        timestamp: str | None = None,
    ) -> DataFrame:
        """The rows of the newest version, or of the one with this number, or of the one at this time.

        `without`, (writer, batch), is the table before that batch, also during its replay. Raises VersionGone
        if the log no longer has that version, or a vacuum has deleted files of it. The frame reads the files
        of that version: a vacuum deletes them some days after they were replaced.
        """
        snapshot = self._snapshot(table, version, timestamp)
        if without is not None and snapshot.last_batch(without[0]) >= without[1]:
            commit = snapshot.commit_of(*without)
            if commit is None:
                raise VersionGone(
                    f"the log of table {table} has no commit of batch {without[1]} of {without[0]} (any "
                    "more): the table before that batch cannot be read"
                )
            snapshot = self._before(snapshot, commit)
        place = self.store.below(table)
        if not spark_reads(self.spark, place):
            files = live_files(snapshot.table)
            return frame_of_files(self.spark, place, files, shape_of(snapshot).schema)
        return frame(self.spark, shape_of(snapshot), place.spark_uri, snapshot)

    def _before(self, newest: Snapshot, commit: Commit) -> Snapshot:
        """The table before a commit. Raises VersionGone if a vacuum has deleted some of its files."""
        found = self._snapshot(newest.name, commit.version - 1)
        replaced = set(live_paths(found.table)) - set(live_paths(newest.table))
        if self._files(self.store.below(newest.name), sorted(replaced)) is None:
            raise VersionGone(
                f"files of version {found.version} of table {newest.name} are deleted: the table before "
                f"batch {commit.batch.number} of {commit.batch.writer} cannot be read"
            )
        return found

    def compact(self, table: str) -> int:
        """Merge the small files of each day that has many; returns the number of replaced files."""
        self._snapshot(table)
        return Compactor(self.store.below(table)).run()

    def _snapshot(self, table: str, version: int | None = None, timestamp: str | None = None) -> Snapshot:
        with self.store.errors():
            if not self._log(table).exists():
                there = ", ".join(self.names()) or "none"
                raise TableError(f"there is no table {table} in {self.root}; there are: {there}")
            return self._log(table).snapshot(version, timestamp)

    def _commit(
        self,
        target: DeltaLog,
        snapshot: Snapshot,
        name: Batch,
        files: Sequence[WrittenFile],
        aside: Sequence[str] | None = None,
    ) -> None:
        place = self.store.below(target.name)
        with self.store.errors():
            check_visible(target.name, place, files)
            target.commit(snapshot, name, [file.added() for file in files], aside=aside)

    def _delete(self, place: Store, paths: Sequence[str]) -> None:
        for path in paths:
            try:
                place.files().delete_file(path)
            except OSError as error:  # a vacuum deletes it later
                log.debug("%s is not deleted: %s", path, error)

    def _log(self, table: str) -> DeltaLog:
        if not _TABLE_NAME.fullmatch(table):
            raise TableError(f"{table!r} is not a table name: expected letters, digits and underscores")
        place = self.store.below(table)
        return DeltaLog(place.uri, place.options)


def _split_schema(
    schema: StructType, aside: str, partition_by: Sequence[str]
) -> tuple[StructType, StructType]:
    """The columns of the table, and the columns of the rows that are put aside.

    Spark is not asked: it takes milliseconds to analyse each further frame of a micro-batch.
    """
    from pyspark.sql.types import StructType

    struct = schema[aside].dataType
    assert isinstance(struct, StructType), f"{aside} is a struct"
    stored = StructType([field for field in schema.fields if field.name != aside])
    return stored, nullable(StructType([*struct.fields, *(schema[name] for name in partition_by)]))
