"""Migrates the tables of a data folder from the format before Delta, with the names of its checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from tidelog.spark.pipelines.state import StateFolder
from tidelog.spark.tables.errors import TableError
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
    folder = StateFolder(data)
    running = [name for name in folder.names() if folder.runs(name)]
    if running:
        raise TableError(f"{', '.join(running)} runs on {data}: stop it first (tidelog pipeline stop)")
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
