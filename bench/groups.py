"""Consumer groups: the cost of heartbeats and commits, the time to rebalance and to load offsets."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import machine
from broker import Broker, BrokerFailed
from load import LIMIT, Load, LoadFailed
from machine import MEGABYTE
from report import Figure
from suite import CONNECTIONS, Bench
from targets import figure
from wire import Client

PROGRAM = Path(__file__).parent / "group_load.py"
GROUPS, MEMBERS, BEAT_SECONDS = 1_000, 3, 3.0
LARGE_GROUP = 200
LOADED_GROUPS, LOADED_PARTITIONS = 10_000, 100
COMMITTED_PARTITIONS = 8


def start(broker: Broker, mode: str, **options: object) -> subprocess.Popen[str]:
    words = [sys.executable, str(PROGRAM), f"{broker.host}:{broker.port}", mode]
    for name, value in options.items():
        words += [f"--{name}", str(value)]
    return subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> dict[str, float]:
    try:
        out, err = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise LoadFailed(f"the groups were not done after {LIMIT:.0f} s") from None
    if process.returncode:
        raise LoadFailed(err.strip())
    found: dict[str, float] = json.loads(out.splitlines()[-1])
    return found


def run(broker: Broker, mode: str, **options: object) -> dict[str, float]:
    return finish(start(broker, mode, **options))


def commit(broker: Broker, topic: str, requests: int) -> Load:
    """OffsetCommit requests of one partition by 100 groups, a closed loop on 16 connections."""
    options = {"partitions": COMMITTED_PARTITIONS, "connections": CONNECTIONS, "requests": requests}
    return Load(**run(broker, "commits", topic=topic, **options))  # type: ignore[arg-type]


def commits(bench: Bench) -> list[Figure]:
    """Offset commits per CPU-second."""
    with bench.source.broker() as broker:
        topic = broker.topic("commits", COMMITTED_PARTITIONS)
        commit(broker, topic, bench.scaled(10_000) * bench.warmup)
        rounds = bench.measure(broker, lambda: commit(broker, topic, bench.scaled(30_000)))
    rates = [load.requests / cpu for cpu, load in zip(rounds.cpu, rounds.done, strict=True)]
    p99 = statistics.median(load.p99_us for load in rounds.done) / 1000
    return [figure("commits", rates, f"{rounds.request_rate()} reached, p99 {p99:.1f} ms")]


def heartbeats(bench: Bench) -> list[Figure]:
    """Groups of three members that only send heartbeats, each on its own connection."""
    groups, seconds = bench.scaled(GROUPS), 4.0 if bench.quick else 15.0
    shares: list[float] = []
    with bench.source.broker({"group.initial.rebalance.delay.ms": "3000"}) as broker:
        process = start(broker, "beats", groups=groups, members=MEMBERS, interval=BEAT_SECONDS)
        assert process.stdout is not None
        if not process.stdout.readline():
            finish(process)
        time.sleep(BEAT_SECONDS)
        for _ in range(2 if bench.quick else 3):
            before, begun = broker.cpu(), time.monotonic()
            time.sleep(seconds)
            shares.append(100 * (broker.cpu() - before) / (time.monotonic() - begun))
        found = finish(process)
    note = f"{found['requests'] / found['seconds']:,.0f} heartbeats/s on {groups * MEMBERS:,} connections"
    return [figure("heartbeats", shares, note)]


def rebalance(bench: Bench) -> list[Figure]:
    """From the last of 200 joins to the last member with an assignment."""
    members = bench.scaled(LARGE_GROUP)
    times: list[float] = []
    for _ in range(2 if bench.quick else 3):
        with bench.source.broker({"group.initial.rebalance.delay.ms": "0"}) as broker:
            times.append(run(broker, "rebalance", members=members)["seconds"])
    return [figure("rebalance", times, f"{members} members, the generator's time included")]


def offsets(bench: Bench) -> list[Figure]:
    """A start with 1,000,000 committed offsets: the time until groups are listed, and the peak memory."""
    bench.needs_own_broker()
    groups = bench.scaled(LOADED_GROUPS)
    with bench.source.launcher() as launcher:
        broker, _ = launcher.start({})
        topic = broker.topic("offsets", LOADED_PARTITIONS)
        run(broker, "fill", topic=topic, partitions=LOADED_PARTITIONS, groups=groups)
        launcher.stop()
        begun = time.monotonic()
        broker, _ = launcher.start({})
        with machine.PeakMemory(broker.pid) as sampler, broker.client() as client:
            await_groups(client, groups)
            seconds, cpu = time.monotonic() - begun, broker.cpu()
            after = broker.resident_mb()
    count = groups * LOADED_PARTITIONS
    note = f"{count:,} offsets of {groups:,} groups; the whole start, {cpu:.1f} CPU-s"
    return [
        figure("offsets", seconds, note),
        figure("offsets memory", sampler.peak / MEGABYTE, f"at most; {after:.0f} MB after it"),
    ]


def await_groups(client: Client, count: int) -> None:
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        error, found = client.groups()
        if not error and found >= count:
            return
        time.sleep(0.05)
    raise BrokerFailed(f"{count} groups were not loaded within {LIMIT:.0f} s")
