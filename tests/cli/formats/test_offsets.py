"""The grammar of --offset: every form of rpk's, and what is wrong with others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.scale import scale
from tidelog.cli.formats.offsets import (
    END,
    START,
    Anchor,
    Bound,
    OffsetRange,
    Span,
    parse_offsets,
    resolve,
)
from tidelog.partitions import PartitionKey, TopicPartition

NOW = 1_700_000_000_000
HOUR = 3_600_000
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def at(offset: int) -> Bound:
    return Bound(Anchor.OFFSET, offset)


def when(ms: int) -> Bound:
    return Bound(Anchor.TIME, ms)


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("start", START, None),
        ("oldest", START, None),
        ("end", END, None),
        ("newest", END, None),
        (":end", START, END),
        ("+3", Bound(Anchor.START, 3), None),
        ("-3", Bound(Anchor.END, -3), None),
        ("-3:end", Bound(Anchor.END, -3), END),
        ("7", at(7), None),
        ("7:", at(7), None),
        (":7", START, at(7)),
        ("3:7", at(3), at(7)),
        ("3-7", at(3), at(7)),
        ("3:end", at(3), END),
        ("@1600000000000", when(1_600_000_000_000), None),
        ("@1600000000", when(1_600_000_000_000), None),
        ("@2020-09-13", when(1_599_955_200_000), None),
        ("@2020-09-13T12:26:40Z", when(1_600_000_000_000), None),
        ("@2020-09-13T12:26:40.250Z", when(1_600_000_000_250), None),
        ("@2020-09-13T14:26:40+02:00", when(1_600_000_000_000), None),
        ("@-1h", when(NOW - HOUR), None),
        ("@-1h:end", when(NOW - HOUR), END),
        ("@-1h30m:-30m", when(NOW - HOUR - HOUR // 2), when(NOW - HOUR // 2)),
        ("@-1d:", when(NOW - 24 * HOUR), None),
        ("@1600000000000:1h", when(1_600_000_000_000), when(1_600_000_000_000 + HOUR)),
        ("@2020-09-13:2020-09-14", when(1_599_955_200_000), when(1_600_041_600_000)),
        ("@2020-09-13T12:26:40Z:2020-09-13T13:26:40Z", when(1_600_000_000_000), when(1_600_003_600_000)),
        ("@2020-09-13:@2020-09-14", when(1_599_955_200_000), when(1_600_041_600_000)),
        ("@:-1h", START, when(NOW - HOUR)),
        ("@1.5s", when(NOW + 1500), None),
    ],
)
def test_a_form(text: str, start: Bound, end: Bound | None) -> None:
    assert parse_offsets(text, NOW) == OffsetRange(start, end)


@pytest.mark.parametrize(
    "text",
    [
        "", ":", "x", "7:3", "7:7", "1.5", "--3", "+-3", "@", "@end", "@x", "@1h:x", "@-1h:-2h", ":start",
        "@2020-13-01", "@2020-09-13T25:00:00Z", "@1600000000000:1600000000000:", "9" * 30, "@12345678",
    ],
)  # fmt: skip
def test_what_is_no_range_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="--offset"):
        parse_offsets(text, NOW)


@settings(max_examples=scale(20, 500), deadline=None)
@given(st.text(max_size=12))
def test_any_text_is_a_range_or_a_value_error(text: str) -> None:
    for each in (text, f"@{text}"):
        try:
            assert parse_offsets(each, NOW).start
        except ValueError:
            pass


@settings(max_examples=scale(20, 500), deadline=None)
@given(st.integers(0, 10**15), st.integers(1, 10**6))
def test_numbers_come_back(first: int, length: int) -> None:
    assert parse_offsets(f"{first}:{first + length}", NOW) == OffsetRange(at(first), at(first + length))


@dataclass
class Log:
    """Partitions with a record per millisecond: the one at offset n has timestamp n."""

    firsts: dict[TopicPartition, int]
    ends: dict[TopicPartition, int]

    def beginning_offsets(self, partitions: Iterable[PartitionKey]) -> dict[TopicPartition, int]:
        return dict(self.firsts)

    def end_offsets(self, partitions: Iterable[PartitionKey]) -> dict[TopicPartition, int]:
        return dict(self.ends)

    def offsets_for_times(self, timestamps: Mapping[PartitionKey, int]) -> Mapping[TopicPartition, object]:
        @dataclass
        class Found:
            offset: int

        return {
            TopicPartition(*name): Found(max(ms, self.firsts[name])) if ms < self.ends[name] else None  # type: ignore[index]
            for name, ms in timestamps.items()
        }


LOG = Log({P0: 10, P1: 0}, {P0: 20, P1: 5})


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (OffsetRange(START, END), {P0: Span(10, 20), P1: Span(0, 5)}),
        (OffsetRange(at(12), at(15)), {P0: Span(12, 15)}),
        (OffsetRange(at(2), at(15)), {P0: Span(10, 15), P1: Span(2, 5)}),
        (OffsetRange(Bound(Anchor.END, -3), END), {P0: Span(17, 20), P1: Span(2, 5)}),
        (OffsetRange(Bound(Anchor.END, -30), END), {P0: Span(10, 20), P1: Span(0, 5)}),
        (OffsetRange(Bound(Anchor.START, 2)), {P0: Span(12, None), P1: Span(2, None)}),
        (OffsetRange(when(3), when(12)), {P0: Span(10, 12), P1: Span(3, 5)}),
        (OffsetRange(when(50)), {P0: Span(20, None), P1: Span(5, None)}),
        (OffsetRange(at(100), END), {}),
        (OffsetRange(at(100)), {P0: Span(20, None), P1: Span(5, None)}),
    ],
)
def test_a_range_in_partitions(wanted: OffsetRange, found: dict[TopicPartition, Span]) -> None:
    assert resolve(LOG, [P0, P1], wanted) == found
