"""Quarantined events that are good by now go into their tables once, whatever is killed when. No Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, Schema

from tests.spark.collected import START, example
from tidelog.cli.main import main
from tidelog.spark.pipelines import replay
from tidelog.spark.pipelines.events import CREDITS, LOGINS, EventSchema, Kind
from tidelog.spark.pipelines.replay import ReplayConflict, Replays, Selection
from tidelog.spark.tables.delta_log import DeltaLog, Snapshot
from tidelog.spark.tables.errors import TableError
from tidelog.spark.tables.store import Store
from tidelog.spark.tables.task_files import Target, TaskFiles, WrittenFile

COLUMNS = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("error", pa.string()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("flow", pa.string()),
    ]
)
ALL = Selection(0)


def bad(schema: EventSchema, offset: int, value: bytes | None, **fields: object) -> dict[str, object]:
    row: dict[str, object] = {
        "topic": schema.topic,
        "partition": 0,
        "offset": offset,
        "timestamp": datetime.fromtimestamp(START / 1000 + offset, UTC),
        "error": "field ip is missing",
        "raw": value,
        "flow": f"collect/{schema.table}",
        **fields,
    }
    return {**row, "day": row["timestamp"].date()}  # type: ignore[attr-defined]


def event(schema: EventSchema, number: int, **fields: object) -> bytes:
    return json.dumps({**example(schema), "event_id": f"e-{number}", **fields}).encode()


def quarantine(data: Path, rows: Iterable[dict[str, object]]) -> None:
    table = pa.Table.from_pylist(list(rows), schema=COLUMNS)
    store = Store.of(None, data / "tables" / "quarantine")
    snapshot = DeltaLog(store.uri).with_columns(Schema.from_arrow(COLUMNS), ("day",))
    files = TaskFiles(Target(store, ("day",)))
    for batch in table.to_batches():
        files.take(batch)
    adds = [WrittenFile.of(found).added() for found in files.close()]
    snapshot.table.create_write_transaction(adds, "append", snapshot.table.schema(), ["day"])


def rows(data: Path, table: str) -> list[dict[str, object]]:
    path = str(data / "tables" / table)
    return DeltaTable(path).to_pyarrow_table().to_pylist() if DeltaTable.is_deltatable(path) else []


def ids(data: Path, table: str) -> list[object]:
    return sorted(str(row["event_id"]) for row in rows(data, table))


def some(data: Path) -> None:
    """Five events that are good by now, in two tables, and two that are still bad."""
    quarantine(data, [bad(CREDITS, n, event(CREDITS, n)) for n in range(3)])
    quarantine(data, [bad(LOGINS, n, event(LOGINS, n)) for n in range(2)])
    quarantine(data, [bad(CREDITS, 7, event(CREDITS, 7, version=100)), bad(CREDITS, 8, None)])


def assert_replayed(data: Path) -> None:
    assert (ids(data, "credits"), ids(data, "logins")) == (["e-0", "e-1", "e-2"], ["e-0", "e-1"])
    assert sorted(row["offset"] for row in rows(data, "quarantine")) == [7, 8]  # type: ignore[type-var]
    assert Replays(str(data)).unfinished() == []


@pytest.mark.parametrize("folder", ["data", "data[1]", "{a}*b"])
def test_good_events_move_to_their_tables_and_bad_ones_stay(tmp_path: Path, folder: str) -> None:
    tmp_path = tmp_path / folder
    tmp_path.mkdir()
    some(tmp_path)
    outcome = Replays(str(tmp_path)).run(ALL)
    assert outcome.good == {"credits": 3, "logins": 2}
    assert outcome.bad.total() == 2
    assert_replayed(tmp_path)
    [first] = [row for row in rows(tmp_path, "credits") if row["event_id"] == "e-0"]
    assert first == {**json.loads(event(CREDITS, 0)), "day": datetime.fromtimestamp(START / 1000, UTC).date()}
    assert Replays(str(tmp_path)).run(ALL).replayed == 0
    assert_replayed(tmp_path)


@pytest.mark.parametrize("folder", ["data", "data[1]", "{a}*b"])
@pytest.mark.parametrize("value", [b"not JSON", b"\xff\x00", event(CREDITS, 7, version=100), None])
def test_a_bad_event_stays_alone_in_the_file_of_a_good_one(
    tmp_path: Path, folder: str, value: bytes | None
) -> None:
    tmp_path = tmp_path / folder
    tmp_path.mkdir()
    quarantine(tmp_path, [bad(CREDITS, 0, event(CREDITS, 0)), bad(CREDITS, 7, value)])
    before = [row for row in rows(tmp_path, "quarantine") if row["offset"] == 7]
    assert Replays(str(tmp_path)).run(ALL).good == {"credits": 1}
    assert ids(tmp_path, "credits") == ["e-0"]
    assert rows(tmp_path, "quarantine") == before


def test_what_a_replay_left_is_looked_at_again_by_the_next_one(tmp_path: Path) -> None:
    """Also in a file that delta-rs has written, as replays of earlier versions did."""
    import pyarrow.dataset as ds

    quarantine(tmp_path, [bad(CREDITS, n, event(CREDITS, n)) for n in range(2)] + [bad(CREDITS, 7, b"no")])
    assert Replays(str(tmp_path)).run(replace(ALL, until_ms=START + 1)).good == {"credits": 1}
    there = DeltaTable(str(tmp_path / "tables" / "quarantine")).to_pyarrow_dataset()
    assert there.count_rows(ds.field("topic") == CREDITS.topic) == 2, "readers filter by text"
    DeltaTable(str(tmp_path / "tables" / "quarantine")).update({"error": "'rewritten'"})
    found = Replays(str(tmp_path)).run(ALL)
    assert (found.good, found.bad.total()) == ({"credits": 1}, 1)
    assert Replays(str(tmp_path)).run(replace(ALL, reason="rewritten")).bad.total() == 1
    assert ids(tmp_path, "credits") == ["e-0", "e-1"]


def test_events_join_those_that_the_table_has(tmp_path: Path) -> None:
    some(tmp_path)
    Replays(str(tmp_path)).run(ALL)
    quarantine(tmp_path, [bad(CREDITS, 20, event(CREDITS, 20))])
    assert Replays(str(tmp_path)).run(ALL).good == {"credits": 1}
    assert ids(tmp_path, "credits") == ["e-0", "e-1", "e-2", "e-20"]


def with_kind(monkeypatch: pytest.MonkeyPatch, name: str, kind: Kind) -> EventSchema:
    """From now on this field of credits has another type."""
    fields = tuple(replace(one, kind=kind) if one.name == name else one for one in CREDITS.fields)
    schema = replace(CREDITS, fields=fields)
    monkeypatch.setattr(
        replay, "LOGS", tuple(schema if one.table == schema.table else one for one in replay.LOGS)
    )
    return schema


def test_an_integer_is_replayed_as_the_type_of_the_table_if_it_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some(tmp_path)
    Replays(str(tmp_path)).run(ALL)
    wide = with_kind(monkeypatch, "version", Kind.LONG)
    quarantine(tmp_path, [bad(wide, 20, event(wide, 20))])
    assert Replays(str(tmp_path)).run(ALL).good == {"credits": 1}
    files = (tmp_path / "tables" / "credits").glob("day=*/*.parquet")
    assert [pq.read_schema(file).field("version").type for file in files] == [pa.int32()] * 2
    with_kind(monkeypatch, "version", Kind.INT)
    quarantine(tmp_path, [bad(CREDITS, 21, event(CREDITS, 21))])
    assert Replays(str(tmp_path)).run(ALL).good == {"credits": 1}
    assert len(ids(tmp_path, "credits")) == 5


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (Kind.LONG, 3_000_000_000, "column amount is integer in table credits and long in the rows"),
        (Kind.STRING, "7", "column amount is integer in table credits and string in the rows"),
    ],
)
def test_an_event_that_its_table_cannot_hold_stays_in_the_quarantine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind, value: object, words: str, dry_run: bool
) -> None:
    narrow = with_kind(monkeypatch, "amount", Kind.INT)
    quarantine(tmp_path, [bad(narrow, 0, event(narrow, 0))])
    Replays(str(tmp_path)).run(ALL)
    schema = with_kind(monkeypatch, "amount", kind)
    quarantine(tmp_path, [bad(schema, 20, event(schema, 20, amount=value)), bad(LOGINS, 1, event(LOGINS, 1))])
    for _ in range(2):
        with pytest.raises(TableError, match=words):
            Replays(str(tmp_path)).run(ALL, dry_run=dry_run)
    assert sorted(row["offset"] for row in rows(tmp_path, "quarantine")) == [1, 20]  # type: ignore[type-var]
    assert (ids(tmp_path, "credits"), ids(tmp_path, "logins")) == (["e-0"], [])
    assert Replays(str(tmp_path))._folder.names() == [], "no file of the replay is left"
    assert Replays(str(tmp_path)).run(Selection(0, topic=LOGINS.topic)).good == {"logins": 1}


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    some(tmp_path)
    before = rows(tmp_path, "quarantine")
    outcome = Replays(str(tmp_path)).run(ALL, dry_run=True)
    assert (outcome.good, outcome.bad.total()) == ({"credits": 3, "logins": 2}, 2)
    assert rows(tmp_path, "quarantine") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tables"]


@pytest.mark.parametrize(
    ("selection", "good"),
    [
        (Selection(START + 1000), {"credits": 2, "logins": 1}),
        (Selection(0, START + 1000), {"credits": 1, "logins": 1}),
        (Selection(0, topic=LOGINS.topic), {"logins": 2}),
        (Selection(0, reason="ip is missing"), {"credits": 3, "logins": 2}),
        (Selection(0, reason="no such error"), {}),
    ],
)
def test_events_are_selected(tmp_path: Path, selection: Selection, good: dict[str, int]) -> None:
    some(tmp_path)
    assert Replays(str(tmp_path)).run(selection).good == good
    assert len(rows(tmp_path, "quarantine")) == 7 - sum(good.values())


def test_rows_that_failed_an_expectation_elsewhere_are_no_events(tmp_path: Path) -> None:
    other = bad(CREDITS, 1, event(CREDITS, 1), flow="mine/credits/expect/large")
    old = bad(CREDITS, 2, event(CREDITS, 2), flow=None)
    quarantine(tmp_path, [other, old])
    assert Replays(str(tmp_path)).run(ALL).good == {"credits": 1}
    assert [row["flow"] for row in rows(tmp_path, "quarantine")] == ["mine/credits/expect/large"]


def test_an_event_that_failed_an_expectation_elsewhere_is_replayed_and_stays_there(tmp_path: Path) -> None:
    other = bad(CREDITS, 1, event(CREDITS, 1), flow="mine/credits/expect/large")
    quarantine(tmp_path, [bad(CREDITS, 1, event(CREDITS, 1)), other])
    assert Replays(str(tmp_path)).run(ALL).good == {"credits": 1}
    assert ids(tmp_path, "credits") == ["e-1"]
    assert [row["flow"] for row in rows(tmp_path, "quarantine")] == ["mine/credits/expect/large"]


class Killed(BaseException):
    """Ends a replay where a kill would."""


STEPS = ("_record", "_take_out", "_add", "finish")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("step", "call"), [*((step, 1) for step in STEPS), ("_add", 2)])
def test_a_replay_that_is_killed_is_finished_by_the_next(
    tmp_path: Path, step: str, call: int, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    some(tmp_path)
    real, calls = getattr(Replays, step), 0

    def killed(*given: object) -> None:
        nonlocal calls
        calls += 1
        if calls == call and when == "before":
            raise Killed
        real(*given)
        if calls == call:
            raise Killed

    monkeypatch.setattr(Replays, step, killed)
    with pytest.raises(Killed):
        Replays(str(tmp_path)).run(ALL)
    monkeypatch.undo()
    Replays(str(tmp_path)).run(ALL)
    assert_replayed(tmp_path)


def test_two_replays_of_the_same_events_do_not_double_them(tmp_path: Path) -> None:
    some(tmp_path)
    one, other = Replays(str(tmp_path)), Replays(str(tmp_path))
    plans = []
    for number, replays in enumerate((one, other)):
        outcome = replays._stage(ALL, f"plan-{number}")
        plans.append(replay.Plan(f"plan-{number}", number, outcome.good))
        replays._record(plans[-1])
    one.finish(plans[0])
    with pytest.raises(ReplayConflict, match=r"5 of 5 rows of replay plan-1 are no longer in the quarantine"):
        other.finish(plans[1])
    assert (ids(tmp_path, "credits"), ids(tmp_path, "logins")) == (["e-0", "e-1", "e-2"], ["e-0", "e-1"])


@pytest.mark.parametrize("written", [b"", b'{"id": "1-torn", "crea'])
def test_a_plan_that_was_cut_off_in_its_write_holds_no_replay_up(tmp_path: Path, written: bytes) -> None:
    some(tmp_path)
    Replays(str(tmp_path))._stage(ALL, f"{1:x}-torn")
    (tmp_path / "replays" / f"{1:x}-torn" / replay.PLAN).write_bytes(written)
    Replays(str(tmp_path)).run(ALL)
    assert_replayed(tmp_path)
    assert not list((tmp_path / "replays").iterdir()), "it is swept as well"


def test_what_a_killed_replay_left_is_swept_a_day_later(tmp_path: Path) -> None:
    some(tmp_path)
    Replays(str(tmp_path))._stage(ALL, f"{1:x}-old")
    replays = Replays(str(tmp_path))
    replays._stage(ALL, f"{1 << 60:x}-new")
    replays._sweep()
    assert [path.name for path in (tmp_path / "replays").iterdir()] == [f"{1 << 60:x}-new"]


def test_the_stream_may_quarantine_more_during_a_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some(tmp_path)
    run = replay._Taking.run

    def meanwhile(taking: replay._Taking) -> object:
        found = run(taking)
        monkeypatch.undo()
        quarantine(tmp_path, [bad(CREDITS, 30, b"{"), bad(LOGINS, 31, event(LOGINS, 31))])
        return found

    monkeypatch.setattr(replay._Taking, "run", meanwhile)
    Replays(str(tmp_path)).run(ALL)
    assert ids(tmp_path, "logins") == ["e-0", "e-1"]
    assert sorted(row["offset"] for row in rows(tmp_path, "quarantine")) == [7, 8, 30, 31]  # type: ignore[type-var]


def test_planted_bug_without_its_name_in_the_commits_a_kill_doubles_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some(tmp_path)
    real = Replays._add

    def killed(self: Replays, plan: replay.Plan, *given: object) -> None:
        real(self, plan, *given)  # type: ignore[arg-type]
        raise Killed

    monkeypatch.setattr(Replays, "_add", killed)
    with pytest.raises(Killed):
        Replays(str(tmp_path)).run(ALL)
    monkeypatch.undo()
    monkeypatch.setattr(Snapshot, "has", lambda self, batch: self.name == "quarantine")
    [plan] = Replays(str(tmp_path)).unfinished()
    Replays(str(tmp_path)).finish(plan)
    assert len(rows(tmp_path, "credits")) == 6, "the check of the kills would notice"


def test_an_event_from_the_future_stays_bad_unless_the_settings_of_collect_allow_it(tmp_path: Path) -> None:
    quarantine(tmp_path, [bad(CREDITS, 0, event(CREDITS, 0, ts=START + 2 * 3_600_000))])
    command = ["pipeline", "replay", "quarantine", "--data", str(tmp_path), "--since", "2020-01-01"]
    before = CliRunner().invoke(main, command)
    assert before.exit_code == 0, before.output
    assert "1 events are still bad" in before.output
    assert f"is more than 60 minutes ahead of its record ({START})" in before.output
    after = CliRunner().invoke(main, [*command, "--set", "ahead_minutes=120"])
    assert after.exit_code == 0, after.output
    assert ids(tmp_path, "credits") == ["e-0"]


def test_the_tool_replays_and_says_what_it_did(tmp_path: Path) -> None:
    some(tmp_path)
    command = ["pipeline", "replay", "quarantine", "--data", str(tmp_path), "--since", "2020-01-01"]
    dry = CliRunner().invoke(main, [*command, "--dry-run"])
    assert dry.exit_code == 0, dry.output
    assert "5 events would be replayed: 3 into credits, 2 into logins" in dry.output
    done = CliRunner().invoke(main, command)
    assert "5 events were replayed: 3 into credits, 2 into logins" in done.output
    assert "2 events are still bad" in done.output
    assert_replayed(tmp_path)
    wrong = CliRunner().invoke(main, [*command[:-1], "yesterday"])
    assert wrong.exit_code != 0
    assert "expected a time such as 2026-11-15" in wrong.output
    unknown = CliRunner().invoke(main, [*command, "--topic", "none"])
    assert "no log of collect has the topic none" in unknown.output
