"""Runs the tools that are built on our clients, in this process or in one of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from tidelog.cli.main import main

Tool = Callable[..., Result]
NewName = Callable[[str], str]


def runner(bootstrap: str) -> Tool:
    """Calls a tool with its name, its flags, and its standard input as `given`."""

    def run(name: str, *arguments: str, given: str | bytes | None = None) -> Result:
        return CliRunner().invoke(main, [name, "--bootstrap-server", bootstrap, *arguments], input=given)

    return run


def start(bootstrap: str, name: str, *arguments: str) -> subprocess.Popen[str]:
    """The tool as a process, for signals."""
    return subprocess.Popen(
        [sys.executable, "-m", "tidelog", name, "--bootstrap-server", bootstrap, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def events(result: Result | str) -> list[dict[str, object]]:
    text = result if isinstance(result, str) else result.stdout
    return [json.loads(line) for line in text.splitlines()]


def make_topic(tool: Tool, name: str, partitions: int = 1, *configs: str) -> str:
    flags = [text for config in configs for text in ("--config", config)]
    made = tool("topics", "--create", "--topic", name, "--partitions", str(partitions), *flags)
    assert made.exit_code == 0, made.output
    return name


@pytest.fixture
def tool(bootstrap: str) -> Tool:
    return runner(bootstrap)


def assert_content_without_reader(process: subprocess.Popen[str]) -> None:
    """A tool whose lines nobody reads any more ends with 0 and without a word."""
    assert process.stdout is not None
    process.stdout.close()
    try:
        assert process.wait(30) == 0
    finally:
        process.kill()
    assert process.stderr is not None
    assert process.stderr.read() == ""
