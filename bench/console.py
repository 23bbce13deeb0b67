"""One-record produces beside browsers on the console: its process must not delay the broker's."""

from __future__ import annotations

import http.client
import itertools
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import load
import machine
from broker import free_port
from load import Load
from report import Figure
from suite import Bench
from targets import figure

BROWSERS = 10
TOPICS = 200
RECORDS = 200_000
RECORD_SIZE = 100
INTERVAL_US = 1000
CLUSTER = "/clusters/local"
OVERVIEW_LIVE = f"{CLUSTER}/overview/live"
PAGES = (
    "",
    "/topics",
    "/topics?sort=size&descending=true",
    "/topics/{light}",
    "/topics/{light}/settings?all=1",
    "/topics/{large}/messages?text=no-such-text",
    "/cluster",
    "/topics/{large}/messages?start=oldest&filter=" + quote("record.offset % 1000 == 7"),
    "/palette?q=con",
    "/topics/{light}/messages",
)
ANALYSIS = "/api/clusters/local/topics/{large}/analysis"
PAUSE_SECONDS = 1.0
BROWSERS_NICENESS = 19
"""Browsers run on other machines: here they take only what broker, console and load leave."""


def console(bench: Bench) -> list[Figure]:
    """One-record produces, one every ms, beside browsers that tail, search and analyse, and without."""
    bench.needs_own_broker()
    port = free_port()
    requests = bench.scaled(8_000)
    with bench.source.broker({"console.listener": f"127.0.0.1:{port}"}) as broker:
        topics = [broker.topic(f"console-{number}") for number in range(TOPICS)]
        large = broker.topic("console-large", 4)
        load.run(
            broker,
            "produce",
            topic=large,
            partitions=4,
            records=100,
            record_size=RECORD_SIZE,
            requests=RECORDS // 100,
        )
        await_console(port)
        child = console_pid(broker.pid)

        def produce() -> tuple[Load, float, float, float]:
            """The load, the share of a core that broker and console used, and the broker's waits for one."""
            began, waited = time.monotonic(), machine.main_thread_delay_seconds(broker.pid)
            cpu, cpu_child = machine.own_cpu_seconds(broker.pid), machine.own_cpu_seconds(child)
            done = load.run(
                broker, "latency", topic=topics[0], requests=requests, interval_us=INTERVAL_US, warmup=500
            )
            seconds = time.monotonic() - began
            share = (machine.own_cpu_seconds(broker.pid) - cpu) / seconds
            share_child = (machine.own_cpu_seconds(child) - cpu_child) / seconds
            return done, share, share_child, machine.main_thread_delay_seconds(broker.pid) - waited

        def resident_mb(pid: int) -> float:
            return machine.own_resident_bytes(pid) / machine.MEGABYTE

        before = resident_mb(broker.pid)
        alone: list[Load] = []
        beside: list[Load] = []
        used: list[tuple[float, float]] = []
        delays: list[tuple[float, float]] = []
        for _ in range(bench.rounds):
            done, _, _, delay = produce()
            alone.append(done)
            with browsers(port, topics[0], large):
                done, share, share_child, delay_beside = produce()
                beside.append(done)
                used.append((share, share_child))
                delays.append((delay, delay_beside))
        grown, child_mb = resident_mb(broker.pid) - before, resident_mb(child)
    return [*_latencies(alone, beside, used), _waits(delays, requests), *_memory(grown, child_mb)]


def _latencies(alone: list[Load], beside: list[Load], used: list[tuple[float, float]]) -> list[Figure]:
    base = statistics.median(done.p99_us for done in alone)
    base50 = statistics.median(done.p50_us for done in alone)
    found = statistics.median(done.p99_us for done in beside)
    found50 = statistics.median(done.p50_us for done in beside)
    broker, child = (100 * statistics.median(shares) for shares in zip(*used, strict=True))
    note = (
        f"{found:,.0f} us against {base:,.0f}; {BROWSERS} browsers;"
        f" broker {broker:.0f} % of a core, console {child:.0f} %"
    )
    note50 = f"{found50:,.0f} us against {base50:,.0f}"
    return [
        figure("console", [done.p99_us / base for done in beside], note),
        figure("console p50", [done.p50_us / base50 for done in beside], note50),
    ]


def _waits(delays: list[tuple[float, float]], requests: int) -> Figure:
    """The broker's waits for a core: the part of a latency that a busy machine does not hide."""
    alone, beside = (1e6 * statistics.median(found) / requests for found in zip(*delays, strict=True))
    note = f"{beside:,.0f} us against {alone:,.0f}"
    return figure("console waits", [1e6 * found[1] / requests for found in delays], note)


def _memory(grown: float, child_mb: float) -> list[Figure]:
    return [figure("console memory", [grown]), figure("console process", [child_mb])]


def console_pid(broker_pid: int) -> int:
    """The process of the console: the broker's child that runs it."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            if parent == broker_pid and b"tidelog.console.process" in (path.parent / "cmdline").read_bytes():
                return int(path.parent.name)
        except OSError:
            continue  # it ended meanwhile
    raise RuntimeError("the broker has no console")


def await_console(port: int) -> None:
    """Wait for the first answer: the broker does not wait for its console."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/api/clusters")
    connection.getresponse().read()
    connection.close()


@contextmanager
def browsers(port: int, light: str, large: str) -> Iterator[None]:
    """Browsers in another process, which would take time from the load otherwise."""
    command = [sys.executable, __file__, str(port), light, large]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        time.sleep(1)  # until all of them follow
        yield
        if process.poll() is not None:
            raise RuntimeError("the browsers ended early")
    finally:
        process.kill()  # on a busy machine they would get no core to end
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def follow(port: int, path: str) -> None:
    """Read the events of a live page, for ever."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", path)
    answer = connection.getresponse()
    if answer.status != 200:
        fail(path, answer.status)
    while answer.read1(65536):
        pass


def look_around(port: int, first: int, names: dict[str, str]) -> None:
    """Open one page after the other, for ever; a search takes as many pages as it needs."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    for at in itertools.count(first):
        path = CLUSTER + PAGES[at % len(PAGES)].format(**names)
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            fail(path, answer.status)
        time.sleep(PAUSE_SECONDS)


def analyse(port: int, large: str) -> None:
    """Analyse the large topic again and again, for ever."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    path = ANALYSIS.format(large=large)
    while True:
        for method in ("POST", "GET"):
            connection.request(method, path, headers={"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            if answer.status not in (200, 409):  # 409: it runs
                fail(path, answer.status)
            time.sleep(PAUSE_SECONDS)


def fail(path: str, status: int) -> None:
    """End the process of the browsers: the figure would be of no use."""
    print(f"{path} answers {status}", file=sys.stderr, flush=True)
    os._exit(1)


def yield_to_others() -> None:
    """Take no core that broker or load want. A process that is only nice would finish its slice first."""
    os.nice(BROWSERS_NICENESS)
    if sys.platform.startswith("linux"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def main() -> None:
    """Run the browsers until standard input ends."""
    port, light, large = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    yield_to_others()
    names = {"light": light, "large": large}
    for number in range(BROWSERS):
        live = OVERVIEW_LIVE if number % 2 else f"{CLUSTER}/topics/{light}/messages/live"
        for target, arguments in ((follow, (port, live)), (look_around, (port, number, names))):
            threading.Thread(target=target, args=arguments, daemon=True).start()
    threading.Thread(target=analyse, args=(port, large), daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
