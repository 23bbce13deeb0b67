"""Small plots in SVG: columns over time, columns around a line, a distribution, a bar in a table's cell.

Colours come from the page's style (`.c0` to `.c7`), so one plot works in light and dark mode. All text from
outside is escaped here. Each plot is made twice, for a wide window and for a phone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

MINUTE = 60
HOUR = 60 * MINUTE
DAY = 24 * HOUR
LAST_SECOND = 253_402_300_799  # the end of the year 9999, where Python's calendar ends
TIME_STEPS = (
    *(minutes * MINUTE for minutes in (1, 2, 3, 5, 10, 15, 20, 30)),
    *(hours * HOUR for hours in (1, 2, 3, 6, 12)),
    *(days * DAY for days in (1, 2, 7, 14, 28, 91, 182, 364)),
)
"""Round numbers of seconds for the marks of a time axis and the widths of columns."""


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a plot, and the number of columns and marks that fit in it."""

    name: str
    width: int
    height: int
    columns: int
    ticks: int


WIDE = Size("wide", 920, 280, 120, 8)
NARROW = Size("narrow", 360, 240, 45, 4)
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 20, 38


@dataclass(frozen=True, slots=True)
class Series:
    """One series: a number for every column, and the index of its colour in the palette."""

    name: str
    colour: int
    values: Sequence[float]


def number(value: float) -> str:
    """1234567 -> 1,234,567; below ten with two significant digits."""
    if value == int(value):
        return f"{int(value):,}"
    if abs(value) < 10:
        return f"{value:.2g}"
    return f"{value:,.0f}"


def short(value: float) -> str:
    """A number for an axis: 1500 -> 1.5k, 2000000 -> 2M."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def nice_step(span: float, count: int) -> float:
    """The 1, 2 or 5 times a power of ten that divides `span` into at most `count` parts."""
    raw = span / max(1, count)
    power = float(10 ** math.floor(math.log10(raw)))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)


def ticks(low: float, high: float, count: int = 6) -> list[float]:
    """Round numbers from at most `low` to at least `high`, with zero if it lies between them."""
    least = max(1.0, abs(low), abs(high)) * 1e-9  # closer together, floats cannot tell the marks apart
    if high - low < least:
        high = low + max(1.0, least)
    step = nice_step(high - low, count)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [place * step for place in range(first, last + 1)]


def time_step(span: int, count: int) -> int:
    """The width in seconds of columns, so that at most `count` of them cover `span` seconds."""
    for step in TIME_STEPS:
        if span <= step * count:
            return step
    return TIME_STEPS[-1] * math.ceil(span / (TIME_STEPS[-1] * count))


def clock(second: int, step: int) -> str:
    """A time as a mark on an axis whose marks are `step` seconds apart."""
    moment = datetime.fromtimestamp(min(second, LAST_SECOND), UTC)
    if step >= DAY:
        return moment.strftime("%-d %b")
    if step >= HOUR and moment.hour == 0 and moment.minute == 0:
        return moment.strftime("%-d %b")
    return moment.strftime("%H:%M")


def moment(second: float) -> str:
    return datetime.fromtimestamp(min(second, LAST_SECOND), UTC).strftime("%Y-%m-%d %H:%M")


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps a value to a coordinate."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def _document(size: Size, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg class="plot {size.name}" viewBox="0 0 {size.width} {size.height}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )


def _rect(x: float, y: float, width: float, height: float, style: str, tip: str = "") -> str:
    title = f"<title>{escape(tip)}</title>" if tip else ""
    return (
        f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" '
        f'height="{max(0.0, height):.1f}">{title}</rect>'
    )


def _text(x: float, y: float, text: str, style: str, anchor: str = "middle") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _value_axis(size: Size, scale: Scale, marks: Sequence[float], label: str) -> list[str]:
    parts = [_text(2, 11, label, "label", "start")]
    for mark in marks:
        y = scale(mark)
        parts.append(_line(LEFT, y, size.width - RIGHT, y, "zero" if mark == 0 else "grid"))
        parts.append(_text(LEFT - 7, y + 4, short(abs(mark)), "tick", "end"))
    return parts


def _time_axis(size: Size, scale: Scale, first: int, last: int) -> list[str]:
    step = time_step(last - first, size.ticks)
    bottom = size.height - BOTTOM
    parts = []
    for second in range(-(-first // step) * step, last + 1, step):
        x = scale(second)
        near_the_edge = x > size.width - RIGHT - 10
        parts.append(_line(x, bottom, x, bottom + 5, "zero"))
        parts.append(_text(x, bottom + 18, clock(second, step), "tick", "end" if near_the_edge else "middle"))
    same_day = first // DAY == (last - 1) // DAY
    span = f"{moment(first)[:10]}, UTC" if same_day else f"{moment(first)[:10]} to {moment(last)[:10]}, UTC"
    parts.append(_text(size.width - RIGHT, size.height - 4, span, "label", "end"))
    return parts


@dataclass(frozen=True, slots=True)
class TimeColumns:
    """Counts by minute, summed up to columns. `values` are rates per minute, so that widths can differ."""

    first: int
    step: int
    count: int

    @property
    def last(self) -> int:
        return self.first + self.step * self.count

    @classmethod
    def over(cls, first_minute: int, last_minute: int, columns: int) -> TimeColumns:
        first, last = first_minute * MINUTE, (last_minute + 1) * MINUTE
        step = time_step(last - first, columns)
        start = first // step * step
        return cls(start, step, -(-(last - start) // step))

    def rates(self, by_minute: dict[int, int]) -> list[float]:
        """The rates of the columns. Minutes outside the columns are ignored."""
        sums = [0] * self.count
        for minute, count in by_minute.items():
            place = (minute * MINUTE - self.first) // self.step
            if 0 <= place < self.count:
                sums[place] += count
        return [total * MINUTE / self.step for total in sums]

    def when(self, place: int) -> str:
        start = self.first + place * self.step
        return (
            moment(start) if self.step == MINUTE else f"{moment(start)} to {moment(start + self.step)[11:]}"
        )


def stacked(size: Size, title: str, columns: TimeColumns, series: Sequence[Series]) -> str:
    """Stacked columns over time. A tooltip shows the numbers of a column."""
    totals = [sum(values) for values in zip(*(one.values for one in series), strict=True)]
    marks = ticks(0, max(totals, default=0))
    across = Scale(columns.first, columns.last, LEFT, size.width - RIGHT)
    up = Scale(marks[0], marks[-1], size.height - BOTTOM, TOP)
    parts = _value_axis(size, up, marks, "per minute")
    width = (size.width - LEFT - RIGHT) / columns.count
    gap = 1.0 if width > 4 else 0.0
    for place, total in enumerate(totals):
        if not total:
            continue
        x, below = across(columns.first + place * columns.step), 0.0
        for one in series:
            value = one.values[place]
            if value:
                parts.append(
                    _rect(x, up(below + value), width - gap, up(below) - up(below + value), f"c{one.colour}")
                )
                below += value
        words = ", ".join(f"{one.name} {number(one.values[place])}" for one in series if one.values[place])
        tip = f"{columns.when(place)}: {number(total)} a minute ({words})"
        parts.append(_rect(x, TOP, width, size.height - BOTTOM - TOP, "touch", tip))
    return _document(size, title, parts + _time_axis(size, across, columns.first, columns.last))


def mirrored(size: Size, title: str, columns: TimeColumns, above: Series, below: Series) -> str:
    """Two series over time: one above the line, the other below."""
    marks = ticks(-max(below.values, default=0), max(above.values, default=0))
    across = Scale(columns.first, columns.last, LEFT, size.width - RIGHT)
    up = Scale(marks[0], marks[-1], size.height - BOTTOM, TOP)
    parts = _value_axis(size, up, marks, "per minute")
    width = (size.width - LEFT - RIGHT) / columns.count
    gap = 1.0 if width > 4 else 0.0
    for place, (high, low) in enumerate(zip(above.values, below.values, strict=True)):
        if not high and not low:
            continue
        x = across(columns.first + place * columns.step)
        parts.append(_rect(x, up(high), width - gap, up(0) - up(high), f"c{above.colour}"))
        parts.append(_rect(x, up(0), width - gap, up(-low) - up(0), f"c{below.colour}"))
        tip = f"{columns.when(place)}: {above.name} {number(high)}, {below.name} {number(low)} a minute"
        parts.append(_rect(x, TOP, width, size.height - BOTTOM - TOP, "touch", tip))
    return _document(size, title, parts + _time_axis(size, across, columns.first, columns.last))


@dataclass(frozen=True, slots=True)
class Bins:
    """A distribution: `counts[i]` values lie from `edges[i]` to below `edges[i + 1]`."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, values: Sequence[int], columns: int) -> Bins:
        """Bins with round edges. A bin is at least one wide, since values are whole numbers."""
        edges = ticks(min(values), max(values) + 1, columns)
        step = max(1.0, edges[1] - edges[0])
        first = math.floor(edges[0] / step) * step
        count = math.floor((max(values) - first) / step) + 1
        counts = [0] * count
        for value in values:
            counts[math.floor((value - first) / step)] += 1
        return cls(tuple(first + place * step for place in range(count + 1)), tuple(counts))


