"""Columns, conditions and JSON values: what rows are made of, and what is said of what cannot be."""

from __future__ import annotations

import datetime
import json
import pickle
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tidelog.spark.ddl import SchemaError, parse_schema
from tidelog.spark.rows import arrow_schema
from tidelog.spark.values import BadValue, FormatError, parse


def source(values: list[bytes | None], **more: list[object]) -> dict[str, pa.Array]:
    rows = len(values)
    return {
        "value": pa.array(values, pa.binary()),
        "topic": pa.array(["t"] * rows, pa.string()),
        "partition": pa.array([3] * rows, pa.int32()),
        "offset": pa.array(range(10, 10 + rows), pa.int64()),
        "timestamp": pa.array(more.get("timestamp", [0] * rows), pa.timestamp("us", "UTC")),
    }


def rows_of(
    options: dict[str, str], values: list[bytes | None], **more: list[object]
) -> list[dict[str, object]]:
    found = pickle.loads(pickle.dumps(parse(options)))
    batch = found.prepared().batch(source(values, **more), len(values))
    if batch is None:
        return []
    batch.validate(full=True)
    assert batch.schema.equals(arrow_schema(found.schema())), "Spark takes nothing else"
    return list(batch.to_pylist())


def of_json(schema: str, *values: object, **options: str) -> list[dict[str, object]]:
    raw = [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values]
    return rows_of({"valueFormat": "json", "valueSchema": schema, **options}, list(raw))


def test_rows_have_the_columns_of_the_kafka_connector() -> None:
    assert parse({}).schema().names == [
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType",
    ]  # fmt: skip
    assert parse({"includeHeaders": "true"}).schema().names[-1] == "headers"


def test_only_the_columns_that_are_named_are_made() -> None:
    found = parse({"COLUMNS": "offset, Topic"})
    assert found.schema().names == ["offset", "topic"]
    assert found.prepared().needed == {"offset", "topic"}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"columns": "offset,ofset"}, "'ofset' is not one of key, value"),
        ({"columns": "offset,offset"}, "offset is named twice"),
        ({"includeHeaders": "ja"}, "expected true or false"),
        ({"valueFormat": "avro"}, "expected json"),
        ({"valueFormat": "json"}, "needs valueSchema"),
        ({"valueCheck": "n > 0"}, "needs valueFormat=json"),
        ({"valueFormat": "json", "valueSchema": "n INT", "valueCheck": "offset > 0"}, "valueCheck"),
        ({"valueSchema": "a INT"}, "needs valueFormat=json"),
        ({"valueFormat": "json", "valueSchema": "a INT", "valueMode": "LAX"}, "expected one of PERMISSIVE"),
        (
            {"valueFormat": "json", "valueSchema": "topic STRING", "columns": "topic"},
            "column topic occurs twice",
        ),
        (
            {"valueFormat": "json", "valueSchema": "a INTERVALL"},
            "expected a type at position 3, found 'INTERVALL'",
        ),
        ({"valueTime": "n"}, "needs valueFormat=json"),
        (
            {"valueFormat": "json", "valueSchema": "n INT", "valueTime": "n"},
            "expected a BIGINT of valueSchema",
        ),
        (
            {"valueFormat": "json", "valueSchema": "n BIGINT", "valueTime": "m"},
            "expected a BIGINT of valueSch",
        ),
        (
            {"valueFormat": "json", "valueSchema": "n BIGINT", "valueTimeAheadMs": "5"},
            "needs valueTime beside it",
        ),
        (
            {"valueFormat": "json", "valueSchema": "n BIGINT", "valueTime": "n", "valueTimeAheadMs": "-5"},
            "expected a number of milliseconds",
        ),
        ({"valueFormat": "json", "valueSchema": "a MAP<INT, INT>"}, "the keys of a map in JSON are strings"),
    ],
)
def test_an_option_that_cannot_be_used_says_why(options: dict[str, str], reason: str) -> None:
    with pytest.raises(FormatError, match=reason.replace("(", r"\(")):
        parse(options)


