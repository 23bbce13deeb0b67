"""Kafka 3.9's folder, adopted and written by us, goes back to a Kafka 3.9 that finds everything it left.

Groups and transactional ids travel in internal topics, which we keep as they are.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.kafka.servers import Kafka3, ZooKeeper
from tests.support import golden
from tests.support.broker import Broker
from tests.support.contents import Contents, Partition, produce, read_with_client
from tests.support.golden import expected_committed, expected_contents

PARTITIONS = golden.partitions()
# What time would change while the test runs: offsets of groups expire, and an open transaction is aborted.
STANDING_STILL = {
    "offsets.retention.minutes": "52560000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "86400000",
    "log.cleaner.enable": "false",
    "producer.id.expiration.ms": "2000000000",
}


def tidelog(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "tidelog", *map(str, arguments)], capture_output=True, check=True)


class Found:
    """What Kafka serves after us."""

    def __init__(self, kafka: Kafka3) -> None:
        self.contents = read_with_client(kafka.bootstrap, PARTITIONS)
        self.committed = read_with_client(kafka.bootstrap, PARTITIONS, committed=True)
        self.groups = group_offsets(kafka.bootstrap)


def group_offsets(bootstrap: str) -> dict[str, dict[str, int]]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted: dict[str, dict[str, int]] = golden.expected()["group_offsets"]
    found: dict[str, dict[str, int]] = {}
    for group in wanted:
        (answer,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
        offsets: list[TopicPartition] = answer.result(30).topic_partitions
        found[group] = {f"{entry.topic}-{entry.partition}": entry.offset for entry in offsets}
    return found


@pytest.fixture(scope="module", params=golden.KINDS)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    target: Path = tmp_path_factory.mktemp(request.param)
    broker = Broker(target / "broker")
    shutil.move(golden.unpack(request.param, target), broker.data)
    tidelog("adopt", broker.data)
    with broker:
        produce(broker.bootstrap, {partition: [b"ours"] for partition in PARTITIONS})
        broker.restart(kill=True)
        broker.terminate()
    zookeeper = ZooKeeper(target / "zookeeper")
    kafka = Kafka3(target / "kafka", broker.data, zookeeper, STANDING_STILL)
    kafka.awaited = frozenset(topic for topic, _ in PARTITIONS)
    with zookeeper:
        tidelog("tree", "export", broker.data, "--zookeeper", zookeeper.bootstrap)
        with kafka:
            yield Found(kafka)


def before_us(contents: Contents, partition: Partition) -> list[int]:
    return [offset for offset in contents.offsets if offset < expected_contents(partition).high]


@pytest.mark.parametrize("partition", PARTITIONS, ids=str)
def test_its_records_are_there_and_ours_behind_them(found: Found, partition: Partition) -> None:
    expected, seen = expected_contents(partition), found.contents[partition]
    assert seen.records[:-1] == expected.records
    assert (seen.records[-1].offset, seen.records[-1].value) == (expected.high, b"ours")


@pytest.mark.parametrize("partition", PARTITIONS, ids=str)
def test_its_transactions_are_what_they_were(found: Found, partition: Partition) -> None:
    assert before_us(found.committed[partition], partition) == expected_committed(partition)


def test_its_groups_have_their_offsets(found: Found) -> None:
    assert found.groups == golden.expected()["group_offsets"]
