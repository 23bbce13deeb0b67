"""The check of idempotent producers finds records that are at two offsets of a log."""

from __future__ import annotations

from tidelog.simulation.checks.duplicates import check
from tidelog.simulation.checks.group_history import Line


def read(who: str, partition: int, offset: int, value: str) -> Line:
    return Line(who, "read", "t", partition, offset, value)


def test_a_record_may_be_read_often_but_at_one_offset() -> None:
    lines = [read("m1", 0, 5, "n1"), read("m2", 0, 5, "n1"), read("m1", 1, 6, "n2"), read("m1", 0, 7, "n3")]
    assert check([*lines, Line("m1", "committed", "t", 0, 6, "n1")]) == []
    assert check([*lines, read("m2", 0, 9, "n1")]) == ["n1 is in t-0 at 5, 9"]
