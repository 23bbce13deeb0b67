"""`tidelog check` names the rules for losing no record that a cluster or a client breaks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tidelog.cli.durability_rules import (
    Durability,
    Finding,
    Status,
    look_at_brokers,
    look_at_consumer,
    look_at_producer,
    look_at_topics,
)
from tidelog.cli.main import main
from tidelog.clients.admin import Admin, NewTopic

NewName = Callable[[str], str]


def broken(findings: list[Finding]) -> dict[int, tuple[str, ...]]:
    return {finding.rule: finding.where for finding in findings if finding.status is Status.BROKEN}


def durable(name: str = "t", factor: int = 3, in_sync: int = 2, unclean: bool = False) -> Durability:
    return Durability(name, factor, in_sync, unclean)


def test_a_durable_topic_keeps_all_rules() -> None:
    findings = look_at_topics([durable()], 3)
    assert [(finding.rule, finding.status) for finding in findings] == [
        (rule, Status.OK) for rule in (4, 5, 6, 7)
    ]
    assert {finding.text for finding in findings} == {"1 topic"}


@pytest.mark.parametrize(
    ("topic", "rules"),
    [
        (durable(unclean=True), {4}),
        (durable(factor=2, in_sync=1), {5, 6}),
        (durable(factor=4, in_sync=1), {6}),
        (durable(factor=3, in_sync=3), {7}),
        (durable(factor=2, in_sync=2), {5, 7}),
        (durable(factor=1, in_sync=1, unclean=True), {4, 5, 6, 7}),
    ],
)
def test_the_rules_that_a_topic_breaks(topic: Durability, rules: set[int]) -> None:
    findings = look_at_topics([topic, durable("good")], 3)
    assert broken(findings) == dict.fromkeys(rules, ("t",))
    assert {finding.rule for finding in findings if finding.status is Status.OK} == {4, 5, 6, 7} - rules
    assert broken(look_at_brokers([topic, durable("good")])) == dict.fromkeys(rules, ("t",))


def test_topics_with_the_same_finding_share_a_line() -> None:
    topics = [durable(f"t{number:02d}", in_sync=1) for number in range(12)]
    (finding,) = [found for found in look_at_topics(topics, 3) if found.status is Status.BROKEN]
    assert len(finding.where) == 12
    assert finding.text.endswith("t08, t09 and 2 more)")


def test_a_small_cluster_needs_brokers_first() -> None:
    (finding,) = [found for found in look_at_topics([durable(factor=1, in_sync=0)], 1) if found.rule == 5]
    assert finding.advice.startswith("Add brokers, there are 1")


@pytest.mark.parametrize(
    ("settings", "acks", "retries"),
    [
        ({}, Status.OK, Status.OK),
        ({"acks": "all", "retries": "2147483647"}, Status.OK, Status.OK),
        ({"acks": "-1"}, Status.OK, Status.OK),
        ({"acks": "1"}, Status.BROKEN, Status.OK),
        ({"acks": "0", "retries": "0"}, Status.BROKEN, Status.BROKEN),
        ({"request.required.acks": "1", "message.send.max.retries": "3"}, Status.BROKEN, Status.BROKEN),
        ({"delivery.timeout.ms": "5000"}, Status.OK, Status.WARNING),
    ],
)
def test_the_settings_of_a_producer(settings: dict[str, str], acks: Status, retries: Status) -> None:
    assert [(found.rule, found.status) for found in look_at_producer("f", settings)] == [
        (2, acks),
        (3, retries),
    ]


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        ({}, Status.BROKEN),
        ({"enable.auto.commit": "true"}, Status.BROKEN),
        ({"auto.commit.enable": "true"}, Status.BROKEN),
        ({"enable.auto.commit": "False"}, Status.OK),
    ],
)
def test_the_settings_of_a_consumer(settings: dict[str, str], status: Status) -> None:
    assert look_at_consumer("f", settings).status is status


def check(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["check", *arguments])


def told(done: Result) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {}
    for finding in json.loads(done.stdout):
        found.setdefault(finding["rule"], []).append(finding)
    return found


def test_one_broker_cannot_keep_the_rules(bootstrap: str, new_name: NewName) -> None:
    topic = new_name("kept")
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 1, configs={"unclean.leader.election.enable": "true"})])
    done = check("--bootstrap-server", bootstrap, "--topic", topic, "--output", "json")
    found = told(done)
    assert done.exit_code == 1
    assert sorted(found) == [1, 2, 3, 4, 5, 6, 7, 8]
    for rule in (4, 5, 6, 7):
        assert [(finding["status"], finding["where"]) for finding in found[rule]] == [("broken", [topic])]

    done = check("--bootstrap-server", bootstrap)
    assert done.exit_code == 1
    assert "tidelog configs --alter --topic NAME --add-config min.insync.replicas=2" in done.stdout
    assert "new topics on brokers: " in done.stdout
    assert done.stdout.splitlines()[-1] == "broken: rule 4, rule 5, rule 6, rule 7"


def test_files_are_checked_without_a_cluster(tmp_path: Path) -> None:
    producer, consumer = tmp_path / "producer", tmp_path / "consumer"
    producer.write_text("acks=all\n")
    consumer.write_text("enable.auto.commit=false\n")
    files = ("--producer-config", str(producer), "--consumer-config", str(consumer))
    done = check("--clients-only", *files)
    assert done.exit_code == 0, done.output
    assert f"2  ok      acks: acks=all ({producer})" in done.stdout.splitlines()
    assert "unclean election: a setting of topics" in done.stdout
    producer.write_text("acks=1\n")
    assert check("--clients-only", *files).exit_code == 1
    producer.write_text("retries=many\n")
    done = check("--clients-only", *files)
    assert (done.exit_code, done.stderr) == (1, "tidelog: retries=many: expected a whole number\n")


def test_wrong_flags(bootstrap: str) -> None:
    assert "Usage:" in check("--clients-only").stderr
    assert "Usage:" in check("--clients-only", "--topic", "t", "--producer-config", "f").stderr
    for flags in (("--producer-config", "/does/not/exist"), ("--topic", "no-such-topic")):
        done = check("--bootstrap-server", bootstrap, *flags)
        assert (done.exit_code, done.stdout) == (1, "")
