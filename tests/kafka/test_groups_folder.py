"""Groups that lived on our broker: Kafka's tools decode their records, and Kafka 3.9 on our folder has them.

And the other way round: what groups commit on Kafka 3.9 is there when the folder is ours again.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.kafka.dumps import complaints, dump, partition_files
from tests.kafka.jars import run_tool
from tests.kafka.servers import Kafka3, ZooKeeper
from tests.support.broker import Broker
from tests.support.contents import produce
from tests.support.raw import RawConnection
from tests.support.wait import eventually
from tidelog import Admin, NewTopic
from tidelog.metadata.embedded_tree import FILE_NAME
from tidelog.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from tidelog.protocol.messages.offset_delete import OffsetDeleteRequest
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse

KAFKAS = ("kafka3", "kafka4")
GROUP_COMMAND = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
GROUPS = ("joined", "simple", "old", "transactional", "aborted", "emptied")
# Partition to offset and metadata.
Committed = dict[str, tuple[int, str | None]]


def commit(
    bootstrap: str, group: str, offsets: dict[int, int], version: int = 8, retention_ms: int = -1
) -> None:
    wanted = OffsetCommitRequest.OffsetCommitRequestTopic(
        name="orders",
        partitions=[
            OffsetCommitRequest.OffsetCommitRequestPartition(
                partition_index=index, committed_offset=offset, committed_metadata=f"{group} was here"
            )
            for index, offset in offsets.items()
        ],
    )
    request = OffsetCommitRequest(group_id=group, topics=[wanted], retention_time_ms=retention_ms)
    with RawConnection(bootstrap) as connection:
        (topic,) = connection.ask(request, OffsetCommitResponse, version).topics
    assert {partition.error_code for partition in topic.partitions} == {0}


def join_and_commit(bootstrap: str, group: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    consumer.subscribe(["orders"])
    eventually(lambda: consumer.poll(0.1) or consumer.assignment(), "an assignment", 60.0)
    consumer.commit(offsets=[TopicPartition("orders", 0, offset)], asynchronous=False)
    consumer.close()


def commit_in_transaction(bootstrap: str, group: str, offset: int, *, abort: bool = False) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"of-{group}"})
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    producer.init_transactions(60.0)
    producer.begin_transaction()
    producer.produce("orders", b"in a transaction", partition=1)
    producer.send_offsets_to_transaction(
        [TopicPartition("orders", 1, offset)], consumer.consumer_group_metadata(), 60.0
    )
    if abort:
        producer.abort_transaction(60.0)
    else:
        producer.commit_transaction(60.0)
    consumer.close()


def live(bootstrap: str) -> None:
    """What happens to groups, in all the ways that leave other records."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic("orders", num_partitions=2)])
    produce(bootstrap, {("orders", 0): [b"%d" % number for number in range(20)]})
    join_and_commit(bootstrap, "joined", 12)
    commit(bootstrap, "simple", {0: 3, 1: 4})
    commit(bootstrap, "simple", {0: 5})
    commit(bootstrap, "old", {0: 6}, 2, retention_ms=1 << 50)
    commit(bootstrap, "emptied", {0: 7, 1: 8})
    deleted = OffsetDeleteRequest.OffsetDeleteRequestTopic(
        name="orders", partitions=[OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=1)]
    )
    with RawConnection(bootstrap) as connection:
        connection.call(OffsetDeleteRequest(group_id="emptied", topics=[deleted]), 0)
    commit_in_transaction(bootstrap, "transactional", 9)
    commit(bootstrap, "aborted", {1: 10})
    commit_in_transaction(bootstrap, "aborted", 11, abort=True)


def committed(bootstrap: str) -> dict[str, Committed]:
    def fetch(group: str) -> OffsetFetchResponse | None:
        wanted = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None)
        request = OffsetFetchRequest(groups=[wanted], require_stable=True)
        with RawConnection(bootstrap) as connection:
            answer = connection.ask(request, OffsetFetchResponse, 8)
        partitions = [partition for topic in answer.groups[0].topics for partition in topic.partitions]
        is_complete = not answer.groups[0].error_code and not any(each.error_code for each in partitions)
        return answer if is_complete else None

    def of(group: str) -> Committed:
        answer = eventually(lambda: fetch(group), f"the offsets of {group}", 60.0)
        return {
            f"{topic.name}-{partition.partition_index}": (partition.committed_offset, partition.metadata)
            for topic in answer.groups[0].topics
            for partition in topic.partitions
        }

    return {group: of(group) for group in GROUPS}


