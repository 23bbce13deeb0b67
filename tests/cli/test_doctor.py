"""`tidelog doctor` finds what would keep a broker from running, and says what to do."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tidelog.cli import doctor


def run(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidelog", "doctor", *args]
    env = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)


def test_a_machine_that_can_run_a_broker(tmp_path: Path) -> None:
    ran = run("--port", "0", "--data", str(tmp_path / "new" / "folder"), "--output", "json")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = {finding["what"]: finding for finding in json.loads(ran.stdout)}
    assert list(found) == [
        *("Python", "compiled module", "Java", "port", "log folder"),
        *("disk space", "file system", "open files", "clock"),
    ]
    assert all(finding["status"] != "failure" for finding in found.values())
    assert all(finding["advice"] for finding in found.values() if finding["status"] != "ok")
    assert not (tmp_path / "new").exists(), "it only looks"


def test_a_port_that_is_in_use_is_a_failure_with_advice(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ran = run("--port", str(port), "--data", str(tmp_path))
    assert ran.returncode == 1
    assert f"FAIL  port: {port} cannot be used" in ran.stdout
    assert "tidelog start --port N" in ran.stdout


def test_a_log_folder_that_is_a_file_is_a_failure(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    [finding] = doctor.log_folder(file / "data")
    assert finding.status == doctor.FAILURE
    assert str(file) in finding.text


def test_plain_python_is_told_of(tmp_path: Path) -> None:
    ran = run("--port", "0", "--data", str(tmp_path), TIDELOG_PURE="1")
    assert "warn  compiled module: switched off" in ran.stdout


@pytest.mark.parametrize(
    ("text", "status", "shown"),
    [
        ('openjdk version "21.0.2" 2024-01-16', doctor.OK, "21 "),
        ('openjdk version "17" 2021-09-14', doctor.OK, "17 "),
        ('java version "1.8.0_402"', doctor.WARNING, "8 "),
        ("no such thing", doctor.WARNING, "does not print its version"),
    ],
)
def test_the_version_of_java(
    text: str, status: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = doctor.java(lambda _: text)
    assert found.status == status
    assert shown in found.text
    assert bool(found.advice) is (status != doctor.OK)


MOUNTS = """\
/dev/vda1 / ext4 rw,relatime 0 0
tmpfs /tmp tmpfs rw 0 0
server:/share /srv/with\\040space nfs4 rw 0 0
/dev/vdb1 /tmpx xfs rw 0 0
"""


@pytest.mark.parametrize(
    ("folder", "status", "shown"),
    [
        ("/var/lib/tidelog", doctor.OK, "ext4 at /"),
        ("/tmpx/data", doctor.OK, "xfs at /tmpx"),
        ("/tmp/data", doctor.WARNING, "tmpfs at /tmp"),
        ("/srv/with space/data", doctor.WARNING, "nfs4 at /srv/with space"),
    ],
)
def test_file_systems_that_lose_files_are_told_of(folder: str, status: str, shown: str) -> None:
    found = doctor.file_system(Path(folder), MOUNTS)
    assert (found.status, found.text) == (status, shown)


def test_a_clock_that_was_never_set_is_a_failure() -> None:
    assert doctor.clock(1_000_000.0).status == doctor.FAILURE
