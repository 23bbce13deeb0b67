"""EmbeddedTree: the tree in an SQLite file, for a broker without ZooKeeper.

Every change is a transaction that is synced before the call returns. After `kill -9` or a power cut it is
complete or does not exist. Only one process can open the file. A session lasts from the opening to the close
of the file. The next opening removes the ephemeral nodes of a process that died.

The file is `__tree.sqlite` in the first log folder, with a `-wal` file while it is open. Kafka ignores plain
files there.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

from tidelog.clock import Clock, SystemClock
from tidelog.metadata.tree import (
    ANY_VERSION,
    BadVersion,
    Check,
    Create,
    Delete,
    EventType,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    Result,
    SetData,
    Stat,
    TreeError,
    TreeUnavailable,
    Watch,
    WatchEvent,
    check_path,
    parent_of,
)

FILE_NAME = "__tree.sqlite"
FORMAT = 1

_SCHEMA = """
CREATE TABLE store (format INTEGER NOT NULL, zxid INTEGER NOT NULL, session INTEGER NOT NULL);
CREATE TABLE node (
  parent TEXT NOT NULL, name TEXT NOT NULL, data BLOB NOT NULL,
  czxid INTEGER NOT NULL, mzxid INTEGER NOT NULL, ctime INTEGER NOT NULL, mtime INTEGER NOT NULL,
  version INTEGER NOT NULL, created INTEGER NOT NULL, owner INTEGER NOT NULL,
  PRIMARY KEY (parent, name)
) WITHOUT ROWID;
"""
# `created` counts all children ever created: the next sequence number, as in ZooKeeper.

_COLUMNS = "czxid, mzxid, ctime, mtime, version, created, owner, data"
_Row = tuple[int, int, int, int, int, int, int, bytes]


class EmbeddedTree:
    """A Tree in an SQLite file. Use it as a context manager, or close it."""

    def __init__(self, path: str | os.PathLike[str], clock: Clock | None = None) -> None:
        """Open or create the file at `path`. Raises TreeUnavailable with the reason if that fails."""
        self.path = Path(path)
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._data_watches: dict[str, list[Watch]] = {}
        self._child_watches: dict[str, list[Watch]] = {}
        self._events: list[WatchEvent] = []
        self._zxid = 0
        self.session = 0
        try:
            self._db = self._connect()
        except sqlite3.Error as error:
            raise TreeUnavailable(str(self.path), f"cannot open the tree in {self.path}: {error}") from error
        try:
            self._open()
        except sqlite3.Error as error:
            self._db.close()
            raise TreeUnavailable(str(self.path), self._opening_failed(error)) from error
        except BaseException:
            self._db.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        # Only the owner reads the tree: it has credentials. SQLite's other files get the same permissions.
        with contextlib.suppress(OSError):
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
            os.chmod(self.path, 0o600)
        return sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)

    def _disconnect(self) -> None:
        self._db.close()

    def __enter__(self) -> EmbeddedTree:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _opening_failed(self, error: sqlite3.Error) -> str:
        if "locked" in str(error):
            return f"the tree in {self.path} is open in another process: stop that broker first"
        return f"cannot read the tree in {self.path}: {error}"

    def _open(self) -> None:
        # An exclusive write-ahead log needs one fsync for a change, and no shared-memory file.
        self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute("BEGIN IMMEDIATE")
        try:
            if self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
                self._make_schema()
            self._read_store()
            self._remove_ephemerals()
            self._write_store()
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        self._events.clear()
        _sync_folder(self.path.parent)

    def _make_schema(self) -> None:
        for statement in _SCHEMA.split(";"):
            self._db.execute(statement)
        self._db.execute("INSERT INTO store VALUES (?, 0, 0)", (FORMAT,))
        now = self._clock.ms()
        self._insert("/", b"", 0, now)

    def _read_store(self) -> None:
        row = self._db.execute("SELECT format, zxid, session FROM store").fetchone()
        file_format, self._zxid, session = row
        if file_format != FORMAT:
            raise TreeUnavailable(
                str(self.path),
                f"the tree in {self.path} has format {file_format}; this version reads format {FORMAT}",
            )
        self.session = session + 1

    def _write_store(self) -> None:
        self._db.execute("UPDATE store SET zxid = ?, session = ?", (self._zxid, self.session))

    # --- reading

    def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        with self._lock:
            row = self._need(path)
            stat = self._stat(path, row)
            _add_watch(self._data_watches, path, watch)
            return row[7], stat

    def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        with self._lock:
            row = self._row(path)
            _add_watch(self._data_watches, path, watch)
            return None if row is None else self._stat(path, row)

    def children(self, path: str, watch: Watch | None = None) -> list[str]:
        with self._lock:
            self._need(path)
            rows = self._select("SELECT name FROM node WHERE parent = ? ORDER BY name", path)
            _add_watch(self._child_watches, path, watch)
            return [str(row[0]) for row in rows if row[0]]

    def _select(self, query: str, *values: str) -> list[tuple[str, ...]]:
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise self._unavailable(values[0], error) from error

    def _row(self, path: str) -> _Row | None:
        try:
            row: _Row | None = self._db.execute(
                f"SELECT {_COLUMNS} FROM node WHERE parent = ? AND name = ?", _key(path)
            ).fetchone()
        except sqlite3.Error as error:
            raise self._unavailable(path, error) from error
        return row

    def _need(self, path: str) -> _Row:
        row = self._row(path)
        if row is None:
            raise NoNode(path)
        return row

    def _count_children(self, path: str) -> int:
        return int(self._select("SELECT count(*) FROM node WHERE parent = ? AND name <> ''", path)[0][0])

    def _stat(self, path: str, row: _Row) -> Stat:
        czxid, mzxid, ctime, mtime, version, created, owner, _ = row
        children = self._count_children(path)
        return Stat(czxid, mzxid, ctime, mtime, version, 2 * created - children, owner, children)

    # --- changing

    def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
    ) -> str:
        operations: list[Operation] = []
        with self._lock:
            if make_parents:
                operations += [Create(parent) for parent in self._missing_parents(path)]
            operations.append(Create(path, data, ephemeral, sequential))
            made = self.multi(operations)[-1]
        assert isinstance(made, str)
        return made

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        stat = self.multi([SetData(path, data, version)])[0]
        assert isinstance(stat, Stat)
        return stat

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self.multi([Delete(path, version)])

    def multi(self, operations: Sequence[Operation]) -> list[Result]:
        for operation in operations:
            check_path(operation.path)
        with self._lock:
            zxid = self._zxid
            try:
                results = self._transaction(operations)
            except TreeError:
                self._roll_back(zxid)
                raise
            except sqlite3.Error as error:
                self._roll_back(zxid)
                raise self._unavailable(operations[0].path, error) from error
            events, self._events = self._events, []
            calls = [(watch, event) for event in events for watch in self._take_watches(event)]
        for watch, event in calls:
            watch(event)
        return results

    def _transaction(self, operations: Sequence[Operation]) -> list[Result]:
        self._db.execute("BEGIN IMMEDIATE")
        self._zxid += 1
        now = self._clock.ms()
        results = [self._apply(operation, now) for operation in operations]
        self._write_store()
        self._db.execute("COMMIT")
        return results

    def _roll_back(self, zxid: int) -> None:
        self._zxid = zxid
        self._events.clear()
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        except sqlite3.Error:
            pass  # the caller gets the first error; if the rollback failed, the next BEGIN fails too

    def _apply(self, operation: Operation, now: int) -> Result:
        match operation:
            case Create():
                return self._create(operation, now)
            case SetData(path, data, version):
                return self._set(path, data, version, now)
            case Delete(path, version):
                self._delete(path, version)
                return None
            case Check(path, version):
                self._at_version(path, version)
                return None

    def _create(self, operation: Create, now: int) -> str:
        path = operation.path
        parent = parent_of(path)
        above = self._row(parent)
        if above is None:
            raise NoNode(path)
        if above[6]:
            raise NoChildrenForEphemerals(path)
        if operation.sequential:
            path = f"{path}{above[5]:010d}"
        if self._row(path) is not None:
            raise NodeExists(path)
        self._insert(path, operation.data, self.session if operation.ephemeral else 0, now)
        self._db.execute("UPDATE node SET created = created + 1 WHERE parent = ? AND name = ?", _key(parent))
        self._events.append(WatchEvent(EventType.CREATED, path))
        self._events.append(WatchEvent(EventType.CHILDREN, parent))
        return path

    def _insert(self, path: str, data: bytes, owner: int, now: int) -> None:
        self._db.execute(
            "INSERT INTO node VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0, ?)",
            (*_key(path), data, self._zxid, self._zxid, now, now, owner),
        )

    def _at_version(self, path: str, version: int) -> _Row:
        row = self._need(path)
        if version not in (ANY_VERSION, row[4]):
            raise BadVersion(path, f"{path}: version {version} was expected, the node has {row[4]}")
        return row

    def _set(self, path: str, data: bytes, version: int, now: int) -> Stat:
        self._at_version(path, version)
        self._db.execute(
            "UPDATE node SET data = ?, mzxid = ?, mtime = ?, version = version + 1"
            " WHERE parent = ? AND name = ?",
            (data, self._zxid, now, *_key(path)),
        )
        self._events.append(WatchEvent(EventType.CHANGED, path))
        return self._stat(path, self._need(path))

    def _delete(self, path: str, version: int) -> None:
        if path == "/":
            raise ValueError("the root of the tree cannot be deleted")
        self._at_version(path, version)
        if self._count_children(path):
            raise NotEmpty(path)
        self._db.execute("DELETE FROM node WHERE parent = ? AND name = ?", _key(path))
        self._events.append(WatchEvent(EventType.DELETED, path))
        self._events.append(WatchEvent(EventType.CHILDREN, parent_of(path)))

    def _missing_parents(self, path: str) -> list[str]:
        missing: list[str] = []
        parent = parent_of(path)
        while parent != "/" and self._row(parent) is None:
            missing.append(parent)
            parent = parent_of(parent)
        missing.reverse()
        return missing

    # --- watches and sessions

    def _take_watches(self, event: WatchEvent) -> list[Watch]:
        if event.type is EventType.CHILDREN:
            return self._child_watches.pop(event.path, [])
        watches = self._data_watches.pop(event.path, [])
        if event.type is EventType.DELETED:
            watches += self._child_watches.pop(event.path, [])
        return watches

    def _remove_ephemerals(self) -> None:
        rows = self._db.execute("SELECT parent, name FROM node WHERE owner <> 0").fetchall()
        if rows:
            self._zxid += 1
        for parent, name in rows:
            self._delete(f"/{name}" if parent == "/" else f"{parent}/{name}", ANY_VERSION)

    def close(self) -> None:
        """End the session: remove its ephemeral nodes and merge the write-ahead log into the file."""
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                self._remove_ephemerals()
                self._write_store()
                self._db.execute("COMMIT")
            except sqlite3.Error:
                pass  # closed already, or the disk failed: the next opening removes them
            self._events.clear()
            self._data_watches.clear()
            self._child_watches.clear()
            self._disconnect()

    def _unavailable(self, path: str, error: sqlite3.Error) -> TreeUnavailable:
        return TreeUnavailable(path, f"{path}: the tree in {self.path} failed: {error}")


def _key(path: str) -> tuple[str, str]:
    if path == "/":
        return "/", ""
    parent, _, name = path.rpartition("/")
    return parent or "/", name


def _add_watch(watches: dict[str, list[Watch]], path: str, watch: Watch | None) -> None:
    if watch is not None:
        watches.setdefault(path, []).append(watch)


def _sync_folder(folder: Path) -> None:
    """Make the directory entry of the file durable; SQLite does that only for its journals."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
