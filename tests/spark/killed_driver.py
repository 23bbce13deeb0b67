"""Runs of all five pipelines in one driver that is killed, and the tables in the end."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.hands import Hands
from tests.spark.readers import readers, table_faults
from tests.spark.recomputed import PIPELINES, recomputed
from tests.support.wait import patience
from tidelog import Producer
from tidelog.spark.pipelines.days import DAY_MS
from tidelog.spark.pipelines.generator import Chunk, Generator, Plan
from tidelog.spark.pipelines.generator_scenes import Cheaters
from tidelog.spark.pipelines.generator_writer import Writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS = 500.0
ATTEMPTS = 3
START = 20_000 * DAY_MS
CHEATERS = Cheaters.few(2)
ALERTS = {"ml_device_alerts": "device_alerts", "ml_invite_alerts": "invite_alerts"}
LOCAL = {
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
}


def events(seed: int, count: int, parts: int) -> Iterator[Chunk]:
    """A day with cheaters of every kind in so many parts; some events come late, twice or broken."""
    plan = Plan(
        events=count,
        start=START,
        seed=seed,
        late=0.05,
        late_by=20 * 60_000,
        out_of_order=0.1,
        duplicates=0.02,
        broken=0.02,
        cheaters=CHEATERS,
        chunk=-(-count // parts),
    )
    return Generator(plan).chunks()


@dataclass
class Drivers:
    """All events of a day in the topics, part by part, and drivers that read them into one data folder."""

    folder: Path
    hands: Hands
    seed: int
    master: str = "local[2]"
    conf: Mapping[str, str] = field(default_factory=lambda: LOCAL)
    data: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.data = self.data or str(self.folder / "data")
        self.draw = random.Random(self.seed)
        self.log = self.folder / "output.txt"
        self.log.touch()
        Writer(Plan(0, START), {"bootstrap.servers": self.hands.bootstrap}).create_topics(2)

    def send(self, chunk: Chunk) -> None:
        with Producer(bootstrap_servers=self.hands.bootstrap) as producer:
            for topic, table in chunk.tables.items():
                producer.send_arrow(table, topic).result(60)

    def start(
        self, plan: dict[str, object] | None, *pipelines: str, prefix: tuple[str, ...] = (), **env: str
    ) -> subprocess.Popen[bytes]:
        conf = {**self.conf, "spark.local.dir": str(self.folder / "local")}
        command = [
            *(*prefix, sys.executable, "-m", "tests.spark.killed", json.dumps(plan)),
            *("pipeline", "run", *(pipelines or PIPELINES), "--master", self.master, "--data", self.data),
            *("--bootstrap-server", self.hands.bootstrap, "--trigger", "available-now"),
            *("--max-offsets-per-trigger", "400", "--state-partitions", "2", *self.arguments),
            *(text for name, value in conf.items() for text in ("--spark-conf", f"{name}={value}")),
        ]
        with self.log.open("ab") as log:
            log.write(f"\n$ {' '.join(command)}\n".encode())
            log.flush()
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable, **self.environment, **env},
            )

    def run(self, plan: dict[str, object] | None, *pipelines: str, prefix: tuple[str, ...] = ()) -> int:
        process = self.start(plan, *pipelines, prefix=prefix)
        try:
            return process.wait(patience(SECONDS))
        finally:
            end(process)

    def kill(self, plan: dict[str, object], *pipelines: str) -> None:
        """A run that does not live to see its end."""
        print(f"killed {plan}", flush=True)
        for _ in range(ATTEMPTS):
            code = self.run(plan, *pipelines)
            if code == -signal.SIGKILL:
                return
            assert self.overloaded(), f"ended with {code}: {self.told()}"
        raise AssertionError(self.told())

    def finish(self, *pipelines: str, prefix: tuple[str, ...] = ()) -> None:
        """A run to the end of the log. A machine that is too busy for Spark gets another chance."""
        for _ in range(ATTEMPTS):
            code = self.run(None, *pipelines, prefix=prefix)
            if code == 0:
                return
            assert self.overloaded(), f"ended with {code}: {self.told()}"
        raise AssertionError(self.told())

    def overloaded(self) -> bool:
        return "This machine is overloaded" in self.log.read_text()[-3000:]

    def told(self) -> str:
        spark_log = self.folder / "data" / "status" / "spark.log"
        return self.log.read_text()[-3000:] + (spark_log.read_text()[-3000:] if spark_log.exists() else "")

    def a_point(self, pipeline: str) -> dict[str, object]:
        """A drawn point in one of the first writes of a pipeline."""
        when = self.draw.choice(("before", "after", "during", "during"))
        seconds = round(self.draw.uniform(0.02, 0.5), 3)
        return {
            "pipeline": pipeline,
            "write": self.draw.randrange(1, 3),
            "when": when,
            "seconds": seconds,
        }

    def faults(
        self, spark: SparkSession, *pipelines: str, options: Mapping[str, str] | None = None
    ) -> list[str]:
        """What is not as the log has it, in the tables of these pipelines or of all, and in topics of alerts.

        `options` are those of the store of the tables.
        """
        expected = recomputed(self.hands.bootstrap, *pipelines)
        for table, wanted in expected.items():
            assert wanted.rows, f"the log gives {table} no row: seed {self.seed}"
        found = table_faults(readers(f"{self.data}/tables", spark, options), expected)
        for topic, table in ALERTS.items():
            if table not in expected:
                continue
            values = Counter((json.loads(value)["alert_id"],) for value in self.hands.log(topic))
            if values != expected[table].rows:
                found.append(
                    f"{topic}: {values - expected[table].rows} too much or missing "
                    f"{expected[table].rows - values}"
                )
        return found


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a driver with all its processes."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
