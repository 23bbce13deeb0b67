"""`tidelog topics` prints what kafka-topics prints and ends with the same codes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.kafka.jars import run_tool
from tests.support.wait import eventually
from tidelog.cli.main import main

NewName = Callable[[str], str]
Topics = Callable[..., Result]


@pytest.fixture
def topics(bootstrap: str) -> Topics:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(main, ["topics", "--bootstrap-server", bootstrap, *arguments])

    return run


def create(topics: Topics, name: str, *arguments: str) -> None:
    """Make a topic and wait until it is listed; Kafka answers before its brokers know it."""
    made = topics("--create", "--topic", name, *arguments)
    assert (made.exit_code, made.stdout) == (0, f"Created topic {name}.\n")
    eventually(lambda: described(topics, name).stdout, f"{name} is described")


def described(topics: Topics, name: str, *arguments: str) -> Result:
    return topics("--describe", "--if-exists", "--topic", name, *arguments)


def settings_of(line: str) -> set[str]:
    return set(line.rstrip("\n").partition("Configs: ")[2].split(","))


def test_a_topic_is_made_described_grown_and_deleted(topics: Topics, new_name: NewName) -> None:
    name = new_name("life")
    create(topics, name, "--partitions", "2", "--replication-factor", "1", "--config", "retention.ms=5000")
    head, *partitions = described(topics, name).stdout.splitlines()
    assert re.fullmatch(
        rf"Topic: {name}\tTopicId: [\w-]{{22}}\tPartitionCount: 2\tReplicationFactor: 1\tConfigs: .*", head
    )
    assert "retention.ms=5000" in settings_of(head)
    line = re.compile(
        rf"\tTopic: {name}\tPartition: (\d)\tLeader: (\d+)\tReplicas: \2\tIsr: \2"
        r"\tElr: [\w/]*\tLastKnownElr: [\w/]*"
    )
    assert [match[1] for match in map(line.fullmatch, partitions) if match] == ["0", "1"]

    grown = topics("--alter", "--topic", name, "--partitions", "4")
    assert (grown.exit_code, grown.stdout) == (0, "")
    eventually(lambda: "PartitionCount: 4" in described(topics, name).stdout, "four partitions")

    deleted = topics("--delete", "--topic", name)
    assert (deleted.exit_code, deleted.stdout) == (0, "")
    eventually(lambda: name not in topics("--list").stdout.splitlines(), "the topic is gone")


def test_topics_are_listed_one_a_line_and_by_pattern(topics: Topics, new_name: NewName) -> None:
    one, two = new_name("listed-one"), new_name("listed-two")
    create(topics, one)
    create(topics, two)
    listed = topics("--list").stdout.splitlines()
    assert listed == sorted(listed)
    assert {one, two} <= set(listed)
    assert topics("--list", "--topic", f"{one},{two}").stdout == f"{one}\n{two}\n"
    assert topics("--list", "--topic", f"{one}|{two}").stdout == f"{one}\n{two}\n"
    assert topics("--list", "--topic", one[:-1] + ".").stdout == f"{one}\n"
    assert topics("--list", "--topic", one[:-1]).stdout == "\n"  # a part of a name is no match


def test_a_topic_that_exists_is_an_error_unless_it_may(topics: Topics, new_name: NewName) -> None:
    name = new_name("exists")
    create(topics, name)
    again = topics("--create", "--topic", name)
    assert again.exit_code == 1
    assert again.stdout.startswith("Error while executing topic command : ")
    assert name in again.stdout
    allowed = topics("--create", "--if-not-exists", "--topic", name)
    assert (allowed.exit_code, allowed.stdout) == (0, "")


@pytest.mark.parametrize("action", [("--describe",), ("--delete",), ("--alter", "--partitions", "3")])
def test_a_topic_that_is_missing_is_an_error_unless_it_may(
    topics: Topics, new_name: NewName, action: tuple[str, ...]
) -> None:
    name = new_name("missing")
    refused = topics(*action, "--topic", name)
    assert refused.exit_code == 1
    assert (
        refused.stdout == f"Error while executing topic command : Topic '{name}' does not exist as expected\n"
    )
    allowed = topics(*action, "--topic", name, "--if-exists")
    assert (allowed.exit_code, allowed.stdout) == (0, "")


def test_a_topic_is_described_by_its_id(topics: Topics, new_name: NewName) -> None:
    name = new_name("by-id")
    create(topics, name)
    by_name = described(topics, name).stdout
    topic_id = by_name.partition("TopicId: ")[2][:22]
    assert topics("--describe", "--topic-id", topic_id).stdout == by_name
    unknown = topics("--describe", "--topic-id", "AAAAAAAAAAAAAAAAAAAAZw")
    assert unknown.exit_code == 1
    assert "TopicId 'AAAAAAAAAAAAAAAAAAAAZw' does not exist as expected" in unknown.stdout
    assert topics("--describe", "--topic-id", "short").exit_code == 1


def test_filters_choose_what_is_described(topics: Topics, new_name: NewName) -> None:
    name = new_name("filtered")
    create(topics, name, "--partitions", "2", "--config", "cleanup.policy=compact")
    only_topics = described(topics, name, "--topics-with-overrides").stdout
    assert len(only_topics.splitlines()) == 1
    assert "cleanup.policy=compact" in settings_of(only_topics)
    for healthy in ("under-replicated", "unavailable", "under-min-isr"):
        assert described(topics, name, f"--{healthy}-partitions").stdout == ""
    at_min = described(topics, name, "--at-min-isr-partitions").stdout.splitlines()
    assert [line.split("\t")[1:3] for line in at_min] == [
        [f"Topic: {name}", f"Partition: {i}"] for i in (0, 1)
    ]
    assert (
        described(topics, name, "--partition-size-limit-per-response", "1").stdout
        == described(topics, name).stdout
    )


def test_replicas_can_be_assigned_by_hand(topics: Topics, new_name: NewName) -> None:
    name = new_name("assigned")
    create(topics, new_name("any"))
    broker = re.search(r"Leader: (\d+)", topics("--describe").stdout)
    assert broker is not None
    create(topics, name, "--replica-assignment", f"{broker[1]},{broker[1]}")
    assert "PartitionCount: 2" in described(topics, name).stdout
    three = ",".join([broker[1]] * 3)
    assert (
        topics("--alter", "--topic", name, "--partitions", "3", "--replica-assignment", three).exit_code == 0
    )
    eventually(lambda: "PartitionCount: 3" in described(topics, name).stdout, "three partitions")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--partitions", "0"), "--partitions is 0; it must be greater than 0"),
        (("--config", "retention.ms"), "expected name=value"),
        (("--replica-assignment", "1:1"), "names a broker twice"),
        (("--replica-assignment", "1:2,3"), "partition 1 has 1 replicas, partition 0 has 2"),
        (("--replica-assignment", "a"), "'a' is not a list of broker ids"),
        (("--config", "no.such.setting=1"), "no.such.setting"),
    ],
)
def test_what_cannot_be_made_is_refused_with_the_reason(
    topics: Topics, new_name: NewName, arguments: tuple[str, ...], reason: str
) -> None:
    name = new_name("refused")
    refused = topics("--create", "--topic", name, *arguments)
    assert refused.exit_code == 1
    assert refused.stdout.startswith("Error while executing topic command : ")
    assert reason in refused.stdout
    assert name not in topics("--list").stdout


def test_names_that_collide_in_metrics_are_warned_of(topics: Topics, new_name: NewName) -> None:
    name = new_name("with.dot")
    made = topics("--create", "--topic", name).stdout.splitlines()
    assert made[0].startswith("WARNING: ")
    assert made[1:] == [f"Created topic {name}."]


WRONG_USAGE = [
    ([], "exactly one of"),
    (["--list", "--describe"], "exactly one of"),
    (["--create"], "--create needs --topic"),
    (["--delete"], "--delete needs --topic"),
    (["--alter", "--topic", "t"], "--alter needs --partitions"),
    (
        ["--alter", "--topic", "t", "--partitions", "2", "--config", "a=b"],
        "--config does not go with --alter",
    ),
    (["--list", "--partitions", "3"], "--partitions does not go with --list"),
    (["--create", "--topic", "t", "--if-exists"], "--if-exists does not go with --create"),
    (["--create", "--topic", "t", "--replica-assignment", "1", "--partitions", "2"], "--replica-assignment"),
    (["--describe", "--topics-with-overrides", "--under-min-isr-partitions"], "--topics-with-overrides"),
    (["--create", "--topic", "a", "--topic", "b"], "--topic was given 2 times"),
    (["--create", "--topic", "t", "--partitions", "abc"], "'abc'"),
    (
        ["--alter", "--topic", "t", "--partitions", "2", "--delete-config", "x"],
        "--delete-config is not served",
    ),
    (["--bogus"], "--bogus"),
]


@pytest.mark.parametrize(("arguments", "reason"), WRONG_USAGE)
def test_wrong_flags_end_with_1_and_a_reason_before_anything_is_asked(
    arguments: list[str], reason: str
) -> None:
    refused = CliRunner().invoke(main, ["topics", "--bootstrap-server", "nowhere:1", *arguments])
    assert refused.exit_code == 1
    assert refused.stdout == ""
    assert reason in refused.stderr


def test_brokers_are_those_of_the_flag_of_a_file_or_of_the_environment(
    bootstrap: str, new_name: NewName, tmp_path: Path
) -> None:
    def run(*arguments: str, **environment: str) -> tuple[int, str]:
        done = CliRunner().invoke(main, ["topics", *arguments], env=environment)
        return done.exit_code, done.stdout

    topic, dead = new_name("named"), "127.0.0.1:1"
    file = tmp_path / "client.properties"
    file.write_text(f"bootstrap.servers={bootstrap}\n")
    made = run("--bootstrap-server", bootstrap, "--create", "--topic", topic, TIDELOG_BOOTSTRAP_SERVER=dead)
    assert made[0] == 0
    listing = ("--list", "--topic", topic)
    assert run(*listing, TIDELOG_BOOTSTRAP_SERVER=bootstrap) == (0, f"{topic}\n")
    assert run(*listing, "--command-config", str(file), TIDELOG_BOOTSTRAP_SERVER=dead) == (0, f"{topic}\n")
    assert run(*listing, TIDELOG_BOOTSTRAP_SERVER=dead)[0] == 1


def test_nobody_at_the_address_is_an_error_with_the_address() -> None:
    refused = CliRunner().invoke(main, ["topics", "--bootstrap-server", "127.0.0.1:1", "--list"])
    assert refused.exit_code == 1
    assert "Error while executing topic command : cannot connect to 127.0.0.1:1" in refused.stdout


def test_settings_of_the_connection_come_from_a_file(topics: Topics, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("client.id=ops\nrequest.timeout.ms=20000\n")
    assert topics("--list", "--command-config", str(file)).exit_code == 0
    file.write_text("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n")
    refused = topics("--list", "--command-config", str(file))
    assert refused.exit_code == 1
    assert "sasl.username" in refused.stdout


@pytest.mark.kafka
def test_kafkas_own_tool_prints_the_same(topics: Topics, bootstrap: str, new_name: NewName) -> None:
    name = new_name("same")
    create(
        topics,
        name,
        "--partitions",
        "3",
        "--config",
        "retention.ms=5000",
        "--config",
        "cleanup.policy=compact",
    )
    for arguments in (
        ["--list", "--topic", name],
        ["--describe", "--topic", name],
        ["--describe", "--topic", name, "--at-min-isr-partitions"],
        ["--describe", "--topic", name, "--topics-with-overrides"],
        ["--describe", "--topic", "nowhere-at-all"],
        ["--alter", "--topic", "nowhere-at-all", "--partitions", "2"],
    ):
        theirs = run_tool(
            "kafka4", "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", bootstrap, *arguments
        )
        ours = topics(*arguments)
        assert ours.exit_code == theirs.returncode
        assert comparable(ours.stdout) == comparable(theirs.stdout)


def comparable(printed: str) -> list[tuple[str, set[str]]]:
    """Lines with their settings as sets: the order of settings is that of a hash table in Kafka's tool."""
    return [(line.partition("Configs: ")[0], settings_of(line)) for line in printed.splitlines()]
