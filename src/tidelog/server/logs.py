"""Log lines: each event is one line of `key=value` pairs.

Each part of the broker has a logger: tidelog, tidelog.network, tidelog.storage and so on. Its level can
change while the broker runs. Fields beside the message are `extra={"fields": {...}}`. Callers hide secrets.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable
from typing import TextIO

from tidelog.server.config.loggers import LEVELS, TRACE


def quoted(value: object) -> str:
    """A value for a log line: unquoted if it is one word, else quoted and on one line."""
    text = str(value)
    if text and all(c.isprintable() and c not in ' "=\\' for c in text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else repr(c)[1:-1] for c in escaped) + '"'


class LineFormatter(logging.Formatter):
    """`ts=2026-11-15T10:20:30.123Z level=info part=storage msg="..." key=value ...`"""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        part = record.name.removeprefix("tidelog.")
        level = "warn" if record.levelname == "WARNING" else record.levelname.lower()
        line = f"ts={seconds}.{int(record.msecs):03d}Z level={level} part={part}"
        line += f" msg={quoted(record.getMessage())}"
        fields: dict[str, object] = getattr(record, "fields", {})
        for key, value in fields.items():
            line += f" {key}={quoted(value)}"
        if record.exc_info:
            line += f" error={quoted(self.formatException(record.exc_info))}"
        return line


class Repeats(logging.Filter):
    """Prints the same warning or error once in ten seconds, because a full disk fails every produce.

    The next line with the text has a field `repeated`: the number of lines that were dropped since the last
    one.
    """

    SECONDS = 10.0
    MOST_TEXTS = 1000

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[tuple[str, str, str], tuple[float, int]] = {}  # time of last line, lines left out

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        error = repr(record.exc_info[1]) if record.exc_info else ""
        key = (record.name, f"{record.getMessage()} {getattr(record, 'fields', '')}", error)
        printed, left_out = self._last.pop(key, (-self.SECONDS, 0))
        is_due = record.created - printed >= self.SECONDS
        self._last[key] = (record.created, 0) if is_due else (printed, left_out + 1)
        if len(self._last) > self.MOST_TEXTS:
            del self._last[next(iter(self._last))]
        if is_due and left_out:
            record.fields = {**getattr(record, "fields", {}), "repeated": left_out}
        return is_due


def set_up_logging(stream: TextIO | None = None) -> None:
    """Send the lines of all parts to a stream, by default standard error."""
    logging.addLevelName(TRACE, "TRACE")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter())
    handler.addFilter(Repeats())
    tidelog = logging.getLogger("tidelog")
    tidelog.handlers[:] = [handler]
    tidelog.propagate = False
    # Python's root logger has the level of all parts, so that a change of `root` changes all parts.
    logging.getLogger().setLevel(logging.INFO)


def set_levels(level: str, parts: Iterable[str]) -> None:
    """Set the level of all parts, and the levels of single parts from PART:LEVEL."""
    logging.getLogger().setLevel(LEVELS[level.upper()])
    for item in parts:
        part, _, part_level = item.rpartition(":")
        name = part if part == "tidelog" or part.startswith("tidelog.") else f"tidelog.{part}"
        logging.getLogger(name).setLevel(LEVELS[part_level.upper()])
