"""The metrics of micro-batches: one row for each, whatever is killed when, and Prometheus text. No Spark."""

from __future__ import annotations

import json
import shutil
import socket
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import deltalake
import pytest
from deltalake import DeltaTable

from tidelog.spark.pipelines import batch_metrics
from tidelog.spark.pipelines.batch_metrics import (
    BatchRecord,
    FlowTotals,
    MetricsFiles,
    MetricsLog,
    MetricsTable,
)
from tidelog.spark.pipelines.metrics_endpoint import FlowMetrics, MetricsEndpoint
from tidelog.spark.pipelines.state import FAILED, FlowStatus
from tidelog.spark.tables.maintenance import MaintenanceSettings, TableMaintenance
from tidelog.spark.tables.store import Store


class Run:
    """One process on a data folder: it can be killed by leaving it alone."""

    def __init__(self, folder: Path) -> None:
        self.table = MetricsTable(str(folder / "tables" / "batch_metrics"))
        self.log = MetricsLog(MetricsFiles(Store.of(None, folder / "metrics")), self.table)
        self.log.recover("mine", "words")


def record(batch: int, query: str = "q1", **fields: int) -> BatchRecord:
    made = BatchRecord("mine", "words", query, batch, 1_794_600_000.5, 0.25, offsets="{}")
    return replace(made, **{"rows_out": 10, **fields})


def rows(folder: Path) -> list[dict[str, object]]:
    found = DeltaTable(str(folder / "tables" / "batch_metrics")).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: (row["query"], row["batch"]))


