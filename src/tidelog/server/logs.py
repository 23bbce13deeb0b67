"""Log lines: one event is one line of `key=value` pairs, with a level per part that can change while running.

A part is a logger: tidelog, tidelog.network, tidelog.storage and so on. Fields beside the message are
given as `extra={"fields": {...}}`. Nothing here knows a secret: those who log hide them.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import TextIO

TRACE = 5
"""Below DEBUG: the bodies of requests."""

LEVELS = {"TRACE": TRACE, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 50}


def quoted(value: object) -> str:
    """A value as it stands on a line: bare where it is one word, else quoted on one line."""
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
        line = f"ts={seconds}.{int(record.msecs):03d}Z level={level} part={part} msg={quoted(record.getMessage())}"
        fields: dict[str, object] = getattr(record, "fields", {})
        for key, value in fields.items():
            line += f" {key}={quoted(value)}"
        if record.exc_info:
            line += f" error={quoted(self.formatException(record.exc_info))}"
        return line


def set_up_logging(level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Send the lines of all parts to a stream (standard error unless told otherwise)."""
    logging.addLevelName(TRACE, "TRACE")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter())
    root = logging.getLogger("tidelog")
    root.handlers[:] = [handler]
    root.propagate = False
    root.setLevel(level)
