"""The metrics of a real run: what `batch_metrics` and Prometheus say of its micro-batches."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.spark.collected import START, example
from tests.support.wait import eventually
from tidelog.spark.pipelines import collect, events
from tidelog.spark.pipelines.batch_metrics import MetricsLog
from tidelog.spark.pipelines.declare import Flow, Pipeline, Source, Table
from tidelog.spark.pipelines.expectations import Range
from tidelog.spark.pipelines.run_options import Options
from tidelog.spark.pipelines.runner import start
from tidelog.testing.pipelines import PipelineTest

CREDITS = events.CREDITS
COLLECTING = collect.Collected(CREDITS)


def flows(settings: object) -> tuple[Flow, ...]:
    [collecting] = [flow for flow in collect.PIPELINE.flows(dict(settings)) if flow.name == "credits"]  # type: ignore[call-overload]
    source = Source((CREDITS.topic,), CREDITS.spark_schema())
    amounts = Table("amounts", expect=(Range("amount", 0, 10, "quarantine"),))
    return collecting, Flow("amounts", source, (amounts,))


PIPELINE = Pipeline("quality", "title", "doc", flows, collect.PIPELINE.settings)


def credit(number: int, **fields: object) -> dict[str, object]:
    return {**example(CREDITS), "event_id": f"e-{number}", "ts": START + number, **fields}


def metrics(test: PipelineTest) -> dict[tuple[str, int], dict[str, object]]:
    table = DeltaTable(str(Path(test.data) / "tables" / "batch_metrics")).to_pyarrow_table()
    rows = {(str(row["flow"]), int(row["batch"])): row for row in table.to_pylist()}
    assert len(rows) == table.num_rows, "one row for a batch"
    return rows


def test_every_micro_batch_has_its_counts_in_the_table(tidelog_pipeline: PipelineTest) -> None:
    topic = CREDITS.topic
    bad = ["not JSON", json.dumps(credit(7, version=100)), json.dumps(credit(8, version=101)), None]
    run = tidelog_pipeline.run(PIPELINE, {topic: [credit(1), credit(2, amount=11), *bad]})
    tidelog_pipeline.run(PIPELINE, {topic: [credit(3)]})
    found = metrics(tidelog_pipeline)
    first, second = found["credits", 0], found["credits", 1]
    assert (first["rows_in"], first["rows_out"], first["sinks"]) == (6, 2, [("credits", 2)])
    assert first["quarantined"] == 4
    reasons = dict(first["reasons"])  # type: ignore[call-overload]
    assert reasons[f"version # is unknown: {topic} is read in versions # to #"] == 2
    assert sum(reasons.values()) == 4
    assert (second["rows_in"], second["rows_out"], second["quarantined"], second["late"]) == (1, 1, 0, 0)
    assert json.loads(str(first["offsets"])) == {topic: {"0": [None, 6]}}
    assert json.loads(str(second["offsets"])) == {topic: {"0": [6, 7]}}
    amounts = found["amounts", 0]
    assert (amounts["rows_out"], amounts["quarantined"]) == (3, 1), "its source checks no versions"
    assert amounts["expectations"] == [("range(amount, 0, 10)", 1)]
    assert {row["flow"] for row in run.quarantine} == {"quality/credits", "quality/amounts/expect/amounts"}
    assert not list(Path(tidelog_pipeline.data, "metrics").rglob("*.json"))


def test_batches_that_spark_has_forgotten_before_anybody_looked_count(tidelog_pipeline: PipelineTest) -> None:
    tidelog_pipeline.broker.start()
    tidelog_pipeline.broker.produce(CREDITS.topic, *(json.dumps(credit(number)) for number in range(9)))
    options = Options(
        tidelog_pipeline.broker.bootstrap_servers,
        tidelog_pipeline.data,
        trigger="available-now",
        max_offsets_per_trigger=1,
    )
    retention = "spark.sql.streaming.numRecentProgressUpdates"
    tidelog_pipeline.spark.conf.set(retention, "2")
    try:
        with start([PIPELINE], options, spark=tidelog_pipeline.spark) as running:
            [pipeline] = running.pipelines
            eventually(lambda: pipeline.ended, "the queries are at the end of the log", 240.0)
            outcome = running.wait()
    finally:
        tidelog_pipeline.spark.conf.unset(retention)
    assert outcome.rows == 18, "nine records of each flow"
    found = metrics(tidelog_pipeline)
    assert [row["rows_in"] for row in found.values()] == [1] * 18
    assert not [row for row in found.values() if row["late"] is None], "Spark has reported every batch"


def test_the_first_batch_has_its_records_before_spark_reports_it(
    tidelog_pipeline: PipelineTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MetricsLog, "report", lambda *_: None)
    tidelog_pipeline.run(PIPELINE, {CREDITS.topic: [credit(1), credit(2), "not JSON"]})
    first = metrics(tidelog_pipeline)["credits", 0]
    assert (first["rows_in"], first["rows_out"], first["late"]) == (3, 2, None)


def test_a_run_serves_its_counts_to_prometheus(tidelog_pipeline: PipelineTest) -> None:
    topic = CREDITS.topic
    tidelog_pipeline.run(PIPELINE, {topic: [credit(1), "not JSON"]})
    tidelog_pipeline.broker.produce(topic, json.dumps(credit(2)), b"not JSON", b"not JSON")
    options = Options(
        tidelog_pipeline.broker.bootstrap_servers,
        tidelog_pipeline.data,
        trigger="available-now",
        metrics_port=0,
    )
    with start([PIPELINE], options, spark=tidelog_pipeline.spark) as running:
        running.wait()
        assert running.metrics is not None
        with urllib.request.urlopen(running.metrics.url, timeout=10) as answer:
            text = answer.read().decode()
    labels = 'pipeline="quality",flow="credits"'
    assert f"tidelog_pipeline_quarantined_total{{{labels}}} 2\n" in text, text
    assert f'tidelog_pipeline_rows_out_total{{{labels},sink="credits"}} 1\n' in text
