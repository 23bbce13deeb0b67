"""The grammar of `--offset`: where reading begins, and where it ends. The grammar is rpk's.

start, end           the first record; the records that come after now
+3, -3               3 after the first offset; 3 before the end
7, 7:, :7, 3:7       from, up to (without the record at 7), both
:end, -3:end, 7:end  up to the end that the partition has now
@TIME, @TIME:TIME    by the timestamps of the records; each TIME is a date, a moment or a duration, the second
                     one also with an @
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Protocol

from tidelog.partitions import PartitionKey, TopicPartition


class Anchor(Enum):
    """What the number of a bound counts from."""

    START = "start"
    END = "end"
    OFFSET = "offset"
    TIME = "time"


@dataclass(slots=True, frozen=True)
class Bound:
    """A place in every partition: an offset, a number of offsets after an anchor, or milliseconds."""

    anchor: Anchor
    value: int = 0


@dataclass(slots=True, frozen=True)
class OffsetRange:
    """What is read of every partition; without an end, reading goes on."""

    start: Bound
    end: Bound | None = None


START, END = Bound(Anchor.START), Bound(Anchor.END)
WORDS = {
    "start": START, "oldest": START, "earliest": START, "beginning": START,
    "end": END, "newest": END, "latest": END,
}  # fmt: skip
FIRST = re.compile(r"(?P<word>[a-z]+)|(?P<sign>[+-]?)(?P<number>\d+)")
LARGEST = (1 << 63) - 1

MOMENT = re.compile(
    r"(?P<day>\d{4}-\d{2}-\d{2})(?:[Tt ](?P<time>\d{2}:\d{2}:\d{2})(?P<fraction>\.\d{1,9})?"
    r"(?P<zone>[Zz]|[+-]\d{2}:\d{2}))?(?=:|$)"
)
EPOCH = re.compile(r"(?:(?P<ms>\d{13})|(?P<s>\d{9,10}))(?=:|$)")
DURATION = re.compile(r"(?P<sign>[+-]?)(?P<parts>(?:\d+(?:\.\d+)?(?:ns|us|µs|ms|[smhdw]))+)(?=:|$)")
DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|[smhdw])")
UNIT_MS = {
    "ns": 1e-6, "us": 1e-3, "µs": 1e-3, "ms": 1, "s": 1e3, "m": 6e4, "h": 3.6e6, "d": 8.64e7, "w": 6.048e8,
}  # fmt: skip


def parse_offsets(text: str, now_ms: int) -> OffsetRange:
    """The range of a text. Raises ValueError, which names the text and what is wrong with it."""
    try:
        found = _times(text[1:], now_ms) if text.startswith("@") else _offsets(text)
    except ValueError as error:
        raise ValueError(f"--offset {text}: {error}") from None
    first, last = found.start, found.end
    if last is not None and first.anchor is last.anchor is not Anchor.END and last.value <= first.value:
        raise ValueError(f"--offset {text}: the end is not after the start")
    return found


def _offsets(text: str) -> OffsetRange:
    first, colon, last = text.partition(":")
    if not colon and re.fullmatch(r"\d+-(\d+|end)", text):  # rpk's older form
        first, colon, last = text.partition("-")
    if not first and not last:
        raise ValueError("expected start, end, an offset, +N, -N, FROM:TO or @TIME")
    return OffsetRange(_bound(first) if first else START, _end(last) if last else None)


def _bound(text: str) -> Bound:
    found = FIRST.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no offset: expected start, end, N, +N or -N")
    if found["word"]:
        if found["word"] not in WORDS:
            raise ValueError(f"{text!r} is no offset: expected start, end, N, +N or -N")
        return WORDS[found["word"]]
    number = int(found["number"])
    if number > LARGEST:
        raise ValueError(f"{text} is larger than any offset")
    if found["sign"] == "+":
        return Bound(Anchor.START, number)
    if found["sign"] == "-":
        return Bound(Anchor.END, -number)
    return Bound(Anchor.OFFSET, number)


def _end(text: str) -> Bound:
    bound = _bound(text)
    if bound.anchor is Anchor.START and bound.value == 0:
        raise ValueError("a range cannot end at the start")
    return bound


def _times(text: str, now_ms: int) -> OffsetRange:
    start, base = START, now_ms
    if not text.startswith(":"):
        ms, length, is_moment = parse_time(text, now_ms)
        start, text = Bound(Anchor.TIME, ms), text[length:]
        base = ms if is_moment else now_ms  # a duration counts from the moment before it
    if text in ("", ":"):
        if start is START:
            raise ValueError("expected @TIME or @TIME:TIME")
        return OffsetRange(start)
    text = text[1:].removeprefix("@")
    if text == "end":
        return OffsetRange(start, END)
    ms, length, _ = parse_time(text, base)
    if length != len(text):
        raise ValueError(f"{text[length:]!r} follows the second time")
    return OffsetRange(start, Bound(Anchor.TIME, ms))


def parse_time(text: str, base_ms: int) -> tuple[int, int, bool]:
    """The milliseconds of the time that a text begins with, its length, and False for a duration."""
    if found := EPOCH.match(text):
        return int(found["ms"] or found["s"]) * (1 if found["ms"] else 1000), found.end(), True
    if found := MOMENT.match(text):
        return _moment_ms(found), found.end(), True
    if found := DURATION.match(text):
        total = sum(float(number) * UNIT_MS[unit] for number, unit in DURATION_PART.findall(found["parts"]))
        if total > LARGEST / 2:
            raise ValueError(f"{found.group()!r} is too long")
        return base_ms + round(-total if found["sign"] == "-" else total), found.end(), False
    raise ValueError(
        f"{text!r} is no time: expected 2026-01-31, 2026-01-31T12:00:00Z, milliseconds (13 digits), seconds "
        "(10 digits) or a duration such as -1h30m"
    )


def _moment_ms(found: re.Match[str]) -> int:
    zone = (found["zone"] or "Z").upper().replace("Z", "+00:00")
    try:
        moment = datetime.fromisoformat(f"{found['day']}T{found['time'] or '00:00:00'}{zone}")
    except ValueError as error:
        raise ValueError(f"{found.group()!r} is no moment: {error}") from None
    whole = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    return whole + int(float(found["fraction"] or 0) * 1000)


class OffsetSource(Protocol):
    """The calls of a consumer with which bounds become offsets."""

    def beginning_offsets(self, partitions: Iterable[PartitionKey]) -> dict[TopicPartition, int]: ...

    def end_offsets(self, partitions: Iterable[PartitionKey]) -> dict[TopicPartition, int]: ...

    def offsets_for_times(
        self, timestamps: Mapping[PartitionKey, int]
    ) -> Mapping[TopicPartition, object]: ...


@dataclass(slots=True, frozen=True)
class Span:
    """Offsets of one partition: from `start` to before `end`, without an end on and on."""

    start: int
    end: int | None


def resolve(
    source: OffsetSource, partitions: list[TopicPartition], wanted: OffsetRange
) -> dict[TopicPartition, Span]:
    """The offsets of a range in each partition; a partition without any of them is left out."""
    firsts, ends = source.beginning_offsets(partitions), source.end_offsets(partitions)

    def offsets(bound: Bound) -> dict[TopicPartition, int]:
        if bound.anchor is Anchor.TIME:
            times: dict[PartitionKey, int] = dict.fromkeys(partitions, bound.value)
            found = source.offsets_for_times(times)
            return {name: getattr(found.get(name), "offset", ends[name]) for name in partitions}
        bases = {Anchor.START: firsts, Anchor.END: ends}.get(bound.anchor)
        return {name: (bases[name] if bases else 0) + bound.value for name in partitions}

    starts = offsets(wanted.start)
    stops = None if wanted.end is None else offsets(wanted.end)
    found: dict[TopicPartition, Span] = {}
    for name in partitions:
        # An offset that no record has yet: reading begins at the end. Elsewhere the consumer would reset it.
        start = min(max(starts[name], firsts[name]), ends[name])
        stop = None if stops is None else min(stops[name], ends[name])
        if stop is None or start < stop:
            found[name] = Span(start, stop)
    return found
