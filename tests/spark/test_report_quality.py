"""The part of the report about data quality, from the table batch_metrics."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.spark.pipelines.batch_metrics import BatchRecord, arrow_rows
from tidelog.spark.pipelines.report_facts import Facts, FlowFacts, gather
from tidelog.spark.pipelines.report_page import quality
from tidelog.spark.pipelines.report_readers import LocalReader


def facts_of(records: Sequence[BatchRecord]) -> Facts:
    """The facts of tables without rows, but for these metrics."""
    from pathlib import Path

    import pyarrow.dataset as ds

    reader = LocalReader(Path("nowhere"))
    reader._seen["batch_metrics"] = ds.dataset(arrow_rows(records))
    return gather(reader)


def record(flow: str, batch: int, **fields: object) -> BatchRecord:
    made = BatchRecord("mine", flow, "q", batch, 1_794_600_000.0 + batch, 0.5)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_the_counts_of_a_flow_add_up() -> None:
    facts = facts_of(
        [
            record("words", 0, rows_in=10, rows_out=8, quarantined=2, late=1),
            record("words", 1, rows_in=5, rows_out=5, expectations={"not_null(a)": 3, "paid": 0}),
            record("others", 0),
        ]
    )
    assert facts.flows == [
        FlowFacts("mine", "others", 1, 0, 0, 0, 0),
        FlowFacts("mine", "words", 2, 15, 13, 2, 1),
    ]
    assert facts.failed == {("mine", "words", "not_null(a)"): 3}
    page = quality(facts)
    assert "mine/words" in page
    assert "not_null(a)" in page
    assert "paid" not in page


def test_names_are_not_taken_for_markup() -> None:
    nasty = "<script>"
    facts = facts_of([record(nasty, 0, rows_in=1, expectations={nasty: 1})])
    assert nasty not in quality(facts)


def test_without_metrics_the_page_says_what_fills_them() -> None:
    assert "batch_metrics" in quality(Facts())
    facts = facts_of([record("words", 0, rows_in=1)])
    assert "failed an expectation" in quality(facts)
