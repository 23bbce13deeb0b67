"""Tables of Parquet files for micro-batches, each written once.

A batch is identified by its writer and number. A batch that is written again replaces its earlier rows. After
a crash at any point the table reads as before the batch, and the batch's replay completes it. The files are
plain Parquet in `table/day=YYYY-MM-DD/`, for any reader of Parquet.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING

from tidelog.spark import compaction
from tidelog.spark.files import Files, join
from tidelog.spark.table_log import HIDDEN, VERSION, BatchFiles, Shape, TableLog, slug
from tidelog.spark.tables.errors import TableError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["TableError", "Tables"]

READ_ATTEMPTS = 50
WAIT_SECONDS = 3.0
"""How long a reader waits for a compaction to move its files before it looks for them."""
COMPACT_EVERY = 20
OPEN_FILES = 32
WRITE_OPTIONS = {
    "compression": "zstd",
    # The table's log moves files into the table: moving them within the staging folder is wasted work.
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
_TABLE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


class Tables:
    """The tables below one folder, on any file system that Spark can write."""

    def __init__(
        self,
        spark: SparkSession,
        root: str,
        *,
        target_bytes: int = compaction.TARGET_BYTES,
        small_files: int = compaction.SMALL_FILES,
        compact_every: int = COMPACT_EVERY,
    ) -> None:
        """A folder with more than `small_files` small files is compacted to files of about `target_bytes`,
        every `compact_every` batches of a writer (0: never)."""
        self.spark = spark
        self.target_bytes = target_bytes
        self.small_files = small_files
        self.compact_every = compact_every
        self.wait_seconds = WAIT_SECONDS
        self.files = Files(spark, root)
        self.root = self.files.root

    def names(self) -> list[str]:
        found = (entry.name for entry in self.files.entries(self.root) if entry.is_folder)
        return [name for name in found if _TABLE_NAME.fullmatch(name) and self.exists(name)]

    def exists(self, table: str) -> bool:
        return self._log(table).declared()

    def write(
        self,
        rows: DataFrame,
        table: str,
        *,
        writer: str,
        batch: int,
        partition_by: Sequence[str] = (),
        keys: Sequence[str] = (),
    ) -> None:
        """Write the rows as this batch of this writer, and replace its earlier rows.

        With `keys` the table keeps the newest row of a key. A batch has at most one row for each key.
        """
        with self._written(rows, table, writer, batch, tuple(partition_by), tuple(keys)):
            pass

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
    ) -> Iterator[DataFrame | None]:
        """Write the rows whose column `aside` is 0, and yield the others, read back from files, or None.

        The rows are computed once for both. The yielded rows have the table's columns; their files are
        deleted at the end of the `with` block.
        """
        with self._written(rows, table, writer, batch, tuple(partition_by), (), aside) as folder:
            others = f"{folder}/{aside}=1"
            schema = rows.drop(aside).schema
            yield self.spark.read.schema(schema).parquet(others) if self.files.exists(others) else None

    def clear(self, table: str, *, writer: str, batch: int) -> None:
        """Remove the rows that this batch wrote to the table before, since it has none now."""
        log = self._log(table)
        markers = log.markers()
        if any((marker.writer, marker.batch) == (slug(writer), batch) for marker in markers):
            log.commit(writer, batch, log.version_for(writer, batch), ())

    @contextmanager
    def _written(
        self,
        rows: DataFrame,
        table: str,
        writer: str,
        batch: int,
        partition_by: tuple[str, ...],
        keys: tuple[str, ...],
        aside: str = "",
    ) -> Iterator[str]:
        """Write the rows. Within the `with` block the yielded folder has the other files of the write."""
        log = self._log(table)
        compaction.finish_all(log)
        log.check_order(writer, batch)
        version = log.version_for(writer, batch)
        if keys:
            from pyspark.sql import functions as F

            rows = rows.withColumn(VERSION, F.lit(version).cast("long"))
        log.declare(Shape(rows.drop(aside).schema if aside else rows.schema, partition_by, keys))
        staging = log.staging(writer, batch)
        self.stage(rows, staging, (aside, *partition_by) if aside else partition_by)
        log.commit(writer, batch, version, self.staged(f"{staging}/{aside}=0" if aside else staging))
        yield staging
        self.files.delete(staging)
        if self.compact_every and batch % self.compact_every == self.compact_every - 1:
            self.compact(table)

    def compact(self, table: str) -> int:
        """Merge the small files of each folder that has many; returns the number of replaced files."""
        log = self._log(table)
        compactor = compaction.Compactor(log, self._shape(log))
        return compactor.run(self.spark, self.target_bytes, self.small_files)

    def read(self, table: str, *, without: tuple[str, int] | None = None) -> DataFrame:
        """All rows of complete batches; of a keyed table the newest row of each key.

        `without`, (writer, batch), leaves one batch out: the table before that batch, also during its replay.
        The rows come from the current files. A compaction may delete these later: then read the table again.
        """
        log = self._log(table)
        shape = self._shape(log)
        unwanted = (slug(without[0]), without[1]) if without else None
        for _ in range(READ_ATTEMPTS):
            merges = self._merges_at_rest(log)
            seen = log.markers()
            left_out: list[BatchFiles | None] = [
                log.files_of(marker)
                for marker in seen
                if not marker.done or (marker.writer, marker.batch) == unwanted
            ]
            names = [file.rpartition("/")[2] for held in left_out if held for file in held.files]
            frame = self._frame(log, shape, names, merges)
            # A batch that began or ended while Spark listed the folder may be listed in part.
            if log.markers() == seen and compaction.under_way(log) == merges:
                return _newest(frame, shape)
        raise TableError(f"table {table} changes faster than it can be listed")

    def _merges_at_rest(self, log: TableLog) -> list[compaction.Merge]:
        """Compactions that a dead process left unfinished. Waits for running ones, which only move files."""
        deadline = time.monotonic() + self.wait_seconds
        merges = compaction.under_way(log)
        while merges and time.monotonic() < deadline:
            time.sleep(0.02)
            merges = compaction.under_way(log)
        return merges

    def _frame(
        self, log: TableLog, shape: Shape, without: list[str], merges: list[compaction.Merge]
    ) -> DataFrame:
        """The files of the folder without some, and the files that a compaction has not moved there yet."""
        frames = []
        names = list(without)
        for merge in merges:
            gone, folder = compaction.instead(log, merge)
            waiting = {path.rpartition("/")[2] for path, _ in self.staged(folder)}
            names += [*gone, *waiting]
            if waiting:
                frames.append(self.spark.read.schema(shape.schema).parquet(folder))
        frame = self.spark.read.schema(shape.schema).parquet(log.folder)
        frames.insert(0, _without_files(frame, names))
        chosen = (one.select(*shape.schema.names) for one in frames)
        return reduce(lambda one, other: one.unionByName(other), chosen)

    def _shape(self, log: TableLog) -> Shape:
        shape = log.shape()
        if shape is None:
            there = ", ".join(self.names()) or "none"
            raise TableError(f"there is no table {log.name} in {self.root}; there are: {there}")
        return shape

    def stage(self, rows: DataFrame, folder: str, partition_by: Sequence[str]) -> None:
        """Write the rows as Parquet files that are not in a table yet."""
        # Up to this many folders have a file open each; otherwise Spark sorts the rows by folder first.
        rows.sparkSession.conf.set("spark.sql.maxConcurrentOutputFileWriters", str(OPEN_FILES))
        writer = rows.write.mode("overwrite").options(**WRITE_OPTIONS)
        writer.partitionBy(*partition_by).parquet(folder)

    def staged(self, folder: str, below: str = "") -> Iterator[tuple[str, str]]:
        """The files below a staging folder: (path, folder inside the table)."""
        for entry in self.files.entries(folder):
            path = f"{folder}/{entry.name}"
            if entry.is_folder and not entry.name.startswith("_"):
                yield from self.staged(path, join(below, entry.name))
            elif entry.name.endswith(".parquet"):
                yield path, below

    def _log(self, table: str) -> TableLog:
        if not _TABLE_NAME.fullmatch(table):
            raise TableError(f"{table!r} is not a table name: expected letters, digits and underscores")
        return TableLog(self.files, f"{self.root}/{table}")


def _without_files(frame: DataFrame, names: list[str]) -> DataFrame:
    from pyspark.sql import functions as F

    return frame.where(~F.col("_metadata.file_name").isin(names)) if names else frame


def _newest(frame: DataFrame, shape: Shape) -> DataFrame:
    """One row for each key: the row with the highest version, as it was written."""
    from pyspark.sql import functions as F

    if not shape.keys:
        return frame
    others = [name for name in shape.schema.names if name not in (*shape.keys, VERSION)]
    newest: Column = F.max_by(F.struct(*others) if others else F.lit(True), VERSION).alias(HIDDEN)
    chosen = frame.groupBy(*shape.keys).agg(newest)
    columns = [
        F.col(name) if name in shape.keys else F.col(f"{HIDDEN}.{name}").alias(name)
        for name in shape.schema.names
        if name != VERSION
    ]
    return chosen.select(*columns)
