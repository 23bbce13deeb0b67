"""The small files of runs beside the data: statuses, leases, requests to stop.

They are read and written without Spark, so that `pipeline status` and `pipeline stop` work on every host that
reaches the data. A local or network folder is used directly, S3 through PyArrow, any other store through
delta-rs, which also commits the tables there.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tidelog.spark.tables.store import ENDPOINT, HOSTED, KEY, REGION, SECRET, TOKEN, UNSIGNED, Store

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem


class RunFiles(Protocol):
    """A flat folder of small files. A write replaces a file as a whole."""

    poll_seconds: float
    """How often a file may be read while waiting for a change."""
    store: Store

    def read(self, name: str) -> str | None: ...
    def write(self, name: str, text: str) -> None: ...
    def delete(self, name: str) -> None: ...
    def names(self) -> list[str]: ...


def run_files(store: Store) -> RunFiles:
    """The files in the folder of a store. The folder need not exist."""
    if store.is_local:
        return LocalFiles(store)
    return S3Files(store) if store.is_s3 else StoreFiles(store)


class LocalFiles:
    """A folder of a local or network file system."""

    poll_seconds = 0.1

    def __init__(self, store: Store) -> None:
        self.store = store
        self.path = Path(store.uri)

    def read(self, name: str) -> str | None:
        try:
            return (self.path / name).read_text()
        except FileNotFoundError:
            return None

    def write(self, name: str, text: str) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        scratch = self.path / f".{name}.{os.getpid()}.{threading.get_ident()}"
        scratch.write_text(text)
        scratch.replace(self.path / name)

    def delete(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def names(self) -> list[str]:
        if not self.path.is_dir():
            return []
        return sorted(file.name for file in self.path.iterdir() if not file.name.startswith("."))


class S3Files:
    """A folder of a bucket. Unlike delta-rs, PyArrow lets other threads run while it waits for the store."""

    poll_seconds = 1.0

    def __init__(self, store: Store) -> None:
        self.store = store
        self._folder = store.uri.removeprefix("s3://")
        self._files = s3_file_system(store)

    def read(self, name: str) -> str | None:
        try:
            with self._files.open_input_file(f"{self._folder}/{name}") as file:
                found: bytes = file.read()
        except FileNotFoundError:
            return None
        return found.decode()

    def write(self, name: str, text: str) -> None:
        with self._files.open_output_stream(f"{self._folder}/{name}") as stream:
            stream.write(text.encode())

    def delete(self, name: str) -> None:
        try:
            self._files.delete_file(f"{self._folder}/{name}")
        except FileNotFoundError:
            return

    def names(self) -> list[str]:
        from pyarrow.fs import FileSelector

        found = self._files.get_file_info(FileSelector(self._folder, allow_not_found=True))
        return sorted(str(entry.base_name) for entry in found if entry.is_file)


def s3_file_system(store: Store) -> S3FileSystem:
    """PyArrow's client of a store. Without a key it looks for credentials as AWS' tools do."""
    from pyarrow.fs import S3FileSystem

    options = store.options
    scheme, _, host = options.get(ENDPOINT, "").rpartition("://")
    return S3FileSystem(
        access_key=options.get(KEY),
        secret_key=options.get(SECRET),
        session_token=options.get(TOKEN),
        anonymous=options.get(UNSIGNED) == "true",
        region=options.get(REGION),
        scheme=scheme or "https",
        endpoint_override=host.rstrip("/") or None,
        force_virtual_addressing=bool(host) and options.get(HOSTED) == "true",
        allow_delayed_open=True,  # a small file takes one request
    )


class StoreFiles:
    """A folder of HDFS, or of another store that delta-rs knows."""

    poll_seconds = 1.0

    def __init__(self, store: Store) -> None:
        from deltalake._internal import DeltaFileSystemHandler

        self.store = store
        self._files = DeltaFileSystemHandler(
            table_uri=store.uri, options=dict(store.options), known_sizes=None
        )

    def read(self, name: str) -> str | None:
        try:
            file = self._files.open_input_file(name)
            return file.read(file.size()).decode()
        except FileNotFoundError:
            return None

    def write(self, name: str, text: str) -> None:
        self.store.put(name, text.encode())

    def delete(self, name: str) -> None:
        try:
            self._files.delete_file(name)
        except FileNotFoundError:
            return

    def names(self) -> list[str]:
        found = self._files.get_file_info_selector("", True, False)
        return sorted(str(entry.base_name) for entry in found if entry.is_file)
