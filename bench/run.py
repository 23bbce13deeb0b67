"""Measures a broker and prints each figure beside its target, as a table and as JSON.

        python bench/run.py                                   this project's broker, all scenarios
        python bench/run.py --profile                         also shows where its time goes
        python bench/run.py --only small --only fetch         some scenarios
        python bench/run.py --quick                           a tenth of the work: a test that it runs
        python bench/run.py --against HOST:PORT --pid PID     a broker that is already running
        python bench/run.py --launch 'COMMAND {dir} {port}'   another broker, started by a command
        python bench/run.py --kafka3 --only cluster-create    Apache Kafka 3.9 on ZooKeeper

Brokers that are started here have their data in a temporary folder of --data, which is removed.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import machine
import report
from apache_kafka import zookeeper_mode_command
from broker import TIDELOG, Broker, BrokerFailed, Source
from load import LoadFailed
from report import Figure
from scenarios import SCENARIOS
from suite import Bench, Skipped
from wire import WireError

RESULTS = Path(__file__).parent / "results.json"


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
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    parser.add_argument("--against", metavar="HOST:PORT", help="measure a broker that runs already")
    parser.add_argument("--pid", type=int, help="process id of that broker, to read its CPU time and memory")
    parser.add_argument(
        "--launch",
        metavar="COMMAND",
        default=TIDELOG,
        help="command that starts a broker. {dir}, {port} and {ready} are filled in; the broker writes "
        "HOST:PORT to the file {ready} when it answers. --override NAME=VALUE is added for each setting",
    )
    parser.add_argument(
        "--kafka3", action="store_true", help="measure brokers of Apache Kafka 3.9: the cluster scenarios"
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="one more round of each scenario under py-spy, shown by function",
    )
    parser.add_argument("--warmup", type=int, default=1, metavar="N", help="warm up N times as long")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(tempfile.gettempdir()),
        metavar="DIR",
        help="where brokers keep their data (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help="where the JSON goes")
    options = parser.parse_args()
    if (options.against is None) != (options.pid is None):
        parser.error("--against and --pid go together")
    if options.kafka3:
        options.launch = zookeeper_mode_command()
    return options


def bench_of(options: argparse.Namespace) -> Bench:
    attached = None
    if options.against is not None:
        host, _, port = options.against.rpartition(":")
        attached = Broker(host, int(port), options.pid)
    return Bench(
        Source(options.data, options.launch, attached), options.quick, options.warmup, options.profile
    )


def main() -> int:
    options = arguments()
    # SIGTERM unwinds as Ctrl-C does, so that brokers are stopped and folders removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped by SIGTERM"))
    machine.raise_file_limit()
    about = machine.describe()
    bench = bench_of(options)
    figures: list[Figure] = []
    failures: list[str] = []
    for name in options.only or SCENARIOS:
        begun = time.monotonic()
        bench.scenario = name
        try:
            found = SCENARIOS[name](bench)
        except Skipped as reason:
            print(f"{name}: left out: {reason}", file=sys.stderr)
            continue
        except (BrokerFailed, LoadFailed, WireError, OSError, subprocess.SubprocessError) as error:
            failures.append(f"{name}: {error}")
            print(f"{name}: failed: {error}", file=sys.stderr)
            continue
        figures += found
        print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr)
    text = report.as_json(figures, failures, about, options.against or options.launch, bench.quick)
    report.save(options.json, text)
    if bench.quick:
        print("Quick run with a tenth of the work, segments, partitions and connections: no figure counts.\n")
    print(report.table(figures))
    for title, profile in bench.profiles.items():
        print(f"\n{title}\n{profile}")
    print()
    print(text, end="")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