def test_the_table_is_compacted_like_others_and_still_knows_its_batches(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for batch in range(4):
        run.table.append([replace(record(batch), reasons={"no JSON": 2})])
    before = rows(tmp_path)
    maintained = Store.of(None, tmp_path / "tables" / "batch_metrics")
    TableMaintenance(maintained, MaintenanceSettings(compact_small_files=1)).round()
    assert len(DeltaTable(maintained.uri).file_uris()) == 1
    assert run.table.append([record(3)]) == 0
    assert rows(tmp_path) == before


def test_a_table_of_an_earlier_version_gets_the_columns_that_it_lacks(tmp_path: Path) -> None:
    table = Run(tmp_path).table
    with pytest.MonkeyPatch.context() as patch:
        earlier = batch_metrics.arrow_schema().remove(batch_metrics.arrow_schema().get_field_index("late"))
        patch.setattr(batch_metrics, "arrow_schema", lambda: earlier)
        table.append([record(0)])
    assert table.append([replace(record(1), late=4)]) == 1
    assert [row["late"] for row in rows(tmp_path)] == [None, 4]


def test_the_driver_does_not_load_the_writer_of_delta_rs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(*arguments: object, **named: object) -> None:
        raise AssertionError("it takes 18 MB of the driver")

    monkeypatch.setattr(deltalake, "write_deltalake", loaded)
    Run(tmp_path).table.append([record(0)])
    assert len(rows(tmp_path)) == 1


def test_a_batch_has_one_row_with_what_spark_reported_later(tmp_path: Path) -> None:
    run = Run(tmp_path)
    first = record(0, rows_in=12)
    first.sinks, first.reasons, first.quarantined = {"words": 10}, {"no JSON": 2}, 2
    run.log.put(first)
    run.log.report("mine", "words", 0, 12, 3)
    run.log.report("mine", "words", 7, 1, 1)  # not one of this run
    run.log.flush(everything=True)
    run.log.flush(everything=True)
    [row] = rows(tmp_path)
    assert (row["batch"], row["rows_in"], row["rows_out"], row["late"]) == (0, 12, 10, 3)
    assert (row["quarantined"], row["reasons"], row["sinks"]) == (2, [("no JSON", 2)], [("words", 10)])
    assert not list((tmp_path / "metrics").rglob("*.json"))


def test_the_rows_of_a_source_that_spark_read_twice_count_once(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.log.put(record(0, rows_in=12))
    run.log.report("mine", "words", 0, 24, 0)
    run.log.flush(everything=True)
    assert [row["rows_in"] for row in rows(tmp_path)] == [12]


@pytest.mark.parametrize("after", ["put", "report", "append", "nothing"])
def test_a_kill_at_any_step_leaves_one_row_for_a_batch(
    tmp_path: Path, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path)
    run.log.put(record(0))
    run.log.report("mine", "words", 0, 10, 0)
    run.log.flush(everything=True)
    if after != "nothing":
        run.log.put(record(1))
    if after in ("report", "append"):
        run.log.report("mine", "words", 1, 10, 4)
    if after == "append":  # killed before the files are deleted
        monkeypatch.setattr(MetricsFiles, "delete", lambda self, path: None)
        run.log.flush(everything=True)
        monkeypatch.undo()
    again = Run(tmp_path)
    if after in ("put", "nothing"):  # Spark had not committed the batch: it comes again
        again.log.put(record(1))
        again.log.report("mine", "words", 1, 10, 4)
    again.log.put(record(2))
    again.log.flush(everything=True)
    found = rows(tmp_path)
    assert [row["batch"] for row in found] == [0, 1, 2]
    assert found[1]["late"] == 4
    assert found[2]["late"] is None, "Spark has not reported it"


def test_half_a_file_of_a_killed_process_is_left_to_the_replay(tmp_path: Path) -> None:
    Run(tmp_path).log.put(record(0))
    [path] = (tmp_path / "metrics").rglob("*.json")
    path.write_text(path.read_text()[:20])
    again = Run(tmp_path)
    again.log.put(record(0, rows_out=11))
    again.log.flush(everything=True)
    assert [row["rows_out"] for row in rows(tmp_path)] == [11]


def test_a_flow_that_begins_anew_has_rows_from_batch_0_on_again(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for query in ("q1", "q2"):
        for batch in (0, 1):
            run.log.put(record(batch, query))
            run.log.flush(everything=True)
    assert [(row["query"], row["batch"]) for row in rows(tmp_path)] == [
        ("q1", 0),
        ("q1", 1),
        ("q2", 0),
        ("q2", 1),
    ]


def test_two_processes_that_flush_the_same_batches_write_them_once(tmp_path: Path) -> None:
    one, other = Run(tmp_path), Run(tmp_path)
    one.table.append([record(0)])
    stale = [record(0), record(1)]
    assert other.table.append(stale) == 1
    assert one.table.append(stale) == 0
    assert len(rows(tmp_path)) == 2


def test_records_wait_for_a_minute_or_for_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_metrics, "FLUSH_BATCHES", 3)
    run = Run(tmp_path)
    for batch in range(3):
        run.log.put(record(batch))
        run.log.report("mine", "words", batch, 10, 0)
        run.log.flush()
        assert (tmp_path / "tables").exists() is (batch == 2)
    run.log.put(record(3))
    run.log.flush(everything=True)
    writes = [commit for commit in DeltaTable(run.table.uri).history() if commit["operation"] == "WRITE"]
    assert len(writes) == 2, "one commit for many batches"


def test_a_store_that_is_away_keeps_the_records_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(tmp_path)
    run.log.put(record(0))

    def away(records: object) -> int:
        raise OSError("no route to the store")

    monkeypatch.setattr(run.table, "append", away)
    run.log.flush(everything=True)
    assert "1 micro-batches are not in the table yet: no route" in caplog.text
    monkeypatch.undo()
    run.log.flush(everything=True)
    assert len(rows(tmp_path)) == 1


def test_prometheus_reads_the_counts_of_running_flows() -> None:
    status, totals = FlowStatus("running", rows=12, lag=3, late_rows_dropped=1), FlowTotals()
    made = record(0, quarantined=2)
    made.sinks, made.reasons, made.expectations = {"words": 10}, {'no "JSON"': 2}, {"not_null(a)": 4}
    totals.add(made)
    totals.add(made)
    flows = [FlowMetrics("mine", "words", status, totals)]
    endpoint = MetricsEndpoint(lambda: flows, "127.0.0.1", 0)
    endpoint.open()
    try:
        with urllib.request.urlopen(endpoint.url, timeout=10) as answer:
            text = answer.read().decode()
        labels = 'pipeline="mine",flow="words"'
        for line in (
            f"tidelog_pipeline_rows_in_total{{{labels}}} 12",
            f'tidelog_pipeline_rows_out_total{{{labels},sink="words"}} 20',
            f"tidelog_pipeline_quarantined_total{{{labels}}} 4",
            f'tidelog_pipeline_quarantined_by_reason_total{{{labels},reason="no \\"JSON\\""}} 4',
            f'tidelog_pipeline_expectation_failures_total{{{labels},expectation="not_null(a)"}} 8',
            f"tidelog_pipeline_late_rows_total{{{labels}}} 1",
            f"tidelog_pipeline_lag{{{labels}}} 3",
            f"tidelog_pipeline_batches_total{{{labels}}} 2",
        ):
            assert f"{line}\n" in text, text
        status.state = FAILED
        with pytest.raises(urllib.error.HTTPError, match="503") as refused:
            urllib.request.urlopen(endpoint.url.replace("/metrics", "/health"), timeout=10)
        assert json.loads(refused.value.read()) == {"flows": {"mine/words": FAILED}}
    finally:
        endpoint.close()


def test_a_port_in_use_is_an_error_and_leaves_no_thread() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        endpoint = MetricsEndpoint(list, "127.0.0.1", taken.getsockname()[1])
        with pytest.raises(OSError, match="address already in use"):
            endpoint.open()
        assert not endpoint._thread.is_alive()


def test_planted_bug_without_transactions_a_kill_doubles_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check of the kills above would notice: a table that forgets its batches has rows twice."""
    run = Run(tmp_path)
    run.table.append([record(0)])
    monkeypatch.setattr(DeltaTable, "transaction_version", lambda self, app: None)
    run.table.append([record(0)])
    assert len(rows(tmp_path)) == 2
    shutil.rmtree(tmp_path / "tables")
