"""The console of a broker is a process of its own, which lives and ends with the broker."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.console.site import Site, is_running
from tests.support.wait import eventually, patience
from tidelog import Admin
from tidelog.console.process import NICENESS, SCHED_ATTR, SCHED_SETATTR, SLICE_NS
from tidelog.server.config.broker import BrokerConfig
from tidelog.testing import Broker

ANSWERS = re.compile(r"the console answers.* url=(http://\S+) pid=(\d+)")
CHANGING = {"records_per_s", "bytes_in_per_s", "bytes_out_per_s"}
CHANGING |= {"seconds", "at_least", "trend", "per_second", "catch_up_seconds"}
PATHS = ("/topics", "/topics/again", "/topics/kept", "/groups")

MODULES = """
import sys
from tidelog.server import run

def announce(broker, ready_file):
    print(*(name for name in sys.modules if "." not in name), flush=True)

run._announce = announce
run.run_broker(None, dict(text.split("=", 1) for text in sys.argv[1:]), None, None)
"""


YIELDING = """
import sys
from tidelog.console import process

process.yield_to_broker(sys.argv[1])
print(flush=True)
sys.stdin.read()
"""

RELEASE = tuple(map(int, re.findall(r"\d+", platform.release())[:2]))
HAS_SLICES = sys.platform.startswith("linux") and RELEASE >= (6, 12) and platform.machine() in SCHED_SETATTR


def pids(broker: Broker) -> list[int]:
    """The processes of the console so far, in order."""
    return [int(found[2]) for line in broker.log_lines() if (found := ANSWERS.search(line))]


def steady(found: Any) -> Any:
    """An answer without what changes with time."""
    if isinstance(found, dict):
        return {name: steady(value) for name, value in found.items() if name not in CHANGING}
    return [steady(each) for each in found] if isinstance(found, list) else found


def test_a_killed_console_comes_back_and_knows_what_it_knew(tmp_path: Path) -> None:
    rules = tmp_path / "rules.json"
    rules.write_text("{}")
    settings = {"console.listener": "127.0.0.1:0", "console.rules.file": str(rules)}
    with Broker(settings) as broker, Site(broker) as site:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            for name in ("kept", "again", "gone"):
                broker.create_topic(name, 2)
                broker.produce(name, b"1", b"2", partition=1)
            for group in ("g-kept", "g-gone"):
                admin.alter_consumer_group_offsets(group, {("kept", 0): 0, ("kept", 1): 1, ("again", 1): 2})
            eventually(lambda: site.get("/groups")["total"] == 2, "the groups are known", patience(20), 0.2)
            admin.delete_topics(["gone", "again"])
            admin.delete_consumer_groups(["g-gone"])
            admin.delete_consumer_group_offsets("g-kept", [("kept", 0)])
        broker.create_topic("again", 1)
        broker.produce("kept", b"3")

        def found() -> dict[str, Any]:
            return {path: steady(site.get(path)) for path in PATHS}

        before = eventually(
            lambda: (
                (seen := found())
                and {topic["name"]: topic["records"] for topic in seen["/topics"]["topics"]}
                == {"again": 0, "kept": 3}
                and [group["group"] for group in seen["/groups"]["groups"]] == ["g-kept"]
                and seen
            ),
            "the changes are seen",
            patience(20),
            0.2,
        )
        [pid] = pids(broker)
        rules.write_text("[]")
        os.kill(pid, signal.SIGKILL)
        eventually(
            lambda: [line for line in broker.log_lines() if "console.rules.file=" in line],
            "the reason of a failed start is logged",
            patience(30),
        )
        rules.write_text("{}")
        # The broker holds the socket: a request waits until the next process answers it.
        assert httpx.get(f"{site.url}/api/clusters", timeout=patience(60)).status_code == 200
        assert any("the console ended" in line and "killed by SIGKILL" in line for line in broker.log_lines())
        assert len(eventually(lambda: pids(broker)[1:], "the next console answers")) == 1
        assert found() == before


def test_a_stop_ends_live_pages_and_the_process() -> None:
    with Broker({"console.listener": "127.0.0.1:0"}) as broker, Site(broker) as site:
        [pid] = eventually(lambda: pids(broker), "the console answers", patience(60))
        with site.http.stream("GET", "/clusters/local/overview/live", timeout=patience(30)) as live:
            events = live.iter_bytes()
            assert next(events)
            broker.stop()
            for _ in events:  # raises if the process was killed: the end of the stream would be missing
                pass
        assert not is_running(pid)


def test_a_console_dies_with_its_broker_and_shares_nothing_with_it(tmp_path: Path) -> None:
    secret = tmp_path / "client.properties"
    secret.write_text("ssl.truststore.password=planted-word\n")
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(tmp_path / "data"),
        "console.listener": "127.0.0.1:0",
        "console.command.config": str(secret),
    }
    log = tmp_path / "log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", MODULES, *(f"{name}={value}" for name, value in settings.items())],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        assert process.stdout is not None
        modules = set(process.stdout.readline().split())
        assert "tidelog" in modules
        assert modules.isdisjoint({"starlette", "uvicorn", "jinja2"})
        url, number = eventually(
            lambda: (found := ANSWERS.search(log.read_text())) and found.groups(),
            "the console answers",
            patience(60),
        )
        pid = int(number)
        # Ctrl-C in a terminal is for the broker's group; a service manager signals all processes.
        assert (os.getpgid(pid), os.getsid(pid)) == (pid, os.getsid(process.pid))
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid, signal_number)
        assert httpx.get(f"{url}/api/clusters", timeout=30).status_code == 200
        for name in ("cmdline", "environ"):
            assert b"planted-word" not in Path(f"/proc/{pid}/{name}").read_bytes()
        mine = os.getpriority(os.PRIO_PROCESS, process.pid)
        assert os.getpriority(os.PRIO_PROCESS, pid) == min(mine + NICENESS, 19)
        threads = [int(thread) for thread in os.listdir(f"/proc/{pid}/task")]
        assert {os.sched_getscheduler(thread) for thread in threads} == {os.SCHED_BATCH}
    finally:
        process.kill()
        process.wait(30)
        process.stdout.close()
    eventually(lambda: not is_running(pid), "the console is gone", patience(10))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have only niceness")
@pytest.mark.parametrize(
    ("policy", "scheduler", "niceness"),
    [
        ("idle", "SCHED_IDLE", NICENESS),
        ("batch", "SCHED_BATCH", NICENESS),
        ("normal", "SCHED_OTHER", 0),
    ],
)
def test_the_policy_decides_which_process_goes_first(policy: str, scheduler: str, niceness: int) -> None:
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    arguments = [sys.executable, "-c", YIELDING, policy]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            if policy != "idle":  # such a process may get no core to say so
                child.stdout.readline()
            wanted = getattr(os, scheduler)
            eventually(lambda: os.sched_getscheduler(child.pid) == wanted, "the policy is set", patience(30))
            assert os.getpriority(os.PRIO_PROCESS, child.pid) == min(mine + niceness, 19)
            if policy == "batch" and HAS_SLICES:
                assert slice_ns(child.pid) == SLICE_NS
        finally:
            child.kill()


def slice_ns(pid: int) -> int:
    """The time that a process asks to run at a stretch (sched_getattr, the call after sched_setattr)."""
    found = ctypes.create_string_buffer(SCHED_ATTR.size)
    number = SCHED_SETATTR[platform.machine()] + 1
    ctypes.CDLL(None).syscall(ctypes.c_long(number), pid, found, SCHED_ATTR.size, 0)
    return int(SCHED_ATTR.unpack(found.raw)[5])


BUSY = "import sys; print(flush=True)\nwhile True: pass"


def test_a_console_answers_while_other_processes_fill_every_core() -> None:
    others = [
        subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE)
        for _ in range(2 * len(os.sched_getaffinity(0)))
    ]
    try:
        for each in others:
            assert each.stdout is not None
            assert each.stdout.readline()
        usual = BrokerConfig({}).console_scheduling_policy
        with Broker({"console.listener": "127.0.0.1:0", "console.scheduling.policy": usual}) as broker:
            assert eventually(lambda: pids(broker), "the console answers", patience(30))
    finally:
        for each in others:
            each.kill()
            each.wait(30)
            assert each.stdout is not None
            each.stdout.close()


def test_the_setting_reaches_the_console() -> None:
    settings = {"console.listener": "127.0.0.1:0", "console.scheduling.policy": "batch"}
    with Broker(settings) as broker:
        [pid] = eventually(lambda: pids(broker), "the console answers", patience(60))
        assert os.sched_getscheduler(pid) == os.SCHED_BATCH