EXPECTED: dict[str, Committed] = {
    "joined": {"orders-0": (12, "")},
    "simple": {"orders-0": (5, "simple was here"), "orders-1": (4, "simple was here")},
    "old": {"orders-0": (6, "old was here")},
    "emptied": {"orders-0": (7, "emptied was here")},
    "transactional": {"orders-1": (9, "")},
    "aborted": {"orders-1": (10, "aborted was here")},
}


def tidelog(*arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tidelog", *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Story:
    """Ours, Kafka 3.9 on our folder, ours again."""

    def __init__(self, target: Path, *, kill: bool) -> None:
        self.broker = Broker(target / "broker", {"broker.id": "4", "offsets.topic.num.partitions": "5"})
        self.zookeeper = ZooKeeper(target / "zookeeper")
        self.kafka = Kafka3(target / "kafka", self.broker.data, self.zookeeper)
        self.kafka.awaited = frozenset({"orders"})
        with self.broker:
            live(self.broker.bootstrap)
            self.ours = committed(self.broker.bootstrap)
            if not kill:
                assert self.broker.terminate() == 0
        self.files = [path for path in partition_files(self.broker.data, ".log") if "__consumer" in str(path)]
        self.dumped = {kind: dump(kind, self.files, "--offsets-decoder") for kind in KAFKAS}
        self.dumped_by_us = tidelog(
            "dump-log", "--files", ",".join(map(str, self.files)), "--offsets-decoder"
        )
        with self.zookeeper:
            tidelog("tree", "export", self.broker.data, "--zookeeper", self.zookeeper.bootstrap)
            with self.kafka:
                self.theirs = committed(self.kafka.bootstrap)
                where = ("--bootstrap-server", self.kafka.bootstrap)
                self.described = run_tool(
                    "kafka3", GROUP_COMMAND, *where, "--describe", "--all-groups"
                ).stdout
                join_and_commit(self.kafka.bootstrap, "joined", 15)
                commit(self.kafka.bootstrap, "simple", {0: 16})
                if not kill:
                    self.kafka.stop()
        (self.broker.data / FILE_NAME).unlink()
        tidelog("adopt", self.broker.data)
        with self.broker:
            self.ours_again = committed(self.broker.bootstrap)


@pytest.fixture(scope="module", params=["stopped", "killed"])
def story(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    told = Story(tmp_path_factory.mktemp(request.param), kill=request.param == "killed")
    yield told
    told.broker.close()


def decoded(printed: str) -> list[tuple[str, str]]:
    """Key and value of every record of a dump."""
    return re.findall(r"key: (\{.*?\}) payload: (.*)$", printed, re.MULTILINE)


def test_we_serve_what_was_committed(story: Story) -> None:
    assert story.ours == EXPECTED


@pytest.mark.parametrize("kind", KAFKAS)
def test_kafka_decodes_our_records(story: Story, kind: str) -> None:
    printed = story.dumped[kind]
    assert complaints(printed) == []
    records = decoded(printed)
    assert records
    assert not [value for _, value in records if "unknown" in value or "unreadable" in value]
    assert any('"group":"joined"' in key and '"type":"1"' in key for key, _ in records)
    assert any('"group":"joined"' in key and '"type":"2"' in key for key, _ in records)


def test_our_dump_decodes_what_kafka_4_decodes(story: Story) -> None:
    def values(printed: str) -> list[tuple[object, object]]:
        return [
            (json.loads(key), json.loads(value) if value.startswith("{") else value)
            for key, value in decoded(printed)
        ]

    assert values(story.dumped_by_us) == values(story.dumped["kafka4"])


def test_kafka_serves_what_was_committed_here(story: Story) -> None:
    assert story.theirs == EXPECTED


def test_kafkas_own_tool_lists_the_offsets(story: Story) -> None:
    lines = [line.split() for line in story.described.splitlines()]
    shown = {
        (line[0], f"{line[1]}-{line[2]}", line[3]) for line in lines if len(line) > 4 and line[1] == "orders"
    }
    assert shown == {
        (group, partition, str(offset))
        for group, offsets in EXPECTED.items()
        for partition, (offset, _) in offsets.items()
    }


def test_kafka_has_nothing_to_say_about_our_records(story: Story) -> None:
    of_groups = re.compile(r"coordinator|GroupMetadata|consumer_offsets", re.IGNORECASE)
    assert [line for line in story.kafka.warnings() if of_groups.search(line)] == []


def test_we_serve_what_was_committed_there(story: Story) -> None:
    assert story.ours_again == {
        **EXPECTED,
        "joined": {"orders-0": (15, "")},
        "simple": {"orders-0": (16, "simple was here"), "orders-1": (4, "simple was here")},
    }
