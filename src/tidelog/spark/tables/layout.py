"""Moves the rows of a keyed table into other folders, in one commit."""

from __future__ import annotations

import re
from collections.abc import Sequence

from deltalake import CommitProperties, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError

from tidelog.spark.tables.columns import keys_of
from tidelog.spark.tables.delta_log import REWRITE, DeltaLog, Snapshot
from tidelog.spark.tables.errors import TableError
from tidelog.spark.tables.store import Store


def lay_out(store: Store, partition_by: Sequence[str]) -> int | None:
    """Write a keyed table again, in folders by these columns; returns its rows, None if it has that layout.

    Readers see the table before or after it. The batches of writers stay recorded. Raises TableError if the
    table is not there or has no keys, or if another writer was faster: nothing has changed then.
    """
    log = DeltaLog(store.uri, store.options)
    with store.errors():
        snapshot = log.snapshot()
        if snapshot.partition_by == tuple(partition_by):
            return None
        if store.is_local and re.search(r"[\[\]^|]", store.uri):
            raise TableError(f"delta-rs cannot write the table again in {store.uri}: rename the folder first")
        if not keys_of(snapshot):
            raise TableError(f"table {log.name} has no keys: its folders stay as they are")
        before = _rows(snapshot)
        rows = snapshot.table.to_pyarrow_dataset().scanner(batch_readahead=1).to_reader()
        fence = CommitProperties(app_transactions=[Transaction(REWRITE, snapshot.version)])
        try:
            write_deltalake(
                snapshot.table,
                rows,
                mode="overwrite",
                schema_mode="overwrite",
                partition_by=list(partition_by),
                writer_properties=WriterProperties(compression="ZSTD"),
                commit_properties=fence,
            )
        except CommitFailedError:
            raise TableError(
                f"another writer has changed table {log.name} meanwhile; its folders stay as they are: stop "
                "it and try again"
            ) from None
        after = _rows(log.snapshot())
    if after != before:
        raise TableError(f"table {log.name} had {before:,} rows and has {after:,} in its new folders")
    return after


def _rows(snapshot: Snapshot) -> int:
    counts = snapshot.table.get_add_actions(flatten=True).column("num_records").to_pylist()
    return sum(counts)
