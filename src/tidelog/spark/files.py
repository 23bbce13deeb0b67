"""Files and folders on any file system that Spark can write, through Hadoop's API in the driver's JVM."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")


class _Stream(Protocol):
    def write(self, data: bytes) -> None: ...
    def close(self) -> None: ...


class _Path(Protocol):
    def getName(self) -> str: ...
    def toString(self) -> str: ...
    def getFileSystem(self, configuration: object) -> _FileSystem: ...


class _Status(Protocol):
    def getPath(self) -> _Path: ...
    def getLen(self) -> int: ...
    def isDirectory(self) -> bool: ...
    def getModificationTime(self) -> int: ...


class _FileSystem(Protocol):
    """The methods of org.apache.hadoop.fs.FileSystem that are used here."""

    def getRaw(self) -> _FileSystem: ...
    def makeQualified(self, path: _Path) -> _Path: ...
    def exists(self, path: _Path) -> bool: ...
    def listStatus(self, path: _Path) -> list[_Status]: ...
    def mkdirs(self, path: _Path) -> bool: ...
    def create(self, path: _Path, overwrite: bool) -> _Stream: ...
    def open(self, path: _Path) -> _Stream: ...
    def rename(self, source: _Path, target: _Path) -> bool: ...
    def delete(self, path: _Path, recursive: bool) -> bool: ...


@dataclass(frozen=True, slots=True)
class Entry:
    """One file or folder of a listing."""

    name: str
    is_folder: bool
    size: int
    modified_ms: int


class Files:
    """The file system of `root`. Paths are strings below it, joined with slashes."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        from py4j.java_gateway import is_instance_of

        jvm, context = spark._jvm, spark._jsc
        assert jvm is not None, "the files are reached through the driver's JVM"
        self._make_path: Callable[[str], _Path] = jvm.org.apache.hadoop.fs.Path
        self._text_of: Callable[[_Stream, str], str] = jvm.org.apache.commons.io.IOUtils.toString
        path = self._make_path(root)
        system = path.getFileSystem(context.hadoopConfiguration())
        # The local file system keeps a checksum file beside each file and renames it in a second step. A
        # crash in between would leave a file with the wrong checksum.
        gateway = spark.sparkContext._gateway
        checked = is_instance_of(gateway, system, "org.apache.hadoop.fs.LocalFileSystem")
        self._system = system.getRaw() if checked else system
        self.root = system.makeQualified(path).toString()

    def exists(self, path: str) -> bool:
        return bool(self._system.exists(self._make_path(path)))

    def entries(self, folder: str) -> list[Entry]:
        """The entries of a folder, sorted by name; nothing if the folder does not exist."""
        nothing: list[_Status] = []
        found = [
            Entry(one.getPath().getName(), one.isDirectory(), one.getLen(), one.getModificationTime())
            for one in _unless_absent(lambda: list(self._system.listStatus(self._make_path(folder))), nothing)
        ]
        return sorted(found, key=lambda entry: entry.name)

    def age_ms(self, entry: Entry) -> int:
        return int(time.time() * 1000) - entry.modified_ms

    def make_folder(self, path: str) -> None:
        self._system.mkdirs(self._make_path(path))

    def write(self, path: str, text: str) -> None:
        """Create a file with this text. The file must not exist."""
        stream = self._system.create(self._make_path(path), False)
        try:
            stream.write(text.encode())
        finally:
            stream.close()

    def read(self, path: str) -> str | None:
        """The text of a file, or None if it does not exist."""
        return _unless_absent(lambda: self._read(path), None)

    def _read(self, path: str) -> str | None:
        stream = self._system.open(self._make_path(path))
        try:
            return self._text_of(stream, "UTF-8")
        finally:
            stream.close()

    def rename(self, source: str, target: str) -> bool:
        """Rename a file; False if the source does not exist."""
        move = lambda: self._system.rename(self._make_path(source), self._make_path(target))  # noqa: E731
        if _unless_absent(move, False):
            return True
        if self.exists(source):
            raise OSError(f"{source} could not be renamed to {target}: the file system refuses it")
        return False

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with its contents. A path that does not exist is ignored."""
        self._system.delete(self._make_path(path), True)


def join(*parts: str) -> str:
    """A path of the parts that are not empty."""
    return "/".join(part for part in parts if part)


def _unless_absent(call: Callable[[], T], otherwise: T) -> T:
    from py4j.protocol import Py4JJavaError

    try:
        return call()
    except Py4JJavaError as error:
        if "FileNotFoundException" not in cast(str, error.java_exception.getClass().getName()):
            raise
        return otherwise
