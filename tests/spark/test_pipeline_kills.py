"""Pipelines that are killed with SIGKILL at drawn points and started again lose no row and double none.

Real processes: the tool with its Java machine, on a broker of its own, while events go on being produced. In
the end tables and topics (read_committed) equal a plain computation over what was sent, to the last unit.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.app_events import App
from tests.spark.hands import Hands
from tests.spark.readers import Expected, readers, table_faults
from tests.support.scale import scale
from tests.support.wait import eventually, patience
from tidelog.spark.pipelines.state import StateFolder
from tidelog.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS = 400.0
QUICK_START = (
    "spark.driver.memory=768m",
    "spark.sql.shuffle.partitions=2",  # fewer tasks for few users
)


class Story:
    """A broker, an app that goes on sending, and the tool that is killed and started again."""

    def __init__(self, folder: Path, hands: Hands, seed: int) -> None:
        self.folder = folder
        self.hands = hands
        self.draw = random.Random(seed)
        self.app = App(hands.bootstrap, seed, users=12)
        self.app.make_topics()
        self.data = folder / "data"
        self.log = folder / "output.txt"

    def tool(self, plan: dict[str, object] | None, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.spark.killed", json.dumps(plan), "pipeline", *arguments]
        command += ["--data", str(self.data)]
        if arguments[0] == "run":
            command += ["--bootstrap-server", self.hands.bootstrap, "--master", "local[2]"]
            for conf in (*QUICK_START, f"spark.local.dir={self.folder / 'local'}"):
                command += ["--spark-conf", conf]
        with self.log.open("ab") as log:
            log.write(f"\n$ {' '.join(command)}\n".encode())
            log.flush()
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    @contextmanager
    def running(self, plan: dict[str, object] | None, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """The tool as a process that does not outlive the block."""
        process = self.tool(plan, "run", *arguments)
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def run(self, plan: dict[str, object] | None, *arguments: str, sending: bool = False) -> int:
        """The exit code; with `sending` the app goes on sending until then."""
        with self.running(plan, "earnings", "region", *arguments) as process:

            def ended() -> bool:
                if sending:
                    self.app.send(20)
                return process.poll() is not None

            eventually(ended, f"it ends; {self.told()}", patience(SECONDS), 0.5 if sending else 0.05)
            return process.wait()

    def told(self) -> str:
        spark_log = self.data / "status" / "spark.log"
        return self.log.read_text()[-3000:] + (spark_log.read_text()[-3000:] if spark_log.exists() else "")

    def killed_at(self, plan: dict[str, object]) -> None:
        """A run of many small batches that does not live to see its end."""
        print(f"killed {plan}")
        self.app.send(self.draw.randrange(100, 200))
        code = self.run(plan, "--trigger", "0 seconds", "--max-offsets-per-trigger", "100", sending=True)
        assert code == -signal.SIGKILL, f"ended with {code}: {self.told()}"

    def finish(self) -> None:
        code = self.run(None, "--trigger", "available-now")
        assert code == 0, f"ended with {code}: {self.told()}"

    def faults(self, spark: SparkSession) -> list[str]:
        """What is not as a plain computation over the log has it, whoever reads."""
        steps = ("user_id", "task_id", "steps_done", "steps", "completed")
        balances = ("user_id", "balance", "events", "last_event_at")
        days = ("user_id", "day", "earned", "events")
        expected = {
            "balances": Expected.of(balances, self.app.balances()),
            "daily_earnings": Expected.of(days, self.app.days()),
            "task_progress": Expected.of(steps, self.app.tasks()),
            "user_regions": Expected.of(("user_id", "country", "number_type"), self.app.regions()),
        }
        return table_faults(readers(f"{self.data}/tables", spark), expected) + self.topic_faults()

    def topic_faults(self) -> list[str]:
        return balance_faults(map(json.loads, self.hands.log("ml_balances")), self.app.balances())


def balance_faults(values: Iterable[Mapping[str, object]], expected: Iterable[tuple[str, ...]]) -> list[str]:
    """Each balance in the topic is newer than the one before it, and the last one is right."""
    found: list[str] = []
    last: dict[object, tuple[str, ...]] = {}
    for value in values:
        user, events = value["user_id"], str(value["events"])
        if user in last and int(events) <= int(last[user][2]):
            found.append(f"ml_balances: {user} has {events} events after {last[user][2]}")
        last[user] = (str(user), str(value["balance"]), events)
    if set(last.values()) != {row[:3] for row in expected}:
        found.append(f"ml_balances: the last values are {sorted(last.values())}")
    return found


@pytest.mark.parametrize(
    ("counts", "fault"),
    [
        ([1, 2, 5], None),
        ([1, 2, 2, 5], "u has 2 events after 2"),
        ([2, 1, 5], "u has 1 events after 2"),
        ([1, 2, 5, 2], "the last values are"),
        ([1, 2], "the last values are"),
    ],
    ids=["right", "twice", "out of order", "an old value last", "the last one missing"],
)
def test_balances_that_are_wrong_are_found(counts: list[int], fault: str | None) -> None:
    values = [{"user_id": "u", "balance": 10 * events, "events": events} for events in counts]
    found = balance_faults(values, [("u", "50", "5", "2026-01-31")])
    assert any(fault in each for each in found) if fault is not None else found == []


@pytest.fixture
def hands() -> Iterator[Hands]:
    with Broker() as broker, Hands(broker.bootstrap_servers) as hands:
        yield hands


def a_point(draw: random.Random) -> dict[str, object]:
    """A kill before, after or in the midst of one of the first writes of a run."""
    when = draw.choice(("before", "after", "during", "during"))
    return {"write": draw.randrange(1, 12), "when": when, "seconds": round(draw.uniform(0.02, 1.5), 3)}


def test_killed_pipelines_lose_nothing_and_double_nothing(
    spark: SparkSession, tmp_path: Path, hands: Hands
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    story = Story(tmp_path, hands, seed)
    for _ in range(scale(2, 12)):
        story.killed_at(a_point(story.draw))
    story.app.send(100)
    story.finish()
    assert not story.faults(spark)
    assert not open_transactions(hands), "no transaction is left open"


def open_transactions(hands: Hands) -> list[str]:
    return [
        each.transactional_id
        for each in hands.admin.list_transactions()
        if str(getattr(each.state, "value", each.state)) in ("Ongoing", "PrepareCommit", "PrepareAbort")
    ]


@pytest.mark.long
def test_a_sink_that_writes_again_what_it_wrote_is_found(
    spark: SparkSession, tmp_path: Path, hands: Hands
) -> None:
    story = Story(tmp_path, hands, 7)
    # Killed behind its last sink, the topic, the micro-batch comes again.
    story.killed_at({"write": 2, "sink": "ml_balances", "when": "after", "plain": True})
    story.finish()
    assert any(fault.startswith("ml_balances") for fault in story.faults(spark))


def test_signals_and_stop_end_it_after_the_batch(tmp_path: Path, hands: Hands) -> None:
    story = Story(tmp_path, hands, 3)
    story.app.send(150)
    folder = StateFolder(str(story.data))
    options = ("--trigger", "0 seconds", "--output", "json", "--interval", "0.2")
    with story.running(None, "region", *options) as process:

        def done() -> bool:
            assert process.poll() is None, story.told()
            status = folder.read("region")
            return status is not None and status.rows > 0 and status.lag == 0

        eventually(done, f"it has read everything; {story.told()}", patience(SECONDS), 0.2)
        with story.running(None, "region") as second:
            assert second.wait(patience(SECONDS)) == 1
        assert f"region already runs on this data folder (process {process.pid} on " in story.log.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(patience(SECONDS)) == 128 + signal.SIGTERM, story.told()
    status = folder.read("region")
    assert status is not None
    assert status.state == "stopped"
    lines = [json.loads(line) for line in story.log.read_text().splitlines() if line.startswith("{")]
    assert lines[0]["event"] == "started"
    assert lines[-1]["event"] == "ended"
    assert any(line["event"] == "progress" and line["flows"]["verifications"]["rows"] for line in lines)
