"""`tidelog topics --zookeeper` changes and reads the tree; the controller acts on what it writes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from tests.support.cluster import ClusterOfBrokers
from tests.support.wait import eventually
from tidelog import Admin
from tidelog.cli.main import main
from tidelog.cli.topics_zookeeper import DEPRECATED

Topics = Callable[..., Result]


def topics_tool(zookeeper: str) -> Topics:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(main, ["topics", "--zookeeper", zookeeper, *arguments])

    return run


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterOfBrokers]:
    with ClusterOfBrokers(tmp_path_factory.mktemp("cluster"), 1) as brokers:
        yield brokers


@pytest.fixture
def topics(cluster: ClusterOfBrokers) -> Topics:
    return topics_tool(str(cluster.zookeeper))


def partitions(cluster: ClusterOfBrokers, topic: str) -> int:
    """The partitions with a leader, as the broker says."""
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        if topic not in admin.list_topics():
            return 0
        (described,) = admin.describe_topics([topic]).values()
        return sum(partition.leader is not None for partition in described.partitions)


def test_a_topic_is_made_described_altered_and_deleted(cluster: ClusterOfBrokers, topics: Topics) -> None:
    counts = ("--partitions", "2", "--replication-factor", "1")
    made = topics("--create", "--topic", "life", *counts, "--config", "retention.ms=5000")
    assert (made.exit_code, made.stdout) == (0, "Created topic life.\n")
    assert made.stderr == f"{DEPRECATED}\n"
    again = topics("--create", "--topic", "life", *counts)
    assert (again.exit_code, "already exists" in again.stdout) == (1, True)
    assert topics("--create", "--topic", "life", *counts, "--if-not-exists").exit_code == 0
    eventually(lambda: partitions(cluster, "life") == 2, "the controller elects leaders", 30.0)
    head, *rows = topics("--describe", "--topic", "life").stdout.splitlines()
    shape = r"Topic: life\tTopicId: [\w-]{22}\tPartitionCount: 2\tReplicationFactor: 1\tConfigs: "
    assert re.fullmatch(rf"{shape}retention\.ms=5000", head)
    assert rows == [f"\tTopic: life\tPartition: {at}\tLeader: 1\tReplicas: 1\tIsr: 1" for at in range(2)]
    assert topics("--describe", "--unavailable-partitions").stdout == ""

    grown = topics("--alter", "--topic", "life", "--partitions", "4")
    assert (grown.exit_code, grown.stdout.splitlines()[-1]) == (0, "Adding partitions succeeded!")
    eventually(lambda: partitions(cluster, "life") == 4, "the controller sees the partitions", 30.0)
    refused = topics("--alter", "--topic", "life", "--partitions", "3")
    assert (refused.exit_code, "3 would not be an increase" in refused.stdout) == (1, True)
    changed = topics(
        "--alter", "--topic", "life", "--config", "segment.bytes=2000000", "--delete-config", "retention.ms"
    )
    assert changed.stdout.endswith("Updated config for topic life.\n")
    assert "Configs: segment.bytes=2000000\n" in topics("--describe", "--topic", "life").stdout

    assert topics("--list").stdout == "life\n"
    deleted = topics("--delete", "--topic", "life")
    assert (deleted.exit_code, deleted.stdout.splitlines()[0]) == (0, "Topic life is marked for deletion.")
    eventually(lambda: topics("--list").stdout == "", "the controller deletes the topic", 30.0)


def test_a_stopped_cluster_can_be_changed_and_acts_later(cluster: ClusterOfBrokers) -> None:
    """The tool asks no broker: marks stay until there is a controller."""
    topics = topics_tool(str(cluster.zookeeper))
    assert topics("--create", "--topic", "later", "--replica-assignment", "1,1").exit_code == 0
    eventually(lambda: partitions(cluster, "later") == 2, "two partitions", 30.0)
    cluster[1].terminate()
    assert topics("--delete", "--topic", "later").exit_code == 0
    assert topics("--delete", "--topic", "later").stdout == "Topic later is already marked for deletion.\n"
    assert topics("--list").stdout == "later - marked for deletion\n"
    assert all(
        line.endswith("\tMarkedForDeletion: true")
        for line in topics("--describe", "--topic", "later").stdout.splitlines()
    )
    nobody = topics("--create", "--topic", "none", "--partitions", "1", "--replication-factor", "1")
    assert (nobody.exit_code, "only 0 live broker(s)" in nobody.stdout) == (1, True)
    cluster[1].restart()
    eventually(lambda: topics("--list").stdout == "", "the topic is deleted", 60.0)


def test_what_does_not_exist_is_an_error(cluster: ClusterOfBrokers, topics: Topics) -> None:
    missing = topics("--describe", "--topic", "nothing")
    assert (missing.exit_code, "Topic 'nothing' does not exist as expected" in missing.stdout) == (1, True)
    assert topics("--delete", "--topic", "nothing", "--if-exists").exit_code == 0
    elsewhere = topics_tool(f"{cluster.zookeeper}/elsewhere")("--list")
    assert (elsewhere.exit_code, "there is no cluster at" in elsewhere.stdout) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--list", "--bootstrap-server", "localhost:9092"), "Only one of"),
        (("--create", "--topic", "t", "--partitions", "1"), "needs --replication-factor"),
        (("--describe", "--under-min-isr-partitions"), "does not go with --zookeeper"),
        (("--list", "--output", "json"), "does not go with --zookeeper"),
        (("--alter", "--topic", "t"), "needs --partitions"),
        (("--list", "--delete-config", "a"), "does not go with --list"),
    ],
)
def test_flags_that_do_not_fit_are_refused(arguments: tuple[str, ...], problem: str) -> None:
    result = topics_tool("localhost:1")(*arguments)
    assert (result.exit_code, problem in result.stderr) == (1, True)
