"""Our tools for groups and Kafka's own print the same, about our broker as about Kafka 4.3.

Both ask the same broker, so that ids, hosts and offsets are the same too; only the order of lines is free, as
Kafka's tools print tables of a hash map.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.kafka.jars import run_tool
from tests.kafka.servers import Kafka4
from tests.support.broker import Broker
from tests.support.fixtures import new_name
from tests.support.group_members import Members
from tidelog.cli.main import main

__all__ = ["new_name"]

NewName = Callable[[str], str]
CONSUMER_GROUPS = ("consumer-groups", "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand")
GROUPS = ("groups", "org.apache.kafka.tools.GroupsCommand")
# What Kafka's tool says before it does what it was asked to.
JAVA_NOISE = ("SLF4J", "\tat ", "\t...", "Caused by", "java.", "org.apache")


class Both:
    """One broker and both tools."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.members = Members(bootstrap)

    def same(self, tool: tuple[str, str], *arguments: str, stderr: bool = True) -> list[str]:
        """The lines that ours printed, after Kafka's were found to be the same."""
        ours_name, theirs_name = tool
        where = ("--bootstrap-server", self.bootstrap)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(run_tool, "kafka4", theirs_name, *where, *arguments)
            ours = CliRunner().invoke(main, [ours_name, *where, *arguments])
            theirs = running.result()
        assert sorted(ours.stdout.splitlines()) == sorted(theirs.stdout.splitlines()), theirs.stderr
        assert ours.exit_code == theirs.returncode
        if stderr:
            said = [line for line in theirs.stderr.splitlines() if line and not line.startswith(JAVA_NOISE)]
            assert sorted(line for line in ours.stderr.splitlines() if line) == sorted(said)
        return ours.stdout.splitlines()


