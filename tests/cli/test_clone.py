"""Clones: a topic like another one, and a group that begins where another one is."""

from __future__ import annotations

import json

from tests.cli.client_tools import NewName, Tool, make_topic, tool
from tests.support.group_members import Members
from tests.support.wait import eventually

__all__ = ["tool"]


def described(tool: Tool, name: str) -> dict[str, dict[str, str]]:
    def answer() -> str:
        """Brokers of a cluster, and Kafka, learn of a new topic a moment after its creation."""
        described = tool("topics", "--describe", "--topic", name, "--output", "json")
        return described.stdout if described.exit_code == 0 else ""

    (found,) = json.loads(eventually(answer, f"topic {name} is known"))
    assert isinstance(found, dict)
    return found


def test_a_topic_like_another_one(tool: Tool, new_name: NewName) -> None:
    original = make_topic(tool, new_name("t"), 3, "retention.ms=5000", "cleanup.policy=compact")
    copy = new_name("t")
    made = tool("topics", "--create", "--topic", copy, "--like", original, "--config", "retention.ms=7000")
    assert made.exit_code == 0, made.output
    found = described(tool, copy)
    assert len(found["partitions"]) == 3
    assert found["configs"]["cleanup.policy"] == "compact"
    assert found["configs"]["retention.ms"] == "7000"
    other = new_name("t")
    tool("topics", "--create", "--topic", other, "--like", original, "--partitions", "1")
    assert len(described(tool, other)["partitions"]) == 1
    missing = tool("topics", "--create", "--topic", new_name("t"), "--like", new_name("missing"))
    assert missing.exit_code == 1
    assert tool("topics", "--list", "--like", original).exit_code == 1


def test_a_group_that_begins_where_another_one_is(bootstrap: str, tool: Tool, new_name: NewName) -> None:
    members = Members(bootstrap)
    topic, original, copy = members.topic(new_name("t"), 2, 5), new_name("g"), new_name("g")
    members.commit(original, {(topic, 0): 2, (topic, 1): 4})
    clone = ("consumer-groups", "--reset-offsets", "--group", copy, "--from-group", original, "--all-topics")
    tool(*clone, "--dry-run")
    assert copy not in tool("consumer-groups", "--list").stdout
    tool(*clone, "--execute")
    (found,) = json.loads(tool("consumer-groups", "--describe", "--group", copy, "--output", "json").stdout)
    assert sorted((row["partition"], row["offset"]) for row in found["offsets"]) == [(0, 2), (1, 4)]
    nothing = tool(
        "consumer-groups", "--reset-offsets", "--group", copy, "--from-group", "nobody", "--all-topics"
    )
    assert "has no committed offsets" in nothing.stdout + nothing.stderr
