"""`tidelog cluster cluster-id`, `unregister` and `list-endpoints` are the commands of kafka-cluster."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner, Result

from tests.kafka.jars import run_tool
from tests.support.needs import first_lacking
from tidelog.cli.cluster_tool import endpoint_lines
from tidelog.cli.main import main
from tidelog.clients.admin import ClusterDescription
from tidelog.clients.metadata import BrokerNode

TOOL = "org.apache.kafka.tools.ClusterTool"


def cluster(command: str, bootstrap: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["cluster", command, "--bootstrap-server", bootstrap, *arguments])


def test_the_id_of_the_cluster(bootstrap: str) -> None:
    done = cluster("cluster-id", bootstrap)
    assert done.exit_code == 0
    assert re.fullmatch(r"Cluster ID: [A-Za-z0-9_-]{22}\n", done.stdout)
    as_json = json.loads(cluster("cluster-id", bootstrap, "--output", "json").stdout)
    assert done.stdout == f"Cluster ID: {as_json['cluster_id']}\n"


def test_the_table_of_endpoints() -> None:
    nodes = [BrokerNode(2, "long.example.org", 9093, "rack-b"), BrokerNode(1, "short", 9092)]
    assert endpoint_lines(ClusterDescription("id", 1, nodes, frozenset({2}), None)) == [
        "ID         HOST             PORT       RACK   STATE      ENDPOINT_TYPE  ",
        "1          short            9092       null   unfenced   broker         ",
        "2          long.example.org 9093       rack-b fenced     broker         ",
    ]
    assert endpoint_lines(ClusterDescription("id", None, [], frozenset(), None)) == []


def test_endpoints_as_json(bootstrap: str) -> None:
    done = cluster("list-endpoints", bootstrap, "--output", "json")
    host, _, port = bootstrap.rpartition(":")
    found = {(broker["host"], broker["port"]): broker["state"] for broker in json.loads(done.stdout)}
    assert found[host, int(port)] == "unfenced"
    assert {*found.values()} == {"unfenced"}


def test_a_registration_ends_with_the_session_on_zookeeper(bootstrap: str) -> None:
    if first_lacking(bootstrap, ["UnregisterBroker"]) is None:
        pytest.skip("the broker has a registration of its own, without ZooKeeper")
    done = cluster("unregister", bootstrap, "--id", "77")
    assert (done.exit_code, done.stdout) == (
        0,
        "The target cluster does not support the broker unregistration API.\n",
    )


def test_wrong_flags_and_no_broker_end_with_1(bootstrap: str) -> None:
    assert cluster("unregister", bootstrap).exit_code == 1
    assert cluster("unregister", bootstrap, "--id", "x").exit_code == 1
    for command in ("cluster-id", "list-endpoints"):
        assert cluster(command, bootstrap, "--nonsense").exit_code == 1
        assert cluster(command, "127.0.0.1:1").exit_code == 1


@pytest.mark.kafka
def test_kafkas_tool_prints_the_same(bootstrap: str) -> None:
    for arguments in (
        ("cluster-id",),
        ("list-endpoints",),
        ("list-endpoints", "--include-fenced-brokers"),
        ("unregister", "--id", "77"),
        ("unregister",),
    ):
        theirs = run_tool("kafka4", TOOL, arguments[0], "--bootstrap-server", bootstrap, *arguments[1:])
        ours = cluster(arguments[0], bootstrap, *arguments[1:])
        assert (ours.exit_code, ours.stdout) == (theirs.returncode, theirs.stdout)
