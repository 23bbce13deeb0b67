"""Figures beside their targets: as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Figure:
    """One measured number. Without a target it is context for the others."""

    name: str
    value: float
    unit: str
    target: float | None = None
    at_least: bool = False  # most targets are upper limits
    kafka: str = ""  # the figure of Apache Kafka 4.3 on a machine with two cores
    rounds: list[float] = field(default_factory=list)
    note: str = ""

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target


def number(value: float) -> str:
    """Three significant digits, with commas between thousands."""
    if value >= 1000:
        return f"{value:,.0f}"
    if value >= 100:
        return f"{value:.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.3f}"


HEADINGS = ("figure", "measured", "target", "met", "Kafka 4.3", "unit", "remarks")


def row(figure: Figure) -> tuple[str, ...]:
    target, met = "", ""
    if figure.target is not None:
        target = (">= " if figure.at_least else "<= ") + number(figure.target)
        met = "yes" if figure.met else "NO"
    return figure.name, number(figure.value), target, met, figure.kafka, figure.unit, figure.note


def table(figures: Sequence[Figure]) -> str:
    rows = [HEADINGS, *(row(figure) for figure in figures)]
    widths = [max(len(line[column]) for line in rows) for column in range(len(HEADINGS))]
    right = {1, 2, 4}
    lines = []
    for line in rows:
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        lines.append(" | ".join(cells).rstrip())
    lines.insert(1, "-+-".join("-" * width for width in widths[:-1]) + "-+-" + "-" * len(HEADINGS[-1]))
    return "\n".join(lines)


def as_json(
    figures: Sequence[Figure],
    failures: Sequence[str],
    machine: dict[str, str | int | float],
    broker: str,
    quick: bool,
) -> str:
    entries = [
        {
            "name": figure.name,
            "value": figure.value,
            "unit": figure.unit,
            "target": figure.target,
            "bound": "at least" if figure.at_least else "at most",
            "met": figure.met,
            "kafka": figure.kafka,
            "rounds": figure.rounds,
            "note": figure.note,
        }
        for figure in figures
    ]
    document = {
        "broker": broker,
        "quick": quick,
        "machine": machine,
        "figures": entries,
        "failures": list(failures),
    }
    return json.dumps(document, indent=2) + "\n"


def save(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
