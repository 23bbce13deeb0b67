"""The writers of a table, also those whose commits the log no longer has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tidelog.spark.tables.delta_log import MIGRATION, REWRITE, Snapshot
from tidelog.spark.tables.identity import writer_of_app
from tidelog.spark.tables.store import Store

if TYPE_CHECKING:
    import pyarrow.fs

LOG = "_delta_log"
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\..+)?\.(?:parquet|json)")


def writers_of(store: Store, snapshot: Snapshot) -> set[str]:
    """Every writer that has a batch in this version of the table. `store` is the place of the table.

    A checkpoint of the log keeps the newest batch of each writer. It outlives the commits before it.
    """
    apps = set(_apps_in_log(store, snapshot.version)) - {REWRITE, MIGRATION}
    return {writer for app in apps if (writer := writer_of_app(app)) is not None}


def _apps_in_log(store: Store, newest: int) -> Iterator[str]:
    """The application ids of the transactions up to a version."""
    from pyarrow.fs import FileSelector

    files = store.files()
    names = [entry.base_name for entry in files.get_file_info(FileSelector(LOG))]
    checkpoints = {
        name: version
        for name in names
        if (found := _CHECKPOINT.fullmatch(name)) and (version := int(found[1])) <= newest
    }
    last = max(checkpoints.values(), default=-1)
    for name, version in checkpoints.items():
        if version == last:
            yield from _apps_in(files, f"{LOG}/{name}")
    for name in names:
        commit = _COMMIT.fullmatch(name)
        if commit and last < int(commit[1]) <= newest:
            yield from _apps_in(files, f"{LOG}/{name}")


def _apps_in(files: pyarrow.fs.FileSystem, path: str) -> Iterable[str]:
    """The application ids in a commit or a checkpoint, or in a part of one."""
    from pyarrow import parquet

    with files.open_input_file(path) as stream:
        if path.endswith(".json"):
            actions = [json.loads(line) for line in stream.read().splitlines()]
            return [str(action["txn"]["appId"]) for action in actions if "txn" in action]
        reader = parquet.ParquetFile(stream)
        if "txn" not in reader.schema_arrow.names:
            return []
        transactions = reader.read(columns=["txn"])["txn"].combine_chunks()
        return [str(one["appId"]) for one in transactions.drop_null().to_pylist()]
