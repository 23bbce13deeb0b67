"""Maintenance of tables beside the stream: compaction, checkpoints of the log, vacuum, retention of the log.

It runs on a thread of its own, so that no micro-batch waits for it. Any number of processes may maintain the
same tables at the same time. A failure is logged and tried again in the next round: the stream goes on.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields

from deltalake import DeltaTable

from tidelog.config import ConfigError
from tidelog.spark.tables.compactor import SMALL_FILES, TARGET_BYTES, Compactor
from tidelog.spark.tables.store import Store

LOG = logging.getLogger(__name__)
PREFIX = "tables."
LEAST_RETENTION_HOURS = 24
"""Files of a micro-batch are in no commit until it ends. No batch takes this long."""
STOP_SECONDS = 30.0
FILE_RETENTION = "delta.deletedFileRetentionDuration"
_ENTRY = re.compile(r"(\d{20})\.(json|crc|checkpoint(?:\..+)?\.parquet)")


@dataclass(frozen=True, slots=True)
class MaintenanceSettings:
    """How often tables are maintained, and how long replaced files and old versions stay."""

    maintenance_seconds: float = 60.0
    """The time between two rounds; 0 switches all of it off."""
    compact_small_files: int = SMALL_FILES
    compact_target_bytes: int = TARGET_BYTES
    checkpoint_commits: int = 50
    """The log gets a checkpoint after this many commits, so that opening the table reads few files."""
    retention_hours: int = 168
    """Replaced files and leftovers of killed writers are deleted after this time."""
    log_versions: int = 500
    """The log keeps at least this many versions. Every commit lists the versions that are left."""
    vacuum_hours: float = 24.0
    """The time between two vacuums of a table. A vacuum lists all files of the table."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = LEAST_RETENTION_HOURS if field.name == "retention_hours" else 0
            if field.name in (
                "compact_target_bytes",
                "compact_small_files",
                "checkpoint_commits",
                "log_versions",
            ):
                least = 1
            if not value >= least:
                raise ConfigError(setting_name(field.name), str(value), f"expected a number from {least}")


def setting_name(field: str) -> str:
    return PREFIX + field.replace("_", ".")


def from_settings(given: Mapping[str, object]) -> tuple[MaintenanceSettings, dict[str, object]]:
    """The settings named `tables.*`, and the others. Raises ConfigError for a bad name or value."""
    known = {setting_name(field.name): field for field in fields(MaintenanceSettings)}
    values: dict[str, float] = {}
    others: dict[str, object] = {}
    for name, value in given.items():
        field = known.get(name)
        if not name.startswith(PREFIX):
            others[name] = value
        elif field is None:
            raise ConfigError(name, None, f"no such setting of tables; there are {', '.join(sorted(known))}")
        else:
            try:
                values[field.name] = float(str(value)) if field.type == "float" else int(str(value))
            except ValueError:
                kind = "a number" if field.type == "float" else "a whole number"
                raise ConfigError(name, str(value), f"expected {kind}") from None
    return MaintenanceSettings(**values), others  # type: ignore[arg-type]


