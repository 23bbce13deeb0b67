"""Commits of batches: each is in the table once, whoever writes it, and whatever happens beside it."""

from __future__ import annotations

import json
import multiprocessing
from collections import Counter
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.schema import PrimitiveType

from tests.tables.delta_files import EVENTS, add, new_log, remove, rows, write
from tidelog.spark.tables import delta_log
from tidelog.spark.tables.delta_log import DeltaLog, Snapshot
from tidelog.spark.tables.errors import Fenced, ForeignCheckpoint, TableError
from tidelog.spark.tables.identity import Batch, batch_app, this_driver
from tidelog.spark.tables.live_files import live_paths
from tidelog.spark.tables.log_writers import writers_of
from tidelog.spark.tables.store import Store

WRITER = "collect/credits"


def batch(number: int, writer: str = WRITER, checkpoint: str = "", offsets: str = "") -> Batch:
    return Batch(writer, number, checkpoint, offsets)


def test_a_batch_that_comes_again_is_recognised(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    assert log.last_batch(WRITER) == -1
    assert write(log, batch(0), [1, 2])
    assert not write(log, batch(0), [1, 2])
    assert write(log, batch(0, "another"), [3])
    assert write(log, batch(4), [4]), "batch numbers may have gaps"
    assert log.last_batch(WRITER) == 4
    assert rows(log) == Counter([1, 2, 3, 4])
    with pytest.raises(ForeignCheckpoint, match=f"has batch 4 of {WRITER} and cannot take batch 3: .*remove"):
        write(log, batch(3), [9])


def test_an_empty_batch_is_recorded(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    log.commit(log.snapshot(), batch(0))
    assert log.last_batch(WRITER) == 0
    assert rows(log) == Counter()


def test_a_driver_that_was_overtaken_during_its_write_is_fenced(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    slow = log.snapshot()
    late = add(log, [1, 2])
    assert write(log, batch(0), [1, 2])
    with pytest.raises(Fenced, match=f"from another driver .process {this_driver().pid} on .*does not write"):
        log.commit(slow, batch(0), [late])
    assert write(log, batch(1), [3])
    with pytest.raises(Fenced, match="has batch 1"):
        log.commit(slow, batch(0), [late])
    assert rows(log) == Counter([1, 2, 3])


def test_a_fresh_snapshot_would_take_a_batch_twice(tmp_path: Path) -> None:
    """Why a commit comes from the snapshot before the write: this is what Delta does otherwise."""
    log = new_log(tmp_path)
    write(log, batch(5), [1])
    log.commit(log.snapshot(), batch(5), [add(log, [1])])
    log.commit(log.snapshot(), batch(3), [add(log, [1])])
    assert rows(log) == Counter([1, 1, 1])
    assert log.last_batch(WRITER) == 3


def test_a_commit_whose_answer_was_lost_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log(tmp_path)
    commit = DeltaTable.create_write_transaction

    def lost(self: DeltaTable, *arguments: object, **named: object) -> None:
        commit(self, *arguments, **named)  # type: ignore[arg-type]
        raise CommitFailedError("version 1 exists")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", lost)
    assert write(log, batch(0), [1, 2])
    monkeypatch.undo()
    assert rows(log) == Counter([1, 2])


def test_appends_of_other_writers_do_not_matter(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    slow = log.snapshot()
    for number in range(3):
        write(log, batch(number, "another"), [number])
    log.commit(slow, batch(0), [add(log, [10])])
    assert rows(log) == Counter([0, 1, 2, 10])


def test_new_columns_of_another_writer_do_not_stop_a_commit(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    slow = log.snapshot()
    log.snapshot().table.alter.add_columns([Field("note", PrimitiveType("string"))])
    log.commit(slow, batch(0), [add(log, [10])])
    assert rows(log) == Counter([10])


def test_a_table_that_never_takes_the_commit_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: DeltaTable, *arguments: object, **named: object) -> None:
        raise CommitFailedError("no luck")

    log = new_log(tmp_path)
    monkeypatch.setattr(DeltaTable, "create_write_transaction", refused)
    with pytest.raises(TableError, match="in 30 attempts, because other writers were faster: no luck"):
        write(log, batch(0), [1])


def test_another_checkpoint_is_refused(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    assert write(log, batch(0, checkpoint="first", offsets="[0,10]"), [1])
    for number in (0, 1):  # without the check batch 0 would be lost, and batch 1 doubled
        with pytest.raises(ForeignCheckpoint, match=r"from the checkpoint first.* the checkpoint second"):
            write(log, batch(number, checkpoint="second"), [1])
    assert not write(log, batch(0, checkpoint="first", offsets="[0,10]"), [1])
    assert not write(log, batch(0), [1]), "a writer without a checkpoint is not compared"
    assert write(log, batch(1, checkpoint="first"), [2])
    assert rows(log) == Counter([1, 2])


def test_other_offsets_of_a_batch_are_refused(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    write(log, batch(0, checkpoint="first", offsets="[0,10]"), [1])
    with pytest.raises(ForeignCheckpoint, match=r"with the offsets \[0,10\], written by process .*\[0,12\]"):
        write(log, batch(0, checkpoint="first", offsets="[0,12]"), [1])


def test_a_driver_behind_another_one_with_its_checkpoint_is_fenced(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for number in range(2):
        write(log, batch(number, checkpoint="first"), [number])
    with pytest.raises(Fenced, match="older copy"):
        write(log, batch(0, checkpoint="first"), [0])


def test_the_records_of_a_batch_outlive_the_json_of_its_commit(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    write(log, batch(0, checkpoint="first", offsets="[0,10]"), [1])
    DeltaTable(log.uri).create_checkpoint()
    (Path(log.uri) / "_delta_log" / f"{1:020d}.json").unlink()
    assert log.snapshot().commit_of(WRITER, 0) is None
    assert not write(log, batch(0, checkpoint="first", offsets="[0,10]"), [1])
    with pytest.raises(ForeignCheckpoint, match=r"from the checkpoint, and batch 1 .*second"):
        write(log, batch(1, checkpoint="second"), [1])
    with pytest.raises(ForeignCheckpoint, match="with other offsets"):
        write(log, batch(0, checkpoint="first", offsets="[0,12]"), [1])


def test_the_commit_of_a_batch_names_its_driver_and_its_version(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for number in range(30):
        write(log, batch(number, "a" if number % 2 else WRITER, "id", f"[{number}]"), [number])
    snapshot = log.snapshot()
    commit = snapshot.commit_of(WRITER, 2)
    assert commit is not None
    assert commit.batch == batch(2, WRITER, "id", "[2]")
    assert commit.driver == this_driver()
    assert rows(log, commit.version - 1) == Counter([0, 1])
    assert rows(log, commit.version) == Counter([0, 1, 2])
    assert snapshot.commit_of(WRITER, 3) is None
    assert len(list(snapshot.commits())) == 30


def test_a_compaction_beside_another_one_is_refused(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    old = [add(log, [1]), add(log, [2])]
    log.commit(log.snapshot(), batch(0), old)
    one, two = log.snapshot(), log.snapshot()
    gone = [remove(action) for action in old]
    assert log.replace(one, [add(log, [1, 2], data_change=False)], gone)
    assert not log.replace(two, [add(log, [1, 2], data_change=False)], gone)
    assert rows(log) == Counter([1, 2])
    assert len(live_paths(log.snapshot().table)) == 1
    assert log.last_batch(WRITER) == 0


def test_a_compaction_without_our_transaction_would_double_rows(tmp_path: Path) -> None:
    """Why every rewrite has one: this is what Delta does otherwise."""
    log = new_log(tmp_path)
    old = add(log, [1])
    log.commit(log.snapshot(), batch(0), [old])
    one, two = log.snapshot(), log.snapshot()
    for snapshot in (one, two):
        actions = [add(log, [1], data_change=False), remove(old)]
        snapshot.table.create_write_transaction(actions, "append", EVENTS, ["day"])
    assert rows(log) == Counter([1, 1])


def test_a_compaction_beside_a_batch_that_removes_its_files_is_refused(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    old = add(log, [1, 2])
    log.commit(log.snapshot(), batch(0), [old])
    compaction = log.snapshot()
    merged = add(log, [1, 2], data_change=False)
    log.commit(log.snapshot(), batch(1), [add(log, [1, 20])], [remove(old, data_change=True)])
    assert not log.replace(compaction, [merged], [remove(old)])
    assert rows(log) == Counter([1, 20])


def test_a_batch_beside_a_compaction_that_took_its_files_is_refused(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    old = add(log, [1, 2])
    log.commit(log.snapshot(), batch(0), [old])
    stale = log.snapshot()
    assert log.replace(log.snapshot(), [add(log, [1, 2], data_change=False)], [remove(old)])
    with pytest.raises(TableError, match=r"another writer has replaced .*, which was a file of table events"):
        log.commit(stale, batch(1), [add(log, [1, 20])], [remove(old, data_change=True)])
    assert rows(log) == Counter([1, 2])


def test_a_merge_beside_a_compaction_sees_its_rows_once(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    old = add(log, [1, 2])
    log.commit(log.snapshot(), batch(0), [old])
    stale = log.snapshot()
    assert log.replace(log.snapshot(), [add(log, [1, 2], data_change=False)], [remove(old)])
    source = pa.table({"n": pa.array([2, 3], pa.int64())})

    def merge(table: DeltaTable, properties: CommitProperties) -> None:
        merger = table.merge(source, "t.n = s.n", "s", "t", commit_properties=properties)
        merger.when_matched_update({"n": "s.n"}).when_not_matched_insert({"n": "s.n"}).execute()

    log.attempt(stale, batch(1), merge, rewrites=True)
    assert rows(log) == Counter([1, 2, 3])
    assert log.last_batch(WRITER) == 1


def test_a_table_made_by_several_at_once_is_one(tmp_path: Path) -> None:
    logs = [DeltaLog(str(tmp_path / "events")) for _ in range(2)]
    assert not logs[0].exists()
    with pytest.raises(TableError, match="there is no table events"):
        logs[0].snapshot()
    for log in logs:
        log.create(EVENTS, ("day",))
    assert logs[1].snapshot().version == 0
    assert logs[1].snapshot().partition_by == ("day",)


def test_a_version_that_is_not_there_is_an_error_in_words(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    with pytest.raises(TableError, match=r"table events has no version 7 \(any more\): "):
        log.snapshot(version=7)
    with pytest.raises(TableError, match="table events has no version yesterday"):
        log.snapshot(timestamp="yesterday")


BATCHES = 12
ROWS = 5


def race(folder: str, writer: str, driver: int, begin: object) -> None:
    """One of two drivers with the same checkpoint. A supervisor restarts it after it was fenced."""
    log = DeltaLog(folder)
    begin.wait()  # type: ignore[attr-defined]
    number = 0
    while number < BATCHES:
        number = max(number, log.last_batch(writer))
        try:
            write(log, batch(number, writer, "id"), range(number * ROWS, (number + 1) * ROWS))
            number += 1
        except Fenced:
            continue


def test_two_drivers_and_another_writer_lose_and_double_nothing(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    processes = multiprocessing.get_context("spawn")
    begin = processes.Event()
    racers = [
        processes.Process(target=race, args=(log.uri, writer, number, begin))
        for number, writer in enumerate((WRITER, WRITER, "another"))
    ]
    for racer in racers:
        racer.start()
    try:
        begin.set()
        for racer in racers:
            racer.join(120)
        assert [racer.exitcode for racer in racers] == [0, 0, 0]
    finally:
        for racer in racers:
            if racer.is_alive():
                racer.kill()
    assert rows(log) == Counter(dict.fromkeys(range(BATCHES * ROWS), 2))


def test_versions_of_transactions_fit_into_the_log(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    write(log, batch(0, checkpoint="c" * 36, offsets=json.dumps({"t": {"0": [1, 2]}})), [1])
    text = (Path(log.uri) / "_delta_log" / f"{1:020d}.json").read_text()
    found = {}
    for line in text.splitlines():
        action = json.loads(line)
        if "txn" in action:
            found[action["txn"]["appId"]] = action["txn"]["version"]
    assert found == batch(0, checkpoint="c" * 36, offsets='{"t": {"0": [1, 2]}}').transactions
    assert found[batch_app(WRITER)] == 0
    assert all(0 <= version < 1 << 63 for version in found.values())
    assert Transaction(batch_app(WRITER), max(found.values())).version == max(found.values())
    assert delta_log.REWRITE not in found


def test_a_deletion_and_another_rewrite_from_one_snapshot_exclude_each_other(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    write(log, batch(0), [1, 2])
    log.commit(log.snapshot(), batch(1), [add(log, [3], "2026-11-16")])
    slow = log.snapshot()
    assert log.delete(log.snapshot(), lambda values: values["day"] == date(2026, 11, 15))
    assert rows(log) == Counter([3])
    assert not log.delete(slow, lambda values: True), "it has not seen the other one"
    assert rows(log) == Counter([3])
    assert log.last_batch(WRITER) == 1
    assert log.delete(log.snapshot(), lambda values: values["day"] is None)
    assert rows(log) == Counter([3])


def test_the_writers_of_a_table_are_known_when_their_commits_are_gone(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    place = Store.of(None, log.uri)
    write(log, batch(0, "first", checkpoint="c", offsets="[0,10]"), [1])
    write(log, batch(0, "second"), [2])
    assert writers_of(place, log.snapshot()) == {"first", "second"}
    DeltaTable(log.uri).create_checkpoint()
    (Path(log.uri) / "_delta_log" / f"{1:020d}.json").unlink()
    write(log, batch(0, "third"), [3])
    assert log.replace(log.snapshot(), [], [])
    assert {commit.batch.writer for commit in log.snapshot().commits()} == {"second", "third"}
    assert writers_of(place, log.snapshot()) == {"first", "second", "third"}
    assert writers_of(place, log.snapshot(2)) == {"first", "second"}
    log.snapshot().table.create_checkpoint()
    assert writers_of(place, log.snapshot(2)) == {"first", "second"}
    assert writers_of(place, log.snapshot()) == {"first", "second", "third"}


def test_a_column_of_another_type_is_refused(tmp_path: Path) -> None:
    log = DeltaLog(str(tmp_path / "counts"))
    one = pa.field("n", pa.int32(), nullable=False)
    counts = pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))
    log.with_columns(Schema.from_arrow(pa.schema([one, ("counts", counts)])))
    looser = pa.schema(
        [pa.field("n", pa.int32(), metadata={"comment": "c"}), ("counts", pa.map_("utf8", "int64"))]
    )
    assert log.with_columns(Schema.from_arrow(looser)).version == 0, "nothing was added"
    with pytest.raises(TableError, match="column n is integer in table counts and long in the rows"):
        log.with_columns(Schema.from_arrow(pa.schema([("n", pa.int64())])))
    with pytest.raises(TableError, match=r'column counts is .*"valueType": "long".* and .*"integer"'):
        log.with_columns(Schema.from_arrow(pa.schema([("counts", pa.map_(pa.string(), pa.int32()))])))


@pytest.mark.parametrize("kind", ["long", "string"])
def test_columns_that_another_writer_adds_at_the_same_moment_are_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    log = new_log(tmp_path)
    wanted = Schema([*EVENTS.fields, Field("added", PrimitiveType("long"))])
    real = DeltaLog.snapshot

    def meanwhile(self: DeltaLog) -> Snapshot:
        found = real(self)
        monkeypatch.undo()
        DeltaTable(log.uri).alter.add_columns(Field("added", PrimitiveType(kind)))
        return found

    monkeypatch.setattr(DeltaLog, "snapshot", meanwhile)
    if kind == "long":
        assert log.with_columns(wanted).table.schema().fields == wanted.fields
    else:
        with pytest.raises(TableError, match=r"column added is string in table .* and long in the rows"):
            log.with_columns(wanted)
