"""Writes of tables: every batch once, wherever its driver dies, and nothing of what is refused.

The rows are Arrow tables and the tasks run here, so every step can be tried without Spark.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.table import TableAlterer

from tests.support.scale import scale
from tests.tables.arrow_rows import frame, without_spark
from tidelog.spark.tables import Fenced, ForeignCheckpoint, TableError, Tables, task_files
from tidelog.spark.tables.delta_log import DeltaLog
from tidelog.spark.tables.keyed_merge import Rewrite
from tidelog.spark.tables.live_files import live_paths
from tidelog.spark.tables.store import Store
from tidelog.spark.tables.task_files import WrittenFile

DAYS = (date(2026, 11, 14), date(2026, 11, 15))


class Killed(BaseException):
    """The process ends here."""


STEPS: tuple[tuple[type, str], ...] = (
    (DeltaTable, "create"),
    (DeltaTable, "create_write_transaction"),
    (TableAlterer, "add_columns"),
    (pq.ParquetWriter, "write_table"),
    (pq.ParquetWriter, "close"),
)


@contextmanager
def dying(at: int = 1_000_000, *, after: bool = False) -> Iterator[list[str]]:
    """Die at the n-th step that changes something, just before it or just after it; yields the steps."""
    steps: list[str] = []

    def dies(name: str, act: Callable[..., object]) -> Callable[..., object]:
        def step(*arguments: object, **named: object) -> object:
            steps.append(name)
            number = len(steps)
            if number == at and not after:
                raise Killed
            result = act(*arguments, **named)
            if number == at:
                raise Killed
            return result

        return step

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in STEPS:
            act = getattr(owner, name)
            wrapped = dies(f"{owner.__name__}.{name}", act)
            patch.setattr(owner, name, staticmethod(wrapped) if name == "create" else wrapped)
        yield steps


def put(tables: Tables, batch: int, first: int, *, note: bool = False, writer: str = "test/flow") -> None:
    """A batch of eight numbers from `first` on, in two days; later ones with another column."""
    numbers = list(range(first, first + 8))
    columns = {"n": pa.array(numbers, pa.int64()), "day": pa.array([DAYS[n % 2] for n in numbers])}
    if note:
        columns["note"] = pa.array([f"note {n}" for n in numbers])
    tables.write(frame(columns), "events", writer=writer, batch=batch, partition_by=("day",))


def numbers(tables: Tables) -> Counter[int]:
    return Counter(tables.delta("events").to_pyarrow_table().column("n").to_pylist())


def balances(tables: Tables, batch: int, **amounts: int) -> None:
    users, units = pa.array(list(amounts), pa.string()), pa.array(list(amounts.values()), pa.int64())
    columns = {"user_id": users, "balance": units}
    tables.write(frame(columns), "balances", writer="test/keyed", batch=batch, keys=("user_id",))


def held(tables: Tables) -> dict[str, int]:
    rows = tables.delta("balances").to_pyarrow_table().to_pylist()
    assert len({row["user_id"] for row in rows}) == len(rows), "one row for each key"
    return {row["user_id"]: row["balance"] for row in rows}


def once(*ranges: range) -> Counter[int]:
    return Counter(n for each in ranges for n in each)


def points(steps: int, short: int) -> list[tuple[int, bool]]:
    """Kills at all steps in the long form, at some of them otherwise: always at the first and the last."""
    found = [(step, after) for step in range(1, steps + 1) for after in (False, True)]
    every = max(1, len(found) // scale(short, len(found)))
    return list(dict.fromkeys([*found[::every], found[-1]]))


def test_a_write_opens_a_table_that_is_there_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def counted(name: str, act: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            opened.append(name)
            return act(*arguments, **named)

        return call

    tables = without_spark(tmp_path)
    put(tables, 0, 0)
    for name in ("exists", "snapshot"):
        monkeypatch.setattr(DeltaLog, name, counted(name, getattr(DeltaLog, name)))
    put(tables, 1, 8)
    assert opened == ["snapshot"]
    assert numbers(tables) == Counter(range(16))


def test_a_write_without_bad_rows_asks_spark_for_no_other_frame(tmp_path: Path) -> None:
    """`frame` has no `where`, `select` or `drop`."""
    tables = without_spark(tmp_path)
    columns = {
        "n": pa.array([1, 2], pa.int64()),
        "day": pa.array([DAYS[0]] * 2),
        "_bad": pa.nulls(2, pa.struct([("why", pa.string())])),
    }
    with tables.write_aside(
        frame(columns), "events", writer="w", batch=0, partition_by=("day",), aside="_bad"
    ) as aside:
        assert (aside.written, aside.rows) == (2, None)
    assert numbers(tables) == Counter([1, 2])
    assert tables.delta("events").to_pyarrow_table().column_names == ["n", "day"]


def test_a_first_batch_killed_at_any_step_is_not_there_until_it_comes_again(tmp_path: Path) -> None:
    with dying() as steps:
        put(without_spark(tmp_path / "count"), 0, 0)
    assert steps[0] == "DeltaTable.create"
    assert steps[-1] == "DeltaTable.create_write_transaction"
    for at, after in points(len(steps), 5):
        tables = without_spark(tmp_path / f"{at}-{after}")
        with pytest.raises(Killed), dying(at, after=after):
            put(tables, 0, 0)
        if tables.exists("events"):
            assert numbers(tables) == (once(range(8)) if (at, after) == (len(steps), True) else once())
        put(tables, 0, 0)
        assert numbers(tables) == once(range(8)), (at, after)


def test_a_writer_killed_at_any_step_loses_and_doubles_nothing(tmp_path: Path) -> None:
    base = without_spark(tmp_path / "base")
    for batch in range(2):
        put(base, batch, 100 * batch)
    old, new = once(range(8), range(100, 108)), once(range(8), range(100, 108), range(200, 208))
    shutil.copytree(tmp_path / "base", tmp_path / "count")
    with dying() as steps:
        put(without_spark(tmp_path / "count"), 2, 200, note=True)
    assert "TableAlterer.add_columns" in steps
    for at, after in points(len(steps), 6):
        root = tmp_path / f"{at}-{after}"
        shutil.copytree(tmp_path / "base", root)
        tables = without_spark(root)
        with pytest.raises(Killed), dying(at, after=after):
            put(tables, 2, 200, note=True)
        assert numbers(tables) in (old, new), (at, after)
        put(tables, 2, 200, note=True)
        assert numbers(tables) == new, (at, after)
        put(tables, 3, 300)
        assert numbers(tables) == new + once(range(300, 308)), (at, after)


def test_a_merge_killed_at_any_step_leaves_one_row_for_each_key(tmp_path: Path) -> None:
    base = without_spark(tmp_path / "base")
    balances(base, 0, ann=1, ben=2)
    shutil.copytree(tmp_path / "base", tmp_path / "count")
    with dying() as steps:
        balances(without_spark(tmp_path / "count"), 1, ann=10, cat=3)
    write = "ParquetWriter.write_table"
    assert steps == [write, "ParquetWriter.close", "DeltaTable.create_write_transaction"]
    for at, after in points(len(steps), short=3):
        root = tmp_path / f"{at} {after}"
        shutil.copytree(tmp_path / "base", root)
        tables = without_spark(root)
        with pytest.raises(Killed), dying(at, after=after):
            balances(tables, 1, ann=10, cat=3)
        committed = (at, after) == (len(steps), True)
        assert held(tables) == ({"ann": 10, "ben": 2, "cat": 3} if committed else {"ann": 1, "ben": 2})
        balances(tables, 1, ann=10, cat=3)
        assert held(tables) == {"ann": 10, "ben": 2, "cat": 3}


def test_a_driver_that_another_one_overtakes_leaves_nothing(tmp_path: Path) -> None:
    tables, other = without_spark(tmp_path), without_spark(tmp_path)
    put(tables, 0, 0)
    write = task_files.write_task

    def overtaken(*arguments: object) -> Iterator[pa.RecordBatch]:
        with pytest.MonkeyPatch.context() as usual:
            usual.setattr(task_files, "write_task", write)
            put(other, 1, 100)
        yield from write(*arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_files, "write_task", overtaken)
        with pytest.raises(Fenced, match="batch 1 of test/flow from another driver"):
            put(tables, 1, 100)
    assert numbers(tables) == once(range(8), range(100, 108))


def test_files_that_the_driver_does_not_find_are_not_committed(tmp_path: Path) -> None:
    tables = without_spark(tmp_path)
    put(tables, 0, 0)
    write = task_files.write_task

    def elsewhere(target: task_files.Target, batches: object) -> Iterator[pa.RecordBatch]:
        """On a host with a disk of its own: the driver does not see the second file."""
        for found in write(target, batches):  # type: ignore[arg-type]
            Path(target.store.uri, found["path"][0].as_py()).unlink()
            yield found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_files, "write_task", elsewhere)
        with pytest.raises(TableError, match=r"does not find 2 of them, with 4 rows, at .*do not share"):
            put(tables, 1, 100)
    assert numbers(tables) == once(range(8))
    put(tables, 1, 100)
    assert numbers(tables) == once(range(8), range(100, 108))


def test_a_task_on_a_host_without_the_folder_writes_nothing(tmp_path: Path) -> None:
    target = task_files.Target(Store(str(tmp_path / "nowhere")))
    with pytest.raises(TableError, match=r"a task on .* does not find .*/nowhere: the hosts do not share"):
        list(task_files.write_task(target, []))
    assert list(tmp_path.iterdir()) == []


def test_the_newest_row_of_a_key_stands(tmp_path: Path) -> None:
    tables = without_spark(tmp_path)
    balances(tables, 0, ann=1, ben=2)
    balances(tables, 1, ann=10)
    balances(tables, 1, ann=99)  # a replay: the table has the batch
    balances(tables, 2)
    assert tables.delta("balances").transaction_version("tidelog:test/keyed") == 2, "also without rows"
    balances(tables, 3, cat=4)
    assert held(tables) == {"ann": 10, "ben": 2, "cat": 4}
    with pytest.raises(TableError, match="2 rows with user_id 'ann': give it one row for each key"):
        columns = {"user_id": pa.array(["ann", "ann"]), "balance": pa.array([1, 2])}
        tables.write(frame(columns), "balances", writer="test/keyed", batch=4, keys=("user_id",))


def test_null_is_a_key_and_missing_columns_become_null(tmp_path: Path) -> None:
    tables = without_spark(tmp_path)

    def write(batch: int, **columns: pa.Array) -> None:
        tables.write(
            frame(columns), "odd", writer="w", batch=batch, keys=("Key", "part"), partition_by=("part",)
        )

    write(
        0,
        Key=pa.array([None, "a"]),
        part=pa.array(["x y", "ü"]),
        n=pa.array([1, 2]),
        note=pa.array(["p", "q"]),
    )
    write(1, Key=pa.array([None, "a"]), part=pa.array(["x y", "ü"]), n=pa.array([10, 20]))
    rows = tables.delta("odd").to_pyarrow_table().sort_by("n").to_pylist()
    assert rows == [
        {"Key": None, "part": "x y", "n": 10, "note": None},
        {"Key": "a", "part": "ü", "n": 20, "note": None},
    ]


def test_two_writers_of_a_keyed_table_both_count(tmp_path: Path) -> None:
    tables, other = without_spark(tmp_path), without_spark(tmp_path)
    balances(tables, 0, ann=1)
    run = Rewrite.run
    raced: list[int] = []

    def slowly(self: Rewrite) -> list[WrittenFile]:
        found = run(self)
        if not raced:
            raced.append(1)
            columns = {"user_id": pa.array(["ben"]), "balance": pa.array([7], pa.int64())}
            other.write(frame(columns), "balances", writer="other", batch=0, keys=("user_id",))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rewrite, "run", slowly)
        balances(tables, 1, ann=2, cat=3)
    assert held(tables) == {"ann": 2, "ben": 7, "cat": 3}
    # The files of the refused commit are gone: that of each of the three commits is left.
    assert len(list((tmp_path / "balances").glob("*.parquet"))) == 3


def test_columns_may_be_added_but_not_changed(tmp_path: Path) -> None:
    tables = without_spark(tmp_path)
    put(tables, 0, 0)
    put(tables, 1, 100, note=True)
    put(tables, 2, 200)
    assert tables.delta("events").to_pyarrow_table().column("note").null_count == 16
    with pytest.raises(
        TableError, match="column n is bigint in table events and string in the rows: cast it"
    ):
        columns = {"n": pa.array(["1"]), "day": pa.array([DAYS[0]])}
        tables.write(frame(columns), "events", writer="w", batch=0, partition_by=("day",))
    with pytest.raises(TableError, match=r"partitioned by day and cannot be written as one .* by nothing"):
        tables.write(frame({"n": pa.array([1])}), "events", writer="w", batch=0)
    with pytest.raises(TableError, match="keyed by nothing and cannot be written as one that is keyed by n"):
        columns = {"n": pa.array([1]), "day": pa.array([DAYS[0]])}
        tables.write(frame(columns), "events", writer="w", batch=0, partition_by=("day",), keys=("n",))
    with pytest.raises(TableError, match="keyed by user, which the rows do not have: their columns are n"):
        tables.write(frame({"n": pa.array([1])}), "others", writer="w", batch=0, keys=("user",))
    with pytest.raises(
        TableError, match="column at of table others is timestamp_ntz, which tables do not have"
    ):
        columns = {"at": pa.array([datetime(2026, 1, 1)], pa.timestamp("us"))}
        tables.write(frame(columns), "others", writer="w", batch=0)
    with pytest.raises(TableError, match="partitioned by x, which is double"):
        tables.write(frame({"x": pa.array([1.5])}), "others", writer="w", batch=0, partition_by=("x",))
    assert not tables.exists("others")
    with pytest.raises(TableError, match="'no/name' is not a table name"):
        tables.exists("no/name")


@pytest.mark.parametrize(
    ("setting", "feature"),
    [("delta.enableDeletionVectors", "deletionVectors"), ("delta.columnMapping.mode", "columnMapping")],
)
def test_a_table_whose_files_are_not_plain_is_refused(tmp_path: Path, setting: str, feature: str) -> None:
    """delta-rs does not write deletion vectors, and counts the rows of such files wrongly."""
    value = "name" if feature == "columnMapping" else "true"
    DeltaTable.create(tmp_path / "others", pa.schema([("n", pa.int64())]), configuration={setting: value})
    tables = without_spark(tmp_path)
    with pytest.raises(TableError, match=f"table others uses {feature}"):
        tables.write(frame({"n": pa.array([1])}), "others", writer="w", batch=0)
    with pytest.raises(TableError, match=f"table others uses {feature}"):
        tables.read("others")
    put(tables, 0, 0)
    assert tables.delta("events").protocol().min_reader_version == 1, "a table of ours has no such feature"


def test_a_new_checkpoint_and_other_offsets_are_refused(tmp_path: Path) -> None:
    tables = without_spark(tmp_path)

    def write(batch: int, checkpoint: str, offsets: str) -> None:
        rows = frame({"n": pa.array([batch])})
        tables.write(rows, "events", writer="w", batch=batch, checkpoint=checkpoint, offsets=offsets)

    write(0, "one", "[0]")
    assert not tables.has("events", writer="w", batch=1, checkpoint="one")
    assert not tables.has("nothing", writer="w", batch=1, checkpoint="one")
    for refused in (lambda: write(0, "two", "[0]"), lambda: write(0, "one", "[7]")):
        with pytest.raises(ForeignCheckpoint):
            refused()
    with pytest.raises(ForeignCheckpoint):
        tables.has("events", writer="w", batch=0, checkpoint="two")
    assert numbers(tables) == Counter([0])


@pytest.mark.parametrize("open_files", [5, 7])
def test_the_files_of_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_files: int) -> None:
    """Several row groups, more folders than open files, timestamps in UTC, bounds for readers."""
    monkeypatch.setattr(task_files, "ROW_GROUP_BYTES", 4_000)
    monkeypatch.setattr(task_files, "BUFFER_BYTES", 20_000)
    monkeypatch.setattr(task_files, "OPEN_FILES", open_files)
    tables = without_spark(tmp_path)
    count = 10_000
    moment = datetime(2026, 11, 15, 12, tzinfo=UTC)
    columns = {
        "n": pa.array(range(count)),
        "part": pa.array([n % 7 for n in range(count)], pa.int32()),
        "at": pa.array([moment] * count, pa.timestamp("us", "Asia/Tokyo")),
    }
    tables.write(frame(columns, tasks=1), "events", writer="w", batch=0, partition_by=("part",))
    table = tables.delta("events")
    rows = table.to_pyarrow_table()
    assert sorted(rows.column("n").to_pylist()) == list(range(count))
    assert all(row["n"] % 7 == row["part"] for row in rows.to_pylist())
    assert rows.column("at")[0].as_py() == moment
    files = live_paths(table)
    assert len({path.split("/")[0] for path in files}) == 7
    groups = sum(pq.read_metadata(tmp_path / "events" / path).num_row_groups for path in files)
    assert (len(files) == 7) == (open_files == 7)
    assert groups > 7
    found = table.get_add_actions(flatten=True)
    assert sum(found.column("num_records").to_pylist()) == count
    assert min(found.column("min.n").to_pylist()) == 0
    assert set(found.column("max.at").to_pylist()) == {moment}


def test_an_empty_batch_makes_no_file(tmp_path: Path) -> None:
    tables = without_spark(tmp_path)
    rows = frame({"n": pa.array([], pa.int64())})
    tables.write(rows, "events", writer="w", batch=0)
    assert numbers(tables) == Counter()
    assert not list((tmp_path / "events").glob("*.parquet"))
    assert tables.delta("events").transaction_version("tidelog:w") == 0


def test_a_table_of_another_kind_of_folder_is_not_listed(tmp_path: Path) -> None:
    tables = without_spark(tmp_path)
    assert tables.names() == []
    put(tables, 0, 0)
    (tmp_path / "plain").mkdir()
    (tmp_path / "events" / "plain").mkdir()
    assert tables.names() == ["events"]
    assert tables.uri("events") == str(tmp_path / "events")
    with pytest.raises(TableError, match=r"there is no table nothing in .*; there are: events"):
        tables.delta("nothing")
