"""Commands of the CLI that ask the broker one thing, from the start of the process to its end."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import load
from report import Figure
from suite import Bench
from targets import figure

ROUNDS = 9
COMMANDS = (
    ("topics", "--list"),
    ("topics", "--describe", "--topic", "{topic}"),
    ("consumer-groups", "--list"),
    ("health", "--disk-free", "0"),
    ("get-offsets", "--topic", "{topic}"),
    ("consume", "{topic}", "-o", ":end"),
)


def commands(bench: Bench) -> list[Figure]:
    """One command after the other, in turns; the figure is the usual time of the slowest command."""
    times: dict[str, list[float]] = {}
    with bench.source.broker() as broker:
        topic = broker.topic("commands")
        load.run(broker, "produce", topic=topic, partitions=1, records=10, record_size=100, requests=1)
        server = ["--bootstrap-server", f"{broker.host}:{broker.port}"]
        for _ in range(ROUNDS if not bench.quick else 2):
            for command in COMMANDS:
                words = [word.format(topic=topic) for word in command]
                begun = time.monotonic()
                subprocess.run(
                    [sys.executable, "-m", "tidelog", *words, *server], check=True, stdout=subprocess.DEVNULL
                )
                times.setdefault(" ".join(command[:2]), []).append(time.monotonic() - begun)
    usual = {name: statistics.median(found) for name, found in times.items()}
    slowest = max(usual, key=lambda name: usual[name])
    note = ", ".join(f"{name.removesuffix(' {topic}')} {seconds:.2f}" for name, seconds in usual.items())
    return [figure("commands", times[slowest], note)]