def distribution(size: Size, title: str, bins: Bins, colour: int, things: str, unit: str) -> str:
    marks = ticks(0, max(bins.counts))
    across = Scale(bins.edges[0], bins.edges[-1], LEFT, size.width - RIGHT)
    up = Scale(0, marks[-1], size.height - BOTTOM, TOP)
    parts = _value_axis(size, up, marks, things)
    for place, count in enumerate(bins.counts):
        low, high = bins.edges[place], bins.edges[place + 1]
        if count:
            tip = f"{number(low)} to below {number(high)}: {number(count)} {things}"
            parts.append(
                _rect(
                    across(low),
                    up(count),
                    across(high) - across(low) - 1,
                    up(0) - up(count),
                    f"c{colour}",
                    tip,
                )
            )
    bottom = size.height - BOTTOM
    inside: Callable[[float], bool] = lambda value: bins.edges[0] <= value <= bins.edges[-1]  # noqa: E731
    for mark in filter(inside, ticks(bins.edges[0], bins.edges[-1], size.ticks)):
        parts.append(_line(across(mark), bottom, across(mark), bottom + 5, "zero"))
        sign = "-" if mark < 0 else ""
        parts.append(_text(across(mark), bottom + 18, sign + short(abs(mark)), "tick"))
    parts.append(_text(size.width - RIGHT, size.height - 4, unit, "label", "end"))
    return _document(size, title, parts)


def bar(share: float, colour: int) -> str:
    """A bar that fills `share` of a table's cell of any width."""
    return (
        '<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="c{colour}" width="{100 * min(1.0, max(0.0, share)):.2f}" height="10" rx="1"/></svg>'
    )


def opposed(left: float, right: float, left_colour: int, right_colour: int) -> str:
    """Two bars from the middle of a cell, as shares of its halves."""
    left, right = 50 * min(1.0, left), 50 * min(1.0, right)
    return (
        '<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="c{left_colour}" x="{50 - left:.2f}" width="{left:.2f}" height="10"/>'
        f'<rect class="c{right_colour}" x="50" width="{right:.2f}" height="10"/></svg>'
    )
