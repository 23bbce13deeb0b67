"""`tidelog zookeeper start` runs a real ZooKeeper, stops cleanly, and says in one line why it cannot."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.wait import eventually
from tests.support.zookeeper import zookeeper_server
from tidelog.metadata.zookeeper import ZooKeeperTree
from tidelog.server import zookeeper_process

WAIT = 60


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tidelog", "zookeeper", "start", *arguments]


def refused(*arguments: str, **environment: str) -> str:
    """The one line on standard error of a start that fails."""
    ran = subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
        env={**os.environ, **environment},
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert ran.stdout == ""
    [line] = ran.stderr.splitlines()
    return line


def java_of(parent: int) -> list[int]:
    children = Path(f"/proc/{parent}/task/{parent}/children")
    return [int(pid) for pid in children.read_text().split()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_a_signal_and_keeps_what_it_has(tmp_path: Path, number: signal.Signals) -> None:
    zookeeper_server(tmp_path)  # the test is left out without Java
    port = free_port()

    async def visit() -> str:
        tree = await ZooKeeperTree.connect(f"127.0.0.1:{port}", rng=random.Random(1))
        made = await tree.create("/visit-", sequential=True)
        await tree.close()
        return made

    for visits in range(2):
        process = subprocess.Popen(
            command("--data", str(tmp_path / "data"), "--port", str(port)), stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith(f"ZooKeeper answers at 127.0.0.1:{port}, its data is in {tmp_path}/data.")
            assert asyncio.run(visit()) == f"/visit-{visits:010d}"
            [java] = java_of(process.pid)
            process.send_signal(number)
            assert process.wait(WAIT) == 0
            assert process.stdout.read() == ""
            assert not Path(f"/proc/{java}").exists()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def test_a_killed_tool_takes_its_server_with_it(tmp_path: Path) -> None:
    zookeeper_server(tmp_path)
    process = subprocess.Popen(
        command("--data", str(tmp_path), "--port", str(free_port())), stdout=subprocess.DEVNULL
    )
    java = eventually(lambda: java_of(process.pid), "the server is started", WAIT)[0]
    process.kill()
    process.wait()
    eventually(lambda: not Path(f"/proc/{java}/cmdline").exists(), "the server ends", WAIT)


def test_a_port_or_folder_in_use_is_said_in_one_line(tmp_path: Path) -> None:
    with zookeeper_server(tmp_path / "used") as server:
        line = refused("--data", str(tmp_path / "new"), "--port", str(server.port))
        assert line == (
            f"Error: cannot listen on {server.address}: Address already in use; "
            "choose another port with --port"
        )
        line = refused("--data", str(server.data_dir), "--port", str(free_port()))
        assert line == f"Error: another ZooKeeper uses {server.data_dir}: stop it first"
    file = tmp_path / "file"
    file.touch()
    line = refused("--data", str(file / "data"), "--port", str(free_port()))
    assert line == f"Error: cannot write to {file / 'data'}: Not a directory"


def test_without_java_or_pyspark_a_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("--data", str(tmp_path / "data"), "--port", str(free_port()))
    line = refused(*arguments, JAVA_HOME="/nowhere")
    assert line.startswith("Error: ZooKeeper needs Java, and none is installed: apt-get install")
    assert not (tmp_path / "data").exists()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(zookeeper_process.ZooKeeperFailed, match=r"PySpark, which is missing: pip install"):
        zookeeper_process.class_path()


def test_a_pyspark_with_other_jars_is_used_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    zookeeper_server(Path())
    assert zookeeper_process.class_path().count(".jar") > 10
    monkeypatch.setattr(zookeeper_process, "JARS", ("zookeeper-*", "renamed-*"))
    assert zookeeper_process.class_path().endswith("/jars/*")


def test_a_server_that_ends_by_itself_is_a_failure(tmp_path: Path) -> None:
    zookeeper_server(tmp_path)
    process = subprocess.Popen(
        command("--data", str(tmp_path), "--port", str(free_port())),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    for java in java_of(process.pid):
        os.kill(java, signal.SIGKILL)
    _, errors = process.communicate(timeout=WAIT)
    assert process.returncode == 1
    assert errors == f"Error: ZooKeeper ended with code -9: see {tmp_path}/zookeeper.log\n"
