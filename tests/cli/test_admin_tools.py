"""`get-offsets`, `configs`, `broker-api-versions`, `completion` print what Kafka's tools print."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import ANY

import pytest
from click.testing import CliRunner

from tests.cli.client_tools import (
    NewName,
    Tool,
    assert_content_without_reader,
    make_topic,
    runner,
    start,
    tool,
)
from tests.support.own_cluster import broker_count
from tidelog.cli.broker_api_versions import line
from tidelog.cli.configs import parse_configs
from tidelog.cli.get_offsets import parse_filters, parse_rules, parse_time
from tidelog.cli.main import TOOLS, main
from tidelog.clients.admin import VersionRange

__all__ = ["tool"]


def test_offsets_are_printed_by_topic_and_partition(tool: Tool, new_name: NewName) -> None:
    topic = make_topic(tool, new_name("t"), 11)
    tool("console-producer", "--topic", topic, given="a\nb\nc\n")
    latest = tool("get-offsets", "--topic", topic)
    assert latest.exit_code == 0, latest.output
    lines = latest.stdout.splitlines()
    # In the order of the texts, as Kafka's tool has them.
    assert [text.split(":")[1] for text in lines[:4]] == ["0", "1", "10", "2"]
    assert sum(int(text.split(":")[2]) for text in lines) == 3
    assert len(tool("get-offsets", "--topic-partitions", f"{topic}:3-5,{topic}:9").stdout.splitlines()) == 3
    earliest = tool("get-offsets", "--topic", topic, "--partitions", "0,1", "--time", "earliest")
    assert earliest.stdout == f"{topic}:0:0\n{topic}:1:0\n"
    # Partitions without a record of a time are left out.
    assert len(tool("get-offsets", "--topic", topic, "--time", "1000").stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--topic", "no-such-topic"), "Could not match any topic-partitions with the specified filters"),
        (("--topic", "t", "--topic-partitions", "t:0"), "--topic-partitions cannot be used with --topic or"),
        (("--time", "soon"), "Malformed time argument soon. Please use -1 or latest / -2 or earliest"),
        (("--partitions", "a"), "--partitions expects a comma separated list of numeric partition ids"),
        (("--topic-partitions", "a:b"), "Invalid rule specification: a:b"),
        (("--topic", ""), "Could not match any topic-partitions with the specified filters"),
        (("--topic", "["), "[ is an invalid regex: unterminated character set at position 0"),
    ],
)
def test_what_is_wrong_with_a_choice_of_offsets_is_said(
    tool: Tool, flags: tuple[str, ...], words: str
) -> None:
    result = tool("get-offsets", *flags)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error occurred: {words}") or words in result.stderr


def test_rules_for_partitions_are_kafkas() -> None:
    fits = parse_rules("a:1,b:2-4,:7,c:-2,d:8-,e")
    assert [fits("a", at) for at in (0, 1, 7)] == [False, True, True]
    assert [at for at in range(6) if fits("b", at)] == [2, 3]
    assert [at for at in range(6) if fits("c", at)] == [0, 1]
    assert [at for at in range(10) if fits("d", at)] == [7, 8, 9]
    assert fits("e", 99)
    assert parse_filters("a.*, b", None)("ab", 3)
    assert not parse_filters("a", None)("ab", 3)
    assert (parse_time("max-timestamp"), parse_time("-4"), parse_time("17")) == (-3, -4, 17)


def test_settings_of_a_topic_are_changed_and_described(tool: Tool, new_name: NewName) -> None:
    topic = make_topic(tool, new_name("t"))
    changed = tool(
        "configs",
        "--alter",
        "--topic",
        topic,
        "--add-config",
        "retention.ms=5000,cleanup.policy=[compact,delete]",
    )
    assert (changed.exit_code, changed.stdout) == (0, f"Completed updating config for topic {topic}.\n")
    assert tool("configs", "--describe", "--topic", topic).stdout == (
        f"Dynamic configs for topic {topic} are:\n"
        "  cleanup.policy=compact,delete sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy="
        "compact,delete, DEFAULT_CONFIG:log.cleanup.policy=delete}\n"
        "  retention.ms=5000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=5000}\n"
    )
    same = tool("configs", "--describe", "--entity-type", "topics", "--entity-name", topic, "--all")
    assert same.stdout.startswith(f"All configs for topic {topic} are:\n")
    assert len(same.stdout.splitlines()) > 20
    tool("configs", "--alter", "--topic", topic, "--delete-config", "retention.ms,cleanup.policy")
    described = tool("configs", "--describe", "--topic", topic, "--output", "json")
    assert json.loads(described.stdout) == [{"type": "topics", "name": topic, "configs": []}]


def test_settings_of_brokers_are_described_for_one_and_for_all(tool: Tool) -> None:
    defaults = tool("configs", "--describe", "--broker-defaults")
    assert defaults.stdout.startswith("Default configs for brokers in the cluster are:\n")
    every = tool("configs", "--describe", "--entity-type", "brokers")
    assert every.stdout.count("onfigs for broker") == broker_count() + 1
    levels = tool("configs", "--describe", "--entity-type", "broker-loggers")
    assert levels.stdout.startswith("Dynamic configs for broker-logger ")


@pytest.mark.needs("DescribeClientQuotas")
@pytest.mark.parametrize(
    ("flags", "quota", "words"),
    [
        (
            ("--user", "ann e"),
            "producer_byte_rate=20971520",
            "user-principal 'ann e' are producer_byte_rate=2.097152E7",
        ),
        (("--client", "tool"), "request_percentage=12.5", "client-id 'tool' are request_percentage=12.5"),
        (
            ("--user", "ann", "--client-defaults"),
            "consumer_byte_rate=100",
            "user-principal 'ann', the default client-id are consumer_byte_rate=100.0",
        ),
        (
            ("--ip", "127.0.0.77"),
            "connection_creation_rate=9",
            "ip '127.0.0.77' are connection_creation_rate=9.0",
        ),
    ],
)
def test_quotas_are_set_described_and_deleted(
    tool: Tool, flags: tuple[str, ...], quota: str, words: str
) -> None:
    name = quota.partition("=")[0]
    changed = tool("configs", "--alter", *flags, "--add-config", quota)
    assert changed.stdout.startswith("Completed updating config for ")
    assert tool("configs", "--describe", *flags).stdout == f"Quota configs for {words}\n"
    tool("configs", "--alter", *flags, "--delete-config", name)
    assert tool("configs", "--describe", *flags).stdout == ""


# Groups have settings where the brokers assign partitions.
@pytest.mark.parametrize(
    "kind", ["topic", "broker", pytest.param("group", marks=pytest.mark.needs("group.version"))]
)
def test_what_is_not_there_has_no_settings(tool: Tool, kind: str) -> None:
    result = tool("configs", "--describe", f"--{kind}", "4711")
    assert result.exit_code == 0
    assert result.stdout == f"The {kind} '4711' doesn't exist and doesn't have dynamic config.\n"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--describe",), "expected --entity-type"),
        (("--topic", "t"), "expected one of --describe and --alter"),
        (("--alter", "--topic", "t"), "At least one of --add-config"),
        (("--describe", "--topic", "t", "--broker", "1"), "Only 'users' and 'clients' entity types"),
        (("--describe", "--entity-type", "planets"), "expected one of topics"),
        (("--describe", "--broker", "first"), "expected its number"),
        (("--describe", "--ip", "1.2.3.4.5.invalid"), "is neither an address nor a host"),
        (("--alter", "--topic", "t", "--add-config", "a"), "Invalid entity config"),
        (("--alter", "--user", "u", "--add-config", "a=b"), "Only quota and SCRAM credential configs"),
        (("--alter", "--ip", "1.2.3.4", "--add-config", "a=b"), "Only connection quota configs"),
        (
            ("--alter", "--user", "u", "--add-config", "SCRAM-SHA-256=[password=x],request_percentage=1"),
            "Cannot alter both",
        ),
        (
            ("--alter", "--user", "u", "--add-config", "SCRAM-SHA-256=[iterations=1,password=x]"),
            "less than the minimum 4096",
        ),
        (("--alter", "--user", "u", "--add-config", "request_percentage=much"), "Cannot parse quota"),
    ],
)
def test_what_is_wrong_with_flags_for_settings_is_said(
    tool: Tool, flags: tuple[str, ...], words: str
) -> None:
    result = tool("configs", *flags)
    assert result.exit_code == 1
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_a_value_that_is_refused_ends_with_1(tool: Tool, new_name: NewName) -> None:
    topic = make_topic(tool, new_name("t"))
    result = tool("configs", "--alter", "--topic", topic, "--add-config", "retention.ms=soon")
    assert result.exit_code == 1
    assert "org.apache.kafka.common.errors.InvalidConfigurationException" in result.stderr
    assert "retention.ms" in result.stderr


def test_values_with_commas_stand_in_brackets() -> None:
    assert parse_configs("a=1,b=[x,y],c=") == {"a": "1", "b": "x,y", "c": ""}
    assert parse_configs("S=[iterations=8192,password=a=b]") == {"S": "iterations=8192,password=a=b"}
    with pytest.raises(ValueError, match="Invalid character"):
        parse_configs("a b=1")


def test_versions_are_printed_api_by_api(tool: Tool) -> None:
    result = tool("broker-api-versions")
    assert result.exit_code == 0, result.output
    first, *lines, last = result.stdout.splitlines()
    assert "isFenced: false) -> (" in first
    assert last == ")"
    assert any(re.fullmatch(r"\tMetadata\(3\): 0 to (\d+) \[usable: \1\],", line) for line in lines)
    broker, *others = json.loads(tool("broker-api-versions", "--output", "json").stdout)
    assert len(others) == broker_count() - 1
    (metadata,) = [api for api in broker["apis"] if api["name"] == "Metadata"]
    assert metadata == {"key": 3, "name": "Metadata", "min": 0, "max": metadata["usable"], "usable": ANY}
    assert metadata["usable"] >= 12


def test_versions_that_do_not_meet_are_unusable() -> None:
    assert line(3, None) == "Metadata(3): UNSUPPORTED"
    assert line(3, VersionRange(99, 100)) == "Metadata(3): 99 to 100 [unusable: node too new]"
    assert line(2, VersionRange(0, 0)) == "ListOffsets(2): 0 [unusable: node too old]"
    assert line(999, VersionRange(0, 1)) == "UNKNOWN(999): 0 to 1"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_script(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    assert "_TIDELOG_COMPLETE" in result.stdout


def test_the_script_is_good_bash_and_completes_flags(tmp_path: Path) -> None:
    script = tmp_path / "completion"
    script.write_text(CliRunner().invoke(main, ["completion", "bash"]).stdout)
    subprocess.run(["bash", "-n", str(script)], check=True)
    environment = {
        "_TIDELOG_COMPLETE": "bash_complete",
        "COMP_WORDS": "tidelog get-offsets --ti",
        "COMP_CWORD": "2",
    }
    completed = CliRunner().invoke(main, env=environment, prog_name="tidelog")
    assert "--time" in completed.stdout


def test_nobody_there_is_said_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("default.api.timeout.ms=300\n")
    for name, *flags in (
        ("get-offsets",),
        ("broker-api-versions",),
        ("configs", "--describe", "--topic", "t"),
    ):
        result = runner("127.0.0.1:1")(name, *flags, "--command-config", str(file))
        assert result.exit_code == 1
        assert "127.0.0.1:1" in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_every_tool_helps_and_says_what_it_is_for() -> None:
    for name in TOOLS:
        result = CliRunner().invoke(main, [name, "--help"])
        assert result.exit_code == 0, name
        assert "Usage" in result.stdout


PRINTING = [
    ("get-offsets",),
    ("configs", "--describe", "--entity-type", "topics"),
    ("topics", "--describe"),
    ("log-dirs", "--describe"),
    ("broker-api-versions",),
]


@pytest.mark.parametrize("command", PRINTING)
def test_a_reader_that_went_away_is_no_failure(
    bootstrap: str, tool: Tool, new_name: NewName, command: tuple[str, ...]
) -> None:
    make_topic(tool, new_name("t"))
    process = start(bootstrap, *command)
    assert_content_without_reader(process)


@pytest.mark.parametrize("command", PRINTING)
def test_a_full_disk_behind_the_lines_is_told_in_one(
    bootstrap: str, tool: Tool, new_name: NewName, command: tuple[str, ...]
) -> None:
    make_topic(tool, new_name("t"))
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tidelog", command[0], "--bootstrap-server", bootstrap, *command[1:]],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=30, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.endswith("No space left on device")
