"""Measures clusters of three brokers, ours and of Apache Kafka 3.9 on ZooKeeper, and prints their ratios.

    python bench/clusters_against_kafka.py                    all scenarios
    python bench/clusters_against_kafka.py --only NAME        one scenario; the results of others are kept
    python bench/clusters_against_kafka.py --docs             also writes the table into docs/
    python bench/clusters_against_kafka.py --docs --no-run    the same from the results of earlier runs
    python bench/clusters_against_kafka.py --quick            a tenth of the work: a test that it runs

A machine has no room for both clusters: each scenario runs on ours, and right after it on Kafka's. Kafka is
warmed up four times as long. It needs Java 17 or newer and mvn, which fetches its jars once. The loads need
a C compiler.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import machine
import ratios
import report
from apache_kafka import ROOT, zookeeper_mode_command
from broker import BrokerFailed, Source
from load import LoadFailed
from report import Figure, number
from scenarios import SCENARIOS
from suite import Bench, Skipped
from targets import TARGETS
from wire import WireError

RESULTS = Path(__file__).parent / "results-clusters.json"
PAGE = ROOT / "docs" / "benchmarks.md"
MARKS = "the table of clusters"
IDLE_LOAD = 1.5
KAFKA_WARMUP = 4

NAMES = (
    "cluster-create",
    "cluster-failover",
    "cluster-idle",
    "cluster-start",
    "replicated-latency",
    "replicated-produce",
    "replicated-create",
    "replicated-idle",
    "replicated-restart",
)
RATIO_GOALS = {TARGETS[key].name: 0.5 for key in ("replicated p50", "replicated p99")}
"""Figures whose goal is a share of Kafka's. The others have targets of their own."""


@dataclass(slots=True)
class Beside:
    """One figure of ours and of Kafka's."""

    name: str
    unit: str
    ours: float
    kafka: float
    target: float | None
    at_least: bool

    @property
    def ratio(self) -> float:
        return self.ours / self.kafka

    @property
    def is_missed(self) -> bool:
        goal = RATIO_GOALS.get(self.name)
        if goal is not None:
            return self.ratio > goal
        if self.target is None:
            return False
        return self.ours < self.target if self.at_least else self.ours > self.target

    @property
    def goal(self) -> str:
        goal = RATIO_GOALS.get(self.name)
        if goal is not None:
            text = f"at most {goal:g} of Kafka"
        elif self.target is not None:
            text = f"at {'least' if self.at_least else 'most'} {number(self.target)}"
        else:
            return ""
        return f"{text}, missed" if self.is_missed else text


def paired(ours: Iterable[Figure], kafka: Iterable[Figure]) -> list[Beside]:
    """The figures that both clusters have."""
    of_kafka = {figure.name: figure.value for figure in kafka}
    return [
        Beside(found.name, found.unit, found.value, of_kafka[found.name], found.target, found.at_least)
        for found in ours
        if found.name in of_kafka
    ]


HEADINGS = ("figure", "unit", "tidelog", "Kafka 3.9", "ratio", "goal")


def cells(row: Beside) -> tuple[str, ...]:
    return row.name, row.unit, number(row.ours), number(row.kafka), ratios.share(row.ratio), row.goal


def markdown(rows: Iterable[Beside]) -> str:
    """The table in Markdown. Figures that miss their goal are bold."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|---|---|--:|--:|--:|---|"]
    for row in rows:
        line = list(cells(row))
        if row.is_missed:
            line[2] = f"**{line[2]}**"
        lines.append("| " + " | ".join(line) + " |")
    return "\n".join(lines)


def text(rows: Iterable[Beside]) -> str:
    """The table for a terminal."""
    return ratios.aligned([HEADINGS, *(cells(row) for row in rows)])


class Results:
    """The rows of all scenarios, written to a file after each scenario. Without a file nothing is kept."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._by_scenario: dict[str, list[dict[str, Any]]] = {}
        today = datetime.date.today().isoformat()
        self._about: dict[str, Any] = {"date": today, "machine": machine.describe()}
        self._circumstances: Mapping[str, Any] = self._about

    def take_earlier(self) -> None:
        if self._file is not None and self._file.exists():
            document = json.loads(self._file.read_text())
            self._by_scenario = document["scenarios"]
            self._circumstances = document

    def add(self, scenario: str, rows: Sequence[Beside]) -> None:
        self._by_scenario[scenario] = [asdict(row) for row in rows]
        self._circumstances = self._about
        if self._file is not None:
            document = {**self._about, "scenarios": self._by_scenario}
            report.save(self._file, json.dumps(document, indent=2) + "\n")

    @property
    def rows(self) -> list[Beside]:
        return [Beside(**row) for name in NAMES for row in self._by_scenario.get(name, ())]

    def page(self, page: str) -> str:
        """The page of the docs with the table of these results."""
        about = ratios.circumstances(self._circumstances["date"], self._circumstances["machine"])
        return ratios.rewritten(page, MARKS, f"{about}\n\n{markdown(self.rows)}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=NAMES,
        metavar="NAME",
        help="run only this scenario (may be repeated): " + ", ".join(NAMES),
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    parser.add_argument("--docs", action="store_true", help="rewrite the table in docs/")
    parser.add_argument("--no-run", action="store_true", help="measure nothing: use the earlier results")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(tempfile.gettempdir()),
        metavar="DIR",
        help="where brokers keep their data (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help="where the JSON goes")
    options = parser.parse_args()
    if options.quick and options.docs:
        parser.error("figures of --quick do not count, so they do not go into the docs")
    return options


def run(options: argparse.Namespace, results: Results) -> list[str]:
    """Measure the selected scenarios; returns the failures."""
    machine.raise_file_limit()
    if (busy := os.getloadavg()[0]) > IDLE_LOAD:
        print(f"the machine is busy (load average {busy:.1f}): the figures will not count", file=sys.stderr)
    ours = Bench(Source(options.data), options.quick)
    warmup = 1 if options.quick else KAFKA_WARMUP
    kafka = Bench(Source(options.data, zookeeper_mode_command()), options.quick, warmup)
    failures: list[str] = []
    for name in options.only or NAMES:
        begun = time.monotonic()
        try:
            rows = paired(SCENARIOS[name](ours), SCENARIOS[name](kafka))
        except Skipped as reason:
            print(f"{name}: left out: {reason}", file=sys.stderr)
            continue
        except (BrokerFailed, LoadFailed, WireError, OSError, subprocess.SubprocessError) as error:
            failures.append(f"{name}: {error}")
            print(f"{name}: failed: {error}", file=sys.stderr)
            continue
        results.add(name, rows)
        found = ", ".join(f"{number(row.ours)} to {number(row.kafka)} {row.unit}" for row in rows)
        print(f"{name}: {time.monotonic() - begun:.0f} s, {found}", file=sys.stderr)
    return failures


def main() -> int:
    options = arguments()
    # SIGTERM unwinds as Ctrl-C does, so that brokers are stopped and folders removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped by SIGTERM"))
    results = Results(None if options.quick else options.json)
    if options.only or options.no_run:
        results.take_earlier()
    failures: list[str] = []
    if not options.no_run:
        try:
            failures = run(options, results)
        except BrokerFailed as error:
            print(error, file=sys.stderr)
            return 1
    if options.quick:
        print("A tenth of the work: no figure counts.\n")
    print(text(results.rows))
    if options.docs and results.rows and not failures:
        PAGE.write_text(results.page(PAGE.read_text()))
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
