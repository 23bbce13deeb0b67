"""Completion: tools, flags, and names of the cluster within a time limit, in each shell."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import click
import pytest
from click.shell_completion import ShellComplete

from tests.cli.client_tools import NewName, Tool, make_topic, tool
from tests.support.group_members import Members
from tidelog.cli import name_completion
from tidelog.cli.main import main

__all__ = ["tool"]


def completed(arguments: list[str], incomplete: str = "") -> list[str]:
    shell = ShellComplete(main, {}, "tidelog", "_TIDELOG_COMPLETE")
    return [item.value for item in shell.get_completions(arguments, incomplete)]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tested is the names, not how busy the machine is."""
    monkeypatch.setattr(name_completion, "LIMIT_SECONDS", 30.0)


@pytest.fixture
def silent() -> Iterator[str]:
    """A port that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.usefixtures("patient")
def test_names_of_topics_and_groups(bootstrap: str, tool: Tool, new_name: NewName) -> None:
    topic, group = make_topic(tool, new_name("t")), new_name("g")
    Members(bootstrap).commit(group, {(topic, 0): 0})
    there = ["--bootstrap-server", bootstrap]
    start = topic[:-2]
    assert completed(["topics", *there, "--describe", "--topic"], start) == [topic]
    assert completed(["consume", *there], start) == [topic]
    assert completed(["produce", *there], start) == [topic]
    assert completed(["topics", *there, "--topic"], f"other,{start}") == [f"other,{topic}"]
    assert completed(["consumer-groups", *there, "--describe", "--group"], group[:-2]) == [group]
    assert completed(["consume", *there, topic, "-g"], group[:-2]) == [group]


def test_loading_the_client_is_not_the_time_of_the_cluster() -> None:
    """On a busy machine it takes longer than the limit: nothing was ever completed there."""
    program = """
import sys
import click
from tidelog.cli import name_completion
name_completion.ask = lambda ctx, names: [str("tidelog.clients.admin.blocking" in sys.modules)]
context, option = click.Context(click.Command("t")), click.Option(["-t"])
print([item.value for item in name_completion.complete_topics(context, option, "")])
"""
    asked = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert asked.stdout == "['True']\n"


def test_a_cluster_that_does_not_answer_completes_nothing_soon(silent: str) -> None:
    began = time.monotonic()
    assert completed(["topics", "--bootstrap-server", silent, "--topic"]) == []
    assert completed(["topics", "--bootstrap-server", "127.0.0.1:1", "--topic"]) == []
    assert time.monotonic() - began < 10  # on a busy machine; the limit of each is 0.7 seconds


def test_tools_and_flags() -> None:
    assert {"consume", "consumer-groups"} <= set(completed([], "cons"))
    assert "--describe" in completed(["topics"], "--des")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_is_answered(shell: str, bootstrap: str, tool: Tool, new_name: NewName) -> None:
    """The program itself, as the script of the shell calls it."""
    topic = make_topic(tool, new_name("t"))
    words = f"tidelog topics --bootstrap-server {bootstrap} --topic {topic[:-1]}"
    env = {**os.environ, "_TIDELOG_COMPLETE": f"{shell}_complete", "COMP_WORDS": words, "COMP_CWORD": "5"}
    if shell == "fish":
        env |= {"COMP_WORDS": words.rpartition(" ")[0], "COMP_CWORD": topic[:-1]}
    script = (
        "import tidelog.cli.name_completion as names; names.LIMIT_SECONDS = 100.0\n"
        "from tidelog.cli.main import main; main(prog_name='tidelog')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=120
    )
    assert topic in done.stdout, done.stderr


def test_names_with_control_characters_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Admin:
        def __enter__(self) -> Admin:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr("tidelog.cli.output.open_admin", lambda *_, **__: Admin())
    ctx = click.Context(main)
    assert name_completion.ask(ctx, lambda admin: ["a", "b\n", "c d", "\x1b[2J"]) == ["a"]
