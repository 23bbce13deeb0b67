"""`--output json` of the tools that print tables: what a program needs, and exit codes that it can use."""

from __future__ import annotations

import json
from pathlib import Path

import confluent_kafka
import pytest

from tests.cli.client_tools import NewName, Tool, make_topic, tool
from tests.support.group_members import Members

__all__ = ["tool"]


def test_topics_are_objects(tool: Tool, new_name: NewName) -> None:
    name = make_topic(tool, new_name("t"), 2, "retention.ms=5000")
    listed = json.loads(tool("topics", "--list", "--output", "json").stdout)
    assert name in [topic["name"] for topic in listed]
    (topic,) = json.loads(tool("topics", "--describe", "--topic", name, "--output", "json").stdout)
    assert topic["configs"]["retention.ms"] == "5000"
    assert [partition["partition"] for partition in topic["partitions"]] == [0, 1]
    assert topic["partitions"][0]["leader"] in topic["partitions"][0]["isr"]
    some = tool("topics", "--describe", "--topic", name, "--output", "json", "--unavailable-partitions")
    assert json.loads(some.stdout) == []
    refused = tool("topics", "--create", "--topic", name, "--output", "json")
    assert refused.exit_code == 1
    assert "--output json goes with --list and --describe" in refused.stderr


def test_groups_are_objects(bootstrap: str, tool: Tool, new_name: NewName) -> None:
    members = Members(bootstrap)
    topic, group = members.topic(new_name("t"), 1, 5), new_name("g")
    members.commit(group, {(topic, 0): 2})
    listed = json.loads(tool("groups", "--list", "--output", "json").stdout)
    assert {"group": group, "type": "classic", "protocol": "", "state": "Empty"} in [
        {**found, "type": found["type"].lower()} for found in listed
    ]
    listed = json.loads(tool("consumer-groups", "--list", "--output", "json").stdout)
    assert group in [found["group"] for found in listed]
    with members.group(group, [topic]):
        (found,) = json.loads(
            tool("consumer-groups", "--describe", "--group", group, "--output", "json").stdout
        )
    assert found["state"] == "Stable"
    (member,) = found["members"]
    assert member["assignment"] == [[topic, 0]]
    (row,) = found["offsets"]
    assert (row["offset"], row["end"], row["lag"], row["member"]) == (2, 5, 3, member["id"])


def test_a_group_that_is_not_there_is_an_exit_code(tool: Tool) -> None:
    result = tool("consumer-groups", "--describe", "--group", "nobody", "--output", "json")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "nobody" in result.stderr
    assert tool("consumer-groups", "--describe", "--group", "nobody").exit_code == 0  # as Kafka's tool


def test_transactions_are_objects(bootstrap: str, tool: Tool, new_name: NewName) -> None:
    name = new_name("x")
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    listed = json.loads(tool("transactions", "--output", "json", "list").stdout)
    assert json.loads(tool("transactions", "list", "--output", "json").stdout) == listed
    assert tool("transactions", "list", "--output", "csv").stdout.startswith("TransactionalId,Coordinator,")
    (found,) = [entry for entry in listed if entry["TransactionalId"] == name]
    assert found["TransactionState"] == "Empty"


def test_deleted_records_are_objects(tool: Tool, new_name: NewName, tmp_path: Path) -> None:
    topic = make_topic(tool, new_name("t"))
    tool("console-producer", "--topic", topic, given="a\nb\n")
    file = tmp_path / "offsets.json"
    partitions = [
        {"topic": topic, "partition": 0, "offset": 1},
        {"topic": topic, "partition": 7, "offset": 1},
    ]
    file.write_text(json.dumps({"version": 1, "partitions": partitions}))
    result = tool("delete-records", "--offset-json-file", str(file), "--output", "json")
    done, refused = json.loads(result.stdout)
    assert done == {"topic": topic, "partition": 0, "low_watermark": 1}
    assert "UnknownTopicOrPartition" in refused["error"]


@pytest.mark.parametrize("name", ["topics", "groups", "consumer-groups", "transactions", "delete-records"])
def test_a_wrong_form_is_refused(tool: Tool, name: str) -> None:
    assert tool(name, "--output", "xml").exit_code == 1
