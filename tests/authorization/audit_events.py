"""The events of the audit, from its logger."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from tidelog.server.audit import AuditEvent


@contextmanager
def audit_events() -> Iterator[list[AuditEvent]]:
    """The events at INFO; the list grows with the log."""
    found: list[AuditEvent] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.fields)  # type: ignore[attr-defined]

    logger, handler = logging.getLogger("tidelog.authorizer"), Collect()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield found
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