class TableMaintenance:
    """Maintains one table."""

    def __init__(
        self,
        store: Store,
        settings: MaintenanceSettings,
        *,
        stopping: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`store` is the place of the table."""
        self.store = store
        self.settings = settings
        self._clock = clock
        self._stopping = stopping
        self._compactor = Compactor(
            store,
            target_bytes=settings.compact_target_bytes,
            small_files=settings.compact_small_files,
            stopping=stopping,
        )
        self._seen = -1
        self._checkpoint = 0
        self._vacuumed: float | None = None

    def round(self) -> None:
        """Do what is due. Without a commit since the last round, only the log is opened."""
        table = self.store.delta()
        if table.version() != self._seen:
            self._compactor.run()
            table = self.store.delta()
            self._make_checkpoint(table)
            self._seen = table.version()
        if not self._stopping():
            self._clean(table)

    def _make_checkpoint(self, table: DeltaTable) -> None:
        """Make a checkpoint when it is due, and delete versions before it that are old enough."""
        if table.version() - self._checkpoint >= self.settings.checkpoint_commits:
            with self.store.errors():
                table.create_checkpoint()
                self._checkpoint = table.version()
                self._shorten_log(table.version())

    def _shorten_log(self, newest: int) -> None:
        """Delete the versions before the newest checkpoint that is old enough, oldest first.

        Every version from that checkpoint on can still be read, also after a kill in between.
        """
        from pyarrow.fs import FileSelector

        files = self.store.files()
        found = files.get_file_info(FileSelector("_delta_log"))
        entries = [
            (int(match[1]), match[2], entry)
            for entry in found
            if (match := _ENTRY.fullmatch(entry.base_name))
        ]
        old_enough = (
            version
            for version, kind, _ in entries
            if kind == "checkpoint.parquet" and version <= newest - self.settings.log_versions
        )
        first = max(old_enough, default=0)
        for version, _, entry in sorted(entries, key=lambda each: each[0]):
            if version >= first:
                break
            with suppress(FileNotFoundError):  # another process does the same
                files.delete_file(entry.path)

    def _clean(self, table: DeltaTable) -> None:
        """Vacuum once in a while."""
        now = self._clock()
        if self._vacuumed is None:
            self._vacuumed = self._last_vacuum(table, now)
        if now - self._vacuumed < self.settings.vacuum_hours * 3600:
            return
        self._vacuumed = now
        self.clean(table)

    def _last_vacuum(self, table: DeltaTable, now: float) -> float:
        """The time of the last vacuum that deleted something, also by another process, or of the creation.

        A vacuum that deletes nothing leaves no trace in the log.
        """
        for entry in table.history(100):
            if entry.get("operation") == "VACUUM END":
                return min(float(entry["timestamp"]) / 1000, now)
        created = table.metadata().created_time
        return min(created / 1000, now) if created else now

    def clean(self, table: DeltaTable) -> list[str]:
        """Delete files that no version within the retention needs.

        Returns the deleted files. Files that are younger than the retention stay, in a commit or not.
        """
        with self.store.errors():
            self._set_retention(table)
            return table.vacuum(
                self.settings.retention_hours, dry_run=False, enforce_retention_duration=False, full=True
            )

    def _set_retention(self, table: DeltaTable) -> None:
        """Delta's own programs read the retention of replaced files from the table."""
        wanted = f"interval {self.settings.retention_hours} hours"
        if table.metadata().configuration.get(FILE_RETENTION) != wanted:
            table.alter.set_table_properties({FILE_RETENTION: wanted})


class Maintenance:
    """Maintains tables on a thread. Close it, or leave its `with` block, to end the thread."""

    def __init__(
        self, store: Store, settings: MaintenanceSettings, tables: Callable[[], Sequence[str]] | None = None
    ) -> None:
        """`store` is the folder of the tables. `tables` gives their names; all of the folder by default."""
        self.store = store
        self.settings = settings
        self._tables = tables or store.names
        self._stop = threading.Event()
        self._busy = threading.Lock()
        self._thread: threading.Thread | None = None
        self._known: dict[str, TableMaintenance] = {}

    def start(self) -> None:
        """Start the thread, unless the settings switch maintenance off."""
        if self.settings.maintenance_seconds > 0 and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="table-maintenance", daemon=True)
            self._thread.start()

    def round(self) -> None:
        """Maintain each table once. A table that fails does not keep the others from it.

        Does nothing if the settings switch maintenance off, or beside a round of the thread.
        """
        if self.settings.maintenance_seconds > 0 and self._busy.acquire(blocking=False):
            try:
                self._each()
            finally:
                self._busy.release()

    def _each(self) -> None:
        for name in self._tables():
            if self._stop.is_set():
                return
            try:
                self._of(name)
            except Exception as error:
                text = self.store.without_secrets(str(error))
                LOG.warning("maintenance of table %s failed and is tried again later: %s", name, text)

    def _of(self, name: str) -> None:
        one = self._known.get(name)
        if one is None:
            place = self.store.below(name)
            if not place.is_table():
                return
            one = self._known[name] = TableMaintenance(place, self.settings, stopping=self._stop.is_set)
        one.round()

    def _run(self) -> None:
        while not self._stop.wait(self.settings.maintenance_seconds):
            try:
                self.round()
            except Exception as error:
                text = self.store.without_secrets(str(error))
                LOG.warning("the tables in %s cannot be listed: %s", self.store.uri, text)

    def close(self) -> None:
        """Stop after the day that is being compacted. Safe to call twice."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)
            self._thread = None

    def __enter__(self) -> Maintenance:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
