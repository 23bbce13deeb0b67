"""Migrates the tables of a data folder: from the format before Delta, and into the folders of today."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from tidelog.spark.pipelines.declare import Table
from tidelog.spark.pipelines.registry import ALL, find_all
from tidelog.spark.pipelines.settings import resolve
from tidelog.spark.pipelines.state import StateFolder
from tidelog.spark.tables.delta_log import DeltaLog
from tidelog.spark.tables.errors import TableError
from tidelog.spark.tables.layout import lay_out
from tidelog.spark.tables.migration import Migrated, Migration
from tidelog.spark.tables.old_format import old_tables
from tidelog.spark.tables.store import Store

if TYPE_CHECKING:
    import pyarrow.fs


def migrate(
    data: str, *, writers: Sequence[str] = (), progress: Callable[[str], None] = lambda line: None
) -> list[Migrated]:
    """Migrate each old table of a data folder. Raises TableError while a pipeline runs on it.

    `writers` are names that the checkpoints of the data folder do not have.
    """
    refuse_running(data)
    place = Store.of(None, data)
    tables = place.below("tables")
    ids = dict(checkpoint_ids(place))
    known = (*writers, *ids)
    done: list[Migrated] = []
    for name in old_tables(tables):
        progress(f"{name}: begins")
        migration = Migration(
            tables.below(name),
            writers=known,
            checkpoint=lambda writer: ids.get(writer, ""),
            progress=progress,
        )
        done.append(migration.run())
        progress(f"{name}: {done[-1].rows:,} rows")
    return done


def lay_out_tables(data: str, *, progress: Callable[[str], None] = lambda line: None) -> dict[str, int]:
    """Move keyed tables of our pipelines into the folders that new ones get; returns their rows by name.

    Pipelines also work on the folders of before. Raises TableError while a pipeline runs on the data.
    """
    refuse_running(data)
    tables = Store.of(None, data).below("tables")
    done: dict[str, int] = {}
    for sink in keyed_sinks():
        place = tables.below(sink.name)
        if not DeltaLog(place.uri, place.options).exists():
            continue
        progress(f"{sink.name}: looking at its folders")
        rows = lay_out(place, sink.partition_by)
        if rows is not None:
            done[sink.name] = rows
    return done


def keyed_sinks() -> Iterator[Table]:
    """The keyed tables of our pipelines."""
    for pipeline in find_all([ALL]):
        for flow in pipeline.flows(resolve([pipeline], {})[pipeline.name]):
            yield from (sink for sink in flow.sinks if isinstance(sink, Table) and sink.keys)


def refuse_running(data: str) -> None:
    folder = StateFolder(data)
    running = [name for name in folder.names() if folder.runs(name)]
    if running:
        raise TableError(f"{', '.join(running)} runs on {data}: stop it first (tidelog pipeline stop)")


def refuse_old_tables(store: Store, data: str) -> None:
    """Raise TableError if the folder of tables has some of the format before Delta."""
    old = old_tables(store)
    if old:
        raise TableError(
            f"the tables {', '.join(old)} in {data} are of the format before Delta. Turn them into Delta"
            f" tables first, once: tidelog pipeline migrate --data {data}"
        )


def checkpoint_ids(data: Store) -> Iterator[tuple[str, str]]:
    """The writers, `pipeline/flow`, whose checkpoints the data folder has, with the ids of their queries."""
    for pipeline in data.below("checkpoints").names():
        place = data.below("checkpoints", pipeline)
        for flow in place.names():
            files: pyarrow.fs.FileSystem = place.below(flow).files()
            if not files.get_file_info("metadata").is_file:
                continue
            with files.open_input_stream("metadata") as stream:
                held = json.loads(bytes(stream.read()))
            yield f"{pipeline}/{flow}", str(held.get("id", ""))
