"""Figures of two brokers measured in turns: the ratios of pairs of rounds, their median and spread."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from report import number


@dataclass(slots=True, frozen=True)
class Row:
    """One figure of the comparison; `goal` is the limit of the ratio of ours to Kafka's."""

    name: str
    unit: str
    goal: float | None = None
    at_least: bool = False  # a rate: more is better

    def reached(self, ratio: float) -> bool | None:
        if self.goal is None:
            return None
        return ratio >= self.goal if self.at_least else ratio <= self.goal


@dataclass(slots=True)
class Pairs:
    """The rounds of one row, as many on each broker, in the order in which they ran."""

    row: Row
    ours: list[float] = field(default_factory=list)
    kafka: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        return [ours / kafka for ours, kafka in zip(self.ours, self.kafka, strict=True)]

    @property
    def ratio(self) -> float:
        """The median of the pairs' ratios, which is not the ratio of the medians."""
        return statistics.median(self.ratios)

    @property
    def spread(self) -> tuple[float, float]:
        return min(self.ratios), max(self.ratios)

    @property
    def reached(self) -> bool | None:
        return self.row.reached(self.ratio)


def settled(costs: Sequence[float], gain: float = 0.05, least: int = 4) -> bool:
    """Whether a broker with a JIT compiler is warm.

    It is warm when the better of the last two rounds gains less than `gain` on the best of the rounds before.
    """
    return len(costs) >= least and min(costs[-2:]) >= (1 - gain) * min(costs[:-2])


def share(ratio: float) -> str:
    return f"{ratio:.3f}" if ratio < 0.1 else f"{ratio:.2f}"


HEADINGS = ("figure", "unit", "tidelog", "Kafka 4.3", "ratio", "smallest to largest", "goal")


def cells(pairs: Pairs) -> tuple[str, ...]:
    row, (low, high) = pairs.row, pairs.spread
    goal = "" if row.goal is None else f"{'at least' if row.at_least else 'at most'} {row.goal:g}"
    if pairs.reached is False:
        goal += ", missed"
    ours, kafka = statistics.median(pairs.ours), statistics.median(pairs.kafka)
    spread = f"{share(low)} - {share(high)}"
    return row.name, row.unit, number(ours), number(kafka), share(pairs.ratio), spread, goal


def markdown(rows: Iterable[Pairs]) -> str:
    """The table in Markdown. Ratios that miss their goal are bold."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|---|---|--:|--:|--:|--:|---|"]
    for pairs in rows:
        line = list(cells(pairs))
        if pairs.reached is False:
            line[4] = f"**{line[4]}**"
        lines.append("| " + " | ".join(line) + " |")
    return "\n".join(lines)


def text(rows: Iterable[Pairs]) -> str:
    """The table for a terminal."""
    return aligned([HEADINGS, *(cells(pairs) for pairs in rows)])


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Lines of cells, in columns that are as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def rewritten(page: str, name: str, content: str) -> str:
    """The page with `content` between its two marks `<!-- NAME -->` and `<!-- end of NAME -->`."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
        raise ValueError(f"the page needs {begin} and after it {end}, each once")
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{content}\n{end}{after}"


def circumstances(date: str, machine: Mapping[str, object]) -> str:
    """The date and the machine of the figures, in one line."""
    return (
        f"Measured on {date}: {machine['cores']} cores ({machine['processor']}), "
        f"{machine['memory_gb']:.0f} GB, Linux {machine['kernel']}, Python {machine['python']}; "
        f"load average {machine['load_average']:.1f} when it began."
    )


def as_json(rows: dict[str, Pairs], **about: object) -> str:
    entries = {
        key: {
            "name": pairs.row.name,
            "unit": pairs.row.unit,
            "goal": pairs.row.goal,
            "bound": "at least" if pairs.row.at_least else "at most",
            "ratio": pairs.ratio,
            "reached": pairs.reached,
            "ratios": pairs.ratios,
            "tidelog": pairs.ours,
            "kafka": pairs.kafka,
        }
        for key, pairs in rows.items()
    }
    return json.dumps({**about, "rows": entries}, indent=2) + "\n"


def rounds_of(document: Mapping[str, Any], rows: dict[str, Row]) -> dict[str, Pairs]:
    """The results of an earlier run, for the rows that still exist."""
    entries = document["rows"]
    return {
        key: Pairs(row, entries[key]["tidelog"], entries[key]["kafka"])
        for key, row in rows.items()
        if key in entries
    }
