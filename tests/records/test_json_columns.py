"""JSON values into columns: what is fine stands there as it was written, what is not stands as nulls."""

from __future__ import annotations

import json
import random
import struct
from array import array
from types import ModuleType

import pytest

from tests.support.scale import scale
from tidelog.records import _pure_json as pure
from tidelog.records._pure_json import Column, Field, JsonReader

compiled = pytest.importorskip("tidelog.records._json")
TWINS = [pytest.param(pure, id="pure"), pytest.param(compiled, id="compiled")]


def field(kind: int, name: str, *children: Field, required: bool = False, precision: int = 10) -> Field:
    return (kind, required, name.encode(), precision, 2, children)


def read(
    twin: ModuleType, fields: tuple[Field, ...], values: list[bytes | None]
) -> tuple[list[tuple[int, int, int]], list[Column]]:
    ends, data, bits = array("i", [0]), b"", bytearray((len(values) + 7) // 8)
    for row, value in enumerate(values):
        data += value or b""
        ends.append(len(data))
        if value is not None:
            bits[row >> 3] |= 1 << (row & 7)
    reader: JsonReader = twin.JsonReader(fields)
    errors = reader.read(memoryview(ends).cast("B"), data, bits, 0, len(values))
    found = [(rows, nulls, *(_bytes(part) for part in parts)) for rows, nulls, *parts in reader.take()]
    # Where a value is no JSON at all, it does not matter what else it is.
    return [(row, code, 0 if code == pure.SYNTAX else node) for row, code, node, _ in errors], found  # type: ignore[return-value]


def _bytes(part: object) -> bytes | None:
    return None if part is None else bytes(memoryview(part))  # type: ignore[arg-type]


def codes(twin: ModuleType, one: Field, *values: str) -> list[int]:
    errors, _ = read(twin, (one,), [f'{{"a":{value}}}'.encode() for value in values])
    found = {row: code for row, code, _ in errors}
    return [found.get(row, 0) for row in range(len(values))]


@pytest.mark.parametrize("twin", TWINS)
def test_values_stand_in_their_columns(twin: ModuleType) -> None:
    fields = (field(pure.INT64, "n"), field(pure.STRING, "s"), field(pure.BOOL, "b"))
    values = [b'{"n":-7,"s":"caf\xc3\xa9 \\n\\u00e9\\ud83d\\ude00","b":true}', b' { "b" : false } ', None]
    errors, (numbers, texts, truths) = read(twin, fields, values)
    assert errors == [(2, pure.NO_VALUE, 0)]
    assert numbers[:2] == (3, 2)
    assert numbers[4] == struct.pack("<qqq", -7, 0, 0)
    assert texts[4] == "café \né\U0001f600".encode()
    assert texts[3] == struct.pack("<4i", 0, 13, 13, 13)
    assert truths[2:] == (b"\x03", None, b"\x01")


@pytest.mark.parametrize("twin", TWINS)
def test_integers_are_whole_and_within_their_range(twin: ModuleType) -> None:
    fine, wrong, beyond, garbled = 0, pure.WRONG_TYPE, pure.OUT_OF_RANGE, pure.SYNTAX
    assert codes(twin, field(pure.INT8, "a"), "127", "-128", "128", "-129", "0", "-0") == [
        fine, fine, beyond, beyond, fine, fine,
    ]  # fmt: skip
    most, least = str(2**63 - 1), str(-(2**63))
    assert codes(
        twin,
        field(pure.INT64, "a"),
        most,
        least,
        str(2**63),
        "-" + str(2**63 + 1),
        "9" * 40,
        "1.0",
        "1e3",
        '"1"',
    ) == [fine, fine, beyond, beyond, beyond, wrong, wrong, wrong]
    assert codes(twin, field(pure.INT32, "a"), "01", "+1", "1.", "-", "--1", ".5", "0x1") == [garbled] * 7


@pytest.mark.parametrize("twin", TWINS)
def test_doubles_are_the_nearest(twin: ModuleType) -> None:
    chance = random.Random(7)
    texts = [
        "0.1",
        "1e22",
        "1e23",
        "123456789012345678",
        "5e-324",
        "1.7976931348623157e308",
        "-0.0",
        "9007199254740993",
    ]
    texts += [repr(struct.unpack("<d", chance.randbytes(8))[0]) for _ in range(300)]
    texts += [f"{chance.random():.{chance.randrange(1, 25)}f}" for _ in range(300)]
    texts = [text for text in texts if "n" not in text]
    errors, (column,) = read(twin, (field(pure.DOUBLE, "a"),), [f'{{"a":{text}}}'.encode() for text in texts])
    assert not errors
    assert column[4] == struct.pack(f"<{len(texts)}d", *map(float, texts))
    assert codes(twin, field(pure.DOUBLE, "a"), "1e400", "NaN", "Infinity", '"1"') == [
        pure.OUT_OF_RANGE, pure.SYNTAX, pure.SYNTAX, pure.WRONG_TYPE,
    ]  # fmt: skip
    assert codes(twin, field(pure.FLOAT, "a"), "3.4e38", "3.5e38") == [0, pure.OUT_OF_RANGE]


@pytest.mark.parametrize("twin", TWINS)
def test_decimals_are_never_rounded(twin: ModuleType) -> None:
    one = field(pure.DECIMAL, "a", precision=5)  # 5 digits, 2 of them behind the point
    values = ["1.25", '"-999.99"', "1.250", "12.5e1", "0.000", "0e99999", "1e-2", "100e-2"]
    errors, (column,) = read(twin, (one,), [f'{{"a":{value}}}'.encode() for value in values])
    assert not errors
    cents = [125, -99999, 125, 12500, 0, 0, 1, 100]
    assert column[4] == b"".join(number.to_bytes(16, "little", signed=True) for number in cents)
    beyond = pure.OUT_OF_RANGE
    assert codes(twin, one, "1.255", "1000", "1e99999", '"1,5"', '"x"', "true") == [
        beyond, beyond, beyond, pure.BAD_CONTENT, pure.BAD_CONTENT, pure.WRONG_TYPE,
    ]  # fmt: skip
    wide = (pure.DECIMAL, False, b"a", 38, 0, ())
    errors, (column,) = read(twin, (wide,), [b'{"a":' + b"9" * 38 + b"}", b'{"a":' + b"9" * 39 + b"}"])
    assert errors == [(1, beyond, 1)]
    assert int.from_bytes((column[4] or b"")[:16], "little") == 10**38 - 1


@pytest.mark.parametrize("twin", TWINS)
def test_times_and_dates_are_those_of_iso_8601(twin: ModuleType) -> None:
    hour = 3_600_000_000
    good = {
        '"1970-01-01T01:00:00Z"': hour,
        '"1970-01-01 01:00"': hour,
        '"1970-01-01T01:00:00.5+01:00"': 500_000,
        '"1969-12-31T23:59:59.999999999Z"': -1,
        '"1970-01-01T00:00:00-0100"': hour,
        '"1970-01-01T00:00:00+01"': -hour,
        '"2024-02-29"': 19782 * 24 * hour,
        '"9999-12-31T23:59:59.999999"': 253402300799999999,
    }
    values = [f'{{"a":{text}}}'.encode() for text in good]
    errors, (column,) = read(twin, (field(pure.TIMESTAMP, "a"),), values)
    assert not errors
    assert column[4] == struct.pack(f"<{len(good)}q", *good.values())
    bad = [
        *('"2023-02-29"', '"1970-13-01"', '"1970-01-01T24:00"', '"1970-01-01T00:00:60"', '"1970-01-01T"'),
        *('"1970-01-01T00:00:00 Z"', '"1970-01-01T00:00:00.Z"', '"0000-01-01"', '"1970-01-01T0:00"', '""'),
    ]
    assert codes(twin, field(pure.TIMESTAMP, "a"), *bad, "0") == [pure.BAD_CONTENT] * 10 + [pure.WRONG_TYPE]
    assert codes(twin, field(pure.LOCAL_TIMESTAMP, "a"), '"1970-01-01T01:00"', '"1970-01-01T01:00Z"') == [
        0, pure.BAD_CONTENT,
    ]  # fmt: skip
    errors, (column,) = read(
        twin, (field(pure.DATE, "a"),), [b'{"a":"2024-02-29"}', b'{"a":"2024-02-29T00"}']
    )
    assert errors == [(1, pure.BAD_CONTENT, 1)]
    assert column[4] == struct.pack("<ii", 19782, 0)


@pytest.mark.parametrize("twin", TWINS)
def test_a_bad_row_leaves_nothing_behind(twin: ModuleType) -> None:
    inner = field(pure.STRUCT, "item", field(pure.STRING, "x"), field(pure.BOOL, "y", required=True))
    fields = (field(pure.ARRAY, "list", inner), field(pure.STRING, "s", required=True))
    good = b'{"list":[{"x":"one","y":true},{"y":false}],"s":"t"}'
    for bad in (
        b'{"s":"u","list":[{"x":"two","y":true},{"x":"three"}]}',
        good[:-2],
        b'{"list":[{"y":true}]}',
    ):
        errors, columns = read(twin, fields, [good, bad, good])
        assert [row for row, _, _ in errors] == [1]
        assert columns[0][3] == struct.pack("<4i", 0, 2, 2, 4)
        assert columns[1][4] == b"tt"
        assert columns[3][4] == b"oneone"
        assert columns[4][4] == b"\x05"


@pytest.mark.parametrize("twin", TWINS)
def test_reasons_name_the_field(twin: ModuleType) -> None:
    fields = (
        field(pure.INT32, "n", required=True),
        field(pure.STRUCT, "in", field(pure.STRING, "s", required=True)),
        field(pure.MAP, "m", field(pure.STRING, "key", required=True), field(pure.INT32, "value")),
    )
    cases: dict[bytes, tuple[int, int]] = {
        b'{"n":null}': (pure.IS_NULL, 1),
        b"{}": (pure.MISSING, 1),
        b'{"n":1,"n":2}': (pure.TWICE, 1),
        b'{"n":1,"\\u006e":2}': (pure.TWICE, 1),
        b'{"n":1,"in":{}}': (pure.MISSING, 4),
        b'{"n":1,"in":{"s":[]}}': (pure.WRONG_TYPE, 4),
        b'{"n":1,"m":{"a":1,"b":2,"a":3}}': (pure.TWICE, 3),
        b'{"n":1,"m":{"a":"1"}}': (pure.WRONG_TYPE, 6),
        b"[1]": (pure.NO_OBJECT, 0),
        b'"text"': (pure.NO_OBJECT, 0),
        b"": (pure.SYNTAX, 0),
        b"  ": (pure.SYNTAX, 0),
        b'{"n":"x"': (pure.SYNTAX, 0),
        b'{"n":1} {}': (pure.SYNTAX, 0),
        b'{"n":1,}': (pure.SYNTAX, 0),
        b'{"n":1,"x":"\xff"}': (pure.SYNTAX, 0),
        b'{"n":1,"x":"\\ud800"}': (pure.SYNTAX, 0),
        b'{"n":1,"x":"\n"}': (pure.SYNTAX, 0),
        b'{"n":1,"x":' + b"[" * 200 + b"]" * 200 + b"}": (pure.TOO_DEEP, 0),
    }
    errors, _ = read(twin, fields, list(cases))
    assert [(code, node) for _, code, node in errors] == list(cases.values())


KINDS = [pure.BOOL, pure.INT8, pure.INT32, pure.INT64, pure.FLOAT, pure.DOUBLE, pure.STRING, pure.BINARY,
         pure.DATE, pure.TIMESTAMP, pure.DECIMAL]  # fmt: skip
TEXTS = [
    "",
    "a",
    "é\U0001f600",
    'quote " and \\',
    "x" * 40,
    "2024-02-29",
    "2024-02-29T01:02:03.5Z",
    "QUJD",
    "12.5",
]


def some_field(chance: random.Random, name: str, depth: int) -> Field:
    required = chance.random() < 0.3
    if depth < 3 and chance.random() < 0.35:
        kind = chance.choice([pure.ARRAY, pure.MAP, pure.STRUCT])
        if kind == pure.ARRAY:
            return field(kind, name, some_field(chance, "item", depth + 1), required=required)
        if kind == pure.MAP:
            key = field(pure.STRING, "key", required=True)
            return field(kind, name, key, some_field(chance, "value", depth + 1), required=required)
        children = [some_field(chance, f"f{i}", depth + 1) for i in range(chance.randrange(1, 4))]
        return field(kind, name, *children, required=required)
    return field(chance.choice(KINDS), name, required=required)


def some_value(chance: random.Random, one: Field) -> object:
    """Mostly one that fits."""
    kind, _, _, _, _, children = one
    if chance.random() < 0.05:
        return chance.choice([None, 1, -3.25, True, "text", [], {}, [1], {"a": None}, 2**70, 10**30])
    if kind == pure.STRUCT:
        pairs = [
            (child[2].decode(), some_value(chance, child)) for child in children if chance.random() < 0.95
        ]
        chance.shuffle(pairs)
        return dict(pairs)
    if kind == pure.ARRAY:
        return [some_value(chance, children[0]) for _ in range(chance.randrange(4))]
    if kind == pure.MAP:
        return {chance.choice(TEXTS): some_value(chance, children[1]) for _ in range(chance.randrange(4))}
    if kind == pure.BOOL:
        return chance.random() < 0.5
    if kind in (pure.FLOAT, pure.DOUBLE, pure.DECIMAL):
        return chance.choice([0, 1.5, -2.25, 12345, 1e10, 0.125])
    if kind in (pure.INT8, pure.INT32, pure.INT64):
        return chance.randrange(-130, 130)
    fitting = {pure.DATE: "2024-02-29", pure.TIMESTAMP: "2024-02-29T01:02:03.5Z", pure.BINARY: "QUJD"}
    return fitting.get(kind, chance.choice(TEXTS))


def some_bytes(chance: random.Random, value: object) -> bytes:
    text = json.dumps(
        value, ensure_ascii=chance.random() < 0.5, separators=chance.choice([(",", ":"), (" , ", ": ")])
    )
    raw = bytearray(text.encode())
    if chance.random() < 0.1 and raw:
        at = chance.randrange(len(raw))
        chance.choice(
            [lambda: raw.pop(at), lambda: raw.insert(at, chance.randrange(256)), lambda: raw.reverse()]
        )()
    return bytes(raw)


def test_both_twins_read_the_same() -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    for _ in range(scale(150, 5000)):
        fields = tuple(some_field(chance, f"c{i}", 0) for i in range(chance.randrange(1, 6)))
        whole = field(pure.STRUCT, "", *fields)
        values = [some_bytes(chance, some_value(chance, whole)) for _ in range(30)]
        left, right = read(pure, fields, values), read(compiled, fields, values)
        assert left[0] == right[0], f"seed {seed}: {fields} {values}"
        assert left[1] == right[1], f"seed {seed}: {fields} {values}"
