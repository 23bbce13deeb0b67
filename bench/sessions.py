"""Whether a fetch costs only what changed: one partition with records in sessions of 1, 100 and 1,000."""

from __future__ import annotations

import statistics

import workloads
from report import Figure
from suite import Bench
from targets import figure

SIZES = (1, 100, 1_000)
BATCHES = 2_000
SECONDS = 2.0


def sessions(bench: Bench) -> list[Figure]:
    """CPU per fetch that returns one partition, in turns, relative to the session of one partition."""
    seconds = SECONDS / 10 if bench.quick else SECONDS
    costs: dict[int, list[float]] = {size: [] for size in SIZES}
    with bench.source.broker() as broker:
        topics = {size: broker.topic(f"session-{size}", size) for size in SIZES}
        for size, topic in topics.items():
            workloads.fill_session(broker, topic, size, BATCHES)
            workloads.session(broker, topic, size, BATCHES, seconds * bench.warmup)
        for _ in range(bench.rounds):
            for size, topic in topics.items():
                before = broker.cpu()
                done = workloads.session(broker, topic, size, BATCHES, seconds)
                costs[size].append((broker.cpu() - before) / done.requests * 1e6)
    base = statistics.median(costs[1])
    return [
        figure(
            f"session of {size}",
            [cost / base for cost in costs[size]],
            f"{statistics.median(costs[size]):.0f} us against {base:.0f}",
        )
        for size in SIZES[1:]
    ]
