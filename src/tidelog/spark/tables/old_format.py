"""Reads tables of the format before Delta: Parquet files in folders by day, and a log in `_tidelog`.

- `schema/*.json`: the sets of columns that were ever written. The table has all of them.
- `batches/<writer>.<batch>.<attempt>.moving|done`: the newest batch of each writer, with its files. Files of
  a `moving` batch do not count.
- `compactions/<id>.json`: compactions that were decided and not finished: old and new names of files.
- The newest row of a key, in a keyed table, has the highest `_version`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.spark.tables.errors import TableError
from tidelog.spark.tables.store import Store

if TYPE_CHECKING:
    import pyarrow.fs

VERSION = "_version"
HIDDEN = "_tidelog"
MIGRATED = f"{HIDDEN}/migrated.json"
"""Written last. A table with this file is a Delta table, and its old log is no longer read."""
_MARKER = re.compile(r"(?P<writer>[^.]+)\.(?P<batch>\d+)\.(?P<attempt>[0-9a-f]+)\.(?P<state>moving|done)")
_PLAIN_WRITER = re.compile(r"[A-Za-z0-9_/]+")
_HASHED = re.compile(r".+-[0-9a-f]{8}")
_OF_DELTA = ("part-", "compacted-", "migrated-")
"""Names of files that a Delta table writes: a killed migration may have left some."""

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class OldBatch:
    """The newest complete batch of a writer."""

    slug: str
    number: int
    version: int
    files: frozenset[str]
    """Their names, without folders."""


@dataclass(frozen=True, slots=True)
class OldFile:
    """A file with rows of the table: where it is, and the folder of the table that it belongs to."""

    path: str
    folder: str
    size: int

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def in_place(self) -> bool:
        return self.path.rpartition("/")[0] == self.folder


@dataclass(frozen=True, slots=True)
class OldTable:
    """An old table: its columns in Spark's JSON, its folders, its key, its files, and the newest batches."""

    name: str
    columns: Json
    partition_by: tuple[str, ...]
    keys: tuple[str, ...]
    files: tuple[OldFile, ...]
    batches: tuple[OldBatch, ...]


def is_old(store: Store) -> bool:
    """Whether the place has a table of the old format that was not migrated to its end."""
    files = store.files()
    found = files.get_file_info([f"{HIDDEN}/schema", MIGRATED])
    return bool(_entries(files, f"{HIDDEN}/schema")) and not found[1].is_file


def old_tables(root: Store) -> list[str]:
    """The names of the tables below `root` that have to be migrated."""
    return [name for name in root.names() if is_old(root.below(name))]


def read_old(store: Store) -> OldTable:
    """The old table in this place, as a reader of its format saw it. Raises TableError if it is broken."""
    files = store.files()
    name = store.uri.rpartition("/")[2]
    columns, partition_by, keys = _columns(files, name)
    incomplete, batches = _batches(files)
    left_out, added = _compactions(files)
    found = [
        *(file for file in _data_files(files, "", len(partition_by)) if file.name not in left_out),
        *added,
    ]
    kept = tuple(file for file in found if file.name not in incomplete)
    return OldTable(name, columns, partition_by, keys, kept, tuple(batches))


def slug(writer: str) -> str:
    """The writer's name as the old markers have it."""
    plain = re.sub(r"[^A-Za-z0-9_]", "-", writer)
    if _PLAIN_WRITER.fullmatch(writer):
        return plain
    return f"{plain}-{hashlib.sha256(writer.encode()).hexdigest()[:8]}"


def writer_of(table: str, found: str, known: Iterable[str]) -> str:
    """The writer's name of a marker, from names that are known. Raises TableError if it cannot be told."""
    for name in known:
        if slug(name) == found:
            return name
    if not _HASHED.fullmatch(found):
        return found.replace("-", "/")  # every other character would have led to a hash
    raise TableError(
        f"table {table} has batches of a writer that the markers call {found}: give its name, --writer NAME"
    )


