"""The health of a cluster: a state, and one sentence for each reason why it is not healthy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from tidelog.clients.admin.health import FoundProblem, Problem, cluster_problems, log_dir_problem
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
    totals = snapshot.totals
    alive = {broker.broker_id for broker in snapshot.brokers}
    problems = cluster_problems(
        snapshot.controller, totals.broker_ids - alive, totals.offline, totals.under_replicated
    )
    reasons = [_reason(found.kind, _text(found)) for found in problems]
    if figures is not None:
        reasons += _broker_reasons(figures)
    reasons += [Reason("warning", "INCOMPLETE", note) for note in snapshot.notes]
    states = {reason.severity for reason in reasons}
    return Health("error" if "error" in states else "warning" if states else "healthy", reasons)


def _reason(kind: Problem, text: str) -> Reason:
    return Reason(kind.severity, kind.name, text)


def _text(found: FoundProblem) -> str:
    count, some = len(found.where), _some(found.where)
    if found.kind is Problem.NO_CONTROLLER:
        return "The cluster has no controller: nothing can be changed."
    if found.kind is Problem.BROKERS_DOWN:
        return f"{'1 broker is' if count == 1 else f'{count:,} brokers are'} down: {some}."
    if found.kind is Problem.OFFLINE_PARTITIONS:
        return f"{_partitions(count)} without a leader, neither readable nor writable: {some}."
    return f"{_partitions(count)} with replicas that are not in sync: {some}."


def _broker_reasons(figures: BrokerFigures) -> list[Reason]:
    reasons = []
    if figures.under_min_isr:
        text = f"{_partitions(figures.under_min_isr)} with fewer in-sync replicas than min.insync.replicas."
        reasons.append(_reason(Problem.UNDER_MIN_ISR, text))
    for log_dir in figures.log_dirs:
        path, total, free = log_dir.path, log_dir.total_bytes, log_dir.free_bytes
        found = log_dir_problem(log_dir.error is not None, total, free, NEARLY_FULL)
        if found is Problem.FAILED_LOG_DIR:
            text = f"The log folder {path} of broker {figures.broker_id} has failed: {log_dir.error}."
            reasons.append(_reason(found, text))
        elif found is not None:
            text = f"The disk of {path} is nearly full: {(free or 0) / (total or 1):.0%} of it is free."
            reasons.append(_reason(found, text))
    return reasons


def _partitions(number: int) -> str:
    return "1 partition" if number == 1 else f"{number:,} partitions"


def _some(names: Sequence[str]) -> str:
    """The first names, and how many follow."""
    rest = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {rest:,} more" if rest > 0 else "")
