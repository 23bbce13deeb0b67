"""Events have declared fields and versions; what is wrong with a bad one is said in words."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidelog.spark.pipelines.events import ENVELOPE, EVENTS, LOGINS, EventSchema, Field, Kind, reference

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCS = Path(__file__).parents[2] / "docs" / "events.md"

LOGIN: dict[str, object] = {
    "event_id": "e1",
    "version": 1,
    "ts": 1_790_000_000_000,
    "user_id": "u1",
    "device_id": "d1",
    "ip": "10.0.0.1",
    "method": "code",
}
NEXT = EventSchema(
    LOGINS.topic,
    LOGINS.table,
    "",
    (*LOGINS.fields, Field("app", Kind.STRING, "The app.", since=2)),
    version=2,
)


def test_there_are_nine_kinds_with_a_common_envelope_and_tables_of_their_own() -> None:
    assert len(EVENTS) == 9
    assert all(schema.fields[: len(ENVELOPE)] == ENVELOPE for schema in EVENTS.values())
    assert all(schema.topic == topic for topic, schema in EVENTS.items())
    assert len({schema.table for schema in EVENTS.values()}) == 9


def test_a_good_event_has_nothing_wrong() -> None:
    assert LOGINS.check(LOGIN) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ts": "soon"}, "field ts: expected long, found string"),
        ({"ts": 1.5}, "field ts: expected long, found a fraction"),
        ({"ts": True}, "field ts: expected long, found boolean"),
        ({"ts": 1 << 63}, "field ts: expected long, found the number 9223372036854775808"),
        ({"ts": -1}, "field ts: -1 is not a time; expected milliseconds since 1970, 0 to 253402300799999"),
        ({"version": 1 << 31}, "field version: expected int, found the number 2147483648"),
        ({"user_id": None}, "field user_id is missing"),
        ({"method": 7}, "field method: expected string, found the number 7"),
        ({"method": ["code"]}, "field method: expected string, found array"),
        ({"version": 0}, "version 0 is unknown: ml_user_login_log is read in versions 1 to 99"),
        ({"version": 100}, "version 100 is unknown: ml_user_login_log is read in versions 1 to 99"),
    ],
)
def test_a_bad_event_is_named_with_its_reason(changes: dict[str, object], reason: str) -> None:
    assert LOGINS.check({**LOGIN, **changes}) == reason


@pytest.mark.parametrize(
    ("value", "found"), [([], "array"), ("{}", "string"), (None, "null"), (3, "the number 3")]
)
def test_what_is_no_object_is_no_event(value: object, found: str) -> None:
    assert LOGINS.check(value) == f"expected a JSON object, found {found}"


def test_a_nullable_field_may_be_missing() -> None:
    credit = {**LOGIN, "amount": -5, "reason": "adjust"}
    assert EVENTS["ml_obtain_credit_log"].check(credit) is None
    assert EVENTS["ml_obtain_credit_log"].check({**credit, "ad_id": None}) is None


def test_readers_of_the_first_version_take_later_events_and_readers_of_the_second_take_earlier_ones() -> None:
    later = {**LOGIN, "version": 2, "app": "lock"}
    assert LOGINS.check(later) is None
    assert NEXT.check(later) is None
    assert NEXT.check(LOGIN) is None
    assert NEXT.check({**later, "app": 3}) == "field app: expected string, found the number 3"


def test_the_schema_in_sql_and_in_types_are_the_same(spark: SparkSession) -> None:
    from pyspark.sql.types import StructType

    for schema in (*EVENTS.values(), NEXT):
        assert StructType.fromDDL(schema.ddl()) == schema.spark_schema()
    assert not LOGINS.spark_schema()["ts"].nullable
    assert NEXT.spark_schema()["app"].nullable


def test_spark_finds_what_is_wrong_beyond_types_in_the_same_words(spark: SparkSession) -> None:
    changes: list[dict[str, object]] = [{}, {"version": 0}, {"version": 99}, {"version": 400}, {"ts": -1}]
    logins = [{**LOGIN, **change} for change in [*changes, {"ts": 253_402_300_800_000}]]
    rows = spark.createDataFrame([tuple(each.values()) for each in logins], LOGINS.spark_schema())
    found = [row[0] for row in rows.select(LOGINS.spark_error()).collect()]
    assert found == [LOGINS.check(login) for login in logins]
    assert [reason is None for reason in found] == [True, False, True, False, False, False]


def test_importing_events_generator_and_detectors_imports_no_spark() -> None:
    code = (
        "import sys, tidelog.spark.pipelines.events, tidelog.spark.pipelines.generator_writer, "
        "tidelog.spark.pipelines.device_watch, tidelog.spark.pipelines.invite_watch; "
        "assert 'pyspark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_documentation_has_every_field() -> None:
    assert reference() in DOCS.read_text()


def test_an_event_of_the_documentation_is_a_good_one() -> None:
    text = DOCS.read_text()
    example = json.loads(text[text.index("```json") + 7 :].split("```")[0])
    assert EVENTS["ml_ad_left_slide_log"].check(example) is None
