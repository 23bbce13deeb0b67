"""Filters of the templates: numbers, sizes, times and rates as people read them."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from markupsafe import Markup, escape

UNKNOWN: Final = "–"  # noqa: RUF001
LONG_MAX: Final = 2**63 - 1
UNITS: Final = ("B", "KB", "MB", "GB", "TB", "PB")


def count(value: float | None) -> str:
    """1234567 as 1,234,567."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def short(value: float | None) -> str:
    """1234567 as 1.23M."""
    if value is None:
        return UNKNOWN
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            scaled = value / (limit if unit != "k" else 1e3)
            return f"{scaled:.3g}{unit}" if scaled < 1000 else f"{scaled:.0f}{unit}"
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def size(value: float | None) -> str:
    """1234567 bytes as 1.2 MB; a unit is 1,000 of the unit before."""
    if value is None:
        return UNKNOWN
    unit = 0
    while abs(value) >= 1000 and unit < len(UNITS) - 1:
        value /= 1000
        unit += 1
    return f"{value:.0f} {UNITS[unit]}" if unit == 0 or value >= 100 else f"{value:.1f} {UNITS[unit]}"


def rate(value: float | None) -> str:
    """12.34 as 12/s."""
    return UNKNOWN if value is None else f"{short(value)}/s"


def size_rate(value: float | None) -> str:
    return UNKNOWN if value is None else f"{size(value)}/s"


def milliseconds(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    if value >= 1000:
        return f"{value / 1000:.1f} s"
    return f"{value:.0f} ms" if value >= 10 else f"{value:.2f} ms"


def duration(seconds: float | None, units: int = 2) -> str:
    """90 as 1 min 30 s; with one unit as 1 min."""
    if seconds is None:
        return UNKNOWN
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    whole = int(seconds)
    parts = [(whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "min"), (whole % 60, "s")]
    shown = [f"{number} {unit}" for number, unit in parts if number]
    return " ".join(shown[:units]) or "0 s"


def ago(timestamp_ms: float | None) -> str:
    """A time as its distance from now."""
    if timestamp_ms is None or timestamp_ms < 0:
        return UNKNOWN
    seconds = time.time() - timestamp_ms / 1000
    if seconds < 0:
        return f"in {duration(-seconds, 1)}"
    return "now" if seconds < 1 else f"{duration(seconds, 1)} ago"


def instant(timestamp_ms: float | None) -> str:
    """A time in UTC, as 2026-11-18 03:05:00.000Z; for the title of a relative time."""
    if timestamp_ms is None or timestamp_ms < 0:
        return UNKNOWN
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms:.0f} ms"
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0f} %"


def meaning(value: str | None, name: str) -> str:
    """The value of a setting in milliseconds or bytes as people read it: 604800000 of retention.ms as 7 d."""
    if value is None or not value.isdecimal() or int(value) < 1000:
        return ""
    if int(value) == LONG_MAX:
        return "no limit"
    if name.endswith(".ms"):
        return duration(int(value) / 1000)
    return size(int(value)) if name.endswith(".bytes") else ""


def prose(text: str) -> Markup:
    """A documentation as HTML: words between backticks are code."""
    parts = (escape(part) for part in text.split("`"))
    return Markup("").join(
        Markup("<code>%s</code>") % part if at % 2 else part for at, part in enumerate(parts)
    )


def plural(number: int, noun: str, nouns: str | None = None) -> str:
    """1 topic, 2 topics."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def they_are(number: int, noun: str) -> str:
    """1 topic is, 2 topics are."""
    return f"{plural(number, noun)} {'is' if number == 1 else 'are'}"


FILTERS: Final[dict[str, Callable[..., Any]]] = {
    "ago": ago,
    "count_of": count,
    "duration": duration,
    "instant": instant,
    "meaning": meaning,
    "milliseconds": milliseconds,
    "percent": percent,
    "plural": plural,
    "prose": prose,
    "rate": rate,
    "short": short,
    "size": size,
    "size_rate": size_rate,
}
