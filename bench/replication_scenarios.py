"""Topics with three replicas on three brokers: produce with acks=all, creation, idle cost, restart."""

from __future__ import annotations

import time

import load
from machine import GIGABYTE
from report import Figure
from suite import Bench, Skipped
from targets import figure
from workloads import ALL_REPLICAS

from cluster import Cluster, cluster_of

REPLICAS = 3
RECORD_OVERHEAD = 12  # bytes of a record beside its value
PARTITIONS = 1_000
PRODUCED_PARTITIONS = 6
TOPICS, PARTITIONS_OF_A_TOPIC = 1_000, 3
IDLE_SECONDS = 30.0
SETTLED_SECONDS = 5.0
IDEMPOTENT = ("enable.idempotence=true", "linger.ms=5", "queue.buffering.max.messages=1000000")


def produce(bench: Bench) -> list[Figure]:
    """One idempotent producer of librdkafka with acks=all. The CPU is that of all brokers.

    The last records are in all replicas when they are acknowledged. The page cache of each round is memory
    that the machine already holds, as in `bulk`: otherwise its host's share is most of what is measured.
    """
    bench.needs_own_broker()
    library = load.librdkafka()
    if library is None:
        raise Skipped("librdkafka was not found; install the package confluent-kafka")
    figures: list[Figure] = []
    for size, records in ((1_000, bench.scaled(500_000)), (100, bench.scaled(4_000_000))):
        costs: list[float] = []
        rates: list[float] = []
        with cluster_of(bench.source) as cluster:
            topic = cluster.topic("replicated", PRODUCED_PARTITIONS, REPLICAS)
            broker = cluster.leader(topic)
            for round_ in range(bench.rounds + bench.warmup):
                bench.warm_memory(REPLICAS * records * (size + RECORD_OVERHEAD))
                before = cluster.cpu()
                rate = load.run_librdkafka(
                    library, broker, topic, records, size, *IDEMPOTENT, partitions=PRODUCED_PARTITIONS
                )
                if round_ >= bench.warmup:
                    costs.append((cluster.cpu() - before) / (records * size) * GIGABYTE)
                    rates.append(rate)
        figures.append(figure(f"replicated{size}", costs, "CPU of all brokers"))
        if size == 100:
            figures.append(figure("replicated100 rate", rates))
    return figures


def latency(bench: Bench) -> list[Figure]:
    """One-record produce requests with acks=all, one after the other on one connection."""
    bench.needs_own_broker()
    with cluster_of(bench.source) as cluster:
        topic = cluster.topic("latency", 1, REPLICAS)
        leader = cluster.leader(topic)
        options = {"topic": topic, "acks": ALL_REPLICAS, "warmup": 500}
        load.run(leader, "latency", requests=bench.scaled(5_000) * bench.warmup, **options)
        before, count = cluster.cpu(), bench.scaled(10_000)
        runs = [load.run(leader, "latency", requests=count, **options) for _ in range(bench.rounds)]
        used = (cluster.cpu() - before) / ((count + 500) * bench.rounds) * 1e6
    return [
        figure("replicated p50", [run.p50_us for run in runs], f"{used:.0f} us CPU of all brokers"),
        figure("replicated p99", [run.p99_us for run in runs]),
    ]


def create(bench: Bench) -> list[Figure]:
    """One topic of 1,000 partitions, and 1,000 topics of 3, until the ISR of each has 3 replicas."""
    bench.needs_own_broker()
    partitions: list[float] = []
    topics: list[float] = []
    cpu: dict[str, list[float]] = {"partitions": [], "topics": []}
    count, names = bench.scaled(PARTITIONS), [f"many-{index}" for index in range(bench.scaled(TOPICS))]
    for _ in range(2 if bench.quick else 3):
        with cluster_of(bench.source) as cluster:
            before, begun = cluster.cpu(), time.monotonic()
            cluster.topic("large", count, REPLICAS)
            partitions.append(time.monotonic() - begun)
            cpu["partitions"].append(cluster.cpu() - before)
        with cluster_of(bench.source) as cluster:
            before, begun = cluster.cpu(), time.monotonic()
            with cluster.client_of_controller() as client:
                client.create_topics(names, PARTITIONS_OF_A_TOPIC, REPLICAS)
            cluster.await_in_sync(len(names) * PARTITIONS_OF_A_TOPIC, REPLICAS)
            topics.append(time.monotonic() - begun)
            cpu["topics"].append(cluster.cpu() - before)
    return [
        figure("replicated partitions", partitions, f"{min(cpu['partitions']):.2f} CPU-s in sum"),
        figure("replicated topics", topics, f"{min(cpu['topics']):.2f} CPU-s in sum"),
    ]


def idle(bench: Bench) -> list[Figure]:
    """CPU of three brokers without clients, with 1,000 and with 3,000 partitions, and their memory."""
    bench.needs_own_broker()
    figures: list[Figure] = []
    with cluster_of(bench.source) as cluster:
        for number, wanted in ((1, "1000"), (2, "3000")):
            count = bench.scaled(PARTITIONS) * (1 if number == 1 else 2)
            cluster.topic(f"large-{number}", count, REPLICAS)
            figures.append(figure(f"replicated idle {wanted}", _idle_shares(bench, cluster)))
        sizes = [broker.resident_mb() for broker in cluster.brokers.values()]
    each = ", ".join(f"{size:.0f}" for size in sizes)
    return [*figures, figure("replicated memory", [max(sizes)], f"{each} MB")]


def _idle_shares(bench: Bench, cluster: Cluster) -> list[float]:
    seconds = 4.0 if bench.quick else IDLE_SECONDS
    time.sleep(SETTLED_SECONDS * bench.warmup)
    shares: list[float] = []
    for _ in range(2):
        before, begun = cluster.cpu(), time.monotonic()
        time.sleep(seconds)
        shares.append(100 * (cluster.cpu() - before) / (time.monotonic() - begun))
    return shares


def restart(bench: Bench) -> list[Figure]:
    """A broker with 3,000 partitions stops and starts; until it is in every ISR again."""
    bench.needs_own_broker()
    count = bench.scaled(3 * PARTITIONS)
    times: list[float] = []
    with cluster_of(bench.source) as cluster:
        cluster.topic("large", count, REPLICAS)
        restarted = next(id for id in cluster.brokers if id != cluster.controller)
        for _ in range(2 if bench.quick else 3):
            cluster.stop(restarted)
            cluster.await_all(
                lambda view: all(in_sync < REPLICAS for in_sync in view.in_sync.values()), ["large"]
            )
            begun = time.monotonic()
            cluster.start(restarted)
            cluster.await_in_sync(count, REPLICAS, ["large"])
            times.append(time.monotonic() - begun)
    return [figure("replicated restart", times, "from the start of its process")]
