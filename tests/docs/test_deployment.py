"""The Dockerfile, the unit of systemd and the workflows use files, flags, settings and targets that exist."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import PROJECT
from tidelog.cli.start import start
from tidelog.config.properties import read_properties
from tidelog.server.config.broker_definition import broker_definition

PACKAGING = PROJECT / "packaging"
DOCKERFILE = (PACKAGING / "Dockerfile").read_text().replace("\\\n", " ")
UNIT = (PACKAGING / "tidelog.service").read_text()
SETTINGS = {
    name: read_properties(str(PACKAGING / f"{name}.properties")) for name in ("container", "server")
}


def instruction(name: str) -> list[str]:
    return re.findall(rf"^{name} +(.*)$", DOCKERFILE, re.MULTILINE)


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_exist_and_have_values_that_can_be_used(name: str) -> None:
    for setting, value in SETTINGS[name].items():
        key = broker_definition()[setting]
        assert key.served
        key.parse(value)


def test_what_the_image_copies_is_there_and_not_ignored() -> None:
    kept = re.findall(r"^!(.*)$", (PACKAGING / "Dockerfile.dockerignore").read_text(), re.MULTILINE)
    for copied in instruction("COPY"):
        if copied.startswith("--from="):
            continue
        for source in copied.split()[:-1]:
            assert (PROJECT / source).exists(), source
            assert source in kept, source


def test_the_image_starts_a_broker_with_its_settings() -> None:
    tool, command, properties = json.loads(instruction("ENTRYPOINT")[0])
    assert (tool, command) == ("tidelog", start.name)
    assert f"packaging/container.properties {properties}" in instruction("COPY")
    assert instruction("USER") == ["tidelog"]
    settings = SETTINGS["container"]
    [volume] = instruction("VOLUME")
    assert settings["log.dirs"].startswith(f"{volume}/")
    ports = [settings["listeners"].rpartition(":")[2], settings["metrics.listener"].rpartition(":")[2]]
    assert instruction("EXPOSE") == [" ".join(ports)]
    [check] = instruction("HEALTHCHECK")
    assert f"http://127.0.0.1:{ports[1]}/health" in check


def test_the_unit_starts_a_broker_with_settings_whose_folders_it_may_write() -> None:
    [started] = re.findall(r"^ExecStart=(.*)$", UNIT, re.MULTILINE)
    _, command, properties = started.split()
    assert command == start.name
    [state] = re.findall(r"^StateDirectory=(.*)$", UNIT, re.MULTILINE)
    assert SETTINGS["server"]["log.dirs"].startswith(f"/var/lib/{state}/")
    assert f"packaging/server.properties {properties}" in (PROJECT / "docs" / "deployment.md").read_text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "tidelog.service"
    unit.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", UNIT, flags=re.MULTILINE))
    checked = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


WORKFLOWS = {path.name: path.read_text() for path in (PROJECT / ".github" / "workflows").glob("*.yml")}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_makes_targets_that_exist(name: str) -> None:
    targets = re.findall(r"^([a-z0-9.-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"\bmake ([\w.-]+)", WORKFLOWS[name])) <= set(targets)
    for path in re.findall(r"packaging/[\w.]+", WORKFLOWS[name]):
        assert (PROJECT / path).exists()


def test_the_workflow_tests_every_python_that_the_package_names() -> None:
    named = re.findall(r":: Python :: (3\.\d+)", (PROJECT / "pyproject.toml").read_text())
    [matrix] = re.findall(r"python: \[(.*)\]", WORKFLOWS["tests.yml"])
    assert re.findall(r"[\d.]+", matrix) == named
    compiled = re.findall(r"\bcp3(\d+)-", WORKFLOWS["release.yml"])
    assert [f"3.{minor}" for minor in compiled] == named


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(
    ("given", "folder"),
    [
        ([], ".venv/"),
        (["PYTHON=python3"], ".venv/"),
        (["PYTHON=python3.13"], ".venv-python3.13/"),
        (["PYTHON=/opt/bin/python3.12"], ".venv-python3.12/"),
    ],
)
def test_another_python_has_an_environment_of_its_own(given: list[str], folder: str) -> None:
    # A `make test` around this one hands its own variables on.
    around = {"MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL", "PYTHON"}
    environment = {name: value for name, value in os.environ.items() if name not in around}
    command = ["make", "--dry-run", "test", *given]
    planned = subprocess.check_output(command, cwd=PROJECT, text=True, env=environment)
    assert f"{folder}bin/python -m pytest" in planned
