"""Our consumer beside confluent-kafka, kafka-python and aiokafka: records per CPU-second of the client.

Each client runs as its own process against the same broker, one after the other in every round, so that a
disturbance affects all. A figure is our rate divided by the other client's rate.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from broker import Broker
from load import LIMIT, LoadFailed
from report import Figure
from suite import Bench
from targets import figure

from clients import PARTITIONS, SIZES, Rates, produce

PROGRAM = Path(__file__).parent / "consume_load.py"
# The share of the topic that each client reads, so that none takes much longer than the others.
PARTS = {
    "tidelog": 1.0,
    "tidelog-columns": 1.0,
    "confluent-kafka": 1.0,
    "kafka-python": 0.1,
    "aiokafka": 0.3,
}
RECORDS = {100: 2_000_000, 1000: 1_500_000}


def consume(broker: Broker, client: str, topic: str, records: int) -> float:
    words = [
        sys.executable,
        str(PROGRAM),
        client,
        f"{broker.host}:{broker.port}",
        topic,
        str(PARTITIONS),
        str(records),
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, check=False)
    if done.returncode:
        raise LoadFailed(f"{client}: {done.stderr.strip().splitlines()[-1:]}")
    answer = json.loads(done.stdout)
    return float(answer["records"] / answer["cpu"])


def consumers(bench: Bench) -> list[Figure]:
    """Consume record by record, and columns, from a topic in the page cache."""
    figures: list[Figure] = []
    with bench.source.broker() as broker:
        for size in SIZES:
            topic = broker.topic(f"consumed-{size}", partitions=PARTITIONS)
            records = bench.scaled(RECORDS[size])
            produce(broker, "tidelog-columns", topic, records, size, keyed=False)
            rates = Rates()
            for _ in range(min(3, bench.rounds)):
                for client, part in PARTS.items():
                    rate = consume(broker, client, topic, int(records * part))
                    rates.found.setdefault(client, []).append(rate)
            for ours, theirs, name in (
                ("tidelog", "confluent-kafka", "confluent"),
                ("tidelog", "kafka-python", "kafka-python"),
                ("tidelog", "aiokafka", "aiokafka"),
                ("tidelog-columns", "confluent-kafka", "columns"),
            ):
                ratio = rates.ratio(ours, theirs)
                figures.append(figure(f"consume {name} {size}", ratio, rates.note(ours, theirs)))
    return figures
