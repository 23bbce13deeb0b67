"""Pipelines on a standalone cluster of two workers: killed executors, workers and drivers, slow tasks.

All of it is real: the processes of a cluster from the installed PySpark, and the tool as its driver.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.hands import Hands
from tests.spark.readers import Expected, readers, table_faults
from tests.spark.standalone import (
    SECONDS,
    SUCCESS,
    Cluster,
    cluster,
    copies,
    flags,
    reasons,
    settings,
    stages_again,
    tasks_by_worker,
)
from tests.support.scale import scale
from tests.support.wait import eventually, patience
from tidelog.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TROUBLED = Path(__file__).with_name("troubled.py")
PLAIN = Path(__file__).with_name("plain_words.py")
ATTEMPTS = 3
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "1s",
}


class Words:
    """Words in a topic, and the tool on a cluster that writes each of them once."""

    def __init__(self, folder: Path, hands: Hands) -> None:
        self.folder = folder
        self.hands = hands
        self.sent: set[str] = set()
        self.trouble = folder / "trouble"
        self.trouble.mkdir()
        (folder / "trouble-done").mkdir()
        self.log = folder / "output.txt"
        hands.topic(2, name="words")

    def send(self, count: int) -> None:
        """New words on both partitions, and some that were sent before."""
        known = sorted(self.sent)
        fresh = [f"word-{len(self.sent) + number}" for number in range(count)]
        self.sent.update(fresh)
        for partition in (0, 1):
            self.hands.produce("words", [*fresh[partition::2], *known[: count // 4]], partition)

    def run(
        self,
        address: str,
        *,
        killed: dict[str, object] | None = None,
        pipeline: Path = TROUBLED,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> int:
        """Run to the end of the log; returns the exit code of the tool. `meanwhile` is called repeatedly.

        A machine that is too busy for Spark gets another chance.
        """
        for _ in range(ATTEMPTS - 1):
            code = self._run(address, killed, pipeline, meanwhile)
            if code != 1 or "This machine is overloaded" not in self.log.read_text()[-300:]:
                return code
        return self._run(address, killed, pipeline, meanwhile)

    def _run(
        self, address: str, killed: dict[str, object] | None, pipeline: Path, meanwhile: Callable[[], None]
    ) -> int:
        def ended() -> bool:
            meanwhile()
            return process.poll() is not None

        command = [
            *(sys.executable, "-m", "tests.spark.killed", json.dumps(killed)),
            *("pipeline", "run", str(pipeline), "--set", f"trouble={self.trouble}", "--master", address),
            *("--data", str(self.folder / "data"), "--bootstrap-server", self.hands.bootstrap),
            *("--trigger", "available-now", "--max-offsets-per-trigger", "60", "--state-partitions", "2"),
            *flags({**settings(self.folder), **SPECULATION}),
        ]
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            )
        try:
            eventually(ended, "it ends", patience(SECONDS), 0.1)
            return process.wait()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def finish(self, address: str) -> None:
        """Run to the end of the log, without an error."""
        assert self.run(address) == 0, self.told()

    def plan(self, *troubles: str, first: int = 0) -> None:
        """One trouble for each micro-batch from the first on."""
        for batch, trouble in enumerate(troubles, first):
            (self.trouble / f"{batch}-{trouble}").touch()

    def batches(self) -> int:
        offsets = self.folder / "data" / "checkpoints" / "troubled" / "seen" / "offsets"
        found = [int(name) for name in os.listdir(offsets) if name.isdecimal()] if offsets.exists() else []
        return max(found, default=-1) + 1

    def done(self) -> list[str]:
        return sorted(name.partition("-")[2] for name in os.listdir(self.folder / "trouble-done"))

    def told(self) -> str:
        spark_log = self.folder / "data" / "status" / "spark.log"
        return self.log.read_text()[-3000:] + (spark_log.read_text()[-4000:] if spark_log.exists() else "")

    def faults(self, spark: SparkSession) -> list[str]:
        expected = {"words": Expected.of(("word",), ((word,) for word in self.sent))}
        found = table_faults(readers(f"{self.folder}/data/tables", spark), expected)
        values = sorted(json.loads(value)["word"] for value in self.hands.log("words-once"))
        if values != sorted(self.sent):
            found.append(
                f"topic: {len(values)} values of {len(set(values))} words, {len(self.sent)} were sent"
            )
        return found


@pytest.fixture
def hands() -> Iterator[Hands]:
    with Broker() as broker, Hands(broker.bootstrap_servers) as hands:
        yield hands


def test_killed_executors_slow_tasks_and_a_killed_driver_lose_and_double_nothing(
    spark: SparkSession, tmp_path: Path, hands: Hands
) -> None:
    story, events = Words(tmp_path, hands), tmp_path / "events"
    with cluster(tmp_path / "cluster") as found:
        story.send(160)
        story.plan("slow", "executor")
        assert story.run(found.address, killed={"write": 5, "when": "after"}) == -signal.SIGKILL, story.told()
        eventually(lambda: found.state()["completedapps"], "the master saw the driver end", 60)
        story.send(40)
        story.finish(found.address)
        assert story.done() == ["executor", "slow"], "both happened"
        pages = {f"http://{address}" for address in tasks_by_worker(events)}
        assert pages == found.alive(), "tasks ran on both workers"
    assert story.faults(spark) == []
    hands.produce("words-once", ['{"word": "word-1"}'])
    story.sent.add("never sent")
    faults = story.faults(spark)
    assert [fault.split(":")[0] for fault in faults] == [*["words"] * 3, "topic"], "they would be found"
    ended = reasons(events)
    assert ended["ExecutorLostFailure"] > 0, ended
    assert copies(events) > 0, "a slow task got a copy"
    assert stages_again(events) > 0, (
        f"a stage ran again, as map outputs were lost with their executor: {ended}"
    )


@pytest.mark.long
def test_killed_workers_lose_and_double_nothing(spark: SparkSession, tmp_path: Path, hands: Hands) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw, story = random.Random(seed), Words(tmp_path, hands)
    with cluster(tmp_path / "cluster") as found:
        for _ in range(scale(2, 6)):
            story.send(draw.randrange(80, 160))
            troubles = ["worker", *draw.choices(["executor", "slow"], k=2)]
            draw.shuffle(troubles)
            story.plan(*troubles, first=story.batches())
            replace_killed(story, found, {"write": draw.randrange(3, 7), "when": "during", "seconds": 0.3})
            story.finish(found.address)
    assert story.faults(spark) == []
    assert story.done().count("worker") >= 1


def replace_killed(story: Words, spark: Cluster, killed: dict[str, object]) -> None:
    """One run that the driver may not survive. A worker that is killed is replaced at once."""

    def replace() -> None:
        for host, worker in list(spark.workers.items()):
            if worker.process.poll() is not None:
                spark.add_worker(host)

    code = story.run(spark.address, killed=killed, meanwhile=replace)
    assert code in (0, -signal.SIGKILL), story.told()
    replace()
    eventually(lambda: len(spark.alive()) == 2, "two workers are there", SECONDS, 0.1)


@pytest.mark.long
def test_a_folder_that_workers_do_not_share_is_refused(tmp_path: Path, hands: Hands) -> None:
    """The workers have a disk of their own where the driver has the data."""
    story, data = Words(tmp_path, hands), tmp_path / "data"
    data.mkdir()
    apart = ("unshare", "--user", "--map-root-user", "--mount")
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"], check=False).returncode:
        pytest.skip("this system gives no namespaces to users")
    script = 'mount -t tmpfs none "$0" && exec "$@"'
    story.send(40)
    with cluster(tmp_path / "cluster", (*apart, "sh", "-c", script, str(data))) as spark:
        assert story.run(spark.address, pipeline=PLAIN) == 1
    assert "the hosts do not share this folder" in story.log.read_text()
    assert "Nothing was committed" in story.log.read_text()


@pytest.mark.parametrize(
    ("executors", "counted"),
    [
        (["0", "1", "1"], {"127.0.0.1:81": 1, "127.0.0.1:82": 2}),
        (["0", "0", "0"], {"127.0.0.1:81": 3}),
        (["driver", "driver"], {"driver": 2}),
    ],
    ids=["on both", "on one of two", "in the driver"],
)
def test_tasks_are_counted_where_they_ran_and_not_where_they_might_have(
    tmp_path: Path, executors: list[str], counted: dict[str, int]
) -> None:
    """Two workers give their cores in each case."""
    events: list[dict[str, object]] = [
        {
            "Event": "SparkListenerExecutorAdded",
            "Executor ID": name,
            "Executor Info": {"Log Urls": {"stdout": f"http://127.0.0.1:{port}/logPage?x=1"}},
        }
        for name, port in (("0", 81), ("1", 82))
    ]
    for name in executors:
        task = {"Event": "SparkListenerTaskEnd", "Task Info": {"Executor ID": name}}
        events.append({**task, "Task End Reason": SUCCESS})
        events.append({**task, "Task End Reason": {"Reason": "ExceptionFailure"}})
    (tmp_path / "events_1_app").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    assert tasks_by_worker(tmp_path) == counted
