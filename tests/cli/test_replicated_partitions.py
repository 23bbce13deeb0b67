"""The tools of replication on three brokers: partitions move, leaders are elected, replicas are compared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.support.cluster import ClusterOfBrokers
from tests.support.contents import produce
from tests.support.wait import eventually
from tidelog import Admin, NewTopic
from tidelog.cli.main import main

RECORDS = 3000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterOfBrokers]:
    settings = {"auto.leader.rebalance.enable": "false"}
    with ClusterOfBrokers(tmp_path_factory.mktemp("cluster"), 3, settings) as brokers:
        yield brokers


def tool(cluster: ClusterOfBrokers, name: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, [name, "--bootstrap-server", cluster.bootstrap, *arguments])


def create(cluster: ClusterOfBrokers, topic: str, *replicas: list[int], **configs: str) -> None:
    named = {name.replace("_", "."): value for name, value in configs.items()}
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, replica_assignments=dict(enumerate(replicas)), configs=named)])
    await_in_sync(cluster, topic, *replicas)
    produce(cluster.bootstrap, {(topic, index): [bytes(1000)] * RECORDS for index in range(len(replicas))})


def await_in_sync(cluster: ClusterOfBrokers, topic: str, *replicas: list[int]) -> None:
    wanted = [sorted(found) for found in replicas]
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:

        def in_sync() -> bool:
            if topic not in admin.list_topics():
                return False
            partitions = admin.describe_topics([topic])[topic].partitions
            return [sorted(found.isr) for found in partitions] == wanted

        eventually(in_sync, f"{topic} has {wanted} in sync", 60.0)


def leaders(cluster: ClusterOfBrokers, topic: str) -> list[int | None]:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        return [found.leader for found in admin.describe_topics([topic])[topic].partitions]


def assert_same_replicas(cluster: ClusterOfBrokers, topic: str) -> None:
    done = tool(cluster, "replica-verification", "--once", "--topics-include", topic, "--max-wait-ms", "200")
    assert done.exit_code == 0, done.output
    assert f" at offset {RECORDS} among " in done.stdout.splitlines()[-1]


def test_partitions_move_with_their_records(cluster: ClusterOfBrokers, tmp_path: Path) -> None:
    create(cluster, "moved", [3, 2], [1, 3])
    plan = tmp_path / "plan"
    wanted = [
        {"topic": "moved", "partition": index, "replicas": replicas}
        for index, replicas in enumerate(([1, 2], [2, 1]))
    ]
    plan.write_text(json.dumps({"version": 1, "partitions": wanted}))
    done = tool(
        cluster,
        "reassign-partitions",
        *("--execute", "--reassignment-json-file", str(plan), "--throttle", "100000000", "--wait"),
    )
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert "Successfully started partition reassignments for moved-0,moved-1" in lines
    assert lines[-6:] == [
        "Status of partition reassignment:",
        "Reassignment of partition moved-0 is completed.",
        "Reassignment of partition moved-1 is completed.",
        "",
        "Clearing broker-level throttles on brokers 1,2,3",
        "Clearing topic-level throttles on topic moved",
    ]
    await_in_sync(cluster, "moved", [1, 2], [2, 1])
    assert_same_replicas(cluster, "moved")
    described = tool(cluster, "topics", "--describe", "--topic", "moved").stdout.splitlines()
    assert described[0].endswith("\tReplicationFactor: 2\tConfigs: ")
    assert ["Replicas: 1,2" in described[1], "Replicas: 2,1" in described[2]] == [True, True]
    listed = tool(cluster, "reassign-partitions", "--list")
    assert listed.stdout == "No partition reassignments found.\n"


def test_a_topic_gets_more_replicas(cluster: ClusterOfBrokers, tmp_path: Path) -> None:
    create(cluster, "raised", [1])
    topics, plan = tmp_path / "topics", tmp_path / "plan"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": "raised"}]}))
    asked = ("--topics-to-move-json-file", str(topics), "--broker-list", "1,2,3", "--replication-factor", "3")
    proposed = tool(cluster, "reassign-partitions", "--generate", *asked)
    plan.write_text(proposed.stdout.splitlines()[-1])
    file = ("--reassignment-json-file", str(plan))
    refused = tool(cluster, "reassign-partitions", "--execute", *file, "--disallow-replication-factor-change")
    assert refused.exit_code == 1
    assert refused.stdout.splitlines()[-2] == "Error reassigning partition(s):"
    assert refused.stdout.splitlines()[-1].startswith("raised-0: ")
    assert tool(cluster, "reassign-partitions", "--execute", *file, "--wait").exit_code == 0
    await_in_sync(cluster, "raised", [1, 2, 3])
    assert_same_replicas(cluster, "raised")


def test_a_broker_that_comes_back_leads_again(cluster: ClusterOfBrokers) -> None:
    create(cluster, "led", [1, 2, 3], [2, 3, 1], min_insync_replicas="2")
    assert tool(cluster, "check", "--topic", "led").exit_code == 0
    assert leaders(cluster, "led") == [1, 2]
    cluster[1].terminate()
    await_in_sync(cluster, "led", [2, 3], [2, 3])
    shown = tool(cluster, "topics", "--describe", "--topic", "led", "--under-replicated-partitions")
    assert len(shown.stdout.splitlines()) == 2
    at_minimum = tool(cluster, "topics", "--describe", "--topic", "led", "--at-min-isr-partitions")
    assert at_minimum.stdout == shown.stdout
    unavailable = tool(cluster, "topics", "--describe", "--topic", "led", "--unavailable-partitions")
    assert unavailable.stdout == ""
    refused = tool(
        cluster, "leader-election", "--election-type", "preferred", "--topic", "led", "--partition", "0"
    )
    assert refused.exit_code == 1
    assert "PreferredLeaderNotAvailableException" in refused.stdout

    cluster[1].restart()
    cluster.await_members()
    await_in_sync(cluster, "led", [1, 2, 3], [1, 2, 3])
    done = tool(
        cluster, "leader-election", "--election-type", "preferred", "--topic", "led", "--partition", "0"
    )
    assert (done.exit_code, done.stdout) == (
        0,
        "Successfully completed leader election (PREFERRED) for partitions led-0\n",
    )
    eventually(lambda: leaders(cluster, "led") == [1, 2], "broker 1 leads again")
    assert_same_replicas(cluster, "led")


def test_folders_of_all_brokers(cluster: ClusterOfBrokers) -> None:
    create(cluster, "sized", [1, 2], [2, 3])
    found = json.loads(
        tool(cluster, "log-dirs", "--describe", "--topic-list", "sized").stdout.splitlines()[-1]
    )
    replicas = {
        (broker["broker"], partition["partition"]): partition
        for broker in found["brokers"]
        for folder in broker["logDirs"]
        for partition in folder["partitions"]
    }
    assert sorted(replicas) == [(1, "sized-0"), (2, "sized-0"), (2, "sized-1"), (3, "sized-1")]
    assert all(found["size"] > RECORDS * 1000 and not found["isFuture"] for found in replicas.values())
    some = tool(cluster, "log-dirs", "--describe", "--broker-list", "3,1").stdout.splitlines()
    assert some[1] == "Received log directory information from brokers 1,3"
