"""Tables: a batch is there once, however often it is written and wherever its writer dies."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from tests.support.scale import scale
from tidelog.spark import compaction
from tidelog.spark.files import Files
from tidelog.spark.table_log import TableLog
from tidelog.spark.tables import TableError, Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAYS = ("2026-11-14", "2026-11-15")


class Killed(BaseException):
    """The process ends here."""


class DyingFiles(Files):
    """Dies at the n-th step that changes something, just before it or just after it."""

    def __init__(self, spark: SparkSession, root: str, at: int = 1_000_000, after: bool = False) -> None:
        super().__init__(spark, root)
        self.steps = 0
        self._at = at
        self._after = after

    def _step(self, act: Callable[[], object]) -> object:
        self.steps += 1
        if self.steps == self._at and not self._after:
            raise Killed
        result = act()
        if self.steps == self._at:
            raise Killed
        return result

    def make_folder(self, path: str) -> None:
        self._step(lambda: super(DyingFiles, self).make_folder(path))

    def write(self, path: str, text: str) -> None:
        self._step(lambda: super(DyingFiles, self).write(path, text))

    def rename(self, source: str, target: str) -> bool:
        return bool(self._step(lambda: super(DyingFiles, self).rename(source, target)))

    def delete(self, path: str) -> None:
        self._step(lambda: super(DyingFiles, self).delete(path))


class PreparedTables(Tables):
    """Stages two files for each day without a Spark job, so that every step can be tried."""

    rows: dict[str, list[int]]

    def stage(self, rows: DataFrame, folder: str, partition_by: Sequence[str]) -> None:
        place = Path(folder.removeprefix("file:"))
        shutil.rmtree(place, ignore_errors=True)
        for day, numbers in self.rows.items():
            (place / f"day={day}").mkdir(parents=True)
            for part in (0, 1):
                column = pa.array(numbers[part::2], pa.int64())
                pq.write_table(pa.table({"n": column}), place / f"day={day}" / f"part-{part}.parquet")


def prepared(spark: SparkSession, root: Path, at: int = 1_000_000, after: bool = False) -> PreparedTables:
    tables = PreparedTables(spark, str(root), compact_every=0, small_files=1)
    tables.files = DyingFiles(spark, str(root), at, after)
    return tables


def put(tables: PreparedTables, batch: int, first: int, *, rows: int = 4) -> None:
    """One batch with `rows` numbers from `first` on, for each of the days."""
    tables.rows = {day: list(range(first + rows * i, first + rows * (i + 1))) for i, day in enumerate(DAYS)}
    frame = tables.spark.createDataFrame([], "n long, day date")
    tables.write(frame, "events", writer="test/flow", batch=batch, partition_by=("day",))


def numbers(tables: Tables, without: tuple[str, int] | None = None) -> Counter[int]:
    return Counter(row.n for row in tables.read("events", without=without).collect())


def in_folder(root: Path) -> Counter[int]:
    """What a reader finds that only knows Parquet and folders."""
    plain = ds.dataset(root / "events", format="parquet", partitioning="hive")
    return Counter(plain.to_table(columns=["n"]).column("n").to_pylist())


def once(*ranges: range) -> Counter[int]:
    return Counter(n for each in ranges for n in each)


def chosen_points(steps: int, short: int) -> list[tuple[int, bool]]:
    points = [(step, after) for step in range(1, steps + 1) for after in (False, True)]
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed).sample(points, min(len(points), scale(short, len(points))))


def test_batches_are_added_as_plain_parquet_by_day(spark: SparkSession, tmp_path: Path) -> None:
    tables = Tables(spark, str(tmp_path))
    rows = spark.range(6).selectExpr("id AS n", "date_add(DATE'2026-11-14', int(id % 2)) AS day")
    tables.write(rows, "events", writer="a", batch=0, partition_by=("day",))
    tables.write(rows, "events", writer="b", batch=0, partition_by=("day",))
    assert tables.names() == ["events"]
    assert tables.exists("events")
    assert not tables.exists("nothing")
    assert numbers(tables) == in_folder(tmp_path) == once(range(6), range(6))
    folders = sorted(entry.name for entry in (tmp_path / "events").glob("day=*"))
    assert folders == [f"day={day}" for day in DAYS]
    assert tables.read("events").schema.simpleString() == "struct<n:bigint,day:date>"
    assert not list((tmp_path / "events").glob("day=*/.*")), "no checksum files beside the rows"


def test_a_batch_that_comes_again_replaces_exactly_its_rows(spark: SparkSession, tmp_path: Path) -> None:
    tables = prepared(spark, tmp_path)
    put(tables, 0, 0)
    put(tables, 1, 100)
    put(tables, 1, 200, rows=2)
    assert numbers(tables) == in_folder(tmp_path) == once(range(8), range(200, 204))
    assert numbers(tables, without=("test/flow", 1)) == once(range(8))
    with pytest.raises(TableError, match="has batch 1 of test/flow and cannot take batch 0"):
        put(tables, 0, 0)


def test_a_writer_killed_at_any_step_loses_and_doubles_nothing(spark: SparkSession, tmp_path: Path) -> None:
    base = tmp_path / "base"
    tables = prepared(spark, base)
    put(tables, 0, 0)
    put(tables, 1, 100)
    shutil.copytree(base, tmp_path / "count")
    counted = prepared(spark, tmp_path / "count")
    put(counted, 1, 200)
    first, old, new = range(8), range(100, 108), range(200, 208)
    assert isinstance(counted.files, DyingFiles)
    for at, after in chosen_points(counted.files.steps, 10):
        root = tmp_path / f"{at}-{after}"
        shutil.copytree(base, root)
        with pytest.raises(Killed):
            put(prepared(spark, root, at, after), 1, 200)
        tables = prepared(spark, root)
        assert numbers(tables) in (once(first), once(first, old), once(first, new)), (at, after)
        assert max(in_folder(root).values()) == 1, (at, after)
        put(tables, 1, 200)
        put(tables, 2, 300)
        expected = once(first, new, range(300, 308))
        assert numbers(tables) == in_folder(root) == expected, (at, after)


def test_a_first_batch_killed_at_any_step_is_not_there_until_it_comes_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    counted = prepared(spark, tmp_path / "count")
    put(counted, 0, 0)
    assert isinstance(counted.files, DyingFiles)
    for at, after in chosen_points(counted.files.steps, 4):
        root = tmp_path / f"{at}-{after}"
        with pytest.raises(Killed):
            put(prepared(spark, root, at, after), 0, 50)
        tables = prepared(spark, root)
        if tables.exists("events"):
            assert numbers(tables) in (once(), once(range(50, 58))), (at, after)
        put(tables, 0, 0)
        assert numbers(tables) == in_folder(root) == once(range(8)), (at, after)


def test_compaction_merges_what_no_replay_can_want(spark: SparkSession, tmp_path: Path) -> None:
    tables = prepared(spark, tmp_path)
    for batch in range(4):
        put(tables, batch, 100 * batch)
    everything = once(*(range(100 * batch, 100 * batch + 8) for batch in range(4)))
    assert tables.compact("events") == 12
    assert numbers(tables) == in_folder(tmp_path) == everything
    for day in DAYS:
        assert len(list((tmp_path / "events" / f"day={day}").iterdir())) == 3, "one merged, two of the newest"
    assert tables.compact("events") == 0
    put(tables, 3, 300, rows=2)
    assert numbers(tables) == in_folder(tmp_path) == everything - once(range(304, 308))


def test_a_compaction_killed_at_any_step_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    tables = prepared(spark, base)
    for batch in range(3):
        put(tables, batch, 100 * batch)
    everything = once(*(range(100 * batch, 100 * batch + 8) for batch in range(3)))
    shutil.copytree(base, tmp_path / "count")
    counted = prepared(spark, tmp_path / "count")
    counted.compact("events")
    assert isinstance(counted.files, DyingFiles)
    for at, after in chosen_points(counted.files.steps, 8):
        root = tmp_path / f"{at}-{after}"
        shutil.copytree(base, root)
        with pytest.raises(Killed):
            prepared(spark, root, at, after).compact("events")
        tables = prepared(spark, root)
        tables.wait_seconds = 0.0
        assert numbers(tables) == everything, (at, after)
        assert max(in_folder(root).values()) == 1, "a plain reader sees no row twice"
        put(tables, 2, 200)
        assert numbers(tables) == in_folder(root) == everything, (at, after)
        tables.compact("events")
        assert numbers(tables) == in_folder(root) == everything, (at, after)
        hidden = root / "events/_tidelog"
        assert not [*hidden.glob("compactions/*.json"), *hidden.glob("replaced/*")], (at, after)


def test_what_a_dead_process_left_is_swept_away_after_a_day(spark: SparkSession, tmp_path: Path) -> None:
    tables = prepared(spark, tmp_path)
    put(tables, 0, 0)
    hidden = tmp_path / "events/_tidelog"
    (hidden / "staging/dead.0000000007").mkdir(parents=True)
    left = [hidden / "staging/dead.0000000007", hidden / "batches/x.draft"]
    left[1].write_text("{")
    tables.compact("events")
    assert all(path.exists() for path in left), "somebody may be at work on it"
    for path in left:
        os.utime(path, (0, 0))
    tables.compact("events")
    assert not any(path.exists() for path in left)
    assert numbers(tables) == once(range(8))


def test_of_two_compactions_of_the_same_files_one_comes_to_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    tables = prepared(spark, tmp_path)
    for batch in range(3):
        put(tables, batch, 100 * batch)
    log = tables._log("events")
    folder = f"day={DAYS[0]}"
    old = sorted(p.name for p in (tmp_path / "events" / folder).iterdir() if ".0000000002." not in p.name)
    merges = []
    for merge_id, gone in (("one", old[1:]), ("two", old[:2])):
        merge = compaction.Merge(merge_id, folder, tuple(gone), (f"merged.{merge_id}.0000.parquet",))
        staging = Path(compaction.staged(log, merge_id).removeprefix("file:")) / folder
        staging.mkdir(parents=True)
        parts = [pq.read_table(tmp_path / "events" / folder / name, partitioning=None) for name in gone]
        pq.write_table(pa.concat_tables(parts), staging / merge.come[0])
        merges.append(merge)
    everything = numbers(tables)
    assert compaction.finish(log, merges[0])
    assert not compaction.finish(log, merges[1])
    assert numbers(tables) == in_folder(tmp_path) == everything


def test_a_compaction_whose_files_another_one_takes_meanwhile_ends_in_peace(
    spark: SparkSession, tmp_path: Path
) -> None:
    tables = prepared(spark, tmp_path)
    for batch in range(3):
        put(tables, batch, 100 * batch)
    everything = numbers(tables)
    log = tables._log("events")
    late = compaction.Compactor(log, tables._shape(log))
    chosen = [
        (folder, [file for file in files if ".0000000002." not in file.name])
        for folder, files in late._folders("", 1)
    ]
    assert tables.compact("events") == 8
    for folder, files in chosen:
        assert not late._merge(spark, folder, files, tables.target_bytes)
    assert numbers(tables) == in_folder(tmp_path) == everything
    assert not list((tmp_path / "events/_tidelog/staging").iterdir())


def test_the_newest_row_of_a_key_stands(spark: SparkSession, tmp_path: Path) -> None:
    tables = Tables(spark, str(tmp_path), small_files=1, compact_every=0)

    def balances(batch: int, **amounts: int) -> None:
        rows = spark.createDataFrame(list(amounts.items()), "user_id string, balance long").coalesce(1)
        tables.write(rows, "balances", writer="earnings/balances", batch=batch, keys=("user_id",))

    def seen(batch: int | None = None) -> dict[str, int]:
        without = ("earnings/balances", batch) if batch is not None else None
        rows = tables.read("balances", without=without).collect()
        assert len({row.user_id for row in rows}) == len(rows)
        return {row.user_id: row.balance for row in rows}

    balances(0, ann=1, ben=2)
    balances(1, ann=10)
    balances(2, cat=3)
    balances(2, ann=5, cat=4)  # again, with another outcome
    assert seen() == {"ann": 5, "ben": 2, "cat": 4}
    assert seen(2) == {"ann": 10, "ben": 2}
    assert tables.compact("balances") == 2
    files = list((tmp_path / "balances").glob("*.parquet"))
    assert sorted(pq.read_table(f).num_rows for f in files) == [2, 2], "ann's first balance is gone"
    assert seen() == {"ann": 5, "ben": 2, "cat": 4}
    assert seen(2) == {"ann": 10, "ben": 2}
    assert tables.read("balances").columns == ["user_id", "balance"]


def test_writers_that_make_a_table_at_the_same_time_do_not_mind_each_other(
    spark: SparkSession, tmp_path: Path
) -> None:
    def write(number: int) -> None:
        tables.write(spark.range(number, number + 1), "events", writer=f"w{number}", batch=0)

    tables = Tables(spark, str(tmp_path))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert sorted(row.id for row in tables.read("events").collect()) == [0, 1, 2, 3]
    log = TableLog(RefusingFiles(spark, str(tmp_path)), f"file:{tmp_path}/events")
    log.put(f"{log.hidden}/schema", next((tmp_path / "events/_tidelog/schema").glob("*.json")).name, "{}")
    assert not list((tmp_path / "events/_tidelog").rglob("*.draft"))
    assert not list((tmp_path / "events").rglob(".*.crc")), "the tables do without files of checksums"


class RefusingFiles(Files):
    """Renames as on HDFS: not onto a file that is there."""

    def rename(self, source: str, target: str) -> bool:
        if self.exists(target):
            raise OSError(f"{target} is there")
        return super().rename(source, target)


def test_later_batches_may_have_more_columns_but_no_other_types(spark: SparkSession, tmp_path: Path) -> None:
    tables = Tables(spark, str(tmp_path))
    tables.write(spark.range(1), "events", writer="a", batch=0)
    tables.write(spark.range(1).selectExpr("id", "'x' AS note"), "events", writer="a", batch=1)
    tables.write(spark.range(1), "events", writer="a", batch=2)
    assert sorted(row.note or "" for row in tables.read("events").collect()) == ["", "", "x"]
    assert tables.read("events").schema.simpleString() == "struct<id:bigint,note:string>"
    with pytest.raises(TableError, match="column id is bigint in table events and string in the rows"):
        tables.write(spark.range(1).selectExpr("string(id) AS id"), "events", writer="a", batch=3)
    with pytest.raises(TableError, match="partitioned by nothing and cannot be written as"):
        tables.write(spark.range(1), "events", writer="a", batch=3, partition_by=("id",))
    with pytest.raises(TableError, match="keyed by day, which the rows do not have: their columns are id"):
        tables.write(spark.range(1), "other", writer="a", batch=3, keys=("day",))
    with pytest.raises(TableError, match=r"there is no table nothing in .*; there are: events"):
        tables.read("nothing")
    with pytest.raises(TableError, match="is not a table name"):
        tables.read("../events")
