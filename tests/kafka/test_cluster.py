"""Three brokers of ours on a ZooKeeper, used by Kafka's Java clients and tools, and joined by a Kafka 3.9."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka.jars import run_tool
from tests.kafka.servers import Kafka3, ZooKeeper
from tests.support.cluster import ClusterOfBrokers
from tests.support.wait import eventually
from tidelog import Admin, NewTopic
from tidelog.clients.admin.topics import TopicDescription

TOOLS = "org.apache.kafka.tools."
TOPICS = TOOLS + "TopicCommand"
# Kafka 4 has moved it to another package.
PRODUCER = {"kafka3": "kafka.tools.ConsoleProducer", "kafka4": TOOLS + "ConsoleProducer"}
ZOOKEEPER_SHELL = "org.apache.zookeeper.ZooKeeperMainWithTlsSupportForKafka"


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    with ZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeper) -> Iterator[ClusterOfBrokers]:
    patient = {"zookeeper.session.timeout.ms": "30000"}
    with ClusterOfBrokers(
        tmp_path_factory.mktemp("cluster"), 3, patient, zookeeper=zookeeper.bootstrap
    ) as brokers:
        yield brokers


def tool(kind: str, name: str, *arguments: str, given: str | None = None) -> list[str]:
    done = run_tool(kind, name, *arguments, given=given)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("kind", ["kafka3", "kafka4"])
@pytest.mark.parametrize("broker_id", [1, 2, 3])
def test_java_clients_and_tools_work_from_any_broker(
    cluster: ClusterOfBrokers, kind: str, broker_id: int
) -> None:
    where, topic = ("--bootstrap-server", cluster[broker_id].bootstrap), f"java-{kind}-{broker_id}"
    made = tool(kind, TOPICS, *where, "--create", "--topic", topic, "--partitions", "6")
    assert made == [f"Created topic {topic}."]
    described = tool(kind, TOPICS, *where, "--describe", "--topic", topic)
    assert sorted(line.split("Leader: ")[1].split()[0] for line in described[1:]) == list("112233")

    lines = [f"value-{number}" for number in range(60)]
    given = "".join(f"key-{number}\t{line}\n" for number, line in enumerate(lines))
    keyed = ("--property", "parse.key=true")
    tool(kind, PRODUCER[kind], *where, "--topic", topic, *keyed, given=given)
    read = ("--from-beginning", "--max-messages", "60", "--timeout-ms", "60000", "--group", topic)
    assert sorted(tool(kind, TOOLS + "consumer.ConsoleConsumer", *where, "--topic", topic, *read)) == sorted(
        lines
    )
    groups = TOOLS + "consumer.group.ConsumerGroupCommand"
    asked = ("--describe", "--group", topic, "--timeout", "60000")
    lags = [line.split() for line in tool(kind, groups, *where, *asked) if line]
    assert {row[5] for row in lags if row[0] == topic and len(row) > 5} == {"0"}

    tool(kind, TOPICS, *where, "--alter", "--topic", topic, "--partitions", "9")
    assert len(tool(kind, TOPICS, *where, "--describe", "--topic", topic)) == 10
    tool(kind, TOPICS, *where, "--delete", "--topic", topic)
    eventually(lambda: topic not in tool(kind, TOPICS, *where, "--list"), "the topic is gone", 60.0)


def test_kafkas_zookeeper_shell_reads_the_tree(cluster: ClusterOfBrokers, zookeeper: ZooKeeper) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("in-the-tree", 3, 1)])

    def shell(*command: str) -> str:
        return tool("kafka3", ZOOKEEPER_SHELL, "-server", zookeeper.bootstrap, *command)[-1]

    assert shell("ls", "/brokers/ids") == "[1, 2, 3]"
    assert shell("ls", "/brokers/topics/in-the-tree/partitions") == "[0, 1, 2]"
    assert json.loads(shell("get", "/controller"))["brokerid"] == cluster.controller
    placed = json.loads(shell("get", "/brokers/topics/in-the-tree"))
    assert sorted(replica for replicas in placed["partitions"].values() for replica in replicas) == [1, 2, 3]


def test_a_kafka_broker_that_joins_knows_the_topics_and_takes_its_share(
    cluster: ClusterOfBrokers, zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("before", 3, 1)])
        settings = {"broker.id": "4", "inter.broker.protocol.version": "3.9"}
        kafka = Kafka3(tmp_path / "kafka", tmp_path / "data", zookeeper, settings)
        kafka.awaited = frozenset({"before"})
        with kafka:
            where = ("--bootstrap-server", kafka.bootstrap)
            described = tool("kafka3", TOPICS, *where, "--describe", "--topic", "before")
            assert sorted(line.split("Leader: ")[1].split()[0] for line in described[1:]) == ["1", "2", "3"]
            admin.create_topics([NewTopic("with-kafka", 4, 1)])
            eventually(lambda: leaders(admin, "with-kafka") == [1, 2, 3, 4], "Kafka leads a partition")
            lines = [f"value-{number}" for number in range(40)]
            given = "".join(f"{number}\t{line}\n" for number, line in enumerate(lines))
            keyed = ("--topic", "with-kafka", "--property", "parse.key=true")
            tool("kafka3", PRODUCER["kafka3"], *where, *keyed, given=given)
            read = ("--from-beginning", "--max-messages", "40", "--timeout-ms", "60000")
            consumer = TOOLS + "consumer.ConsoleConsumer"
            assert sorted(tool("kafka3", consumer, *where, "--topic", "with-kafka", *read)) == sorted(lines)
            assert kafka.stop() in (0, 143)


def leaders(admin: Admin, topic: str) -> list[int]:
    found: TopicDescription = admin.describe_topics([topic])[topic]
    return sorted(-1 if each.leader is None else each.leader for each in found.partitions)
