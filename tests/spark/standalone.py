"""A standalone cluster of Spark: a master and two workers, started from the installed PySpark."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.spark_jvm import QUICK
from tests.support.wait import eventually

SECONDS = 400.0
SUCCESS = {"Reason": "Success"}
EVENTS = ("SparkListenerTaskEnd", "SparkListenerExecutorAdded", "SparkListenerStageCompleted")


class Daemon:
    """A master or a worker; ports are chosen by the system and read from what it logs."""

    def __init__(
        self, folder: Path, kind: str, host: str, *arguments: str, prefix: tuple[str, ...] = ()
    ) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [
                *prefix,
                str(home / "bin" / "spark-class"),
                f"org.apache.spark.deploy.{kind}",
                "--host",
                host,
                "--port",
                "0",
                "--webui-port",
                "0",
                *arguments,
            ],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "SPARK_HOME": str(home),
                "SPARK_CONF_DIR": str(folder),
                "SPARK_DAEMON_JAVA_OPTS": QUICK,
                "SPARK_DAEMON_MEMORY": "128m",
                "SPARK_WORKER_DIR": str(folder / "work"),
                "SPARK_LOCAL_DIRS": str(folder / "local"),
                "SPARK_NO_DAEMONIZE": "1",
                "PYSPARK_PYTHON": sys.executable,
            },
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)

    def says(self, pattern: str) -> str:
        def found() -> str | None:
            assert self.process.poll() is None, "".join(self.lines)
            match = re.search(pattern, "".join(self.lines))
            return match[1] if match else None

        return eventually(found, f"it says {pattern}", SECONDS, 0.05)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(60)
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()


LOGGING = """\
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %m%n
"""


@dataclass
class Cluster:
    """A running cluster. Workers can be killed, and others started."""

    folder: Path
    stack: ExitStack
    master: Daemon = field(init=False)
    address: str = field(init=False)
    page: str = field(init=False)
    prefix: tuple[str, ...] = ()
    """The program that starts workers, such as unshare."""
    workers: dict[str, Daemon] = field(default_factory=dict)
    """By their hosts, which are all this machine."""

    def __post_init__(self) -> None:
        self.master = self._start("master.Master", "127.0.0.1")
        self.address = self.master.says(r"Starting Spark master at (spark://\S+)")
        self.page = self.master.says(r"started at (http://\S+)")

    def _start(self, kind: str, host: str, *arguments: str, prefix: tuple[str, ...] = ()) -> Daemon:
        daemon = Daemon(self.folder, kind, host, *arguments, prefix=prefix)
        self.stack.callback(daemon.close)
        return daemon

    def add_worker(self, host: str) -> None:
        """Start a worker on a host of its own: Spark makes no copy of a slow task on the same host."""
        size = ("--cores", "1", "--memory", "700m")
        self.workers[host] = self._start("worker.Worker", host, *size, self.address, prefix=self.prefix)

    def state(self) -> dict[str, list[dict[str, object]]]:
        with urllib.request.urlopen(f"{self.page.rstrip('/')}/json/") as answer:
            found: dict[str, list[dict[str, object]]] = json.load(answer)
        return found

    def alive(self) -> set[str]:
        """The pages of the workers that the master counts on."""
        return {
            str(worker["webuiaddress"]) for worker in self.state()["workers"] if worker["state"] == "ALIVE"
        }


@contextmanager
def cluster(folder: Path, prefix: tuple[str, ...] = ()) -> Iterator[Cluster]:
    """A master and two workers of one core each, which the program `prefix` starts."""
    folder.mkdir()
    (folder / "log4j2.properties").write_text(LOGGING)
    with ExitStack() as stack:
        found = Cluster(folder, stack, prefix)
        for host in ("127.0.0.2", "127.0.0.3"):
            found.add_worker(host)
        eventually(lambda: len(found.alive()) == 2, "two workers are there", SECONDS, 0.1)
        yield found


def settings(folder: Path) -> dict[str, str]:
    """Small executors, one on each worker, and event logs in `folder/events`."""
    (folder / "events").mkdir(exist_ok=True)
    return {
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.cores.max": "2",
        "spark.driver.memory": "768m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.extraJavaOptions": QUICK,
        "spark.local.dir": str(folder / "local"),
        # No task begins before both workers are there, so that each gets one of the first two.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{SECONDS:.0f}s",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.eventLog.compress": "false",
    }


def flags(settings: dict[str, str]) -> list[str]:
    return [text for name, value in settings.items() for text in ("--spark-conf", f"{name}={value}")]


def events(folder: Path) -> Iterator[dict[str, Any]]:
    """The events of all applications that logged below a folder."""
    for file in sorted(folder.rglob("events_*")):
        for line in file.read_text().splitlines():
            if line.startswith("{") and any(name in line[:60] for name in EVENTS):
                try:
                    yield json.loads(line)
                except ValueError:  # the driver was killed in the middle of a line
                    continue


def tasks_by_worker(folder: Path) -> Counter[str]:
    """How many tasks ended well on each worker, by the worker's address, from the event logs of a folder.

    An executor names its worker in the address of its logs. Tasks of the driver itself count for `driver`.
    """
    workers: dict[object, str] = {"driver": "driver"}
    found: Counter[str] = Counter()
    for event in events(folder):
        if event["Event"] == "SparkListenerExecutorAdded":
            address = urllib.parse.urlsplit(event["Executor Info"]["Log Urls"]["stdout"]).netloc
            workers[event["Executor ID"]] = address
        elif event["Event"] == "SparkListenerTaskEnd" and event["Task End Reason"] == SUCCESS:
            found[workers[event["Task Info"]["Executor ID"]]] += 1
    return found


def reasons(folder: Path) -> Counter[str]:
    """How many tasks ended for each reason, such as Success, FetchFailed and ExecutorLostFailure."""
    ends = (event for event in events(folder) if event["Event"] == "SparkListenerTaskEnd")
    return Counter(event["Task End Reason"]["Reason"] for event in ends)


def copies(folder: Path) -> int:
    """How many speculative copies of slow tasks ended."""
    ends = (event for event in events(folder) if event["Event"] == "SparkListenerTaskEnd")
    return sum(event["Task Info"]["Speculative"] for event in ends)


def stages_again(folder: Path) -> int:
    """How many attempts at stages were not the first."""
    stages = (event for event in events(folder) if event["Event"] == "SparkListenerStageCompleted")
    return sum(event["Stage Info"]["Stage Attempt ID"] > 0 for event in stages)
