"""The small files of runs beside the data: statuses, leases, requests to stop.

They are read and written without Spark, so that `pipeline status` and `pipeline stop` work on every host that
reaches the data. A local or network folder is used directly, S3 through PyArrow, any other store through
delta-rs, which also commits the tables there.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem


class RunFiles(Protocol):
    """A flat folder of small files. A write replaces a file as a whole."""

    poll_seconds: float
    """How often a file may be read while waiting for a change."""
    uri: str
    options: dict[str, str]
    """The options of delta-rs for tables in this folder."""

    def read(self, name: str) -> str | None: ...
    def write(self, name: str, text: str) -> None: ...
    def delete(self, name: str) -> None: ...
    def names(self) -> list[str]: ...


def local_path(data: str) -> Path | None:
    """The local folder of data; None for other file systems."""
    if data.startswith("file:"):
        return Path(re.sub(r"^file:(//)?(?=/)", "", data))
    return None if re.match(r"^[A-Za-z][A-Za-z0-9+.-]+:", data) else Path(data)


def run_files(uri: str, options: Mapping[str, str] | None = None) -> RunFiles:
    """The folder at a path or URI. It need not exist."""
    local = local_path(uri)
    if local is not None:
        return LocalFiles(local)
    return S3Files(uri, options or {}) if uri.startswith("s3://") else StoreFiles(uri, options or {})


class LocalFiles:
    """A folder of a local or network file system."""

    poll_seconds = 0.1

    def __init__(self, path: Path) -> None:
        self.path = path
        self.uri = str(path.absolute())
        self.options: dict[str, str] = {}

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

    def __init__(self, uri: str, options: Mapping[str, str]) -> None:
        self.uri = uri
        self.options = dict(options)
        self._folder = uri.removeprefix("s3://").rstrip("/")
        self._store = s3_file_system(options)

    def read(self, name: str) -> str | None:
        try:
            with self._store.open_input_file(f"{self._folder}/{name}") as file:
                found: bytes = file.read()
        except FileNotFoundError:
            return None
        return found.decode()

    def write(self, name: str, text: str) -> None:
        with self._store.open_output_stream(f"{self._folder}/{name}") as stream:
            stream.write(text.encode())

    def delete(self, name: str) -> None:
        try:
            self._store.delete_file(f"{self._folder}/{name}")
        except FileNotFoundError:
            return

    def names(self) -> list[str]:
        from pyarrow.fs import FileSelector

        found = self._store.get_file_info(FileSelector(self._folder, allow_not_found=True))
        return sorted(str(entry.base_name) for entry in found if entry.is_file)


def s3_file_system(options: Mapping[str, str]) -> S3FileSystem:
    """PyArrow's client with delta-rs's options. Without a key it looks for credentials as AWS' tools do."""
    from pyarrow.fs import S3FileSystem

    scheme, _, host = options.get("AWS_ENDPOINT_URL", "").rpartition("://")
    return S3FileSystem(
        access_key=options.get("AWS_ACCESS_KEY_ID"),
        secret_key=options.get("AWS_SECRET_ACCESS_KEY"),
        session_token=options.get("AWS_SESSION_TOKEN"),
        anonymous=options.get("AWS_SKIP_SIGNATURE") == "true",
        region=options.get("AWS_REGION"),
        scheme=scheme or "https",
        endpoint_override=host.rstrip("/") or None,
        force_virtual_addressing=bool(host) and options.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST") == "true",
        allow_delayed_open=True,  # a small file takes one request
    )


class StoreFiles:
    """A folder of HDFS, or of another store that delta-rs knows."""

    poll_seconds = 1.0

    def __init__(self, uri: str, options: Mapping[str, str]) -> None:
        from deltalake._internal import DeltaFileSystemHandler

        self.uri = uri
        self.options = dict(options)
        # PyArrow's wrapper of this class cannot write: it passes buffers where bytes are expected.
        self._store = DeltaFileSystemHandler(table_uri=uri, options=self.options, known_sizes=None)

    def read(self, name: str) -> str | None:
        try:
            file = self._store.open_input_file(name)
            return file.read(file.size()).decode()
        except FileNotFoundError:
            return None

    def write(self, name: str, text: str) -> None:
        stream = self._store.open_output_stream(name, {})
        stream.write(text.encode())
        stream.close()  # type: ignore[attr-defined]  # missing from the stub; without it nothing is written

    def delete(self, name: str) -> None:
        try:
            self._store.delete_file(name)
        except FileNotFoundError:
            return

    def names(self) -> list[str]:
        found = self._store.get_file_info_selector("", True, False)
        return sorted(str(entry.base_name) for entry in found if entry.is_file)
