"""Compaction and cleaning of Delta tables: no row is lost or doubled. Without Spark."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import fs, parquet

from tidelog.config import ConfigError
from tidelog.spark.tables import compactor as module
from tidelog.spark.tables import live_files as files_module
from tidelog.spark.tables.compactor import Compactor, chosen
from tidelog.spark.tables.delta_log import DeltaLog
from tidelog.spark.tables.live_files import LiveFile, live_files
from tidelog.spark.tables.maintenance import Maintenance, MaintenanceSettings, TableMaintenance, from_settings
from tidelog.spark.tables.store import Store

HOUR = 3600


def append(uri: Path | str, batch: int, day: str | None = "2026-11-15", rows: int = 5) -> None:
    days = pa.array([day] * rows, pa.string())
    found = {"id": [f"{day}/{batch}/{n}" for n in range(rows)], "batch": [batch] * rows, "day": days}
    write_deltalake(str(uri), pa.table(found), mode="append", partition_by=["day"])


def ids(uri: Path | str) -> Counter[str]:
    return Counter(DeltaTable(str(uri)).to_pyarrow_table()["id"].to_pylist())


def files(uri: Path | str) -> list[str]:
    return DeltaTable(str(uri)).file_uris()


def test_the_small_files_of_a_day_become_one_and_no_row_changes(tmp_path: Path) -> None:
    for batch in range(5):
        for day in ("2026-11-15", "with: 50% space", None):
            append(tmp_path / "t", batch, day)
    before = ids(tmp_path / "t")
    assert Compactor(Store.of(None, tmp_path / "t"), small_files=4).run() == 15
    assert ids(tmp_path / "t") == before
    assert len(files(tmp_path / "t")) == 3
    table = DeltaTable(str(tmp_path / "t"))
    assert set(table.to_pyarrow_table()["day"].to_pylist()) == {"2026-11-15", "with: 50% space", None}
    assert len(table.file_uris(file_pruning_predicate=[("day", "=", "2026-11-15")])) == 1
    assert sum(pa.table(table.get_add_actions(flatten=True))["num_records"].to_pylist()) == 75


def test_only_the_files_of_days_with_many_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for day in range(10, 16):
        append(tmp_path / "t", 0, f"2026-11-{day}")
    for batch in range(5):
        append(tmp_path / "t", batch, "2026-12-01")
    opened: list[str] = []
    plain = fs.SubTreeFileSystem.open_input_file

    class Seen(fs.SubTreeFileSystem):
        def open_input_file(self, path: str) -> object:
            opened.append(path)
            return plain(self, path)

    monkeypatch.setattr(Store, "files", lambda self: Seen(self.uri, fs.LocalFileSystem()))
    compactor = Compactor(Store.of(None, tmp_path / "t"), small_files=4)
    assert compactor.run() == 5
    assert {path.partition("/")[0] for path in opened} == {"day=2026-12-01"}
    opened.clear()
    assert (compactor.run(), compactor.run(), opened) == (0, 0, [])


def test_rows_of_older_columns_get_nulls_and_types_stay(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    for n in range(3):
        write_deltalake(uri, pa.table({"id": [f"a{n}"], "n": pa.array([n], pa.int32())}), mode="append")
    for n in range(3):
        late = pa.table(
            {"id": [f"b{n}"], "tags": [["x", None]], "at": pa.array([n], pa.timestamp("us", "UTC"))}
        )
        write_deltalake(uri, late, mode="append", schema_mode="merge")
    before = DeltaTable(uri).to_pyarrow_table().sort_by("id")
    assert Compactor(Store.of(None, uri), small_files=4).run() == 6
    after = DeltaTable(uri).to_pyarrow_table().sort_by("id")
    assert after.equals(before)


def test_files_are_cut_at_the_target_and_memory_at_the_row_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GROUP_BYTES", 4096)
    monkeypatch.setattr(files_module, "BATCH_ROWS", 50)
    for batch in range(12):
        append(tmp_path / "t", batch, rows=200)
    size = max(Path(file).stat().st_size for file in files(tmp_path / "t"))
    before = ids(tmp_path / "t")
    compactor = Compactor(Store.of(None, tmp_path / "t"), small_files=4, target_bytes=size * 4)
    assert compactor.run() == 12
    assert len(files(tmp_path / "t")) == 3
    assert ids(tmp_path / "t") == before
    assert all(parquet.ParquetFile(file).metadata.num_row_groups > 2 for file in files(tmp_path / "t"))


def sized(*sizes: int) -> list[LiveFile]:
    return [LiveFile(f"{number}", size, ()) for number, size in enumerate(sizes)]


def test_a_large_file_is_not_written_again_for_a_few_small_ones() -> None:
    megabyte = 1024 * 1024
    [group] = chosen(sized(*[megabyte] * 17, 50 * megabyte), 128 * megabyte, 16)
    assert [file.size for file in group] == [megabyte] * 17
    assert list(chosen(sized(*[megabyte] * 16, 50 * megabyte), 128 * megabyte, 16)) == []
    assert list(chosen(sized(*[100 * megabyte] * 40), 128 * megabyte, 16)) == []
    # A file as large as all smaller ones together is worth it.
    [group] = chosen(sized(*[megabyte] * 17, 30 * megabyte), 128 * megabyte, 16)
    assert len(group) == 18


def test_the_bytes_that_are_written_again_grow_with_the_logarithm_of_the_files() -> None:
    live: list[int] = []
    written = 0
    for _ in range(2000):
        live.append(100_000)
        for group in chosen(sized(*live), 128 * 1024 * 1024, 16):
            written += sum(file.size for file in group)
            for file in group:
                live.remove(file.size)
            live.append(sum(file.size for file in group))
    assert written < 6 * 2000 * 100_000
    assert len(live) < 60


def test_of_two_compactions_from_one_snapshot_one_gives_way(tmp_path: Path) -> None:
    for batch in range(6):
        append(tmp_path / "t", batch)
    before = ids(tmp_path / "t")
    first, second = (Compactor(Store.of(None, tmp_path / "t"), small_files=4) for _ in range(2))
    rewrite = second._rewrite

    def overtaken(part: list[LiveFile], schema: pa.Schema) -> object:
        found = rewrite(part, schema)
        assert first.run() == 6
        return found

    second._rewrite = overtaken  # type: ignore[assignment,method-assign]
    assert second.run() == 0
    assert ids(tmp_path / "t") == before
    # The loser has removed its file: the six old ones and the winner's are left.
    assert len(list((tmp_path / "t").rglob("*.parquet"))) == 7


def test_a_compaction_whose_files_a_merge_replaced_gives_way(tmp_path: Path) -> None:
    for batch in range(6):
        append(tmp_path / "t", batch)
    compactor = Compactor(Store.of(None, tmp_path / "t"), small_files=4)
    rewrite = compactor._rewrite

    def overtaken(part: list[LiveFile], schema: pa.Schema) -> object:
        found = rewrite(part, schema)
        DeltaTable(str(tmp_path / "t")).update({"batch": "100"}, predicate="id = '2026-11-15/3/1'")
        append(tmp_path / "t", 6)
        return found

    compactor._rewrite = overtaken  # type: ignore[assignment,method-assign]
    assert compactor.run() == 0
    table = DeltaTable(str(tmp_path / "t")).to_pyarrow_table()
    assert (table.num_rows, len(set(table["id"].to_pylist()))) == (35, 35)
    assert table["batch"].to_pylist().count(100) == 1


def test_new_files_do_not_stop_a_compaction(tmp_path: Path) -> None:
    for batch in range(6):
        append(tmp_path / "t", batch)
    compactor = Compactor(Store.of(None, tmp_path / "t"), small_files=4)
    rewrite = compactor._rewrite

    def beside(part: list[LiveFile], schema: pa.Schema) -> object:
        append(tmp_path / "t", 6)
        return rewrite(part, schema)

    compactor._rewrite = beside  # type: ignore[assignment,method-assign]
    assert compactor.run() == 6
    assert set(ids(tmp_path / "t").values()) == {1}
    assert len(ids(tmp_path / "t")) == 35


def test_a_commit_whose_answer_was_lost_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for batch in range(6):
        append(tmp_path / "t", batch)
    before = ids(tmp_path / "t")
    plain = DeltaLog.replace

    def lost(self: DeltaLog, *given: object) -> bool:
        assert plain(self, *given)  # type: ignore[arg-type]
        return False

    monkeypatch.setattr(DeltaLog, "replace", lost)
    assert Compactor(Store.of(None, tmp_path / "t"), small_files=4).run() == 6
    assert ids(tmp_path / "t") == before


def test_a_compaction_that_slept_too_long_does_not_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for batch in range(6):
        append(tmp_path / "t", batch)
    monkeypatch.setattr(module, "GIVE_UP_SECONDS", -1)
    assert Compactor(Store.of(None, tmp_path / "t"), small_files=4).run() == 0
    assert len(files(tmp_path / "t")) == 6


# -- vacuum, checkpoints and retention


def aged(path: Path, hours: float) -> None:
    moment = time.time() - hours * HOUR
    os.utime(path, (moment, moment))


def test_leftovers_go_after_the_retention_and_files_in_flight_stay(tmp_path: Path) -> None:
    append(tmp_path / "t", 0)
    [live] = (tmp_path / "t").rglob("*.parquet")
    in_flight, leftover = live.parent / "in-flight.parquet", live.parent / "leftover.parquet"
    for path, hours in ((live, 1000), (in_flight, 23), (leftover, 25)):
        path.touch()
        aged(path, hours)
    live_before = ids(tmp_path / "t") if live.stat().st_size else None
    settings = MaintenanceSettings(retention_hours=24)
    deleted = TableMaintenance(Store.of(None, tmp_path / "t"), settings).clean(
        DeltaTable(str(tmp_path / "t"))
    )
    assert [Path(path).name for path in deleted] == ["leftover.parquet"]
    assert in_flight.exists()
    assert live.exists()
    assert ids(tmp_path / "t") == live_before


def test_a_retention_that_would_reach_running_batches_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"tables\.retention\.hours"):
        MaintenanceSettings(retention_hours=1)


def test_a_vacuum_is_due_by_the_clock_and_by_the_log_of_other_processes(tmp_path: Path) -> None:
    append(tmp_path / "t", 0)
    now = time.time()
    store, settings = Store.of(None, tmp_path / "t"), MaintenanceSettings()

    def vacuums() -> int:
        leftover = tmp_path / "t" / f"{time.time_ns()}.parquet"
        leftover.touch()
        aged(leftover, 1000)
        return [entry["operation"] for entry in DeltaTable(store.uri).history()].count("VACUUM END")

    one = TableMaintenance(store, settings, clock=lambda: now)
    one.round()
    assert vacuums() == 0
    now += 25 * HOUR
    one.round()
    one.round()
    assert vacuums() == 1
    # Another process, or the next run, finds that vacuum in the log. Its time is the real one.
    now = time.time() + 23 * HOUR
    TableMaintenance(store, settings, clock=lambda: now).round()
    assert vacuums() == 1
    now += 2 * HOUR
    TableMaintenance(store, settings, clock=lambda: now).round()
    assert vacuums() == 2


def test_the_log_gets_checkpoints_and_loses_old_versions_but_no_transaction(tmp_path: Path) -> None:
    from deltalake import CommitProperties, Transaction

    uri = str(tmp_path / "t")
    log = tmp_path / "t" / "_delta_log"
    one = TableMaintenance(
        Store.of(None, uri),
        MaintenanceSettings(checkpoint_commits=3, log_versions=5, compact_small_files=100),
    )
    for batch in range(14):
        once = CommitProperties(app_transactions=[Transaction("tidelog:w", batch)])
        write_deltalake(uri, pa.table({"id": [f"{batch}"]}), mode="append", commit_properties=once)
        one.round()
        assert (log / f"{0:020d}.json").exists() == (batch < 9)
    # A checkpoint at every third version. The one at 6 is the newest that leaves five versions after it.
    assert sorted(int(path.name[:20]) for path in log.glob("*.checkpoint.parquet")) == [6, 9, 12]
    assert sorted(int(path.name[:20]) for path in log.glob("*.json")) == list(range(6, 14))
    assert DeltaTable(uri).transaction_version("tidelog:w") == 13
    assert len(ids(uri)) == 14
    for version in range(6, 14):
        assert DeltaTable(uri, version=version).to_pyarrow_table().num_rows == version + 1


def test_maintenance_runs_beside_and_one_bad_table_does_not_stop_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for batch in range(6):
        append(tmp_path / "good", batch)
        append(tmp_path / "broken", batch)
    next((tmp_path / "broken").rglob("*.parquet")).write_bytes(b"no Parquet")
    (tmp_path / "no table").mkdir()
    from tests.support.wait import eventually

    settings = MaintenanceSettings(maintenance_seconds=0.01, compact_small_files=4)
    with Maintenance(Store.of(None, tmp_path), settings):
        eventually(lambda: len(files(tmp_path / "good")) == 1, "the good table is compacted")
    assert "maintenance of table broken failed" in caplog.text
    assert len(files(tmp_path / "broken")) == 6
    with Maintenance(Store.of(None, tmp_path), MaintenanceSettings(maintenance_seconds=0)) as off:
        assert off._thread is None


def test_settings_by_name() -> None:
    given = {"tables.retention.hours": "48", "tables.maintenance.seconds": "2.5", "compact.every": "3"}
    settings, others = from_settings(given)
    assert (settings.retention_hours, settings.maintenance_seconds) == (48, 2.5)
    assert others == {"compact.every": "3"}
    bad = {"tables.retention.hours": "long", "tables.retentoin.hours": "3", "tables.compact.small.files": "0"}
    for name, value in bad.items():
        with pytest.raises(ConfigError, match=name):
            from_settings({name: value})


def test_a_live_file_has_the_values_of_the_log(tmp_path: Path) -> None:
    append(tmp_path / "t", 0, None)
    [file] = live_files(DeltaLog(str(tmp_path / "t")).snapshot().table)
    assert file.values == (("day", None),)
