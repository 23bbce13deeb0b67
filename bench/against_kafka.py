"""Measures our broker and Apache Kafka 4.3 in turns and prints the ratio of each pair of rounds.

    python bench/against_kafka.py                     all scenarios
    python bench/against_kafka.py --only small        one scenario; the results of the others are kept
    python bench/against_kafka.py --docs              also writes the table and the picture into docs/
    python bench/against_kafka.py --docs --no-run     the same from the results of earlier runs
    python bench/against_kafka.py --quick             a tenth of the work: a test that it runs

Both brokers run during a scenario, each on its own folder, and only one of them has work. Warm-up rounds do
not count. They end when the better of two successive rounds gains less than 5% on the best before. After that
rounds alternate. Kafka needs Java 17 or newer and mvn, which fetches its jars once. The loads need
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
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import chart
import machine
import ratios
import report
from apache_kafka import ROOT, kafka_source
from broker import BrokerFailed, Source
from kafka_scenarios import ROWS, SCENARIOS, Figures, Loaded, Scale, Scenario
from load import LoadFailed
from ratios import Pairs
from suite import Skipped
from wire import WireError

RESULTS = Path(__file__).parent / "results-kafka.json"
PAGE, PICTURE = ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "kafka.svg"
MOST_WARMUPS = 10
IDLE_LOAD = 1.5


@dataclass(slots=True)
class Outcome:
    """The pairs of one scenario by row, and the load of each broker while the other one had the work."""

    pairs: dict[str, Pairs] = field(default_factory=dict)
    warmups: dict[str, int] = field(default_factory=dict)
    idle_cores: dict[str, list[float]] = field(default_factory=lambda: {"tidelog": [], "kafka": []})

    def add(self, ours: Figures, kafka: Figures) -> None:
        for key, value in ours.items():
            pairs = self.pairs.setdefault(key, Pairs(ROWS[key]))
            pairs.ours.append(value)
            pairs.kafka.append(kafka[key])


class Results:
    """The rows of all scenarios, written to a file after each scenario. Without a file nothing is kept."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._pairs: dict[str, Pairs] = {}
        self._scenarios: dict[str, object] = {}
        self._date, self._machine = datetime.date.today().isoformat(), machine.describe()
        self._circumstances = ""

    @property
    def rows(self) -> dict[str, Pairs]:
        """The rows with results, in the order of the table."""
        return {key: self._pairs[key] for key in ROWS if key in self._pairs}

    def take_earlier(self) -> None:
        if self._file is not None and self._file.exists():
            document = json.loads(self._file.read_text())
            self._pairs = ratios.rounds_of(document, ROWS)
            self._scenarios = document["scenarios"]
            self._circumstances = ratios.circumstances(document["date"], document["machine"])

    def add(self, scenario: str, outcome: Outcome) -> None:
        self._pairs |= outcome.pairs
        idle = {side: max(shares, default=0.0) for side, shares in outcome.idle_cores.items()}
        self._circumstances = ratios.circumstances(self._date, self._machine)
        self._scenarios[scenario] = {"warmups": outcome.warmups, "most_of_a_core_while_idle": idle}
        if self._file is not None:
            about = {"date": self._date, "machine": self._machine, "scenarios": self._scenarios}
            report.save(self._file, ratios.as_json(self.rows, **about))

    def page(self, page: str) -> str:
        """The page of the docs with the table of these results."""
        table = f"{self._circumstances}\n\n{ratios.markdown(self.rows.values())}"
        return ratios.rewritten(page, "the table of make bench-kafka", table)


def contest(scenario: Scenario, sources: Sequence[Source], scale: Scale, rounds: int) -> Outcome:
    """Run a scenario in turns on both brokers. The brokers take turns in beginning a pair."""
    outcome = Outcome()
    with scenario(sources[0], scale) as ours, scenario(sources[1], scale) as kafka:
        outcome.warmups = {"tidelog": warm_up(ours, scale), "kafka": warm_up(kafka, scale)}
        for number in range(rounds):
            if number % 2 == 0:
                first = one_round(ours, kafka, outcome.idle_cores["kafka"])
                outcome.add(first, one_round(kafka, ours, outcome.idle_cores["tidelog"]))
            else:
                first = one_round(kafka, ours, outcome.idle_cores["tidelog"])
                outcome.add(one_round(ours, kafka, outcome.idle_cores["kafka"]), first)
    return outcome


def warm_up(loaded: Loaded, scale: Scale) -> int:
    """Run rounds that do not count until the broker gets no cheaper; returns their number.

    A broker that is started for each round has one, since it keeps nothing for the next round.
    """
    most = 1 if scale.quick or loaded.broker is None else MOST_WARMUPS
    costs: list[float] = []
    while len(costs) < most and not ratios.settled(costs):
        key, value = next(iter(loaded.work().items()))
        costs.append(1 / value if ROWS[key].at_least else value)
    return len(costs)


def one_round(loaded: Loaded, other: Loaded, idle_cores: list[float]) -> Figures:
    """Run one round. The CPU cores that the other broker used meanwhile are added to `idle_cores`."""
    began, before = time.monotonic(), 0.0 if other.broker is None else other.broker.cpu()
    figures = loaded.work()
    if other.broker is not None:
        idle_cores.append((other.broker.cpu() - before) / (time.monotonic() - began))
    return figures


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=list(SCENARIOS),
        metavar="NAME",
        help="run only this scenario (may be repeated): " + ", ".join(SCENARIOS),
    )
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="pairs of rounds (default: 7)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work in two pairs")
    parser.add_argument("--docs", action="store_true", help="rewrite table and picture in docs/")
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
    if options.rounds < 1:
        parser.error("--rounds is at least 1")
    return options


def run(options: argparse.Namespace, results: Results) -> list[str]:
    """Measure the selected scenarios; returns the failures."""
    machine.raise_file_limit()
    if (busy := os.getloadavg()[0]) > IDLE_LOAD:
        print(f"the machine is busy (load average {busy:.1f}): the figures will not count", file=sys.stderr)
    sources = Source(options.data), kafka_source(options.data)
    scale, rounds = Scale(options.quick), 2 if options.quick else options.rounds
    failures: list[str] = []
    for name in options.only or SCENARIOS:
        begun = time.monotonic()
        try:
            outcome = contest(SCENARIOS[name], sources, scale, rounds)
        except Skipped as reason:
            print(f"{name}: left out: {reason}", file=sys.stderr)
            continue
        except (BrokerFailed, LoadFailed, WireError, OSError, subprocess.SubprocessError) as error:
            failures.append(f"{name}: {error}")
            print(f"{name}: failed: {error}", file=sys.stderr)
            continue
        results.add(name, outcome)
        found = ", ".join(f"{key} {ratios.share(pairs.ratio)}" for key, pairs in outcome.pairs.items())
        print(f"{name}: {time.monotonic() - begun:.0f} s, {found}", file=sys.stderr)
    return failures


def write_docs(results: Results) -> None:
    PAGE.write_text(results.page(PAGE.read_text()))
    PICTURE.write_text(chart.picture(list(results.rows.values())))


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
    print(ratios.text(results.rows.values()))
    if options.docs and results.rows and not failures:
        write_docs(results)
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
