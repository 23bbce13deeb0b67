"""A process that compacts a table, or appends to it, and stops at a named step for its test."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from tidelog.spark.tables.compactor import Compactor
from tidelog.spark.tables.delta_log import DeltaLog
from tidelog.spark.tables.store import Store


def reach(step: str) -> None:
    """Tell the test that the step is reached, and wait for its word."""
    print(step, flush=True)
    sys.stdin.readline()


def compact(folder: str, step: str) -> None:
    compactor = Compactor(Store.of(None, folder), small_files=4)
    rewrite, replace = compactor._rewrite, DeltaLog.replace

    def pausing_rewrite(*given: object) -> object:
        found = rewrite(*given)  # type: ignore[arg-type]
        reach("write")
        return found

    def pausing_replace(self: DeltaLog, *given: object) -> bool:
        reach("commit")
        return replace(self, *given)  # type: ignore[arg-type]

    if step == "write":
        compactor._rewrite = pausing_rewrite  # type: ignore[assignment,method-assign]
    if step == "commit":
        DeltaLog.replace = pausing_replace  # type: ignore[assignment,method-assign]
    print(f"replaced {compactor.run()}", flush=True)


def merge(folder: str, rounds: int) -> None:
    """Merge batches into the table, as a keyed table's writer does, each once."""
    for batch in range(rounds):
        rows = pa.table({"id": [f"k{n}" for n in range(40)], "batch": [batch + 100] * 40, "day": ["d"] * 40})
        while True:
            table = DeltaTable(folder)
            versions = [Transaction("tidelog:rewrite", table.version()), Transaction("tidelog:m", batch)]
            properties = CommitProperties(app_transactions=versions)
            merge = table.merge(
                rows, "o.id = n.id", source_alias="n", target_alias="o", commit_properties=properties
            )
            try:
                merge.when_matched_update_all().when_not_matched_insert_all().execute()
                break
            except Exception as error:
                if "ransaction" not in str(error) and "conflict" not in str(error).lower():
                    raise
    print("merged", flush=True)


def append(folder: str, name: str, rounds: int) -> None:
    """Append batches with Delta's own writer, again if a merge has removed files meanwhile."""
    for batch in range(rounds):
        rows = pa.table(
            {"id": [f"{name}/{batch}/{n}" for n in range(3)], "batch": [batch] * 3, "day": ["d"] * 3}
        )
        while True:
            try:
                write_deltalake(folder, rows, mode="append", partition_by=["day"])
                break
            except CommitFailedError:  # nothing of it is in the table
                continue
    print("appended", flush=True)


def compact_again(folder: str) -> None:
    """Compact until standard input ends."""
    import select

    while not select.select([sys.stdin], [], [], 0)[0]:
        Compactor(Store.of(None, folder), small_files=2).run()


if __name__ == "__main__":
    command, folder, *rest = sys.argv[1:]
    Path(folder)
    if command == "compact":
        compact(folder, rest[0])
    elif command == "merge":
        merge(folder, int(rest[0]))
    elif command == "append":
        append(folder, rest[0], int(rest[1]))
    else:
        compact_again(folder)
