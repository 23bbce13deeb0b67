"""One-record produces beside browsers on the console: its thread must not delay the broker's."""

from __future__ import annotations

import http.client
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import load
from broker import free_port
from load import Load
from report import Figure
from suite import Bench
from targets import figure

BROWSERS = 10
TOPICS = 200
INTERVAL_US = 1000
LIVE = "/clusters/local/overview/live"
PAGES = (
    "/clusters/local",
    "/clusters/local/topics",
    "/clusters/local/topics?sort=size&descending=true",
    "/clusters/local/topics/console-0",
    "/clusters/local/topics/console-0/settings?all=1",
    "/clusters/local/cluster",
    "/clusters/local/palette?q=con",
)
PAUSE_SECONDS = 1.0


def console(bench: Bench) -> list[Figure]:
    """One-record produces, one every ms, with and without browsers that follow and look around, in turns."""
    bench.needs_own_broker()
    port = free_port()
    requests = bench.scaled(8_000)
    with bench.source.broker({"console.listener": f"127.0.0.1:{port}"}) as broker:
        topics = [broker.topic(f"console-{number}") for number in range(TOPICS)]
        before = broker.resident_mb()

        def produce() -> Load:
            return load.run(
                broker, "latency", topic=topics[0], requests=requests, interval_us=INTERVAL_US, warmup=500
            )

        alone: list[float] = []
        beside: list[float] = []
        for _ in range(bench.rounds):
            alone.append(produce().p99_us)
            with browsers(port):
                beside.append(produce().p99_us)
        grown = broker.resident_mb() - before
    base, found = statistics.median(alone), statistics.median(beside)
    note = f"{found:,.0f} us against {base:,.0f}; {BROWSERS} browsers"
    return [figure("console", [value / base for value in beside], note), figure("console memory", [grown])]


@contextmanager
def browsers(port: int) -> Iterator[None]:
    """Browsers in another process, which would take time from the load otherwise."""
    process = subprocess.Popen([sys.executable, __file__, str(port)], stdin=subprocess.PIPE)
    try:
        time.sleep(1)  # until all of them follow
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(10)


def follow(port: int) -> None:
    """Read the events of the overview, for ever."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", LIVE)
    answer = connection.getresponse()
    while answer.read1(65536):
        pass


def look_around(port: int, first: int) -> None:
    """Open one page after the other, for ever."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    at = first
    while True:
        connection.request("GET", PAGES[at % len(PAGES)])
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise SystemExit(f"{PAGES[at % len(PAGES)]} answers {answer.status}")
        at += 1
        time.sleep(PAUSE_SECONDS)


def main() -> None:
    """Run the browsers until standard input ends."""
    port = int(sys.argv[1])
    for number in range(BROWSERS):
        threading.Thread(target=follow, args=(port,), daemon=True).start()
        threading.Thread(target=look_around, args=(port, number), daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
