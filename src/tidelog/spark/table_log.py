"""The log of a table: its columns and batches, in the folder `_tidelog` inside the table's folder.

- `schema/NNNN-<hash>.json`: each set of columns that was ever written. The table has all of them.
- `batches/<writer>.<batch>.<attempt>.moving|done`: the files of the newest batch of each writer. The rename
  of `moving` to `done` commits the batch. Before that its files are moved into place, and readers of this
  log ignore them. A replayed batch is first undone in the reverse order.
- `compactions/`, `replaced/`: see `compaction`.
- `staging/`: files that are being written. They are not part of the table.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidelog.spark.files import Files, join
from tidelog.spark.tables.errors import TableError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

VERSION = "_version"
"""The column of a keyed table with the version of a row: the newest row of a key has the highest."""
HIDDEN = "_tidelog"
_MARKER = re.compile(r"(?P<writer>[^.]+)\.(?P<batch>\d+)\.(?P<attempt>[0-9a-f]+)\.(?P<state>moving|done)")
_PLAIN_WRITER = re.compile(r"[A-Za-z0-9_/]+")


@dataclass(frozen=True, slots=True)
class Marker:
    """One batch of one writer, from the name of its marker."""

    writer: str
    batch: int
    attempt: str
    done: bool

    @property
    def name(self) -> str:
        return f"{self.stem}.{'done' if self.done else 'moving'}"

    @property
    def stem(self) -> str:
        return f"{self.writer}.{self.batch:010d}.{self.attempt}"


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """The content of a marker: the batch's version, which orders the batches of the table, and its files."""

    version: int
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns of a table, the columns of its folders, and the columns of its key."""

    schema: StructType
    partition_by: tuple[str, ...]
    keys: tuple[str, ...]


def slug(writer: str) -> str:
    """The writer's name as a part of file names, unique for each writer."""
    plain = re.sub(r"[^A-Za-z0-9_]", "-", writer)
    if _PLAIN_WRITER.fullmatch(writer):
        return plain
    return f"{plain}-{hashlib.sha256(writer.encode()).hexdigest()[:8]}"