def test_schemas_are_read_from_ddl_and_from_json() -> None:
    expected = StructType(
        [
            StructField("id", StringType(), False),
            StructField("n", LongType(), True, {"comment": "how many"}),
            StructField("price", DecimalType(12, 2)),
            StructField("at", TimestampType()),
            StructField("local", TimestampNTZType()),
            StructField("day", DateType()),
            StructField("odd name", ArrayType(StructType([StructField("x", IntegerType(), False)]))),
            StructField("m", MapType(StringType(), ArrayType(BooleanType()))),
            StructField("raw", BinaryType()),
        ]
    )
    text = (
        "id string NOT NULL, n BIGINT COMMENT 'how many', price DECIMAL(12, 2), at timestamp,"
        " local: timestamp_ntz, day DATE, `odd name` ARRAY<STRUCT<x: INT NOT NULL>>,"
        " m MAP<STRING, ARRAY<BOOLEAN>>, raw BINARY"
    )
    assert parse_schema(text) == expected
    assert parse_schema(expected.json()) == expected
    assert parse_schema("struct<a:int,b:string>").names == ["a", "b"]
    for bad in (
        "",
        "a",
        "a INT,",
        "a INT b INT",
        "a ARRAY<INT",
        "a DECIMAL(50)",
        "a INT, a INT",
        "1 INT",
        "{]",
    ):
        with pytest.raises(SchemaError):
            parse_schema(bad)


def test_json_values_become_typed_columns() -> None:
    schema = (
        "big BIGINT, small TINYINT, price DECIMAL(20,3), at TIMESTAMP, day DATE, ok BOOLEAN, raw BINARY,"
        " ratio DOUBLE, tags ARRAY<STRING>, attrs MAP<STRING, STRUCT<n: INT, s: STRING>>,"
        " inner STRUCT<a: ARRAY<BIGINT>, b: STRING>"
    )
    value = {
        "big": 2**53 + 1,
        "small": -128,
        "at": "2026-01-31T12:00:00.123456+02:00",
        "day": "2026-01-31",
        "ok": True,
        "raw": "AAH/",
        "ratio": 0.1,
        "tags": ["a", None, "ü"],
        "attrs": {"x": {"n": 1, "s": "one"}, "y": None},
        "inner": {"a": [1, 2, 2**40], "b": None},
        "unknown": [{"deep": 1}],
    }
    text = json.dumps(value)[:-1] + ', "price": 12345678901234567.891}'
    (row, empty) = of_json(schema, text.encode(), {})
    assert row == {
        "big": 2**53 + 1,
        "small": -128,
        "price": Decimal("12345678901234567.891"),
        "at": datetime.datetime(2026, 1, 31, 10, 0, 0, 123456, tzinfo=datetime.UTC),
        "day": datetime.date(2026, 1, 31),
        "ok": True,
        "raw": b"\x00\x01\xff",
        "ratio": 0.1,
        "tags": ["a", None, "ü"],
        "attrs": [("x", {"n": 1, "s": "one"}), ("y", None)],
        "inner": {"a": [1, 2, 2**40], "b": None},
        "_error": None,
        "_raw": None,
    }
    assert set(empty.values()) == {None}


def test_a_bad_value_is_marked_and_the_others_are_read() -> None:
    schema = "id STRING NOT NULL, n INT, inner STRUCT<at: TIMESTAMP NOT NULL>"
    good = {"id": "a", "n": 1}
    bad: dict[bytes | None, str] = {
        b'{"id":"x","n":"1"}': "field n: expected int, found a string",
        b'{"id":"x","n":1.5}': "field n: expected int, found a number with a fraction or an exponent",
        b'{"id":"x","n":3000000000}': "field n: the number does not fit int",
        b'{"n":1}': "field id is missing, and it is required",
        b'{"id":null}': "field id is null, and it is required",
        b'{"id":"x","id":"y"}': "field id occurs twice",
        b'{"id":"x","inner":{}}': "field inner.at is missing, and it is required",
        b'{"id":"x","inner":{"at":"soon"}}': "field inner.at: expected a time such as 2026-01-31T12:00:00Z",
        b'{"id":"x"': "the value is not valid JSON, from byte 9 on",
        b"\xff\xfe": "the value is not valid JSON, from byte 0 on",
        b"[]": "the value is JSON, but not an object",
        b"": "the value is empty where a JSON object is expected",
        None: "the value is null where a JSON object is expected",
    }
    text = json.dumps(good).encode()
    values = [piece for value in bad for piece in (text, value)]
    found = rows_of({"valueFormat": "json", "valueSchema": schema, "columns": "offset"}, values)
    assert [row["_error"] for row in found[1::2]] == list(bad.values())
    assert [row["_raw"] for row in found[1::2]] == list(bad)
    assert {row["id"] for row in found[1::2]} == {None}
    assert all(row["id"] == "a" and row["_error"] is None and row["_raw"] is None for row in found[::2])
    assert [row["offset"] for row in found] == list(range(10, 10 + len(values)))


