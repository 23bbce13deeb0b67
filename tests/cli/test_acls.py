"""`tidelog acls` prints what kafka-acls prints and ends with the same codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.kafka.jars import run_tool
from tests.support.wait import eventually
from tests.support.zookeeper import zookeeper_server
from tidelog.cli.main import main
from tidelog.testing import Broker

AUTHORIZER = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS",
}
TOOLS = {"kafka3": "kafka.admin.AclCommand", "kafka4": "org.apache.kafka.tools.AclCommand"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(AUTHORIZER) as running:
        yield running


class Tool:
    def __init__(self, *where: str) -> None:
        self._where = where

    def __call__(self, line: str, given: str | None = None) -> Result:
        return CliRunner().invoke(main, ["acls", *self._where, *line.split()], input=given)

    def rules(self) -> list[str]:
        """Every rule, shortened."""
        return sorted(
            f"{rule['permission']} {rule['principal']} {rule['operation']} from {rule['host']} on "
            f"{rule['resource_type']} {rule['pattern_type']} {rule['name']}"
            for rule in json.loads(self("--list --output json").stdout)
        )


@pytest.fixture
def tool(broker: Broker) -> Iterator[Tool]:
    made = Tool("--bootstrap-server", broker.bootstrap_servers)
    yield made
    for kind in ("--topic", "--group", "--transactional-id", "--user-principal", "--delegation-token"):
        made(f"--remove --force {kind} x --resource-pattern-type any")
    for rule in json.loads(made("--list --output json").stdout):
        flag = {"USER": "user-principal"}.get(rule["resource_type"], rule["resource_type"]).lower()
        name = "" if flag == "cluster" else rule["name"]
        pattern = rule["pattern_type"].lower()
        made(f"--remove --force --{flag.replace('_', '-')} {name} --resource-pattern-type {pattern}")
    assert made.rules() == []


def test_added_rules_are_printed_and_listed(tool: Tool) -> None:
    added = tool("--add --allow-principal User:alice --operation Read --operation write --topic orders")
    assert added.exit_code == 0
    lines = (
        "\t(principal=User:alice, host=*, operation=READ, permissionType=ALLOW)\n"
        "\t(principal=User:alice, host=*, operation=WRITE, permissionType=ALLOW)\n\n"
    )
    pattern = "ResourcePattern(resourceType=TOPIC, name=orders, patternType=LITERAL)"
    assert added.stdout == f"Adding ACLs for resource `{pattern}`: \n {lines}"
    assert tool("--list").stdout == f"Current ACLs for resource `{pattern}`:\n{lines}"
    assert tool("--list --topic other").stdout == ""
    assert tool("--list --principal User:alice --principal User:bob").stdout == (
        f"ACLs for principal `User:alice`\nCurrent ACLs for resource `{pattern}`:\n{lines}"
        "ACLs for principal `User:bob`\n"
    )


def test_a_producer_and_a_consumer_get_what_they_need(tool: Tool) -> None:
    tool("--add --allow-principal User:p --producer --topic t --transactional-id x --idempotent")
    assert tool.rules() == [
        "ALLOW User:p CREATE from * on TOPIC LITERAL t",
        "ALLOW User:p DESCRIBE from * on TOPIC LITERAL t",
        "ALLOW User:p DESCRIBE from * on TRANSACTIONAL_ID LITERAL x",
        "ALLOW User:p IDEMPOTENT_WRITE from * on CLUSTER LITERAL kafka-cluster",
        "ALLOW User:p WRITE from * on TOPIC LITERAL t",
        "ALLOW User:p WRITE from * on TRANSACTIONAL_ID LITERAL x",
    ]
    tool("--remove --force --allow-principal User:p --producer --topic t --transactional-id x --idempotent")
    assert tool.rules() == []
    tool("--add --allow-principal User:c --consumer --topic t --group g --resource-pattern-type prefixed")
    assert tool.rules() == [
        "ALLOW User:c DESCRIBE from * on TOPIC PREFIXED t",
        "ALLOW User:c READ from * on GROUP PREFIXED g",
        "ALLOW User:c READ from * on TOPIC PREFIXED t",
    ]


def test_hosts_and_denied_principals(tool: Tool) -> None:
    tool("--add --allow-principal User:* --allow-host 10.0.0.1 --deny-principal User:eve --topic t --group g")
    assert tool.rules() == [
        "ALLOW User:* ALL from 10.0.0.1 on GROUP LITERAL g",
        "ALLOW User:* ALL from 10.0.0.1 on TOPIC LITERAL t",
        "DENY User:eve ALL from * on GROUP LITERAL g",
        "DENY User:eve ALL from * on TOPIC LITERAL t",
    ]


def test_removing_asks_first(tool: Tool) -> None:
    tool("--add --allow-principal User:a --allow-principal User:b --topic t")
    assert tool("--remove --topic t", "n\n").exit_code == 0
    assert len(tool.rules()) == 2
    answer = tool("--remove --allow-principal User:a --topic t", "y\n")
    assert answer.stdout == (
        "Are you sure you want to remove ACLs: \n"
        " \t(principal=User:a, host=*, operation=ALL, permissionType=ALLOW)\n"
        " from resource filter `ResourcePattern(resourceType=TOPIC, name=t, patternType=LITERAL)`? (y/n)\n"
    )
    assert len(tool.rules()) == 1
    assert tool("--remove --topic t", "y\n").stdout == (
        "Are you sure you want to delete all ACLs for resource filter "
        "`ResourcePattern(resourceType=TOPIC, name=t, patternType=LITERAL)`? (y/n)\n"
    )
    assert tool.rules() == []


@pytest.mark.parametrize(
    "line",
    [
        "",
        "--topic t",
        "--add --list --topic t",
        "--add --topic t",
        "--add --allow-principal User:a",
        "--add --allow-principal alice --topic t",
        "--add --allow-principal User:a --operation Nonsense --topic t",
        "--add --allow-principal User:a --operation ClusterAction --topic t",
        "--add --allow-principal User:a --topic t --resource-pattern-type match",
        "--add --allow-principal User:a --topic t --resource-pattern-type other",
        "--add --allow-principal User:a --producer",
        "--add --allow-principal User:a --producer --operation Read --topic t",
        "--add --deny-principal User:a --producer --topic t",
        "--add --allow-principal User:a --consumer --topic t",
        "--add --allow-principal User:a --idempotent --topic t",
        "--list --allow-principal User:a",
        "--remove",
        "--list --authorizer-properties nothing=1",
    ],
)
def test_flags_that_do_not_go_together_are_refused(tool: Tool, line: str) -> None:
    result = tool(line)
    assert result.exit_code == 1
    assert "Error" in result.output


def test_a_broker_without_an_authorizer_is_named(broker: Broker) -> None:
    with Broker() as open_to_all:
        result = Tool("--bootstrap-server", open_to_all.bootstrap_servers)("--list")
    assert result.exit_code == 1
    assert result.stdout.startswith(
        "Error while executing ACL command: org.apache.kafka.common.errors.SecurityDisabledException: "
    )


def test_rules_are_changed_in_zookeeper_and_brokers_follow(tmp_path: Path) -> None:
    with zookeeper_server(tmp_path / "zookeeper") as zookeeper:
        settings = AUTHORIZER | {
            "zookeeper.connect": zookeeper.address,
            "log.dirs": str(tmp_path / "data"),
            "broker.id": "1",
            "tidelog.guardian.enable": "false",
        }
        in_tree = Tool("--authorizer-properties", f"zookeeper.connect={zookeeper.address}")
        with Broker(settings) as broker:
            at_broker = Tool("--bootstrap-server", broker.bootstrap_servers)
            added = in_tree("--add --allow-principal User:a --operation Read --topic t")
            assert added.exit_code == 0, added.output
            expected = ["ALLOW User:a READ from * on TOPIC LITERAL t"]
            assert in_tree.rules() == expected
            eventually(lambda: at_broker.rules() == expected or None, "the broker has the rule")
            at_broker("--remove --force --topic t")
            assert in_tree.rules() == []


@pytest.mark.kafka
@pytest.mark.parametrize("kind", TOOLS)
def test_kafka_acls_prints_the_same(broker: Broker, tool: Tool, kind: str) -> None:
    def theirs(line: str) -> str:
        arguments = ["--bootstrap-server", broker.bootstrap_servers, *line.split()]
        done = run_tool(kind, TOOLS[kind], *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def comparable(text: str) -> list[str]:
        """The lines, without their order and the spaces at their ends, which differ between versions."""
        return sorted(line.strip() for line in text.splitlines() if line.strip())

    for line in (
        "--add --allow-principal User:p --producer --consumer --topic t --group g --transactional-id x "
        "--idempotent --allow-host 10.0.0.1 --resource-pattern-type prefixed",
        "--list --topic t --resource-pattern-type match",
        "--remove --force --allow-principal User:p --consumer --topic t --group g --allow-host 10.0.0.1 "
        "--resource-pattern-type prefixed",
        "--list --principal User:p",
    ):
        assert comparable(theirs(line)) == comparable(tool(line).stdout), line
