"""A driver of two tables and their compaction, which waits at a named step for the word of its test.

`python -m tests.tables.table_driver ROOT STEP BATCHES` writes batches to the tables `events` and `balances`,
from the newest that one of them has, as Spark replays it. It prints its step when it is reached, and the end:
done, or the sentence with which it gives way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import date

import pyarrow as pa
from deltalake import DeltaTable

from tests.tables.arrow_rows import frame, without_spark
from tidelog.spark.tables import TableError, Tables, keyed_merge
from tidelog.spark.tables import tables as tables_module
from tidelog.spark.tables.compactor import Compactor
from tidelog.spark.tables.delta_log import DeltaLog

EVENTS, BALANCES = "events", "balances"
ROWS = 6
DAYS = (date(2026, 11, 14), date(2026, 11, 15))
STEPS = (
    *("write", "commit", "committed"),
    *("merge", "merge-write", "merged"),
    *("compact-write", "compact-commit", "compacted"),
)
AT = 2
"""The batch in which the steps are."""


class Steps:
    """Stops once, at the step that was asked for, in the batch that was asked for."""

    def __init__(self, wanted: str) -> None:
        self._wanted = wanted
        self.batch = -1

    def reach(self, step: str) -> None:
        if step and step == self._wanted and self.batch == AT:
            self._wanted = ""
            print(step, flush=True)
            sys.stdin.readline()

    def around(self, owner: object, name: str, before: str, after: str) -> None:
        act: Callable[..., object] = getattr(owner, name)

        def watched(*arguments: object, **named: object) -> object:
            self.reach(before)
            found = act(*arguments, **named)
            self.reach(after)
            return found

        setattr(owner, name, watched)


def rows_of(batch: int) -> Iterator[tuple[str, date]]:
    return ((f"{batch}-{number}", DAYS[number % 2]) for number in range(ROWS))


def write(tables: Tables, batch: int) -> None:
    ids, days = zip(*rows_of(batch), strict=True)
    events = frame({"id": pa.array(ids), "day": pa.array(days)}, tasks=1)
    tables.write(events, EVENTS, writer="test/events", batch=batch, partition_by=("day",), checkpoint="c")
    users = [f"user-{number}" for number in range(ROWS)]
    balances = frame({"user": pa.array(users), "balance": pa.array([batch] * ROWS, pa.int64())})
    tables.write(balances, BALANCES, writer="test/balances", batch=batch, keys=("user",), checkpoint="c")


def newest(tables: Tables) -> int:
    """The newest batch of any table; 0 if there is none."""
    found = [
        tables.delta(table).transaction_version(f"tidelog:test/{table}")
        for table in (EVENTS, BALANCES)
        if tables.exists(table)
    ]
    return max((number for number in found if number is not None), default=0)


def main(root: str, step: str, batches: int) -> None:
    steps = Steps(step)
    steps.around(tables_module, "write_files", "", "write")
    steps.around(DeltaTable, "create_write_transaction", "commit", "committed")
    steps.around(keyed_merge, "merge", "merge", "merged")
    steps.around(keyed_merge.Rewrite, "run", "", "merge-write")
    steps.around(Compactor, "_rewrite", "", "compact-write")
    steps.around(DeltaLog, "replace", "compact-commit", "compacted")
    tables = without_spark(root)
    try:
        for batch in range(newest(tables), batches):
            steps.batch = batch
            write(tables, batch)
            replaced = Compactor(tables.store.below(EVENTS), small_files=2).run()
            if step.startswith("compact") and batch == AT:
                print(f"replaced {replaced}", flush=True)
    except TableError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    else:
        print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