class TableLog:
    """The log of the table in `folder`."""

    def __init__(self, files: Files, folder: str) -> None:
        self.files = files
        self.folder = folder
        self.hidden = f"{folder}/{HIDDEN}"
        self.batches = f"{self.hidden}/batches"
        self.name = folder.rsplit("/", 1)[-1]

    # -- columns

    def shape(self) -> Shape | None:
        """The declared columns of the table, or None if the table does not exist."""
        shape: Shape | None = None
        names = (entry.name for entry in self.files.entries(f"{self.hidden}/schema"))
        for name in names:
            text = self.files.read(f"{self.hidden}/schema/{name}") if name.endswith(".json") else None
            if text is not None:
                shape = _shape_from(text) if shape is None else _merged(self.name, shape, _shape_from(text))
        return shape

    def declared(self) -> bool:
        return any(entry.name.endswith(".json") for entry in self.files.entries(f"{self.hidden}/schema"))

    def declare(self, wanted: Shape) -> Shape:
        """Create the table, or add missing columns. Raises if its key or folders differ."""
        wanted = replace(wanted, schema=_nullable(wanted.schema))
        _check(self.name, wanted)
        current = self.shape()
        if current is not None:
            _check_same_kind(self.name, current, wanted)
            merged = _merged(self.name, current, wanted)
            if merged.schema == current.schema:
                return current
        text = _shape_to(wanted)
        known = len(self.files.entries(f"{self.hidden}/schema"))
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        self.put(f"{self.hidden}/schema", f"{known:04d}-{digest}.json", text)
        return merged if current is not None else wanted

    # -- batches

    def markers(self) -> list[Marker]:
        found = (_MARKER.fullmatch(entry.name) for entry in self.files.entries(self.batches))
        return [
            Marker(match["writer"], int(match["batch"]), match["attempt"], match["state"] == "done")
            for match in found
            if match is not None
        ]

    def files_of(self, marker: Marker) -> BatchFiles | None:
        """The content of a marker; None if the marker was deleted since it was listed."""
        text = self.files.read(f"{self.batches}/{marker.name}")
        if text is None:
            return None
        held = json.loads(text)
        return BatchFiles(held["version"], tuple(held["files"]))

    def version_for(self, writer: str, batch: int) -> int:
        """The version of a batch, which orders the batches of the table. A replay keeps its version."""
        newest = 0
        for marker in self.markers():
            held = self.files_of(marker)
            if held is None:
                continue
            if (marker.writer, marker.batch) == (slug(writer), batch):
                return held.version
            newest = max(newest, held.version)
        return newest + 1

    def staging(self, writer: str, batch: int) -> str:
        return f"{self.hidden}/staging/{slug(writer)}.{batch:010d}"

    def check_order(self, writer: str, batch: int) -> None:
        newest = max((m.batch for m in self.markers() if m.writer == slug(writer) and m.done), default=-1)
        if batch < newest:
            raise TableError(
                f"table {self.name} has batch {newest} of {writer} and cannot take batch {batch}: the "
                f"checkpoint of {writer} is not the one that wrote the table. Put that checkpoint back, or "
                f"remove the table ({self.folder}) to write all of it again"
            )

    def commit(self, writer: str, batch: int, version: int, staged: Iterable[tuple[str, str]]) -> None:
        """Make these files, (path, folder inside the table), the only files of the batch."""
        earlier = [marker for marker in self.markers() if marker.writer == slug(writer)]
        marker = Marker(slug(writer), batch, uuid.uuid4().hex[:8], done=False)
        moves = [
            (source, join(folder, f"{marker.stem}.{number:04d}.parquet"))
            for number, (source, folder) in enumerate(staged)
        ]
        # Before anything is undone: the batch's version has to survive a crash after that.
        held = {"version": version, "files": [target for _, target in moves]}
        self.put(self.batches, marker.name, json.dumps(held))
        for old in earlier:
            if old.batch == batch or not old.done:
                self._undo(old)
        for folder in sorted({target.rpartition("/")[0] for _, target in moves} - {""}):
            self.files.make_folder(f"{self.folder}/{folder}")
        for source, target in moves:
            if not self.files.rename(source, f"{self.folder}/{target}"):
                raise TableError(f"{source}, staged for table {self.name}, was removed by another process")
        done = replace(marker, done=True)
        self.files.rename(f"{self.batches}/{marker.name}", f"{self.batches}/{done.name}")
        for old in earlier:
            if old.done and old.batch < batch:
                self.files.delete(f"{self.batches}/{old.name}")

    def _undo(self, marker: Marker) -> None:
        held = self.files_of(marker)
        if marker.done:
            self.files.rename(
                f"{self.batches}/{marker.name}", f"{self.batches}/{replace(marker, done=False).name}"
            )
        for file in held.files if held is not None else ():
            self.files.delete(f"{self.folder}/{file}")
        self.files.delete(f"{self.batches}/{replace(marker, done=False).name}")

    def put(self, folder: str, name: str, text: str) -> None:
        """Create a file atomically: with its whole text or not at all. The same name has the same text."""
        self.files.make_folder(folder)
        draft = f"{folder}/{uuid.uuid4().hex}.draft"
        self.files.write(draft, text)
        try:
            self.files.rename(draft, f"{folder}/{name}")
        except OSError:
            # Another writer created the same file first, on a file system that does not replace files.
            if not self.files.exists(f"{folder}/{name}"):
                raise
            self.files.delete(draft)


def _nullable(schema: StructType) -> StructType:
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(field.name, field.dataType, True) for field in schema.fields])


def _shape_to(shape: Shape) -> str:
    held = {"keys": shape.keys, "partition_by": shape.partition_by, "columns": shape.schema.jsonValue()}
    return json.dumps(held, sort_keys=True)


def _shape_from(text: str) -> Shape:
    from pyspark.sql.types import StructType

    held = json.loads(text)
    return Shape(StructType.fromJson(held["columns"]), tuple(held["partition_by"]), tuple(held["keys"]))


def _check(table: str, shape: Shape) -> None:
    names = set(shape.schema.names)
    for what, columns in (("partitioned by", shape.partition_by), ("keyed by", shape.keys)):
        absent = [column for column in columns if column not in names]
        if absent:
            raise TableError(
                f"table {table} is {what} {', '.join(absent)}, which the rows do not have: "
                f"their columns are {', '.join(shape.schema.names)}"
            )


def _check_same_kind(table: str, current: Shape, wanted: Shape) -> None:
    for what, is_, asked in (
        ("partitioned", current.partition_by, wanted.partition_by),
        ("keyed", current.keys, wanted.keys),
    ):
        if is_ != asked:
            raise TableError(
                f"table {table} is {what} by {', '.join(is_) or 'nothing'} and cannot be written as one that "
                f"is {what} by {', '.join(asked) or 'nothing'}"
            )


def _merged(table: str, current: Shape, added: Shape) -> Shape:
    from pyspark.sql.types import StructType

    types = {field.name: field.dataType for field in current.schema.fields}
    fields = list(current.schema.fields)
    for field in added.schema.fields:
        known = types.get(field.name)
        if known is None:
            fields.append(field)
        elif known != field.dataType:
            raise TableError(
                f"column {field.name} is {known.simpleString()} in table {table} and "
                f"{field.dataType.simpleString()} in the rows: cast it, or give it another name"
            )
    return replace(current, schema=StructType(fields))
