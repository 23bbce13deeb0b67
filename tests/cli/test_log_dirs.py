"""`tidelog log-dirs` prints what kafka-log-dirs prints and ends with the same codes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.kafka.jars import run_tool
from tests.support.broker import Broker
from tests.support.contents import produce
from tests.support.wait import eventually
from tidelog.cli.main import main
from tidelog.clients.admin import Admin, NewTopic

NewName = Callable[[str], str]
TOOL = "org.apache.kafka.tools.LogDirsCommand"


def log_dirs(bootstrap: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["log-dirs", "--bootstrap-server", bootstrap, *arguments])


def told(printed: str) -> Any:
    *_, last = printed.splitlines()
    found = json.loads(last)
    for broker in found["brokers"]:
        broker["logDirs"].sort(key=lambda folder: folder["logDir"])
        for folder in broker["logDirs"]:
            folder["partitions"].sort(key=lambda partition: partition["partition"])
    return found


def make(bootstrap: str, name: str, partitions: int = 1) -> None:
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(name, partitions, replication_factor=1)])
        eventually(lambda: name in admin.list_topics(), f"{name} is listed")
    produce(bootstrap, {(name, index): [b"some value"] for index in range(partitions)})


def test_folders_are_told_with_the_sizes_of_their_partitions(bootstrap: str, new_name: NewName) -> None:
    name = new_name("sized")
    make(bootstrap, name, 2)
    done = log_dirs(bootstrap, "--describe", "--topic-list", name)
    assert done.exit_code == 0
    asked, received, _ = done.stdout.splitlines()
    with Admin(bootstrap_servers=bootstrap) as admin:
        brokers = sorted(node.id for node in admin.describe_cluster().nodes)
    assert asked == "Querying brokers for log directories information"
    assert received == f"Received log directory information from brokers {','.join(map(str, brokers))}"
    found = told(done.stdout)
    assert (found["version"], sorted(entry["broker"] for entry in found["brokers"])) == (1, brokers)
    folders = [folder for broker in found["brokers"] for folder in broker["logDirs"]]
    partitions = [p for folder in folders for p in folder["partitions"]]
    assert {p["partition"] for p in partitions} == {f"{name}-0", f"{name}-1"}
    assert all(p["size"] > 70 and p["offsetLag"] == 0 and p["isFuture"] is False for p in partitions)


def test_topics_and_brokers_are_chosen(bootstrap: str, new_name: NewName) -> None:
    one, two = new_name("one"), new_name("two")
    make(bootstrap, one)
    make(bootstrap, two)
    with Admin(bootstrap_servers=bootstrap) as admin:
        leader = admin.describe_topics([one])[one].partitions[0].leader

    def partitions(*arguments: str) -> set[str]:
        found = told(log_dirs(bootstrap, "--describe", *arguments).stdout)
        folders = [folder for broker in found["brokers"] for folder in broker["logDirs"]]
        return {p["partition"] for folder in folders for p in folder["partitions"]}

    assert {f"{one}-0", f"{two}-0"} <= partitions()
    assert f"{one}-0" in partitions("--broker-list", str(leader))
    assert partitions("--topic-list", f"{one},missing") == {f"{one}-0"}
    assert partitions("--topic-list", f"{one},{two}") == {f"{one}-0", f"{two}-0"}
    assert partitions("--topic-list", "missing") == set()


def test_brokers_that_are_not_there(bootstrap: str) -> None:
    done = log_dirs(bootstrap, "--describe", "--broker-list", "77")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "brokers that the cluster does not have: 77. It has " in done.stderr
    done = log_dirs(bootstrap, "--describe", "--broker-list", "x")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "expected broker ids" in done.stderr


def test_wrong_flags(bootstrap: str) -> None:
    assert "--describe must be specified" in log_dirs(bootstrap).stderr
    assert log_dirs(bootstrap).exit_code == 1
    assert log_dirs(bootstrap, "--describe", "--command-config", "/does/not/exist").exit_code == 1
    assert log_dirs("127.0.0.1:1", "--describe").exit_code == 1


def test_a_folder_that_failed_has_an_error(tmp_path: Path) -> None:
    """The words of Kafka's tool, which scripts look for."""
    folders = tmp_path / "one", tmp_path / "two"
    with Broker(tmp_path / "broker", {"log.dirs": ",".join(map(str, folders))}) as broker:
        make(broker.bootstrap, "spread", 4)
        shutil.rmtree(folders[1])
        folders[1].write_text("no folder any more")
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            for index in range(4):
                admin.create_topics([NewTopic(f"more-{index}")])

        def failed() -> list[str | None]:
            found = told(log_dirs(broker.bootstrap, "--describe").stdout)
            return [folder["error"] for folder in found["brokers"][0]["logDirs"]]

        wanted = [None, "org.apache.kafka.common.errors.KafkaStorageException"]
        eventually(lambda: failed() == wanted, "the second folder is told as failed")


@pytest.mark.kafka
def test_kafkas_tool_prints_the_same(bootstrap: str, new_name: NewName) -> None:
    name = new_name("compared")
    make(bootstrap, name, 2)
    for arguments in (
        ("--describe", "--topic-list", name),
        ("--describe", "--topic-list", f"missing,{name}"),
        ("--describe", "--topic-list", "missing"),
        ("--describe", "--broker-list", "77"),
        ("--describe", "--broker-list", "x"),
        (),
    ):
        theirs = run_tool("kafka4", TOOL, "--bootstrap-server", bootstrap, *arguments)
        ours = log_dirs(bootstrap, *arguments)
        assert ours.exit_code == theirs.returncode
        assert ours.stdout.splitlines()[:-1] == theirs.stdout.splitlines()[:-1]
        if ours.exit_code == 0:
            assert told(ours.stdout) == told(theirs.stdout)
