"""The health of a cluster: a state, and one sentence for each reason why it is not healthy."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from tidelog.console.local_broker import BrokerFigures
from tidelog.console.snapshot import ClusterSnapshot

NEARLY_FULL: Final = 0.1
"""The free share of a disk below which it is nearly full."""
SHOWN: Final = 5


class Reason(Struct):
    """Something that is wrong. `severity` is `error` if records cannot be read or written, else `warning`."""

    severity: str
    code: str
    text: str


class Health(Struct):
    """`state` is `healthy`, `warning` or `error`."""

    state: str
    reasons: list[Reason]


def health_of(snapshot: ClusterSnapshot, figures: BrokerFigures | None) -> Health:
    """The health by the snapshot, and by the figures of the local broker if there is one."""
    reasons: list[Reason] = []
    if snapshot.controller is None:
        reasons.append(
            Reason("error", "NO_CONTROLLER", "The cluster has no controller: nothing can be changed.")
        )
    offline, under = snapshot.totals.offline, snapshot.totals.under_replicated
    if offline:
        text = (
            f"{_partitions(len(offline))} without a leader, neither readable nor writable: {_some(offline)}."
        )
        reasons.append(Reason("error", "OFFLINE_PARTITIONS", text))
    if under:
        text = f"{_partitions(len(under))} with replicas that are not in sync: {_some(under)}."
        reasons.append(Reason("warning", "UNDER_REPLICATED", text))
    if figures is not None:
        reasons += _broker_reasons(figures)
    reasons += [Reason("warning", "INCOMPLETE", note) for note in snapshot.notes]
    states = {reason.severity for reason in reasons}
    return Health("error" if "error" in states else "warning" if states else "healthy", reasons)


def _broker_reasons(figures: BrokerFigures) -> list[Reason]:
    reasons = []
    if figures.under_min_isr:
        text = f"{_partitions(figures.under_min_isr)} with fewer in-sync replicas than min.insync.replicas."
        reasons.append(Reason("error", "UNDER_MIN_ISR", text))
    for log_dir in figures.log_dirs:
        if log_dir.error is not None:
            text = f"The log folder {log_dir.path} of broker {figures.broker_id} has failed: {log_dir.error}."
            reasons.append(Reason("error", "FAILED_LOG_DIR", text))
        elif log_dir.total_bytes and log_dir.free_bytes is not None:
            free = log_dir.free_bytes / log_dir.total_bytes
            if free < NEARLY_FULL:
                text = f"The disk of {log_dir.path} is nearly full: {free:.0%} of it is free."
                reasons.append(Reason("warning", "DISK_NEARLY_FULL", text))
    return reasons


def _partitions(number: int) -> str:
    return "1 partition" if number == 1 else f"{number:,} partitions"


def _some(names: list[str]) -> str:
    """The first names, and how many follow."""
    rest = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {rest:,} more" if rest > 0 else "")
