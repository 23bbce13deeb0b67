"""Compaction of a Delta table: merges the many small files of a day into few large ones.

The merged files are written first. One commit then removes the old files and adds the merged ones, from a
snapshot that still has all of the old ones. Every commit that removes files has the same transaction id, so
of two that start from one snapshot Delta refuses the second. A compaction that was overtaken deletes its own
files. Writers of new files are never refused because of a compaction.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from deltalake.transaction import AddAction, RemoveAction

from tidelog.spark.tables.delta_log import DeltaLog, Snapshot
from tidelog.spark.tables.live_files import LiveFile, live_files, rows_of
from tidelog.spark.tables.statistics import statistics
from tidelog.spark.tables.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

TARGET_BYTES = 128 * 1024 * 1024
SMALL_FILES = 16
ALIKE = 64
"""Files below the target's size divided by this count as equally small, whatever their sizes are."""
GROUP_BYTES = 64 * 1024 * 1024
"""The size in memory of a row group. A compaction holds one, and one batch that it reads."""
COMMIT_ATTEMPTS = 10
GIVE_UP_SECONDS = 12 * 3600
"""A compaction that is older does not commit: a vacuum may have taken its files for leftovers."""


class Compactor:
    """Compacts one table."""

    def __init__(
        self,
        store: Store,
        *,
        target_bytes: int = TARGET_BYTES,
        small_files: int = SMALL_FILES,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """`store` is the place of the table. `stopping` is asked before each day."""
        self.store = store
        self.target_bytes = target_bytes
        self.small_files = small_files
        self._stopping = stopping
        self._log = DeltaLog(store.uri, store.options)
        self._seen = -1

    def run(self) -> int:
        """Compact each day that has too many small files; returns the number of replaced files.

        A table without a commit since the last run is not looked at. Of the others, only the log is read,
        and the files of days that have too many.
        """
        snapshot = self._log.snapshot()
        if snapshot.version == self._seen:
            return 0
        replaced = 0
        for files in chosen(live_files(snapshot.table), self.target_bytes, self.small_files):
            if self._stopping():
                return replaced
            replaced += self._merge(snapshot, files)
        self._seen = snapshot.version
        return replaced

    def _merge(self, snapshot: Snapshot, files: Sequence[LiveFile]) -> int:
        begun = time.time()
        schema = _stored_schema(snapshot)
        outputs: list[AddAction] = []
        try:
            for part in _bins(files, self.target_bytes):
                outputs.append(self._rewrite(part, schema))
            done = self._commit(files, outputs, begun)
        except FileNotFoundError:
            done = False  # a vacuum has removed a file that another compaction replaced long ago
        if not done:
            self._discard(outputs)
        return len(files) if done else 0

    def _rewrite(self, files: Sequence[LiveFile], schema: pa.Schema) -> AddAction:
        """Write the rows of these files of one day to one new file."""
        from pyarrow import parquet

        name = f"compacted-{uuid.uuid4().hex}.parquet"
        path = f"{files[0].folder}/{name}" if files[0].folder else name
        system = self.store.files()
        collector: list[parquet.FileMetaData] = []
        with (
            system.open_output_stream(path) as stream,
            parquet.ParquetWriter(stream, schema, compression="zstd", metadata_collector=collector) as writer,
        ):
            batches = (batch for file in files for batch in rows_of(self.store, file, schema))
            for group in _groups(batches, schema):
                writer.write_table(group)
        size = system.get_file_info(path).size
        now = int(time.time() * 1000)
        return AddAction(path, size, files[0].partition, now, False, statistics(collector[0]))

    def _commit(self, files: Sequence[LiveFile], outputs: Sequence[AddAction], begun: float) -> bool:
        """Replace the files by the outputs; False if another commit has removed one of them.

        The files' rows do not change, so the commit may start from any snapshot that still has all of them.
        """
        now = int(time.time() * 1000)
        removes = [RemoveAction(file.path, False, now, file.size, file.partition) for file in files]
        for _ in range(COMMIT_ATTEMPTS):
            snapshot = self._log.snapshot()
            present = {file.path for file in live_files(snapshot.table)}
            if outputs and all(output.path in present for output in outputs):
                return True  # the store had taken the commit, and its answer was lost
            if not present.issuperset(file.path for file in files) or time.time() - begun > GIVE_UP_SECONDS:
                return False
            if self._log.replace(snapshot, outputs, removes, {"compacted": len(files)}):
                return True
        return False

    def _discard(self, outputs: Sequence[AddAction]) -> None:
        """Delete files that no commit names. A vacuum deletes what this cannot."""
        present = {file.path for file in live_files(self._log.snapshot().table)}
        system = self.store.files()
        for output in outputs:
            if output.path not in present:
                with suppress(OSError):
                    system.delete_file(output.path)


def chosen(files: Sequence[LiveFile], target_bytes: int, small_files: int) -> Iterator[list[LiveFile]]:
    """The files to merge, by day: more than `small_files` small ones.

    Files are merged with others of about their size, so that a large file is not written again for each few
    small ones.
    """
    days: dict[tuple[tuple[str, object], ...], list[LiveFile]] = {}
    for file in files:
        if file.size < target_bytes // 2:
            days.setdefault(file.values, []).append(file)
    for day in days.values():
        if len(day) <= small_files:
            continue
        group: list[LiveFile] = []
        total = 0
        for file in sorted(day, key=lambda file: (file.size, file.path)):
            if group and file.size > max(2 * total, target_bytes // ALIKE):
                break
            group.append(file)
            total += file.size
        if len(group) > small_files:
            yield group
        elif len(day) > 4 * small_files:
            yield day


def _stored_schema(snapshot: Snapshot) -> pa.Schema:
    """The columns that are in the files: partition columns are only in the log."""
    import pyarrow as pa

    whole = pa.schema(snapshot.table.schema().to_arrow())
    return pa.schema([field for field in whole if field.name not in snapshot.partition_by])


def _bins(files: Sequence[LiveFile], target_bytes: int) -> Iterator[list[LiveFile]]:
    """The files of each merged file."""
    part: list[LiveFile] = []
    size = 0
    for file in files:
        if part and size + file.size > target_bytes:
            yield part
            part, size = [], 0
        part.append(file)
        size += file.size
    if part:
        yield part


def _groups(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows in row groups of a bounded size. Without rows there is one group without rows."""
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    size = 0
    wrote = False
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= GROUP_BYTES:
            yield pa.Table.from_batches(held, schema)
            held, size, wrote = [], 0, True
    if held or not wrote:
        yield pa.Table.from_batches(held, schema)
