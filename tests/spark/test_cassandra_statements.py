"""The inserts into Cassandra, without a server: the driver's own statements bind them."""

from __future__ import annotations

from datetime import date

import pyarrow as pa
import pytest

from tests.spark.collected import example
from tidelog.spark.pipelines.cassandra import Target, columns_of, prepared, rows_for, tables_of
from tidelog.spark.pipelines.collect import PIPELINE
from tidelog.spark.pipelines.events import CREDITS
from tidelog.spark.pipelines.settings import resolve

query = pytest.importorskip("cassandra.query")
protocol = pytest.importorskip("cassandra.protocol")
cqltypes = pytest.importorskip("cassandra.cqltypes")

TYPES = {"STRING": cqltypes.UTF8Type, "LONG": cqltypes.LongType, "INT": cqltypes.Int32Type}


class Preparing:
    """The part of the driver's session that prepares statements, as the answer of a server would."""

    def execute(self, text: str) -> list[tuple[str, str]]:
        return []

    def prepare(self, text: str):  # type: ignore[no-untyped-def]  # the driver has no types
        kinds = {"kind": cqltypes.UTF8Type, "day": cqltypes.SimpleDateType}
        kinds |= {field.name: TYPES[field.kind.name] for field in CREDITS.fields}
        columns = [
            protocol.ColumnMetadata("ks", "events", name, kinds[name]) for name in columns_of(CREDITS)
        ]
        return query.PreparedStatement(columns, b"id", [], text, "ks", 4, [], None)


def credits(**fields: object) -> pa.RecordBatch:
    event = {**example(CREDITS), **fields, "day": date(2026, 11, 13)}
    return pa.RecordBatch.from_pylist([{name: event[name] for name in (*CREDITS.names, "day")}])


def test_a_missing_field_is_left_unset_and_makes_no_tombstone() -> None:
    target = Target.of(resolve([PIPELINE], {})["collect"])
    statement = prepared(Preparing(), "events_by_user", CREDITS, target)
    [row] = rows_for("events_by_user", CREDITS, credits(ad_id=None))
    values = dict(zip(columns_of(CREDITS), statement.bind(row).values, strict=True))  # type: ignore[attr-defined]
    assert values["ad_id"] is query.UNSET_VALUE
    assert None not in values.values()
    assert values["user_id"] == b"x"


def test_an_event_without_the_subject_of_a_table_is_not_in_it() -> None:
    assert "events_by_ad" in tables_of(CREDITS)
    assert rows_for("events_by_ad", CREDITS, credits(ad_id=None)) == []
    assert len(rows_for("events_by_ad", CREDITS, credits(ad_id="ad-1"))) == 1


def test_the_driver_may_send_an_insert_again() -> None:
    target = Target.of(resolve([PIPELINE], {})["collect"])
    for table in tables_of(CREDITS):
        statement = prepared(Preparing(), table, CREDITS, target)
        [row] = rows_for(table, CREDITS, credits())
        assert statement.bind(row).is_idempotent  # type: ignore[attr-defined]
