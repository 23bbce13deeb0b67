"""The exit codes of docs/exit-codes.md: no tool takes a broker that is not there for a success."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tidelog.cli.main import TOOLS, main

NOBODY = "127.0.0.1:1"  # a port that no program of ours is given
FILE = "FILE"  # a file that is made for the test

# A call of each tool that needs a broker. A file sets short time-outs.
CALLS: dict[str, tuple[str, ...]] = {
    "console-producer": ("--topic", "t", "--producer.config", FILE),
    "console-consumer": ("--topic", "t", "--timeout-ms", "100", "--command-config", FILE),
    "health": (),
    "top": ("--once",),
    "bundle": ("--to", "BUNDLE"),
    "sql": ("select 1 from t", "--command-config", FILE),
    "produce": ("t", "--command-config", FILE),
    "consume": ("t", "--command-config", FILE),
    "topics": ("--list",),
    "consumer-groups": ("--list",),
    "groups": ("--list",),
    "client-metrics": ("--list",),
    "transactions": ("list",),
    "log-dirs": ("--describe",),
    "check": (),
    "reassign-partitions": ("--list",),
    "replica-verification": ("--once", "--command-config", FILE),
    "leader-election": ("--election-type", "preferred", "--all-topic-partitions"),
    "delete-records": ("--offset-json-file", FILE),
    "get-offsets": ("--topic", "t", "--command-config", FILE),
    "configs": ("--describe", "--topic", "t", "--command-config", FILE),
    "acls": ("--list", "--command-config", FILE),
    "delegation-tokens": ("--describe", "--command-config", FILE),
    "broker-api-versions": ("--command-config", FILE),
    "producer-perf-test": (
        *("--topic", "t", "--num-records", "1", "--record-size", "1"),
        *("--throughput", "-1", "--producer.config", FILE),
    ),
    "consumer-perf-test": (
        *("--include", "t", "--messages", "1", "--timeout", "100"),
        *("--command-config", FILE),
    ),
    "end-to-end-latency": (
        *("--topic", "t", "--num-records", "1", "--producer-acks", "1"),
        *("--record-size", "1", "--command-config", FILE),
    ),
    "verifiable-producer": ("--topic", "t", "--max-messages", "1", "--command-config", FILE),
}
# Members of a group wait for a broker as long as it takes; the others wait for longer than a test should.
WAITING = {"verifiable-consumer", "consume-with", "generate", "pipeline"}

CONTENTS = {
    "delete-records": '{"partitions": [{"topic": "t", "partition": 0, "offset": 1}], "version": 1}',
}
SHORT = "default.api.timeout.ms=500\nmax.block.ms=500\nrequest.timeout.ms=100\n"


def takes_a_broker(command: click.Command | None) -> bool:
    assert command is not None
    inner = command.commands.values() if isinstance(command, click.Group) else ()
    own = any("--bootstrap-server" in option.opts for option in command.params)
    return own or any(takes_a_broker(child) for child in inner)


def test_every_tool_that_takes_a_broker_is_tried() -> None:
    context = click.Context(main)
    found = {name for name in TOOLS if takes_a_broker(main.get_command(context, name))}
    assert found == CALLS.keys() | WAITING | {"cluster", "console"}, (
        "tests/cli/test_cluster.py tries cluster status, tests/console the console"
    )


@pytest.mark.parametrize("name", CALLS)
def test_a_broker_that_is_not_there_ends_a_tool_with_1(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.cli.topic_checks.UNKNOWN_TOPIC_SECONDS", 0.1)
    for tool in ("bundle", "health", "reassign_partitions", "top"):  # a limit that no file changes
        monkeypatch.setattr(f"tidelog.cli.{tool}.TIMEOUT_MS", 500)
    file = tmp_path / "file"
    file.write_text(CONTENTS.get(name, SHORT))
    given = {FILE: str(file), "BUNDLE": str(tmp_path / "bundle.zip")}
    arguments = [given.get(argument, argument) for argument in CALLS[name]]
    result = CliRunner().invoke(main, [name, "--bootstrap-server", NOBODY, *arguments], input=b"one\n")
    assert result.exit_code == 1, result.output
    assert NOBODY in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("topics", "--list"),
        ("groups", "--list"),
        ("client-metrics", "--list"),
        ("acls", "--list"),
        ("reassign-partitions", "--list"),
        ("consumer-groups", "--list"),
        ("health",),
    ],
)
def test_a_failure_is_not_among_output_for_programs(arguments: tuple[str, ...]) -> None:
    call = [*arguments, "--bootstrap-server", NOBODY, "--output", "json"]
    result = CliRunner().invoke(main, call)
    assert (result.exit_code, result.stdout) == (1, "")
    assert NOBODY in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("health",),
        ("top", "--once"),
        ("get-offsets",),
        ("broker-api-versions",),
        ("configs", "--describe", "--entity-type", "brokers"),
    ],
)
def test_a_refused_connection_is_told_at_once(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, [*arguments, "--bootstrap-server", NOBODY])
    assert result.exit_code == 1
    assert f"cannot connect to {NOBODY}" in result.stderr
    assert "not within" not in result.stderr


# Kafka has no tools of these names to be like.
OURS_ALONE = {"start", "demo", "console", "adopt", "cluster", "zookeeper", "tree", "security", "config-docs"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("delete-records", "--offset-json-file"),
        ("leader-election", "--election-type", "preferred", "--path-to-json-file"),
        ("consume", "orders", "--value-schema"),
        ("producer-perf-test", "--topic", "t", "--num-records", "1", "--throughput", "1", "--payload-file"),
    ],
)
def test_a_file_that_does_not_exist_is_named_in_one_sentence(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "missing" / "file.avsc"
    result = CliRunner().invoke(main, [*arguments, str(file), "--bootstrap-server", NOBODY])
    assert result.exit_code == 1
    assert result.stderr.removeprefix("tidelog: ") == f"{file}: No such file or directory\n"


@pytest.mark.parametrize("name", TOOLS)
def test_a_flag_that_does_not_exist_ends_a_tool_as_the_page_says(name: str) -> None:
    result = CliRunner().invoke(main, [name, "--nonsense"])
    assert result.exit_code == (2 if name in OURS_ALONE else 1), result.output
    assert "--nonsense" in result.stderr


def test_a_tool_that_does_not_exist_ends_with_2() -> None:
    assert CliRunner().invoke(main, ["nonsense"]).exit_code == 2
