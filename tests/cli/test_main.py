"""The command group: every tool is listed, none is imported before it is called."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.support.ports import free_port
from tests.support.wait import eventually
from tidelog import __version__
from tidelog.cli.main import TOOLS, main


def test_help_lists_every_tool_with_a_summary() -> None:
    shown = CliRunner().invoke(main, ["--help"])
    assert shown.exit_code == 0
    for name, tool in TOOLS.items():
        assert name in shown.stdout
        assert tool.summary.split(",")[0].rstrip(".") in shown.stdout


def test_help_names_the_page_of_exit_codes() -> None:
    assert "docs/exit-codes.md" in CliRunner().invoke(main, ["--help"]).stdout


def commands(command: click.Command, context: click.Context) -> Iterator[click.Command]:
    """A command with its subcommands."""
    yield command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from commands(inner, context)


def test_every_flag_has_a_sentence_that_says_its_default_in_one_form() -> None:
    context = click.Context(main)
    for command in commands(main, context):
        for flag in command.params:
            if isinstance(flag, click.Option) and not flag.hidden:
                assert flag.help, (command.name, flag.name)
                assert not re.search(r"; -?\d+\.$", flag.help), (command.name, flag.help)


def test_no_summary_of_a_subcommand_is_cut() -> None:
    context = click.Context(main)
    for name in TOOLS:
        group = main.get_command(context, name)
        if isinstance(group, click.Group):
            shown = CliRunner().invoke(main, [name, "--help"]).stdout.partition("Commands:")[2]
            assert "..." not in shown, shown


def test_the_version_is_printed() -> None:
    assert CliRunner().invoke(main, ["--version"]).stdout == f"tidelog {__version__}\n"


def test_the_version_tells_of_a_missing_compiled_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.records.loops.COMPILED", False)
    shown = CliRunner().invoke(main, ["--version"]).stdout
    assert shown == f"tidelog {__version__} (without the compiled module)\n"


def test_start_listens_on_the_port_that_it_is_given(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    port = free_port()
    command = [sys.executable, "-m", "tidelog", "start", "--port", str(port), "--ready-file", str(ready)]
    process = subprocess.Popen([*command, "--override", f"log.dirs={tmp_path / 'data'}"], cwd=tmp_path)
    try:
        eventually(lambda: ready.exists() and ready.read_text(), "the broker answers", timeout=120)
        assert ready.read_text().strip() == f"127.0.0.1:{port}"
    finally:
        process.terminate()
        assert process.wait(30) == 0


def test_start_takes_a_port_or_listeners() -> None:
    both = CliRunner().invoke(main, ["start", "--port", "1", "--override", "listeners=PLAINTEXT://:2"])
    assert both.exit_code == 2
    assert "--port and --override listeners=... cannot be specified together" in both.stderr


def test_an_unknown_tool_is_refused() -> None:
    refused = CliRunner().invoke(main, ["no-such-tool"])
    assert refused.exit_code == 2
    assert "no-such-tool" in refused.stderr


@pytest.mark.parametrize("name", list(TOOLS))
def test_every_tool_is_there_and_says_what_it_does(name: str) -> None:
    shown = CliRunner().invoke(main, [name, "--help"])
    assert shown.exit_code == 0, shown.output
    assert "Usage:" in shown.stdout


def test_the_command_itself_loads_no_tool() -> None:
    script = "import sys, json, tidelog.cli.main; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    ours = {name for name in json.loads(done.stdout) if name.startswith("tidelog")}
    assert ours <= {"tidelog", "tidelog.cli", "tidelog.cli.main"}
    assert "rich" not in json.loads(done.stdout)
