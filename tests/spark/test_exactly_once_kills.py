"""Exactly once on real Spark and a real broker, whoever is killed with -9: driver, Python workers, broker.

The moments are drawn from a seed that is printed where a test fails; a restarted query splits its batches
into other numbers of tasks.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.decided import problems, settled
from tests.spark.hands import Hands
from tests.support.broker import Broker
from tests.support.own_cluster import BrokersInTurn
from tests.support.scale import scale
from tests.support.wait import eventually

ROWS_PER_BATCH = 60
BATCHES = 12
PATIENCE = 600.0


class Query:
    """One start of the program `killed_query`, in a process group of its own."""

    def __init__(self, folder: Path, number: int, arguments: list[str]) -> None:
        self.output = folder / f"query-{number}.log"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.killed_query", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            )

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def batches(self) -> int:
        """How many batches it has said to be done."""
        return len(re.findall(r"^batch \d+$", self.output.read_text(errors="replace"), re.MULTILINE))

    def wait_for_batches(self, count: int) -> None:
        eventually(lambda: self.ended or self.batches >= count, f"{count} batches", PATIENCE, 0.02)

    def family(self, words: str) -> list[int]:
        """The processes below it, down to the workers that Spark forks, whose command has these words."""
        children: dict[int, list[int]] = {}
        commands: dict[int, str] = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                commands[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (OSError, ValueError):
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
        found, waiting = [], [self.process.pid]
        while waiting:
            pid = waiting.pop()
            found.append(pid)
            waiting += children.get(pid, [])
        return [pid for pid in found if words in commands.get(pid, "")]

    def kill_driver(self, chance: random.Random) -> str:
        """The JVM first or the program first: the other one follows before anything is started again."""
        java = self.family("org.apache.spark")
        order = [*java, self.process.pid] if chance.random() < 0.5 else [self.process.pid, *java]
        for pid in order:
            _kill(pid)
        self.process.wait()
        return "driver"

    def kill_one(self, words: str, chance: random.Random) -> bool:
        """Kill one of the processes with these words in their command; False where there is none."""
        found = self.family(words)
        if found:
            _kill(chance.choice(found))
        return bool(found)

    def close(self) -> None:
        for pid in [*self.family(""), self.process.pid]:
            _kill(pid)
        self.process.wait()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


class Killing:
    """A query that is started until it is done, on a broker process that may be killed as well."""

    def __init__(
        self, folder: Path, broker: Broker | BrokersInTurn, hands: Hands, seed: int, master: str
    ) -> None:
        self.folder, self.broker, self.hands = folder, broker, hands
        self.chance = random.Random(seed)
        self.master = master
        self.source, self.target = hands.topic(partitions=2), hands.topic(partitions=3)
        self.rows: list[str] = []
        self.lines: list[str] = []
        self.struck: list[str] = []
        self._starts = 0
        self.send()

    def send(self) -> None:
        """Rows for some batches more."""
        first = len(self.rows)
        rows = [f"{number:06}" for number in range(first, first + ROWS_PER_BATCH * BATCHES)]
        self.hands.produce(self.source, rows[::2], partition=0)
        self.hands.produce(self.source, rows[1::2], partition=1)
        self.rows += rows

    def start(self) -> Query:
        partitions = str(self.chance.choice((2, 3, 5)))
        checkpoint = str(self.folder / "checkpoint")
        places = [self.broker.bootstrap, self.source, self.target, checkpoint]
        self._starts += 1
        self.lines.append(f"start {self._starts} with {partitions} tasks")
        return Query(self.folder, self._starts, [self.master, *places, partitions, str(ROWS_PER_BATCH)])

    def kill(self, query: Query, whom: str) -> bool:
        """Kill somebody at a moment that nobody knows; False where nobody was there to be killed."""
        query.wait_for_batches(query.batches + self.chance.randint(1, 2))
        time.sleep(self.chance.uniform(0.0, 0.6))
        if query.ended:
            return False
        if whom == "broker":
            self.broker.kill()
            time.sleep(self.chance.uniform(0.0, 0.5))
            self.broker.start()
        elif whom == "driver":
            query.kill_driver(self.chance)
        elif not query.kill_one(whom, self.chance):
            return False
        self.lines.append(f"killed: {whom}")
        self.struck.append(whom)
        return True

    def run(self, *kills: str) -> None:
        """Kill everybody once, in this order, and let the query come to its end."""
        query = self.start()
        try:
            for whom in kills:
                while not self.kill(query, whom):
                    if query.ended:
                        query = self.start_again(query, len(kills))
            while query.process.wait(PATIENCE) != 0:
                query = self.start_again(query, len(kills))
        finally:
            query.close()
        assert self.struck == list(kills), "everybody who was to be killed was"

    def start_again(self, query: Query, kills: int) -> Query:
        """Another start after one that failed, or that came to its end before somebody was killed."""
        assert self._starts < 2 * kills + 6, query.output.read_text()[-3000:]
        if query.process.returncode == 0:
            self.send()
        return self.start()

    def check(self) -> None:
        settled(self.hands, self.target)
        found = problems(self.hands, self.target, self.rows)
        assert not found, f"{found} after {self.lines}"


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "broker", {"transaction.two.phase.commit.enable": "true"}) as broker:
        yield broker


def test_every_row_is_there_once_whoever_is_killed(tmp_path: Path, process: Broker) -> None:
    for _ in range(scale(1, 8)):
        seed = random.randrange(1 << 32)
        print(f"seed {seed}")
        with Hands(process.bootstrap) as hands:
            folder = tmp_path / str(seed)
            folder.mkdir()
            killing = Killing(folder, process, hands, seed, "local[2,8]")
            kills = ["pyspark.worker", "broker", "driver", "driver"]
            killing.chance.shuffle(kills)
            killing.run(*kills)
            killing.check()


@pytest.mark.long
def test_every_row_is_there_once_when_executors_are_killed(tmp_path: Path, process: Broker) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    with Hands(process.bootstrap) as hands:
        killing = Killing(tmp_path, process, hands, seed, "local-cluster[2,1,1024]")
        killing.run("CoarseGrainedExecutorBackend", "CoarseGrainedExecutorBackend", "driver", "broker")
        killing.check()
