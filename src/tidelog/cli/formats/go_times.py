"""Times in the layouts of Go, which rpk takes: the layout shows how 2006-01-02 15:04:05 would be written."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime

Show = Callable[[datetime], str]

# The zone is always UTC.
PARTS: dict[str, Show] = {
    "January": lambda at: at.strftime("%B"),
    "Jan": lambda at: at.strftime("%b"),
    "Monday": lambda at: at.strftime("%A"),
    "Mon": lambda at: at.strftime("%a"),
    "MST": lambda at: "UTC",
    "2006": lambda at: f"{at.year:04d}",
    "Z07:00": lambda at: "Z",
    "Z0700": lambda at: "Z",
    "-07:00": lambda at: "+00:00",
    "-0700": lambda at: "+0000",
    "-07": lambda at: "+00",
    "002": lambda at: at.strftime("%j"),
    "01": lambda at: f"{at.month:02d}",
    "02": lambda at: f"{at.day:02d}",
    "03": lambda at: at.strftime("%I"),
    "04": lambda at: f"{at.minute:02d}",
    "05": lambda at: f"{at.second:02d}",
    "06": lambda at: f"{at.year % 100:02d}",
    "15": lambda at: f"{at.hour:02d}",
    "PM": lambda at: "AM" if at.hour < 12 else "PM",
    "pm": lambda at: "am" if at.hour < 12 else "pm",
    "_2": lambda at: f"{at.day:2d}",
    "1": lambda at: str(at.month),
    "2": lambda at: str(at.day),
    "3": lambda at: str(at.hour % 12 or 12),
    "4": lambda at: str(at.minute),
    "5": lambda at: str(at.second),
}
PART = re.compile(r"(?P<fraction>[.,](?:0+|9+)(?!\d))|" + "|".join(map(re.escape, PARTS)))


def go_time(layout: str, at: datetime) -> str:
    """A moment in UTC, in a layout of Go."""

    def shown(found: re.Match[str]) -> str:
        fraction = found["fraction"]
        if fraction is None:
            return PARTS[found.group()](at)
        digits = f"{at.microsecond:06d}000"[: len(fraction) - 1]
        if fraction[1] == "0":
            return fraction[0] + digits
        digits = digits.rstrip("0")
        return fraction[0] + digits if digits else ""

    return PART.sub(shown, layout)
