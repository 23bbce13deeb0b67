"""The scenarios. Each takes a Bench and returns figures; `SCENARIOS` has them in order.

CPU time is the time of the broker's processes: on a busy machine it varies less than elapsed time. Every
scenario gets a new broker with empty folders, unless one broker was given for all.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import clients_consume
import cluster_scenarios
import cold
import commands
import growth
import load
import machine
import replication_scenarios
import security_scenarios
import sessions
import spark_suite
import tables_suite
import upkeep
import workloads
from broker import Broker
from load import Load
from machine import GIGABYTE, MEGABYTE
from report import Figure
from suite import Bench, Skipped
from targets import figure
from wire import EARLIEST, LATEST
from workloads import BULK_CONNECTIONS, KEEP_LITTLE, MEGABYTE_OF_100, MEGABYTE_OF_1000, RETAIN_OFTEN

import clients
import console
import groups
import transactions

HALF_GIGABYTE = GIGABYTE // 2


def floor(bench: Bench) -> list[Figure]:
    """The CPU time that the kernel takes to append to a file on this machine."""
    size = bench.scaled(GIGABYTE)
    costs = [machine.append_cost(bench.source.folder, size) / size * GIGABYTE for _ in range(3)]
    return [figure("floor", costs, "every broker pays this part of a produce")]


def start(bench: Bench) -> list[Figure]:
    """From the start of the process to its first answer, on a used folder; and memory when idle."""
    bench.needs_own_broker()
    times: list[float] = []
    resident: list[float] = []
    with bench.source.launcher() as launcher:
        _, first = launcher.start({})
        launcher.stop()
        for _ in range(bench.rounds):
            broker, seconds = launcher.start({})
            times.append(seconds)
            time.sleep(1.0)  # by then the deferred work of a start is done
            resident.append(broker.resident_mb())
            launcher.stop()
    return [figure("start", times, f"on an empty folder {first:.2f} s"), figure("idle", resident)]


def small(bench: Bench) -> list[Figure]:
    """One-record produce requests, a closed loop on 16 connections: plain, idempotent and transactional."""
    loads = {
        "small": workloads.one_record,
        "small idempotent": workloads.idempotent_record,
        "small transactional": workloads.transactional_record,
    }
    requests = bench.scaled(100_000)
    with bench.source.broker() as broker:
        works = []
        for key, produce in loads.items():
            topic = broker.topic(key.replace(" ", "-"))
            produce(broker, topic, bench.scaled(50_000) * bench.warmup)
            works.append(partial(produce, broker, topic, requests))
        plain, *others = bench.measure_in_turns(broker, works)
    cost = plain.per_request(1_000_000)  # microseconds a request
    return [
        figure("small", plain.per_request(100_000), plain.request_rate()),
        *(
            growth.grown(key, cost, rounds.per_request(1_000_000), rounds.request_rate())
            for key, rounds in zip(list(loads)[1:], others, strict=True)
        ),
    ]


def latency(bench: Bench) -> list[Figure]:
    """One-record produce requests, one after the other on one connection."""
    with bench.source.broker() as broker:
        topic = broker.topic("latency")
        workloads.one_connection(broker, topic, bench.scaled(20_000) * bench.warmup)
        runs = [workloads.one_connection(broker, topic, bench.scaled(30_000)) for _ in range(bench.rounds)]
    note = f"p99.9 {statistics.median(run.p999_us for run in runs):,.0f} us"
    return [figure("p50", [run.p50_us for run in runs]), figure("p99", [run.p99_us for run in runs], note)]


def bulk(bench: Bench) -> list[Figure]:
    """Produce requests of 1 MB, with records of 1,000 and of 100 bytes."""
    return [
        bulk_figure(bench, "bulk1000", MEGABYTE_OF_1000),
        bulk_figure(bench, "bulk100", MEGABYTE_OF_100),
    ]


def bulk_figure(bench: Bench, key: str, batch: dict[str, int]) -> Figure:
    amount = bench.scaled(HALF_GIGABYTE)
    with bench.source.broker() as broker:
        topic = broker.topic("bulk")
        workloads.bulk(broker, topic, amount * bench.warmup, batch)
        rounds = bench.measure(
            broker, lambda: workloads.bulk(broker, topic, amount, batch), page_cache=amount
        )
    return figure(key, rounds.per_gigabyte(), rounds.byte_rate())


def fetch(bench: Bench) -> list[Figure]:
    """Fetch requests of 1 MiB, in order through a log in the page cache."""
    amount = bench.scaled(GIGABYTE)
    with bench.source.broker() as broker:
        topic = broker.topic("fetch")
        end = workloads.fill(broker, topic, amount)
        workloads.fetch(broker, topic, end, amount * bench.warmup)
        rounds = bench.measure(broker, lambda: workloads.fetch(broker, topic, end, amount * 4))
    return [figure("fetch", rounds.per_gigabyte(), f"{rounds.byte_rate()} on one connection")]


def beside(bench: Bench) -> list[Figure]:
    """One-record requests beside a producer of 1 GB/s with a small retention: one after the other, and one
    every 2 ms, measured from its due time, so that a pause counts for every request that it delays."""
    seconds = 3 if bench.quick else 10
    with bench.source.broker(RETAIN_OFTEN) as broker:
        heavy, light = broker.topic("heavy", 1, **KEEP_LITTLE), broker.topic("light")
        producer: dict[str, object] = {"topic": heavy, "connections": BULK_CONNECTIONS, **MEGABYTE_OF_1000}
        load.run(broker, "latency", topic=light, requests=bench.scaled(20_000) * bench.warmup)
        load.run(broker, "produce", bytes=GIGABYTE * 3 // 2, **producer)
        retained = await_retention(broker, heavy, limit=60)

        def both(**probe_options: object) -> tuple[Load, Load]:
            bench.warm_memory(2 * GIGABYTE)
            heavy_run = load.start(broker, "produce", seconds=seconds, rate=GIGABYTE, **producer)
            time.sleep(0.3)
            probe = load.start(broker, "latency", topic=light, seconds=seconds - 0.6, **probe_options)
            return load.finish(probe), load.finish(heavy_run)

        in_turn, _ = both()
        when_due, heavy_load = both(interval_us=2000)
    reached = heavy_load.bytes / heavy_load.seconds / MEGABYTE
    return [
        figure("beside", in_turn.p99_us / 1000, spread_note(in_turn)),
        figure("beside due", when_due.p99_us / 1000, spread_note(when_due)),
        figure("rate", reached, f"for {seconds} s" + ("" if retained else "; retention had not begun")),
    ]


def spread_note(small: Load) -> str:
    return f"p50 {small.p50_us / 1000:.2f} ms, worst {small.max_us / 1000:.1f} ms"


def await_retention(broker: Broker, topic: str, limit: float) -> bool:
    """Wait until the broker deletes old segments, which is its normal state in service."""
    stop = time.monotonic() + limit
    with broker.client() as client:
        while time.monotonic() < stop:
            if client.offset(topic, 0, EARLIEST) > 0:
                return True
            time.sleep(0.25)
    return False


def memory(bench: Bench) -> list[Figure]:
    """Resident memory under small produce, bulk produce and fetch, three times."""
    in_flight = 8
    amount = bench.scaled(GIGABYTE)
    after: list[float] = []
    with bench.source.broker() as broker:
        topic = broker.topic("memory")
        idle = broker.resident_mb()
        bulk_load: dict[str, object] = {"topic": topic, "connections": in_flight, "bytes": amount}
        with machine.PeakMemory(broker.pid) as sampler:
            for _ in range(3):
                load.run(broker, "produce", topic=topic, connections=64, requests=bench.scaled(100_000))
                load.run(broker, "produce", **bulk_load, **MEGABYTE_OF_1000)
                with broker.client() as client:
                    end = client.offset(topic, 0, LATEST)
                load.run(broker, "fetch", **bulk_load, to=end, max_bytes=1 << 20)
                after.append(broker.resident_mb())
    peak = sampler.peak / MEGABYTE - idle
    note = f"after it {after[-1] - idle:.0f} MB; 64 connections, {in_flight} requests of 1 MB at a time"
    return [figure("grown", peak, note), figure("creep", after[-1] - after[0])]


def connections(bench: Bench) -> list[Figure]:
    """Memory with 10,000 connections that are idle after one answer."""
    count = bench.scaled(10_000)
    with bench.source.broker() as broker:
        before = broker.resident_mb()
        with load.idle_connections(broker, count):
            time.sleep(0.5)
            resident = broker.resident_mb()
    each = (resident - before) * 1000 / count
    return [figure("connections", resident, f"{count:,} of {each:.1f} KB")]


def librdkafka(bench: Bench) -> list[Figure]:
    """One librdkafka producer with default batching."""
    library = load.librdkafka()
    if library is None:
        raise Skipped("librdkafka was not found; install the package confluent-kafka")
    figures = []
    for size, records in ((100, 6_000_000), (1000, 600_000)):
        count = bench.scaled(records)
        rates: list[float] = []
        with bench.source.broker() as broker:
            topic = broker.topic("librdkafka")
            load.run_librdkafka(library, broker, topic, count * bench.warmup, size)
            for _ in range(bench.rounds):
                bench.warm_memory(count * (size + 12))
                rates.append(load.run_librdkafka(library, broker, topic, count, size))
        figures.append(figure(f"librdkafka{size}", rates))
    return figures


SCENARIOS: dict[str, Callable[[Bench], list[Figure]]] = {
    "floor": floor,
    "start": start,
    "small": small,
    "latency": latency,
    "bulk": bulk,
    "fetch": fetch,
    "sessions": sessions.sessions,
    "beside": beside,
    "cold": cold.cold,
    "console": console.console,
    "commands": commands.commands,
    "memory": memory,
    "connections": connections,
    "segments": growth.segments,
    "partitions": growth.partitions,
    "cleaning": upkeep.cleaning,
    "retention": upkeep.retention,
    "commits": groups.commits,
    "heartbeats": groups.heartbeats,
    "rebalance": groups.rebalance,
    "offsets": groups.offsets,
    "transactions": transactions.transactions,
    "logins": security_scenarios.logins,
    "acl-produce": security_scenarios.acl_produce,
    "cluster-create": cluster_scenarios.create,
    "cluster-failover": cluster_scenarios.failover,
    "cluster-idle": cluster_scenarios.idle,
    "cluster-start": cluster_scenarios.start,
    "cluster-produce": cluster_scenarios.produce,
    "replicated-produce": replication_scenarios.produce,
    "replicated-latency": replication_scenarios.latency,
    "replicated-create": replication_scenarios.create,
    "replicated-idle": replication_scenarios.idle,
    "replicated-restart": replication_scenarios.restart,
    "librdkafka": librdkafka,
    "clients": clients.clients,
    "consumers": clients_consume.consumers,
    "spark": spark_suite.spark,
    "tables-collect": tables_suite.collect,
    "tables-small": tables_suite.small,
    "tables-merge": tables_suite.merge,
    "tables-commits": tables_suite.commits,
    "tables-rings": tables_suite.rings,
    "tables-five": tables_suite.five,
}
