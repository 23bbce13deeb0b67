"""`tidelog cluster start` runs brokers on one machine; `tidelog cluster status` shows any cluster."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.broker import Broker
from tests.support.ports import free_port
from tests.support.wait import eventually
from tests.support.zookeeper import zookeeper_server
from tidelog import Admin, Consumer, NewTopic, Producer
from tidelog.cli.cluster_status import summed_up
from tidelog.cli.main import main
from tidelog.clients.admin.topics import TopicDescription, TopicPartitionInfo
from tidelog.server.cluster_processes import brokers_for_this_machine

WAIT = 90


class Started:
    """A `tidelog cluster start` whose brokers answer."""

    def __init__(self, process: subprocess.Popen[str], folder: Path, lines: list[str]) -> None:
        self.process = process
        self.folder = folder
        self.addresses = {
            int(words[1]): words[2] for words in map(str.split, lines) if words and words[0] == "broker"
        }

    def pid_of(self, broker_id: int) -> int:
        """The process of a broker, which is a child of this cluster's process."""
        parent = self.process.pid
        for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            if f"/broker-{broker_id}/data".encode() in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
        raise AssertionError(f"broker {broker_id} is not running")

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(WAIT)


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[Started]:
    zookeeper_server(folder / "unused")  # skips the test without Java
    data = folder / "cluster"
    command = [sys.executable, "-m", "tidelog", "cluster", "start", "--port", "0", "--data", str(data)]
    process = subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder
    )
    try:
        lines: list[str] = []
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if "Ctrl-C" in line:
                break
        assert process.poll() is None, "".join(lines)
        yield Started(process, data, lines)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(WAIT)


def status(bootstrap: str, *arguments: str) -> str:
    result = CliRunner().invoke(main, ["cluster", "status", "--bootstrap-server", bootstrap, *arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.skipif(sys.platform != "linux", reason="finds its brokers in /proc")
def test_a_cluster_on_one_machine(tmp_path: Path) -> None:
    with started(tmp_path, "--brokers", "2", "--override", "zookeeper.session.timeout.ms=6000") as cluster:
        assert sorted(cluster.addresses) == [1, 2]
        with Admin(bootstrap_servers=cluster.addresses[2]) as admin:
            admin.create_topics([NewTopic("t", 4, 1)])
            racks = {node.rack for node in admin.describe_cluster().nodes}
            assert racks == {os.uname().nodename}
        found = json.loads(status(cluster.addresses[1], "--output", "json"))
        assert [broker["leaders"] for broker in found["brokers"]] == [2, 2]
        assert found["controller"] in (1, 2)
        assert "controller" in status(cluster.addresses[1])
        lost = 3 - found["controller"]
        os.kill(cluster.pid_of(lost), signal.SIGKILL)
        survivor = cluster.addresses[3 - lost]
        eventually(
            lambda: len(json.loads(status(survivor, "--output", "json"))["withoutLeader"]) == 2,
            "its partitions have no leader",
            30.0,
        )
        shown = status(survivor)
        assert "not running" in shown
        assert "2 partitions without leader: t-" in shown
        assert cluster.stop() == 1
        assert cluster.process.stdout is not None
        said = cluster.process.stdout.read()
    log_file = cluster.folder / f"broker-{lost}" / "broker.log"
    assert f"tidelog: broker {lost} ended with SIGKILL: see {log_file}" in said
    assert "msg=stopped" in (cluster.folder / f"broker-{3 - lost}" / "broker.log").read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="finds its brokers in /proc")
def test_a_broker_that_ends_just_before_ctrl_c_is_named(tmp_path: Path) -> None:
    with started(tmp_path, "--brokers", "2") as cluster:
        cluster.process.send_signal(signal.SIGSTOP)
        pid = cluster.pid_of(2)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: _has_ended(pid), "the broker has ended")
        cluster.process.send_signal(signal.SIGINT)
        cluster.process.send_signal(signal.SIGCONT)
        assert cluster.process.wait(WAIT) == 1
        assert cluster.process.stdout is not None
        assert "brokers that ended by themselves: 2" in cluster.process.stdout.read()


def _has_ended(pid: int) -> bool:
    """Whether a child can be waited for: it, and all of its threads, have ended."""
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "Z" and len(os.listdir(f"/proc/{pid}/task")) == 1


def test_ctrl_c_stops_everything_cleanly(tmp_path: Path) -> None:
    with started(tmp_path, "--brokers", "2") as cluster:
        assert cluster.stop() == 0
    for broker_id in (1, 2):
        folder = cluster.folder / f"broker-{broker_id}"
        assert (folder / "data" / ".kafka_cleanshutdown").exists()
        assert "stopping without a controlled shutdown" not in (folder / "broker.log").read_text()


def test_a_broker_that_cannot_start_is_named_with_its_reason_and_its_log(tmp_path: Path) -> None:
    zookeeper_server(tmp_path / "unused")  # skips the test without Java
    command = [sys.executable, "-m", "tidelog", "cluster", "start", "--port", "0", "--data", str(tmp_path)]
    ran = subprocess.run(
        [*command, "--brokers", "1", "--override", "num.partitions=0"],
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
    )
    assert ran.returncode == 1
    (line,) = ran.stderr.splitlines()
    assert "broker 1 ended with exit code 1 (num.partitions=0: expected at least 1): see" in line
    assert line.endswith("broker-1/broker.log")


