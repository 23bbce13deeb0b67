"""The reader of OTLP metrics: what it reads, and that no bytes make it fail otherwise or run long."""

from __future__ import annotations

import random

import pytest

from tests.telemetry.protobuf import attribute, field, gauge, metrics_data, point, total, varint
from tidelog.errors import InvalidRecord
from tidelog.server.telemetry.otlp import MAX_FIELDS, MAX_POINTS, OtlpReader, Point


def points_of(*metrics: bytes) -> list[Point]:
    return OtlpReader(metrics_data(*metrics)).points()


def test_gauges_and_sums_with_their_attributes() -> None:
    assert points_of(
        gauge("a", point(1.5, attribute("topic", "t"), attribute("node", -7), attribute("ok", True))),
        total("b", point(3), delta=True),
        total("c", point(-4), point(5.0), delta=False),
    ) == [
        Point("a", (("node", "-7"), ("ok", "true"), ("topic", "t")), 1.5),
        Point("b", (), 3, True),
        Point("c", (), -4),
        Point("c", (), 5.0),
    ]


def test_points_that_cannot_be_shown_are_left_out() -> None:
    many = [attribute(f"k{n}", "v") for n in range(9)]
    assert (
        points_of(
            gauge("nan", point(float("nan")), point(float("inf"))),
            gauge("long", point(1, attribute("k", "v" * 257))),
            gauge("n" * 257, point(1)),
            gauge("", point(1)),
            gauge("many", point(1, *many)),
            gauge("nothing", field(1, b"")),
            field(2, field(1, b"histogram") + field(9, b"")),
        )
        == []
    )


@pytest.mark.parametrize(
    "data",
    [
        b"garbage",
        b"\x00\x00",
        b"\x0a",
        b"\x0a\x05\x00",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x0b",
        b"\x09\x00",
        b"\xff" * 12,
        metrics_data(gauge("x", point(1)))[:-1],
        metrics_data(field(2, field(1, b"\xff\xfe"))),
    ],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidRecord):
        OtlpReader(data).points()


def test_a_push_costs_a_bounded_number_of_steps() -> None:
    with pytest.raises(InvalidRecord, match="fields"):
        OtlpReader(field(1, b"") * (MAX_FIELDS + 1)).points()
    with pytest.raises(InvalidRecord, match="fields"):
        points_of(gauge("x", *[field(1, varint(9, 1) * MAX_FIELDS)]))
    with pytest.raises(InvalidRecord, match="metrics"):
        points_of(*[gauge("x", point(1))] * (MAX_POINTS + 1))


def test_no_bytes_make_it_fail_otherwise() -> None:
    chance = random.Random(714)
    whole = metrics_data(gauge("a", point(1.5, attribute("t", "x"))), total("b", point(3)))
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(data))
            data[at : at + chance.randrange(3)] = chance.randbytes(chance.randrange(4))
            data = data or bytearray(b"\0")
        try:
            OtlpReader(data).points()
        except InvalidRecord:
            pass