def _columns(files: pyarrow.fs.FileSystem, table: str) -> tuple[Json, tuple[str, ...], tuple[str, ...]]:
    fields: dict[str, Json] = {}
    partition_by: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    for entry in _entries(files, f"{HIDDEN}/schema"):
        if not entry.base_name.endswith(".json"):
            continue
        held = json.loads(_text(files, entry.path))
        partition_by, keys = tuple(held["partition_by"]), tuple(held["keys"])
        for field in held["columns"]["fields"]:
            before = fields.setdefault(field["name"], _nullable(field))
            if before["type"] != _nullable(field)["type"]:
                raise TableError(f"table {table} has column {field['name']} with two types")
    kept = [field for name, field in fields.items() if not (keys and name == VERSION)]
    return {"type": "struct", "fields": kept}, partition_by, keys


def _nullable(value: Json) -> Json:
    """A field or type of Spark's JSON with everything in it nullable."""
    changed = {
        name: _nullable(inner)
        if isinstance(inner, dict) and name != "metadata"
        else [_nullable(each) for each in inner]
        if isinstance(inner, list)
        else inner
        for name, inner in value.items()
    }
    for name in ("nullable", "containsNull", "valueContainsNull"):
        if name in changed:
            changed[name] = True
    return changed


def _batches(files: pyarrow.fs.FileSystem) -> tuple[set[str], list[OldBatch]]:
    """The names of files that do not count, and the newest complete batch of each writer."""
    incomplete: set[str] = set()
    newest: dict[str, OldBatch] = {}
    for entry in _entries(files, f"{HIDDEN}/batches"):
        marker = _MARKER.fullmatch(entry.base_name)
        if marker is None:
            continue
        held = json.loads(_text(files, entry.path))
        names = frozenset(str(path).rpartition("/")[2] for path in held["files"])
        if marker["state"] == "moving":
            incomplete |= names
            continue
        batch = OldBatch(marker["writer"], int(marker["batch"]), int(held["version"]), names)
        before = newest.get(batch.slug)
        if before is None or before.number < batch.number:
            newest[batch.slug] = batch
    return incomplete, sorted(newest.values(), key=lambda batch: batch.version)


def _compactions(files: pyarrow.fs.FileSystem) -> tuple[set[str], list[OldFile]]:
    """What unfinished compactions change: names to leave out of the folders, and files to add to them."""
    left_out: set[str] = set()
    added: list[OldFile] = []
    for entry in _entries(files, f"{HIDDEN}/compactions"):
        if not entry.base_name.endswith(".json"):
            continue
        held = json.loads(_text(files, entry.path))
        number = entry.base_name.removesuffix(".json")
        folder = held["folder"]
        aside = _join(f"{HIDDEN}/replaced/{number}", folder)
        here = {each.base_name for each in _entries(files, folder)}
        claimed = {each.base_name for each in _entries(files, aside)}
        # A new file in place, or all old files claimed: the compaction counts. Otherwise it was overtaken.
        counts = any(name in here for name in held["come"]) or here | claimed >= set(held["gone"])
        source = _join(f"{HIDDEN}/staging/merged.{number}", folder) if counts else aside
        names = {name for name in held["come"] if name not in here} if counts else claimed - here
        left_out |= set(held["gone"]) if counts else set()
        added += [
            OldFile(each.path, folder, each.size)
            for each in _entries(files, source)
            if each.is_file and each.base_name in names
        ]
    return left_out, added


def _data_files(files: pyarrow.fs.FileSystem, folder: str, levels: int) -> list[OldFile]:
    found: list[OldFile] = []
    for entry in _entries(files, folder):
        if levels and not entry.is_file and "=" in entry.base_name:
            found += _data_files(files, _join(folder, entry.base_name), levels - 1)
        elif not levels and entry.is_file and _is_data(entry.base_name):
            found.append(OldFile(_join(folder, entry.base_name), folder, entry.size))
    return found


def _is_data(name: str) -> bool:
    return name.endswith(".parquet") and not name.startswith(_OF_DELTA)


def _entries(files: pyarrow.fs.FileSystem, folder: str) -> list[pyarrow.fs.FileInfo]:
    from pyarrow.fs import FileSelector

    found = files.get_file_info(FileSelector(folder, allow_not_found=True))
    return sorted(found, key=lambda entry: str(entry.path))


def _text(files: pyarrow.fs.FileSystem, path: str) -> str:
    with files.open_input_stream(path) as stream:
        return bytes(stream.read()).decode()


def _join(*parts: str) -> str:
    return "/".join(part for part in parts if part)
