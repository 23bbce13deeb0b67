"""A micro-batch that runs is seen in the flow's numbers, in the tool's lines, and when a stop cuts it off."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from tests.spark.hands import Hands
from tests.support.wait import eventually
from tidelog.cli.pipeline import pipeline
from tidelog.clients.blocking import LoopThread
from tidelog.errors import NetworkException
from tidelog.spark import cluster
from tidelog.spark.cluster import AdminLink
from tidelog.spark.options import Offsets
from tidelog.spark.pipelines import progress, running_batch
from tidelog.spark.pipelines.progress import line, running, together
from tidelog.spark.pipelines.running_batch import BatchRows, BatchWatch, offset_range, offsets_in
from tidelog.spark.pipelines.state import FlowStatus, StateFolder, this_process

SECONDS = 400.0


@pytest.fixture
def link(hands: Hands) -> Iterator[AdminLink]:
    link = AdminLink({"bootstrap.servers": hands.bootstrap})
    yield link
    link.close()


def watched(watch: BatchWatch, batch: int, flow: FlowStatus) -> None:
    before = (flow.lag, flow.running_rows)

    def looked() -> bool:
        watch.look(batch, flow)
        return (flow.lag, flow.running_rows) != before

    eventually(looked, "the brokers have answered", 30.0)


def test_the_rows_and_the_true_lag_of_a_running_batch_are_told(hands: Hands, link: AdminLink) -> None:
    topic = hands.topic(partitions=2)
    hands.produce(topic, range(100), partition=0)
    hands.produce(topic, range(20), partition=1)
    ends: dict[int, Offsets] = {0: {(topic, 0): 60, (topic, 1): 10}, 1: {(topic, 0): 90, (topic, 1): 20}}
    watch = BatchWatch(link, (topic,), "read_committed", ends.get)
    flow = FlowStatus(lag=0)
    watched(watch, 0, flow)
    assert (flow.running_rows, flow.lag) == (70, 120), "nothing is read yet"
    watched(watch, 1, flow)
    assert (flow.running_rows, flow.lag) == (40, 50), "batch 0 is read"


def test_a_flow_that_begins_elsewhere_tells_what_is_behind_its_first_batch(
    hands: Hands, link: AdminLink
) -> None:
    topic = hands.topic()
    hands.produce(topic, range(100))
    ends: dict[int, Offsets] = {0: {(topic, 0): 95}}
    watch = BatchWatch(link, (topic,), "read_committed", ends.get, from_beginning=False)
    flow = FlowStatus()
    watched(watch, 0, flow)
    assert (flow.running_rows, flow.lag) == (None, 5)


def test_brokers_that_do_not_answer_hold_nobody_up() -> None:
    asked: list[Future[object]] = []

    class Link:
        def submit(self, ask: object) -> Future[object]:
            asked.append(Future())
            return asked[-1]

    watch = BatchWatch(Link(), ("orders",), "read_committed", lambda _: None)  # type: ignore[arg-type]
    flow = FlowStatus(lag=7)
    watch.look(0, flow)
    watch.look(0, flow)
    assert len(asked) == 1
    asked[0].set_exception(NetworkException("gone"))
    watch.look(0, flow)
    assert flow.lag == 7


def test_offsets_are_read_from_a_checkpoint() -> None:
    text = 'v1\n{"batchWatermarkMs":0}\n{"orders":{"0":23,"1":7}}\n'
    assert offsets_in(text) == {("orders", 0): 23, ("orders", 1): 7}
    assert offsets_in('v1\n{"batchWatermarkMs":0}\n-\n') == {}


def test_the_offsets_of_a_batch_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Checkpoint:
        def __init__(self, *_: object) -> None: ...

        def read(self, path: str) -> str | None:
            asked.append(path)
            batch = int(path.rpartition("/")[2])
            return None if batch > 5 else f'v1\n{{}}\n{{"orders":{{"0":{batch}}}}}\n'

    monkeypatch.setattr(running_batch, "Files", Checkpoint)
    end_of = running_batch.checkpointed(None, "c")  # type: ignore[arg-type]
    for batch in (4, 4, 5, 4, 5):
        assert end_of(batch) == {("orders", 0): batch}
    assert asked == ["c/offsets/4", "c/offsets/5"]
    assert (end_of(-1), end_of(6), end_of(6)) == (None, None, None)
    assert asked[2:] == ["c/offsets/6"] * 2, "Spark may plan it yet"


def test_the_range_of_a_batch_goes_from_the_batch_before_it() -> None:
    ends = {0: {("t", 0): 5}, 1: {("t", 0): 9, ("t", 1): 4}}
    assert json.loads(offset_range(ends.get, 1)) == {"t": {"0": [5, 9], "1": [None, 4]}}
    assert json.loads(offset_range(ends.get, 0)) == {"t": {"0": [None, 5]}}
    assert offset_range(ends.get, 2) == "", "the checkpoint does not have it"


def test_lines_tell_the_batch_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(progress, "time", SimpleNamespace(time=lambda: now))
    flow = FlowStatus(lag=200, running_batch=0, running_since=now - 12.2, running_rows=200)
    assert running(flow) == "batch 0 with 200 rows runs for 12 s"
    assert line([("mine", flow)]) == "mine: lag 200, batch 0 with 200 rows runs for 12 s"
    later = FlowStatus(batch=3, lag=1, running_batch=4, running_since=now)
    assert running(together([later, flow])) == running(flow), "the one that runs longest"
    assert running(FlowStatus(batch=3)) is None


def test_status_shows_the_batch_that_runs(tmp_path: Path) -> None:
    folder = StateFolder(str(tmp_path))
    claim = folder.claim("mine")
    status = this_process("mine")
    status.state = "running"
    status.flows = {"all": FlowStatus(lag=200, running_batch=0, running_since=time.time(), running_rows=200)}
    folder.write(status)
    shown = CliRunner().invoke(pipeline, ["status", "--data", str(tmp_path)]).output
    assert re.search(r"all: 0 rows, 0 rows/s, lag 200, batch 0 with 200 rows runs for \d+ s", shown), shown
    assert "no micro-batch yet" not in shown
    claim.close()


SLOW = '''
"""Every row takes a while."""

import time
from pathlib import Path
from types import SimpleNamespace

from pyspark.sql import functions as f

from tidelog.spark.pipelines.declare import Flow, Pipeline, Source, Table


def slowly(rows, context):
    def wait(value):
        Path("AT_WORK").touch()
        time.sleep(3)
        return str(value)

    return rows.select(f.udf(wait, "string")("value").alias("word"))


FLOW = Flow("all", Source(("orders",)), (Table("words"),), steps=(slowly,))
PIPELINE = Pipeline("slow", "Slow.", "Slow.", lambda settings: (FLOW,))
'''


def test_a_batch_that_is_cut_off_is_seen_before_and_named_in_one_line(hands: Hands, tmp_path: Path) -> None:
    hands.produce(hands.topic(name="orders"), range(200))
    (tmp_path / "slow.py").write_text(SLOW.replace("AT_WORK", str(tmp_path / "at-work")))
    data, output = tmp_path / "data", tmp_path / "output"
    with output.open("wb") as target:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tidelog", "pipeline", "run", "./slow.py", "--data", str(data)),
                *("--bootstrap-server", hands.bootstrap, "--master", "local[1]", "--trigger", "0 seconds"),
                *("--stop-timeout", "0.1", "--spark-conf", "spark.driver.memory=700m"),
            ],
            cwd=tmp_path,
            stdout=target,
            stderr=target,
            start_new_session=True,
        )
    folder = StateFolder(str(data))

    def runs() -> bool:
        assert process.poll() is None, output.read_text()
        status = folder.read("slow")
        flow = None if status is None else status.flows.get("all")
        return flow is not None and (flow.running_batch, flow.running_rows, flow.lag) == (0, 200, 200)

    try:
        eventually(runs, "the first batch runs with its rows and its lag", SECONDS, 0.2)
        # The rows are on their way: a task is at work that the stop has to interrupt.
        eventually((tmp_path / "at-work").exists, "a task writes", 60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 1
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    said = output.read_text().splitlines()
    assert said[-1].startswith("tidelog: micro-batch 0 of slow/all was interrupted; the next start finishes")
    assert not [text for text in said if "py4j" in text.lower() or "Traceback" in text], said
    spark_log = (data / "status" / "spark.log").read_text()
    assert "StackOverflowError" not in spark_log
    assert spark_log.count("\n") < 500
    status = folder.read("slow")
    assert status is not None
    assert (status.state, status.error) == ("stopped", None)


def test_the_records_of_a_batch_count_from_the_start_of_the_log(hands: Hands, link: AdminLink) -> None:
    topic = hands.topic(partitions=2)
    ends: dict[int, Offsets] = {0: {(topic, 0): 60}, 1: {(topic, 0): 90, (topic, 1): 10}, 3: {(topic, 0): 95}}
    hands.produce(topic, range(100), partition=0)
    hands.produce(topic, range(20), partition=1)

    def number(batch: int, *, from_beginning: bool = True) -> int | None:
        return BatchRows(link, ends.get, batch, from_beginning=from_beginning).number()

    assert number(0) == 60
    assert number(1, from_beginning=False) == 40, "a partition that is new is read from its beginning"
    assert number(0, from_beginning=False) is None
    assert number(2) is None, "the checkpoint does not have it"
    assert number(3) is None, "the checkpoint does not have the batch before it"
    link.run(lambda admin: admin.delete_records({(topic, 0): 50}))
    assert number(0) == 10


def test_brokers_that_do_not_answer_give_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    class Link:
        def submit(self, ask: object) -> Future[Offsets]:
            return Future()

    monkeypatch.setattr(running_batch, "ANSWER_SECONDS", 0.01)
    ends: dict[int, Offsets] = {0: {("orders", 0): 60}}
    read = BatchRows(Link(), ends.get, 0, from_beginning=True)  # type: ignore[arg-type]
    assert read.number() is None


def test_flows_that_begin_at_the_same_time_share_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    together = threading.Barrier(2)

    class Loop(LoopThread):
        def __init__(self, name: str) -> None:
            threads.append(self)
            with suppress(threading.BrokenBarrierError):
                together.wait(0.2)  # passes only if another thread makes a second one
            super().__init__(name)

    monkeypatch.setattr(cluster, "LoopThread", Loop)
    link = AdminLink({"bootstrap.servers": "127.0.0.1:1"})
    with ThreadPoolExecutor(2) as pool:
        opened = list(pool.map(lambda _: link._opened(), range(2)))
    assert len(threads) == 1
    assert opened[0] is opened[1]
    link.close()