def test_bad_values_in_a_slice_of_a_larger_array_keep_their_bytes() -> None:
    """PyArrow's `if_else` makes an array that is not valid of a slice and a null."""
    values = pa.array([b'{"id": "before"}', *([b"no json at all", b'{"id": "a"}'] * 20)]).slice(1)
    options = {"valueFormat": "json", "valueSchema": "id STRING"}
    batch = parse(options).prepared().batch({"value": values}, len(values))
    assert batch is not None
    batch.validate(full=True)
    assert batch["id"].to_pylist() == [None, "a"] * 20
    assert batch["_raw"].to_pylist() == [b"no json at all", None] * 20


def test_bad_values_are_dropped_or_fail_the_read_where_asked() -> None:
    values = ({"n": 1}, b"no", {"n": 3})
    dropped = of_json("n INT", *values, valueMode="dropmalformed", columns="offset")
    assert dropped == [{"n": 1, "offset": 10}, {"n": 3, "offset": 12}]
    assert of_json("n INT", *values[::2], valueMode="FAILFAST") == [{"n": 1}, {"n": 3}]
    with pytest.raises(BadValue, match=r"t-3 at offset 11: the value is not valid JSON"):
        of_json("n INT", *values, valueMode="FAILFAST")
    assert of_json("n INT", b"no", valueMode="DROPMALFORMED") == []


def test_values_that_do_not_fulfil_the_check_are_bad_and_keep_their_fields() -> None:
    values = ({"n": 1}, b"no", {"n": -3}, {}, {"n": 5})
    found = of_json("n INT", *values, valueCheck="n > 0")
    assert [row["n"] for row in found] == [1, None, -3, None, 5]
    assert [row["_error"] for row in found] == [
        None,
        "the value is not valid JSON, from byte 0 on",
        "the value does not satisfy n > 0",
        "the value does not satisfy n > 0",
        None,
    ]
    assert [row["_raw"] for row in found] == [None, b"no", b'{"n": -3}', b"{}", None]
    assert of_json("n INT", *values, valueCheck="n > 0", valueMode="DROPMALFORMED") == [{"n": 1}, {"n": 5}]
    with pytest.raises(BadValue, match="t-3 at offset 11: the value does not satisfy n > 0"):
        of_json("n INT", values[0], values[2], valueCheck="n > 0", valueMode="FAILFAST")


YEAR_2099 = 4_070_908_800_000


def test_a_value_that_is_ahead_of_its_record_is_bad_and_keeps_its_fields() -> None:
    options = {"valueFormat": "json", "valueSchema": "n BIGINT", "valueTime": "n", "columns": "offset"}
    values = [f'{{"n": {n}}}'.encode() for n in (7_200_000, 7_200_001, 0, YEAR_2099, 5)]
    values += [b"no", b'{"n": null}', f'{{"n": {YEAR_2099}}}'.encode()]
    micros: list[object] = [3_600_000_000] * 7
    found = rows_of(options, values, timestamp=[*micros, YEAR_2099 * 1_000])
    assert [row["n"] for row in found] == [7_200_000, 7_200_001, 0, YEAR_2099, 5, None, None, YEAR_2099]
    assert [row["_error"] for row in found[:-1]] == [
        None,
        "field n: 7200001 is more than 60 minutes ahead of its record (3600000)",
        None,
        f"field n: {YEAR_2099} is more than 60 minutes ahead of its record (3600000)",
        None,
        "the value is not valid JSON, from byte 0 on",
        None,
    ]
    reason = str(found[-1]["_error"])
    assert reason.startswith(f"field n: {YEAR_2099} is more than 60 minutes ahead of its record (1")
    assert [row["_raw"] for row in found if row["_error"]] == [values[at] for at in (1, 3, 5, 7)]
    kept = rows_of({**options, "valueMode": "DROPMALFORMED"}, values, timestamp=[*micros, -1_000])
    assert [row["offset"] for row in kept] == [10, 12, 14, 16]


def test_how_far_ahead_a_value_may_be_is_an_option() -> None:
    limits = {"valueTime": "n", "valueTimeAheadMs": "1500", "valueCheck": "n < 5000"}
    options = {"valueFormat": "json", "valueSchema": "n BIGINT", **limits}
    values = [f'{{"n": {n}}}'.encode() for n in (1_500, 1_501, 5_000)]
    found = [row["_error"] for row in rows_of(options, list(values))]
    ahead = "field n: 1501 is more than 1500 ms ahead of its record (0)"
    assert found == [None, ahead, "the value does not satisfy n < 5000"]


def test_a_check_that_nulls_fulfil_does_not_make_bad_values_good() -> None:
    found = of_json("n INT", b"no", {"n": 1}, {}, valueCheck="n IS NULL")
    assert [row["_error"] for row in found] == [
        "the value is not valid JSON, from byte 0 on",
        "the value does not satisfy n IS NULL",
        None,
    ]


