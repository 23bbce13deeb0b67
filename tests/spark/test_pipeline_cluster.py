"""A pipeline on a standalone cluster of one master and two workers, started from the installed PySpark."""

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
from pathlib import Path

import pytest

from tests.spark.app_events import App
from tests.spark.hands import Hands
from tests.support.wait import eventually
from tidelog.spark.pipelines.report_readers import LocalReader
from tidelog.testing import Broker

SECONDS = 400.0
SUCCESS = {"Reason": "Success"}
SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Daemon:
    """A master or a worker; ports are chosen by the system and read from what it logs."""

    def __init__(self, folder: Path, kind: str, *arguments: str) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [
                str(home / "bin" / "spark-class"),
                f"org.apache.spark.deploy.{kind}",
                "--host",
                "127.0.0.1",
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
                "SPARK_DAEMON_JAVA_OPTS": SMALL,
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


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, str]]:
    """The master's address and that of its page, once both workers are there."""
    folder.mkdir()
    (folder / "log4j2.properties").write_text(LOGGING)
    with ExitStack() as stack:

        def start(*arguments: str) -> Daemon:
            daemon = Daemon(folder, *arguments)
            stack.callback(daemon.close)
            return daemon

        master = start("master.Master")
        address = master.says(r"Starting Spark master at (spark://\S+)")
        page = master.says(r"started at (http://\S+)")
        for _ in range(2):
            start("worker.Worker", "--cores", "1", "--memory", "700m", address)
        eventually(lambda: len(master_state(page)["workers"]) == 2, "two workers are there", SECONDS, 0.1)
        yield address, page


def tasks_by_worker(events: Path) -> Counter[str]:
    """How many tasks ended well on each worker, by the worker's address, from the event logs of a folder.

    An executor names its worker in the address of its logs. Tasks of the driver itself count for `driver`.
    """
    workers: dict[str, str] = {"driver": "driver"}
    found: Counter[str] = Counter()
    for file in sorted(events.rglob("events_*")):
        for line in file.read_text().splitlines():
            event = json.loads(line) if line.startswith("{") else {}
            if event.get("Event") == "SparkListenerExecutorAdded":
                address = urllib.parse.urlsplit(event["Executor Info"]["Log Urls"]["stdout"]).netloc
                workers[event["Executor ID"]] = address
            elif event.get("Event") == "SparkListenerTaskEnd" and event["Task End Reason"] == SUCCESS:
                found[workers[event["Task Info"]["Executor ID"]]] += 1
    return found


def master_state(page: str) -> dict[str, list[dict[str, object]]]:
    with urllib.request.urlopen(f"{page.rstrip('/')}/json/") as answer:
        found: dict[str, list[dict[str, object]]] = json.load(answer)
    return found


@pytest.fixture
def hands() -> Iterator[Hands]:
    with Broker() as broker, Hands(broker.bootstrap_servers) as hands:
        yield hands


def test_a_pipeline_runs_on_a_standalone_cluster(tmp_path: Path, hands: Hands) -> None:
    events = tmp_path / "events"
    events.mkdir()
    app = App(hands.bootstrap, 11, users=20)
    app.make_topics()
    app.send(300)
    with cluster(tmp_path / "cluster") as (address, page):
        settings = {
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.cores.max": "2",
            "spark.driver.memory": "768m",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": SMALL,
            "spark.executor.extraJavaOptions": SMALL,
            "spark.sql.shuffle.partitions": "2",
            "spark.local.dir": str(tmp_path / "local"),
            # No task begins before both workers are there, so that each gets one of the first two.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{SECONDS:.0f}s",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": events.as_uri(),
            "spark.eventLog.compress": "false",
        }
        confs = [text for name, value in settings.items() for text in ("--spark-conf", f"{name}={value}")]
        done = subprocess.run(
            [
                *(sys.executable, "-m", "tidelog", "pipeline", "run", "region", "--master", address),
                *("--trigger", "available-now", "--bootstrap-server", hands.bootstrap),
                *("--data", str(tmp_path / "data"), *confs),
            ],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        )
        spark_log = tmp_path / "data" / "status" / "spark.log"
        assert done.returncode == 0, done.stdout + done.stderr + spark_log.read_text()[-4000:]
        eventually(lambda: master_state(page)["completedapps"], "the master saw it end", 60)
        workers = {worker["webuiaddress"] for worker in master_state(page)["workers"]}
        ran = tasks_by_worker(events)
        assert {f"http://{address}" for address in ran} == workers, f"tasks ran on both workers: {ran}"
    rows = LocalReader(tmp_path / "data" / "tables").counts(
        "user_regions", ("user_id", "country", "number_type")
    )
    assert set(rows) == app.regions()
    assert set(rows.values()) == {1}


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
