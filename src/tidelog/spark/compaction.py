"""Compaction of tables: merges many small files into few large ones, without losing or doubling a row.

The merged files are written beside the table. Then a marker in `_tidelog/compactions` lists the old and the
new files. Any process that finds the marker finishes the compaction: it moves the old files out of the
folder, the new files in, and deletes the marker. Moving a file out also claims it: a compaction that finds a
file claimed puts back its own and ends. Files that a batch marker names are left alone, since that batch may
be replayed and has to find exactly its files.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.spark.files import Entry, Files, join
from tidelog.spark.table_log import VERSION, Shape, TableLog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TARGET_BYTES = 128 * 1024 * 1024
SMALL_FILES = 16
"""A folder with more small files than this is compacted. Small is less than half the target size."""
LEFT_BEHIND_MS = 24 * 3600 * 1000
"""Staged files and drafts of this age are leftovers of a dead process."""


@dataclass(frozen=True, slots=True)
class Merge:
    """The content of a compaction's marker: names of files in `folder`, which is below the table's folder."""

    id: str
    folder: str
    gone: tuple[str, ...]
    come: tuple[str, ...]


class Compactor:
    """Compacts one table."""

    def __init__(self, log: TableLog, shape: Shape) -> None:
        self._log = log
        self._files: Files = log.files
        self._shape = shape

    def run(self, spark: SparkSession, target_bytes: int, small_files: int) -> int:
        """Compact each folder that needs it; returns the number of files that were replaced."""
        finish_all(self._log)
        self._sweep()
        went = 0
        for folder, files in list(self._folders("", len(self._shape.partition_by))):
            # List the markers after the files: then the marker of a batch that came in between is among them.
            kept = self._named_by_markers()
            free = [file for file in files if join(folder, file.name) not in kept]
            chosen = self._chosen(free, target_bytes, small_files)
            if chosen and self._merge(spark, folder, chosen, target_bytes):
                went += len(chosen)
        return went

    def _folders(self, below: str, levels: int) -> Iterator[tuple[str, list[Entry]]]:
        entries = self._files.entries(join(self._log.folder, below))
        if levels == 0:
            yield below, [e for e in entries if not e.is_folder and e.name.endswith(".parquet")]
            return
        for entry in entries:
            if entry.is_folder and "=" in entry.name:
                yield from self._folders(join(below, entry.name), levels - 1)

    def _named_by_markers(self) -> set[str]:
        held = [self._log.files_of(marker) for marker in self._log.markers()]
        return {file for batch in held if batch is not None for file in batch.files}

    def _chosen(self, files: list[Entry], target_bytes: int, small_files: int) -> list[Entry]:
        small = [file for file in files if file.size < target_bytes // 2]
        if len(small) <= small_files:
            return []
        total = sum(file.size for file in files)
        # In a keyed table the large files hold old versions, too: rewrite them when enough rows are new.
        if self._shape.keys and 4 * sum(file.size for file in small) >= total:
            return files
        return small

    def _merge(self, spark: SparkSession, folder: str, chosen: list[Entry], target_bytes: int) -> bool:
        merge_id = uuid.uuid4().hex[:12]
        paths = [join(self._log.folder, folder, file.name) for file in chosen]
        staging = join(staged(self._log, merge_id), folder)
        count = max(1, round(sum(file.size for file in chosen) / target_bytes))
        try:
            rows = self._collapsed(spark, paths).coalesce(count)
            rows.write.option("compression", "zstd").parquet(staging)
        except Exception:
            if all(self._files.exists(path) for path in paths):
                raise
            # Another compaction of the table, perhaps by another writer, has claimed some of the files.
            self._files.delete(staged(self._log, merge_id))
            return False
        merge = Merge(merge_id, folder, tuple(f.name for f in chosen), self._name_staged(staging, merge_id))
        text = json.dumps({"folder": merge.folder, "gone": merge.gone, "come": merge.come})
        self._log.put(_markers(self._log), f"{merge_id}.json", text)
        return finish(self._log, merge)

    def _collapsed(self, spark: SparkSession, paths: list[str]) -> DataFrame:
        """The rows of these files. Of a keyed table only the newest row of each key."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import StructType

        shape = self._shape
        stored = [field for field in shape.schema.fields if field.name not in shape.partition_by]
        rows = spark.read.schema(StructType(stored)).parquet(*paths)
        if not shape.keys:
            return rows
        # All files of the folder have the same values of the partition columns: no need to compare them.
        keys = [key for key in shape.keys if key not in shape.partition_by]
        newest = F.max_by(F.struct(*[field.name for field in stored]), VERSION).alias("row")
        return rows.groupBy(*keys).agg(newest).select("row.*")

    def _name_staged(self, staging: str, merge_id: str) -> tuple[str, ...]:
        written = [e.name for e in self._files.entries(staging) if e.name.endswith(".parquet")]
        names = tuple(f"merged.{merge_id}.{number:04d}.parquet" for number in range(len(written)))
        for source, target in zip(written, names, strict=True):
            self._files.rename(f"{staging}/{source}", f"{staging}/{target}")
        return names

    def _sweep(self) -> None:
        """Remove the leftovers of compactions and batches that died."""
        replaced = f"{self._log.hidden}/replaced"
        aside = [entry.name for entry in self._files.entries(replaced)]
        # List the folders before the markers: a folder is created after its marker and removed after it.
        alive = {merge.id for merge in under_way(self._log)} if aside else set()
        for name in aside:
            if name not in alive:
                self._files.delete(f"{replaced}/{name}")
        for name in ("staging", "schema", "batches", "compactions"):
            folder = f"{self._log.hidden}/{name}"
            for entry in self._files.entries(folder):
                unfinished = name == "staging" or entry.name.endswith(".draft")
                if unfinished and self._files.age_ms(entry) > LEFT_BEHIND_MS:
                    self._files.delete(f"{folder}/{entry.name}")


