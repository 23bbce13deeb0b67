"""The recorded answers are Kafka's, and Kafka 3.9 and we follow the same rules in one ZooKeeper."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import cast

import pytest
from click.testing import CliRunner

from tests.kafka.acl_matrix import AUTHORIZERS, authorizing_kafka, plain_connection, record, recording
from tests.support.wait import eventually
from tidelog.cli.main import main
from tidelog.protocol.json import Json

EVERYTHING: dict[str, Json] = {
    "resourceTypeFilter": 1,
    "resourceNameFilter": None,
    "patternTypeFilter": 1,
    "principalFilter": None,
    "hostFilter": None,
    "operation": 1,
    "permissionType": 1,
}


@pytest.mark.parametrize("kind", AUTHORIZERS)
def test_the_recorded_matrix_is_kafkas(kind: str, tmp_path: Path) -> None:
    expected: dict[str, Json] = json.loads(gzip.decompress(recording(kind).read_bytes()))
    found = record(kind, tmp_path, with_requests=False)
    differences = {
        cell: (found.get(cell), answer) for cell, answer in expected.items() if found.get(cell) != answer
    }
    assert differences == {}


def test_kafka_follows_rules_that_we_write_and_we_read_those_of_kafka(tmp_path: Path) -> None:
    with authorizing_kafka("kafka3", tmp_path) as address:
        settings = (tmp_path / "kafka" / "kafka.properties").read_text()
        connect = next(line for line in settings.splitlines() if line.startswith("zookeeper.connect="))

        def ours(line: str) -> str:
            done = CliRunner().invoke(main, ["acls", "--authorizer-properties", connect, *line.split()])
            assert done.exit_code == 0, done.output
            return done.stdout

        def theirs() -> set[str]:
            with plain_connection(address, "admin") as admin:
                answer = admin.call_json("DescribeAcls", 3, EVERYTHING)
            resources = cast("list[dict[str, Json]]", answer["resources"])
            return {
                f"{resource['resourceName']} {acl['principal']} {acl['operation']}"
                for resource in resources
                for acl in cast("list[dict[str, Json]]", resource["acls"])
            }

        ours("--add --allow-principal User:a --operation Read --topic t")
        ours("--add --allow-principal User:b --operation Write --topic pre --resource-pattern-type prefixed")
        expected = {"t User:a 3", "pre User:b 4"}
        eventually(lambda: theirs() == expected or None, "Kafka has our rules", 30.0, 0.2)
        rule: dict[str, Json] = {
            "resourceType": 3,
            "resourceName": "g",
            "principal": "User:c",
            "host": "*",
            "operation": 8,
            "permissionType": 2,
        }
        with plain_connection(address, "admin") as admin:
            admin.call_json("CreateAcls", 3, {"creations": [rule]})
        listed = {
            f"{each['name']} {each['principal']} {each['operation']} {each['permission']}"
            for each in json.loads(ours("--list --output json"))
        }
        assert listed == {"t User:a READ ALLOW", "pre User:b WRITE ALLOW", "g User:c DESCRIBE DENY"}
        ours("--remove --force --topic t")
        eventually(lambda: "t User:a 3" not in theirs() or None, "Kafka forgets the rule", 30.0, 0.2)
