"""Merges into keyed tables against a dict: one row for each key, with any keys, folders and columns."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.support.scale import scale
from tests.tables.arrow_rows import frame, without_spark
from tidelog.spark.tables import TableError, Tables, keyed_merge, task_files
from tidelog.spark.tables.delta_log import DeltaLog, Snapshot
from tidelog.spark.tables.key_lookup import KeyLookup
from tidelog.spark.tables.live_files import live_paths
from tidelog.spark.tables.task_files import WrittenFile

Row = dict[str, object]
SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("number", pa.int32()),
        ("day", pa.date32()),
        ("value", pa.int64()),
        ("text", pa.string()),
        ("parts", pa.list_(pa.int64())),
        ("place", pa.struct([("x", pa.int64()), ("y", pa.string())])),
    ]
)
LAYOUTS: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    (("name",), ()),
    (("name", "number"), ()),
    (("name", "number", "day"), ("day",)),
    (("day",), ("day",)),
    (("name",), ("day",)),  # a row moves to another folder
    (("name", "day"), ("day", "number")),
]


def random_row(chance: random.Random) -> Row:
    x = chance.randrange(100)
    return {
        "name": chance.choice([None, "", "ä", "b", *(f"user-{number}" for number in range(20))]),
        "number": chance.choice([None, 1, 2, 3]),
        "day": date(2026, 11, chance.randrange(1, 4)),
        "value": x,
        "text": chance.choice([None, f"text {x}"]),
        "parts": chance.choice([None, [], [x, None]]),
        "place": chance.choice([None, {"x": x, "y": None}]),
    }


def merge(
    tables: Tables, batch: int, rows: list[Row], keys: tuple[str, ...], folders: tuple[str, ...]
) -> None:
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    columns = dict(zip(table.column_names, table.columns, strict=True))
    tables.write(
        frame(columns),
        "keyed",
        writer="test",
        batch=batch,
        keys=keys,
        partition_by=folders,  # type: ignore[arg-type]
    )


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=repr)


@pytest.mark.parametrize(("keys", "folders"), LAYOUTS)
def test_every_batch_replaces_the_rows_of_its_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: tuple[str, ...], folders: tuple[str, ...]
) -> None:
    monkeypatch.setattr(task_files, "ROW_GROUP_BYTES", 1000)
    monkeypatch.setattr(keyed_merge, "KEPT_BYTES", 200)
    monkeypatch.setattr(keyed_merge, "FILE_BYTES", 2000)
    for seed in range(scale(1, 20)):
        chance = random.Random(f"{keys} {seed}")
        tables = without_spark(tmp_path / str(seed))
        expected: dict[tuple[object, ...], Row] = {}
        for batch in range(scale(5, 15)):
            found = {
                tuple(row[key] for key in keys): row
                for row in (random_row(chance) for _ in range(chance.randrange(40)))
            }
            merge(tables, batch, list(found.values()), keys, folders)
            expected |= found
            stored = tables.delta("keyed").to_pyarrow_table(columns=SCHEMA.names).to_pylist()
            assert in_order(stored) == in_order(list(expected.values())), (seed, batch)
        uri = tables.uri("keyed")
        assert len(expected) == polars.read_delta(uri).height
        with duckdb.connect() as connection:
            connection.register("source", DeltaTable(uri).to_pyarrow_dataset())
            assert connection.sql("select count(*) from source").fetchall() == [(len(expected),)]


@pytest.mark.parametrize(
    "values",
    [
        ["a", None, "b"],
        [1, None, -5],
        [b"x", b"\xff", None],
        [True, False, None],
        [date(2026, 1, 1), None, date(1960, 1, 1)],
        [datetime(2026, 1, 1, 1, 2, 3, 4, UTC), None],
        [Decimal("1.50"), Decimal("-2.25"), None],
        [0.5, float("nan"), None],
    ],
)
def test_keys_of_every_type_are_found(values: list[object]) -> None:
    rows = pa.table({"key": pa.array(values), "other": pa.array([1] * len(values))})
    shuffled = rows.take(pa.array([1, 0]))
    assert KeyLookup(rows, ("key",)).positions(shuffled).to_pylist() == [1, 0]
    assert KeyLookup(rows.slice(0, 1), ("other", "key")).positions(shuffled).to_pylist() == [None, 0]
    assert KeyLookup(rows.slice(0, 1), ()).positions(shuffled).to_pylist() == [0, 0]


def users(tables: Tables, batch: int, names: list[str], value: int) -> None:
    columns = {"name": pa.array(names), "value": pa.array([value] * len(names), pa.int64())}
    tables.write(frame(columns), "users", writer="test", batch=batch, keys=("name",))


def opened_files(patch: pytest.MonkeyPatch) -> list[str]:
    opened: list[str] = []
    groups: Callable[..., object] = keyed_merge.Rewrite._groups

    def counted(self: keyed_merge.Rewrite, file: keyed_merge.LiveFile, lookup: KeyLookup) -> object:
        opened.append(file.path)
        return groups(self, file, lookup)

    patch.setattr(keyed_merge.Rewrite, "_groups", counted)
    return opened


def test_only_files_that_may_have_the_keys_are_read_and_only_those_that_have_them_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = without_spark(tmp_path)
    for batch, names in enumerate((["a", "c"], ["m", "o"], ["x", "z"])):
        users(tables, batch, names, 0)
    first = set(live_paths(tables.delta("users")))
    assert len(first) == 3
    opened = opened_files(monkeypatch)
    users(tables, 3, ["o", "y"], 1)
    assert len(opened) == 2, "the bounds of the file with a and c rule it out"
    after = set(live_paths(tables.delta("users")))
    assert len(after) == 3
    assert len(after & first) == 2, "the file with x and z has none of the keys"
    rows = tables.delta("users").to_pyarrow_table().to_pylist()
    assert sorted(row["name"] for row in rows) == ["a", "c", "m", "o", "x", "y", "z"]
    assert {row["name"] for row in rows if row["value"]} == {"o", "y"}
    users(tables, 4, ["o", "y", "z"], 2)
    assert len(live_paths(tables.delta("users"))) == 2, "the rewritten files have become one"


def test_a_large_table_is_cut_into_files_and_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_files, "ROW_GROUP_BYTES", 2000)
    monkeypatch.setattr(keyed_merge, "FILE_BYTES", 1500)
    tables = without_spark(tmp_path)
    for batch in range(20):
        users(tables, batch, [f"{batch}-{number}" for number in range(100)], batch)
    users(tables, 20, [f"{batch}-7" for batch in range(20)], 99)
    sizes = tables.delta("users").get_add_actions().column("size_bytes").to_pylist()
    assert 1 < len(sizes) < 20
    assert tables.delta("users").to_pyarrow_table()["value"].to_pylist().count(99) == 20


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_an_empty_text_that_names_a_folder_is_the_key_null(tmp_path: Path, kind: pa.DataType) -> None:
    tables = without_spark(tmp_path)

    def write(batch: int, *parts: str | None) -> None:
        columns = {"part": pa.array(parts, kind), "n": pa.array([batch] * len(parts))}
        tables.write(frame(columns), "odd", writer="w", batch=batch, keys=("part",), partition_by=("part",))

    write(0, "")
    write(1, "")
    write(2, None)
    assert tables.delta("odd").to_pyarrow_table().to_pylist() == [{"part": None, "n": 2}]
    with pytest.raises(TableError, match="2 rows with part None"):
        write(3, "", None)


@pytest.mark.parametrize("rival", ["append", "delete"])
def test_a_commit_of_another_program_beside_a_merge_is_not_overlooked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rival: str
) -> None:
    tables = without_spark(tmp_path)
    users(tables, 0, ["a", "b"], 0)
    run = keyed_merge.Rewrite.run
    raced: list[str] = []

    def slowly(self: keyed_merge.Rewrite) -> list[WrittenFile]:
        found = run(self)
        if not raced:
            raced.append(rival)
            if rival == "append":
                row = pa.table({"name": ["c"], "value": pa.array([5], pa.int64())})
                write_deltalake(tables.uri("users"), row, mode="append")
            else:
                tables.delta("users").delete("name = 'b'")
        return found

    monkeypatch.setattr(keyed_merge.Rewrite, "run", slowly)
    users(tables, 1, ["a", "c"], 1)
    rows = sorted((row["name"], row["value"]) for row in tables.delta("users").to_pyarrow_table().to_pylist())
    assert rows == ([("a", 1), ("b", 0), ("c", 1)] if rival == "append" else [("a", 1), ("c", 1)])


def test_rows_of_files_without_a_newer_column_get_nulls(tmp_path: Path) -> None:
    tables = without_spark(tmp_path)
    users(tables, 0, ["a", "b"], 0)
    columns = {"name": pa.array(["b", "c"]), "note": pa.array(["new", "new"])}
    tables.write(frame(columns), "users", writer="test", batch=1, keys=("name",))
    rows = sorted(tables.delta("users").to_pyarrow_table().to_pylist(), key=lambda row: str(row["name"]))
    assert rows == [
        {"name": "a", "value": 0, "note": None},
        {"name": "b", "value": None, "note": "new"},
        {"name": "c", "value": None, "note": "new"},
    ]


@pytest.mark.parametrize(
    "value", [True, 1.5, b"x", "x", date(2026, 1, 1), Decimal("1.50")], ids=lambda value: type(value).__name__
)
def test_values_of_every_type_are_replaced(tmp_path: Path, value: object) -> None:
    tables = without_spark(tmp_path)
    kind = pa.scalar(value).type

    def write(batch: int, names: list[str], values: list[object]) -> None:
        columns = {"name": pa.array(names), "value": pa.array(values, kind)}
        tables.write(frame(columns), "users", writer="test", batch=batch, keys=("name",))

    write(0, ["a", "b", "c"], [value, None, None])
    write(1, ["b", "c", "d"], [value, None, value])
    write(2, ["a"], [None])
    found = {row["name"]: row["value"] for row in tables.delta("users").to_pyarrow_table().to_pylist()}
    assert found == {"a": None, "b": value, "c": None, "d": value}


def test_a_table_that_another_writer_creates_meanwhile_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = without_spark(tmp_path)
    snapshot = DeltaLog.snapshot
    raced: list[str] = []

    def late(self: DeltaLog, version: int | None = None, timestamp: str | datetime | None = None) -> Snapshot:
        if not raced:
            raced.append(self.name)
            users(tables, 0, ["a"], 0)
            raise TableError("there was no table a moment ago")
        return snapshot(self, version, timestamp)

    monkeypatch.setattr(DeltaLog, "snapshot", late)
    users(tables, 1, ["b"], 1)
    rows = sorted((row["name"], row["value"]) for row in tables.delta("users").to_pyarrow_table().to_pylist())
    assert rows == [("a", 0), ("b", 1)]