def staged(log: TableLog, merge_id: str) -> str:
    return f"{log.hidden}/staging/merged.{merge_id}"


def _markers(log: TableLog) -> str:
    return f"{log.hidden}/compactions"


def under_way(log: TableLog) -> list[Merge]:
    """The compactions with a marker: decided and not finished."""
    merges = []
    for entry in log.files.entries(_markers(log)):
        text = log.files.read(f"{_markers(log)}/{entry.name}") if entry.name.endswith(".json") else None
        if text is not None:
            held = json.loads(text)
            merge_id = entry.name.removesuffix(".json")
            merges.append(Merge(merge_id, held["folder"], tuple(held["gone"]), tuple(held["come"])))
    return merges


def finish_all(log: TableLog) -> None:
    for merge in under_way(log):
        finish(log, merge)


def instead(log: TableLog, merge: Merge) -> tuple[tuple[str, ...], str]:
    """How to read a table beside an unfinished compaction: the files to leave out, and a folder to add."""
    here = {entry.name for entry in log.files.entries(join(log.folder, merge.folder))}
    aside = {entry.name for entry in log.files.entries(join(_aside(log, merge), merge.folder))}
    if any(name in here for name in merge.come) or here | aside >= set(merge.gone):
        return merge.gone, staged(log, merge.id)
    return (), _aside(log, merge)


def finish(log: TableLog, merge: Merge) -> bool:
    """Finish a compaction; False if it had to give up because another one claimed some of its files.

    Another process may have done any step before, or do it at the same time.
    """
    files = log.files
    folder = join(log.folder, merge.folder)
    staging = join(staged(log, merge.id), merge.folder)
    aside = join(_aside(log, merge), merge.folder)
    files.make_folder(aside)
    claimed = True
    for name in merge.gone:
        there = files.rename(f"{folder}/{name}", f"{aside}/{name}") or files.exists(f"{aside}/{name}")
        claimed = claimed and there
    # A new file in place is the point of no return: the process that moved it had claimed all old files.
    if claimed or any(files.exists(f"{folder}/{name}") for name in merge.come):
        for name in merge.come:
            files.rename(f"{staging}/{name}", f"{folder}/{name}")
        claimed = True
    else:
        for name in merge.gone:
            files.rename(f"{aside}/{name}", f"{folder}/{name}")
    files.delete(f"{_markers(log)}/{merge.id}.json")
    files.delete(_aside(log, merge))
    files.delete(staged(log, merge.id))
    return claimed


def _aside(log: TableLog, merge: Merge) -> str:
    return f"{log.hidden}/replaced/{merge.id}"
