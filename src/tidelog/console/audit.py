"""The audit of the console: a line for every change and every login, with who, where from, what and how.

The logger is `tidelog.console.audit`. A line has no values of settings, no passwords and no records.
"""

from __future__ import annotations

import logging
from typing import Final

log = logging.getLogger("tidelog.console.audit")

MOST_CHARACTERS: Final = 300


def audit(
    event: str, *, principal: str, address: str, action: str, cluster: str, resource: str, outcome: str
) -> None:
    """Write one line. Names come from requests, so control characters are shown as escapes."""
    fields = {
        "principal": principal,
        "address": address,
        "cluster": cluster,
        "action": action,
        "resource": resource,
        "outcome": outcome,
    }
    log.info(event, extra={"fields": {name: _clean(value) for name, value in fields.items()}})


def _clean(text: str) -> str:
    shown = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text[:MOST_CHARACTERS])
    return shown if len(text) <= MOST_CHARACTERS else f"{shown}..."