@pytest.fixture(scope="module", params=["tidelog", "kafka"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    target = tmp_path_factory.mktemp("group-tools")
    with ExitStack() as stack:
        if request.param == "kafka":
            kafka = Kafka4(target / "kafka", target / "data", {"group.initial.rebalance.delay.ms": "0"})
            kafka.format()
            yield Both(stack.enter_context(kafka).bootstrap)
        else:
            broker = Broker(target / "broker", {"broker.id": "1", "group.initial.rebalance.delay.ms": "0"})
            yield Both(stack.enter_context(broker).bootstrap)


def test_groups_of_all_kinds_are_listed_and_described_alike(both: Both, new_name: NewName) -> None:
    members = both.members
    orders, audit = members.topic(new_name("orders"), 3, 10), members.topic(new_name("audit"), 1, 5)
    idle = members.commit(new_name("idle"), {(orders, 0): 4, (audit, 0): 5})
    classic, consumer, static = new_name("classic"), new_name("consumer"), new_name("static")
    members.commit(classic, {(orders, 1): 7, (audit, 0): 2})
    with (
        members.group(classic, [orders], "classic", ["one", "two"]),
        members.group(consumer, [orders, audit], "consumer", ["one", "two"]),
        members.group(static, [audit], "classic", ["one@rack-1"]),
    ):
        assert len(both.same(CONSUMER_GROUPS, "--list")) == 4
        for filters in (["--state"], ["--type", "--state"], ["--state", "Empty"], ["--type", "consumer"]):
            assert len(both.same(CONSUMER_GROUPS, "--list", *filters)) > 1
        for what in ([], ["--members"], ["--state"]):
            both.same(CONSUMER_GROUPS, "--describe", "--all-groups", *what)
            both.same(CONSUMER_GROUPS, "--describe", "--all-groups", *what, "--verbose")
        both.same(CONSUMER_GROUPS, "--describe", "--group", idle, "--group", consumer, "--offsets")
        for filters in (
            [],
            ["--consumer"],
            ["--group-type", "consumer"],
            ["--protocol", "consumer"],
            ["--share"],
        ):
            both.same(GROUPS, "--list", *filters)
        busy = ("--reset-offsets", "--group", classic, "--topic", orders, "--to-latest", "--execute")
        assert "is inactive" in both.same(CONSUMER_GROUPS, *busy)[1]
        both.same(CONSUMER_GROUPS, "--delete-offsets", "--group", consumer, "--topic", orders)
        both.same(CONSUMER_GROUPS, "--delete", "--group", classic, "--group", "no-such-group")


def test_what_is_not_there_is_told_alike(both: Both, new_name: NewName) -> None:
    for what in ([], ["--members"], ["--state"]):
        both.same(CONSUMER_GROUPS, "--describe", "--group", new_name("nowhere"), *what, stderr=False)
    topic = both.members.topic(new_name("t"), 1, 1)
    both.same(CONSUMER_GROUPS, "--delete", "--group", new_name("nowhere"))
    both.same(CONSUMER_GROUPS, "--delete-offsets", "--group", new_name("nowhere"), "--topic", f"{topic}:0")


@pytest.mark.parametrize(
    "scenario",
    [
        ["--to-earliest"],
        ["--to-latest"],
        ["--to-offset", "7"],
        ["--to-offset", "700"],
        ["--to-current"],
        ["--by-duration", "PT0S"],
        ["--to-datetime", "2001-01-01T00:00:00.000"],
    ],
)
def test_offsets_are_reset_alike(both: Both, new_name: NewName, scenario: list[str]) -> None:
    orders, empty = both.members.topic(new_name("orders"), 3, 10), both.members.topic(new_name("empty"), 1)
    group = both.members.commit(new_name("idle"), {(orders, 0): 4, (empty, 0): 0})
    scope = ("--group", group, "--topic", f"{orders}:0,2", "--topic", empty, *scenario)
    # Where an offset had to be moved, Kafka's tool says so in its log alone.
    planned = both.same(CONSUMER_GROUPS, "--reset-offsets", *scope, "--dry-run", stderr=False)
    done = both.same(CONSUMER_GROUPS, "--reset-offsets", *scope, "--execute", stderr=False)
    assert planned == done
    both.same(CONSUMER_GROUPS, "--describe", "--group", group)


def test_plans_are_exchanged(both: Both, new_name: NewName, tmp_path: Path) -> None:
    long = new_name("a-topic-with-a-name-of-some-length")
    topics = [both.members.topic(new_name("t"), 2, 10), both.members.topic(long, 1, 10)]
    one, two = new_name("one"), new_name('two, of + "both" ')
    for group in (one, two):
        both.members.commit(group, {(topics[0], 1): 3, (topics[1], 0): 6})
    file = tmp_path / "plan.csv"
    shift = ("--all-topics", "--shift-by", "2", "--dry-run", "--export")
    for groups in (["--group", one], ["--group", one, "--group", two]):
        exported = both.same(CONSUMER_GROUPS, "--reset-offsets", *groups, *shift)
        file.write_text("\n".join(exported))
        back = ("--reset-offsets", *groups, "--from-file", str(file), "--dry-run")
        assert len(both.same(CONSUMER_GROUPS, *back, stderr=False)) == len(exported) + 1
    both.same(
        CONSUMER_GROUPS,
        "--reset-offsets",
        "--group",
        one,
        "--from-file",
        str(file),
        "--dry-run",
        stderr=False,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["--describe"],
        ["--describe", "--group", "g", "--all-groups"],
        ["--describe", "--group", "g", "--members", "--offsets"],
        ["--describe", "--group", "g", "--state", "stable"],
        ["--list", "--group", "g"],
        ["--list", "--verbose"],
        ["--list", "--state", "bogus"],
        ["--delete", "--group", "g", "--topic", "t"],
        ["--delete-offsets", "--group", "g"],
        ["--reset-offsets", "--group", "g", "--topic", "__consumer_offsets", "--dry-run"],
        ["--reset-offsets", "--group", "g", "--to-latest", "--dry-run"],
        ["--reset-offsets", "--group", "g", "--topic", "t", "--to-latest", "--to-earliest"],
        ["--reset-offsets", "--group", "g", "--topic", "t:x", "--to-latest"],
    ],
)
def test_wrong_flags_are_refused_alike(both: Both, arguments: list[str]) -> None:
    assert both.same(CONSUMER_GROUPS, *arguments, stderr=False) == []
