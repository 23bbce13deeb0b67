"""Our producer beside confluent-kafka, kafka-python and aiokafka: records per CPU-second of the client.

Each client runs as its own process against the same broker, one after the other in every round, so that a
disturbance affects all. A figure is our rate divided by the other client's rate.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from broker import Broker
from load import LIMIT, LoadFailed
from report import Figure
from suite import Bench
from targets import figure

PROGRAM = Path(__file__).parent / "client_load.py"
PARTITIONS = 3
SIZES = (100, 1000)
RECORDS = {
    "tidelog": 600_000,
    "tidelog-columns": 3_000_000,
    "confluent-kafka": 600_000,
    "kafka-python": 60_000,
    "aiokafka": 60_000,
}


@dataclass(slots=True)
class Rates:
    """Records per CPU-second of each client, one number for each round."""

    found: dict[str, list[float]] = field(default_factory=dict)

    def ratio(self, ours: str, theirs: str) -> list[float]:
        return [own / other for own, other in zip(self.found[ours], self.found[theirs], strict=True)]

    def note(self, ours: str, theirs: str) -> str:
        return f"{median(self.found[ours]):,.0f} against {median(self.found[theirs]):,.0f} a CPU-second"


def produce(broker: Broker, client: str, topic: str, records: int, size: int, *, keyed: bool) -> float:
    words = [
        sys.executable,
        str(PROGRAM),
        client,
        f"{broker.host}:{broker.port}",
        topic,
        str(records),
        str(size),
    ]
    if keyed:
        words.append("--keyed")
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, check=False)
    if done.returncode:
        raise LoadFailed(f"{client}: {done.stderr.strip().splitlines()[-1:]}")
    answer = json.loads(done.stdout)
    return float(answer["records"] / answer["cpu"])


def measured(bench: Bench, broker: Broker, size: int, *, keyed: bool) -> Rates:
    rates = Rates()
    for _ in range(min(3, bench.rounds)):
        for client, records in RECORDS.items():
            topic = broker.topic(f"{client}-{size}", partitions=PARTITIONS, retention_bytes="100000000")
            count = bench.scaled(records // (1 if size == 100 else 3))
            rate = produce(broker, client, topic, count, size, keyed=keyed)
            rates.found.setdefault(client, []).append(rate)
    return rates


def clients(bench: Bench) -> list[Figure]:
    """Produce record by record and from columns, without keys and with keys."""
    figures: list[Figure] = []
    with bench.source.broker() as broker:
        for size in SIZES:
            for keyed in (False, True):
                rates = measured(bench, broker, size, keyed=keyed)
                suffix = f"{size}{' keyed' if keyed else ''}"
                for ours, theirs, name in (
                    ("tidelog", "confluent-kafka", "confluent"),
                    ("tidelog", "kafka-python", "kafka-python"),
                    ("tidelog", "aiokafka", "aiokafka"),
                    ("tidelog-columns", "confluent-kafka", "columns"),
                ):
                    ratio = rates.ratio(ours, theirs)
                    figures.append(figure(f"produce {name} {suffix}", ratio, rates.note(ours, theirs)))
    return figures
