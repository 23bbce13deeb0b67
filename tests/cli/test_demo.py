"""`tidelog demo`: a broker, events, all pipelines over them, and an end that leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.wait import eventually

NO_JAVA = {"JAVA_HOME": "/nowhere"}
RUN_SECONDS = 600.0  # on a machine that others are busy on


class Demo:
    """The command as a process; what it prints, both streams together, is in `output()`."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        self.file = folder / "output.txt"
        self.started = time.monotonic()
        with self.file.open("wb") as target:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tidelog", "demo", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=target,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
            )

    def output(self) -> str:
        return self.file.read_text(errors="replace")

    def says(self, pattern: str, timeout: float = 60.0) -> re.Match[str]:
        def found() -> re.Match[str] | None:
            match = re.search(pattern, self.output())
            if match is None and self.process.poll() is not None:
                raise AssertionError(f"it ended with {self.process.returncode}:\n{self.output()}")
            return match

        return eventually(found, f"the demonstration says {pattern!r}", timeout, 0.05)

    def port(self) -> int:
        return int(self.says(r"listens on  127\.0\.0\.1:(\d+)")[1])

    def ended(self, timeout: float) -> int:
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not ended after {timeout} s:\n{self.output()}") from None

    def family(self) -> set[int]:
        """The processes that it started, and those that they started."""
        return descendants(self.process.pid)


@contextmanager
def demo(folder: Path, *arguments: str, **environment: str) -> Iterator[Demo]:
    folder.mkdir(parents=True, exist_ok=True)
    running = Demo(folder, *arguments, **environment)
    try:
        yield running
    finally:
        for pid in [*running.family(), running.process.pid] if running.process.poll() is None else []:
            os.kill(pid, signal.SIGKILL)
        running.process.wait()


def descendants(pid: int) -> set[int]:
    try:
        children = {int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    except FileNotFoundError:
        return set()
    return children.union(*(descendants(child) for child in children))


def alive(pids: set[int]) -> set[int]:
    """Those that still run; one whose parent has not asked after it yet does not."""
    found = set()
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            continue
        if state != "Z":
            found.add(pid)
    return found


def answers(port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(2)
        return client.connect_ex(("127.0.0.1", port)) == 0


def flat(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def test_it_makes_events_runs_all_pipelines_shows_what_they_found_and_reports(tmp_path: Path) -> None:
    with demo(tmp_path, "--port", "0", "--events", "3000", "--exit-when-done") as running:
        assert running.ended(RUN_SECONDS) == 0, running.output()
        shown = running.output()
        assert not answers(running_port := int(re.findall(r"127\.0\.0\.1:(\d+)", shown)[0])), running_port
    assert "Making 3,000 events" in shown
    assert re.search(r"^3,000 records are in \d+ topics", shown, re.MULTILINE), shown
    told = re.search(
        r"3,000 records were read: ([\d,]+) are.* ([\d,]+) broken .* ([\d,]+) are invites", flat(shown)
    )
    assert told is not None, shown
    assert sum(int(count.replace(",", "")) for count in told.groups()) == 3000, shown
    assert "not accounted for" not in shown
    for name in (
        *("exposures", "quarantine", "device_alerts", "invite_alerts", "user_regions", "balances"),
        *("daily_earnings", "task_progress"),
    ):
        rows = re.search(rf"^{name} +([\d,]+)$", shown, re.MULTILINE)
        assert rows is not None, shown
        assert rows[1] != "0", f"{name} is empty\n{shown}"
    for rule in ("device-switching", "many-on-device", "many-on-address", "many-in-a-minute", "ring"):
        assert re.search(rf"^{rule} +\d+ +2 of 2 ", shown, re.MULTILINE), f"{rule}\n{shown}"
    report = tmp_path / "tidelog-pipeline" / "report.html"
    assert str(report) in shown
    assert "Events per minute" in report.read_text()
    assert not (tmp_path / "metastore_db").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "output.txt",
        "tidelog-data",
        "tidelog-pipeline",
    ]


@pytest.mark.long
def test_a_second_run_finds_the_events_of_the_first_and_counts_none_twice(tmp_path: Path) -> None:
    tables = []
    for _ in range(2):
        with demo(tmp_path, "--port", "0", "--events", "3000", "--exit-when-done") as running:
            assert running.ended(RUN_SECONDS) == 0, running.output()
            tables.append(running.output().partition("Tables")[2].partition("The report")[0])
    assert "The topics already have" in running.output()
    assert tables[0] == tables[1] != ""


def test_without_java_the_broker_runs_and_one_line_says_what_is_missing(tmp_path: Path) -> None:
    with demo(tmp_path, "--port", "0", **NO_JAVA) as running:
        missing = running.says(r"\n(.*Spark needs Java.*)\n")[1]
        assert "without the pipelines" in missing
        assert "install" in missing
        running.says("The broker keeps running")
        port, family = running.port(), running.family()
        assert answers(port)
        running.process.send_signal(signal.SIGINT)
        assert running.ended(15) == 0
        assert not answers(port)
        assert not alive(family)
    assert "Traceback" not in running.output()
    assert not (tmp_path / "tidelog-pipeline").exists()


def test_ctrl_c_while_the_pipelines_run_ends_everything_within_seconds(tmp_path: Path) -> None:
    with demo(tmp_path, "--port", "0", "--events", "2000") as running:
        running.says(r"tidelog pipeline run all")
        spark_log = tmp_path / "tidelog-pipeline" / "status" / "spark.log"
        eventually(lambda: spark_log.exists() and len(running.family()) > 2, "Java was started", 60)
        family = running.family()
        running.process.send_signal(signal.SIGINT)
        running.process.send_signal(signal.SIGINT)  # somebody is impatient
        asked = time.monotonic()
        assert running.ended(30) == 0, running.output()
        assert time.monotonic() - asked < 20
        eventually(lambda: not alive(family), "all processes are gone", 10)
    assert "Traceback" not in running.output()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent was killed")
def test_a_killed_demonstration_takes_its_broker_along(tmp_path: Path) -> None:
    with demo(tmp_path, "--port", "0", "--no-spark") as running:
        running.says("The broker keeps running")
        family = running.family()
        assert family
        running.process.kill()
        running.process.wait()
        eventually(lambda: not alive(family), "the broker is gone", 15)


def test_the_console_answers_at_the_address_that_is_printed(tmp_path: Path) -> None:
    with demo(tmp_path, "--port", "0", "--no-spark") as running:
        address = running.says(r"console at  (http://127\.0\.0\.1:\d+)")[1]
        with urllib.request.urlopen(f"{address}/api/clusters", timeout=30) as answer:
            assert answer.status == 200


def test_a_busy_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with demo(tmp_path, "--port", str(port)) as running:
            assert running.ended(30) == 1
    assert f"127.0.0.1:{port}" in running.output()
    assert "already in use" in running.output()
    assert "Traceback" not in running.output()


def test_checkpoints_of_another_log_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "tidelog-pipeline" / "checkpoints" / "collect").mkdir(parents=True)
    with demo(tmp_path, "--port", "0", "--exit-when-done") as running:
        assert running.ended(60) == 1
    assert "has checkpoints of another log" in running.output()
    assert "Remove that folder" in running.output()