ROWS: list[dict[str, object]] = [
    {"n": 1, "s": "apple", "ok": True, "in": {"d": "2026-01-01"}},
    {"n": 2, "s": "avocado", "ok": False, "in": {"d": None}},
    {"n": 3, "s": None, "ok": None, "in": {"d": "2026-02-01"}},
]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("n > 1", [2, 3]),
        ("1 < n", [2, 3]),
        ("n >= 1.5", [2, 3]),
        ("n <> 2 AND n != 3", [1]),
        ("n = 1 OR n == 3", [1, 3]),
        ("NOT n = 1", [2, 3]),
        ("n IN (1, 3, 99)", [1, 3]),
        ("n NOT IN (1, 3)", [2]),
        ("n BETWEEN 2 AND 3", [2, 3]),
        ("s LIKE 'a%o'", [2]),
        ("s LIKE 'app%'", [1]),
        ("s NOT LIKE 'app%'", [2]),
        ("s IS NULL", [3]),
        ("s is not null and (n = 1 or n = 2)", [1, 2]),
        ("s <> 'apple'", [2]),
        ("s = 'it''s'", []),
        ("ok", [1]),
        ("NOT ok", [2]),
        ("ok = FALSE", [2]),
        ("in.d > '2026-01-15'", [3]),
        ("`in`.`d` = DATE '2026-01-01'", [1]),
        ("offset < 12", [1, 2]),
        ("offset < 12 AND topic = 't' AND n = 2", [2]),
        ("timestamp >= TIMESTAMP '1970-01-01T00:00:00Z'", [1, 2, 3]),
        ("timestamp > '1970-01-01'", []),
        ("_error IS NULL", [1, 2, 3]),
        ("NOT NOT n=1", [1]),
    ],
)
def test_conditions_are_those_of_sql(condition: str, expected: list[int]) -> None:
    schema = "n INT, s STRING, ok BOOLEAN, `in` STRUCT<d: DATE>"
    assert [row["n"] for row in of_json(schema, *ROWS, filter=condition)] == expected


def test_bad_rows_can_be_kept_beside_a_condition() -> None:
    found = of_json("n INT", {"n": 1}, b"no", {"n": 5}, filter="n > 1 OR _error IS NOT NULL")
    assert [row["n"] for row in found] == [None, 5]


def test_a_condition_on_the_source_alone_is_tried_before_values_are_read() -> None:
    found = of_json("n INT", {"n": 1}, b"no", {"n": 5}, filter="offset <> 11", valueMode="FAILFAST")
    assert [row["n"] for row in found] == [1, 5]
    assert rows_of({"columns": "offset", "filter": "partition = 3 AND offset > 10"}, [b"a", b"b"]) == [
        {"offset": 11}
    ]


def test_a_field_of_a_value_hides_the_column_of_the_source() -> None:
    found = of_json("offset INT", {"offset": 1}, {"offset": 2}, filter="offset = 2")
    assert [row["offset"] for row in found] == [2]


def test_a_condition_beside_dropped_rows_looks_at_the_right_ones() -> None:
    found = of_json(
        "n INT", b"no", {"n": 1}, {"n": 2}, valueMode="DROPMALFORMED", filter="n > 0 AND offset = 12"
    )
    assert found == [{"n": 2}]


@pytest.mark.parametrize(
    ("condition", "place", "reason"),
    [
        ("n >", 4, "expected a literal"),
        ("n > 'a'", 5, "cannot be compared with 'a'"),
        ("m = 1", 1, "column m cannot be used; expected one of _error, n, offset"),
        ("value = 'x'", 1, "column value cannot be used"),
        ("n = 1 n = 2", 7, "expected AND, OR or the end"),
        ("(n = 1", 7, r"expected \)"),
        ("n = 1; DROP", 6, "unexpected ';'"),
        ("n = NULL", 5, "use IS NULL"),
        ("n LIKE 'a%'", 1, "LIKE needs a column of strings"),
        ("n = __import__('os')", 5, "expected a literal"),
        ("timestamp > 'soon'", 13, "is not a value of type timestamp"),
        ("n", 2, "expected a comparison"),
        ("(" * 200, 101, "nested deeper"),
    ],
)
def test_a_condition_that_is_none_shows_the_place(condition: str, place: int, reason: str) -> None:
    with pytest.raises(FormatError, match=reason) as caught:
        parse({"valueFormat": "json", "valueSchema": "n INT", "filter": condition})
    assert f"at position {place}:" in str(caught.value)