def refused(folder: Path, *arguments: str) -> str:
    """The one line on standard error of a start that fails."""
    zookeeper_server(folder / "unused")  # skips the test without Java
    data = str(folder / "cluster")
    command = [sys.executable, "-m", "tidelog", "cluster", "start", "--port", "0", "--data", data, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=WAIT, check=False)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    (line,) = ran.stderr.splitlines()
    return line


def test_a_port_of_zookeeper_that_is_in_use_is_said_with_the_flag_that_changes_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert refused(tmp_path, "--zookeeper-port", str(port)) == (
            f"Error: ZooKeeper cannot listen on 127.0.0.1:{port}: Address already in use; "
            "choose another port with --zookeeper-port"
        )


def test_a_folder_of_a_broker_that_cannot_be_made_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    file = tmp_path / "cluster" / "broker-1"
    file.touch()
    line = refused(tmp_path, "--brokers", "1")
    assert line == f"Error: broker 1 cannot be started: [Errno 17] File exists: '{file}'"


@pytest.mark.parametrize("setting", ["broker.id=7", "node.id=7", "log.dirs=data", "log.dir=data"])
def test_a_setting_that_each_broker_has_for_itself_is_refused(setting: str) -> None:
    result = CliRunner().invoke(main, ["cluster", "start", "--override", setting])
    assert result.exit_code == 2
    assert f"{setting.partition('=')[0]}: each broker has its own" in result.output


@pytest.mark.parametrize("count", ["0", "101", "-3", "many"])
def test_a_number_of_brokers_that_cannot_be_is_refused(count: str) -> None:
    result = CliRunner().invoke(main, ["cluster", "start", "--brokers", count])
    assert result.exit_code == 2
    assert "expected a number from 1 to 100, or auto" in result.output


def test_one_broker_for_each_core() -> None:
    assert brokers_for_this_machine() >= 1


def test_nobody_at_the_address_is_said_in_one_line() -> None:
    result = CliRunner().invoke(main, ["cluster", "status", "--bootstrap-server", f"127.0.0.1:{free_port()}"])
    assert result.exit_code == 1
    assert len(result.output.splitlines()) == 1


def partition(index: int, leader: int | None, replicas: list[int], isr: list[int]) -> TopicPartitionInfo:
    return TopicPartitionInfo(index, leader, replicas, isr, [])


def test_leaders_replicas_and_what_is_out_of_sync_are_counted_for_each_broker() -> None:
    topic = TopicDescription(
        "t",
        "id",
        False,
        [
            partition(0, 1, [1, 2], [1, 2]),
            partition(1, 1, [2, 1], [1]),
            partition(2, None, [3], [3]),
        ],
        None,
    )
    found = summed_up("c", 1, {1: ("a:1", "r"), 2: ("b:1", None)}, [topic])
    counts = [(b.broker_id, b.leaders, b.replicas, b.out_of_sync) for b in found.brokers]
    assert counts == [(1, 2, 2, 0), (2, 0, 2, 1), (3, 0, 1, 0)]
    assert found.brokers[2].address is None
    assert found.lines() == [
        "cluster c: topics 1, partitions 3",
        "1 partitions without leader: t-2",
        "1 partitions with replicas out of sync: t-1",
    ]


# From one broker to a cluster


def test_a_broker_alone_becomes_the_first_of_a_cluster(tmp_path: Path) -> None:
    values = {b"%d" % number for number in range(50)}
    alone = Broker(tmp_path / "one", {"broker.id": "1", "group.initial.rebalance.delay.ms": "0"})
    with alone:
        with Admin(bootstrap_servers=alone.bootstrap) as admin:
            admin.create_topics([NewTopic("t", 2, 1, configs={"retention.ms": "123456789"})])
        with Producer(bootstrap_servers=alone.bootstrap) as producer:
            for value in values:
                producer.send("t", value, value)
        with Consumer(
            "t", bootstrap_servers=alone.bootstrap, group_id="g", auto_offset_reset="earliest"
        ) as c:
            seen: set[bytes] = set()
            eventually(lambda: seen.update(r.value for r in c.poll(0.2)) or seen == values, "all", 20.0, 0)
            c.commit()
        assert alone.terminate() == 0
    with zookeeper_server(tmp_path / "zookeeper") as zookeeper:
        export = [sys.executable, "-m", "tidelog", "tree", "export", str(alone.data)]
        exported = subprocess.run(
            [*export, "--zookeeper", zookeeper.address],
            capture_output=True,
            text=True,
            timeout=WAIT,
            check=False,
        )
        assert exported.returncode == 0, exported.stderr
        alone.settings["zookeeper.connect"] = zookeeper.address
        second = Broker(tmp_path / "two", {**alone.settings, "broker.id": "2"})
        with alone, second, Admin(bootstrap_servers=second.bootstrap) as admin:
            eventually(lambda: len(admin.describe_cluster().nodes) == 2, "both are there", 20.0)
            assert set(admin.list_topics()) == {"t"}
            admin.create_topics([NewTopic("wider", 4, 1)])
            leaders = [p.leader for p in admin.describe_topics(["wider"])["wider"].partitions]
            assert sorted(leaders, key=str) == [1, 1, 2, 2]
            with Consumer(
                "t", bootstrap_servers=second.bootstrap, group_id="new", auto_offset_reset="earliest"
            ) as c:
                seen.clear()
                eventually(
                    lambda: seen.update(r.value for r in c.poll(0.2)) or seen == values, "all", 20.0, 0
                )
            (offsets,) = admin.list_consumer_group_offsets(["g"]).values()
            assert sum(position.offset for position in offsets.values()) == len(values)
