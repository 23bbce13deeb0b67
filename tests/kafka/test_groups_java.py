"""The Java consumers of Kafka 3.9 and 4.3 as members of groups on our broker, of both protocols: every record
is read once between commits, and Kafka's own tool sees them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.groups.brokers import Running, running_broker
from tests.groups.outside import Group, log_ends
from tests.groups.story import SteadyWriter
from tests.kafka.jars import run_tool
from tests.kafka.java_members import JavaMember, history
from tests.support.wait import eventually
from tidelog import Admin, NewTopic
from tidelog.simulation.checks.group_checker import check

TOOLS = "org.apache.kafka.tools."
GROUPS = TOOLS + "consumer.group.ConsumerGroupCommand"


class JavaStory:
    """A topic that is being written, and Java members that read it in a group."""

    def __init__(self, broker: Running, folder: Path, name: str) -> None:
        self.broker = broker
        self.folder = folder
        self.topic = f"java-{name}"
        self.group = f"group-{name}"
        self.members: list[JavaMember] = []
        self._falls: list[int] = []
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topics([NewTopic(self.topic, 4)])
        self.writer = SteadyWriter(broker.bootstrap, self.topic, 4, name)
        self.writer.start()

    def join(self, kind: str, protocol: str) -> JavaMember:
        name = f"j{len(self.members) + 1}"
        member = JavaMember(self.folder, name, kind, protocol, self.broker.bootstrap, self.group, self.topic)
        self.members.append(member)
        return member

    def restart_broker(self, *, kill: bool) -> None:
        self._falls.append(int(time.time() * 1000))
        self.broker.restart(kill=kill)

    def tool(self, *arguments: str, kind: str = "kafka4") -> str:
        """What kafka-consumer-groups prints about the group."""
        asked = ("--bootstrap-server", self.broker.bootstrap, "--group", self.group, "--describe")
        done = run_tool(kind, GROUPS, *asked, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def is_seen_by_the_tool(self, kind: str) -> None:
        """All members, in a stable group."""
        names = {member.name for member in self.members}

        def seen() -> bool:
            """A member that was slow to answer may have begun another rebalance."""
            described = self.tool("--members", "--verbose", kind=kind)
            return names <= set(described.split()) and "Stable" in self.tool("--state", kind=kind).split()

        eventually(seen, f"the tool sees {names} in a stable group", 60)

    def drain(self) -> None:
        self.writer.stop()
        group = Group(self.broker.bootstrap, self.group)

        def drained() -> bool:
            found = self.ends()
            return found is not None and found == group.committed()

        eventually(drained, "all is read and committed", 60, 0.1)

    def ends(self) -> dict[tuple[str, int], int] | None:
        return log_ends(self.broker.bootstrap, self.topic, 4)

    def finish(self) -> None:
        self.drain()
        for member in self.members:
            if member.running:
                member.leave()
        found, committed = self.ends(), Group(self.broker.bootstrap, self.group).committed()
        assert found is not None
        assert committed is not None
        lines = history(self.members, self._falls)
        assert check(lines, found, committed, self.writer.written) == []

    def close(self) -> None:
        for member in self.members:
            member.kill()


@pytest.fixture
def story(tmp_path: Path) -> Iterator[JavaStory]:
    with running_broker(tmp_path / "broker") as broker:
        story = JavaStory(broker, tmp_path, "story")
        try:
            yield story
        finally:
            story.close()


@pytest.mark.parametrize(
    ("kind", "protocol"), [("kafka3", "classic"), ("kafka4", "classic"), ("kafka4", "consumer")]
)
def test_java_members_read_every_record_once_between_commits(
    story: JavaStory, kind: str, protocol: str
) -> None:
    first, second = story.join(kind, protocol), story.join(kind, protocol)
    first.wait_for("offsets_committed", 5)
    second.wait_for("offsets_committed", 5)
    story.is_seen_by_the_tool(kind)
    second.kill()
    third = story.join(kind, protocol)
    third.wait_for("offsets_committed", 3)
    story.restart_broker(kill=True)
    third.wait_for_more("offsets_committed", 5)
    first.leave()
    story.restart_broker(kill=False)
    third.wait_for_more("offsets_committed", 5)
    story.finish()
    lines = [line.split() for line in story.tool().splitlines() if line.startswith(story.group)]
    assert {(row[1], row[5]) for row in lines} == {(story.topic, "0")}  # the lag of each partition


def test_the_consumer_protocol_as_kafka_3_speaks_it(story: JavaStory) -> None:
    """A preview: with Kafka's own broker it sometimes reads a partition from its start again, so that nothing
    is asked here but that it takes part."""
    first, second = story.join("kafka3", "consumer"), story.join("kafka3", "consumer")
    first.wait_for("offsets_committed", 5)
    second.wait_for("offsets_committed", 5)
    story.is_seen_by_the_tool("kafka3")
    first.leave()
    second.wait_for_more("offsets_committed", 5)
    story.drain()


@pytest.mark.parametrize(("old", "new"), [("classic", "consumer"), ("consumer", "classic")])
def test_a_group_changes_its_protocol_while_it_lives(story: JavaStory, old: str, new: str) -> None:
    """Members are replaced one after the other, as in a rolling upgrade, and back."""
    before = [story.join("kafka4", old), story.join("kafka4", old)]
    for member in before:
        member.wait_for("offsets_committed", 3)
    for member in before:
        other = story.join("kafka4", new)
        other.wait_for("partitions_assigned")
        member.leave()
        other.wait_for_more("offsets_committed", 5)
    assert "Stable" in story.tool("--state").split()
    story.finish()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_console_consumer_goes_on_where_its_group_was(story: JavaStory, protocol: str) -> None:
    eventually(lambda: len(story.writer.written) == 4, "records in every partition")
    story.writer.stop()
    written = sum(map(len, story.writer.written.values()))
    read: list[str] = []
    for count in (written // 2, written - written // 2):
        done = run_tool(
            "kafka4",
            TOOLS + "consumer.ConsoleConsumer",
            *("--bootstrap-server", story.broker.bootstrap, "--topic", story.topic),
            *("--group", "console", "--from-beginning", "--max-messages", str(count)),
            *("--command-property", f"group.protocol={protocol}", "--timeout-ms", "30000"),
        )
        assert done.returncode == 0, done.stdout + done.stderr
        read += done.stdout.split()
    assert sorted(read) == sorted(value for values in story.writer.written.values() for value in values)
