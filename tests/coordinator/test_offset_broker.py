"""Committed offsets of a running broker: through restarts, transactions, and the end of their topic."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.broker import Broker
from tests.support.raw import RawConnection
from tests.support.wait import eventually
from tidelog import Admin, NewTopic
from tidelog.errors import ErrorCode
from tidelog.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "broker", {"offsets.topic.num.partitions": "2"}) as running:
        with Admin(bootstrap_servers=running.bootstrap) as admin:
            admin.create_topics([NewTopic("orders", num_partitions=2)])
            admin.create_topics([NewTopic("payments")])
        yield running


def commit(broker: Broker, group_id: str, topic: str, offset: int) -> int:
    wanted = OffsetCommitRequest.OffsetCommitRequestTopic(
        name=topic,
        partitions=[
            OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        ],
    )
    request = OffsetCommitRequest(group_id=group_id, topics=[wanted])
    with RawConnection(broker.bootstrap) as connection:
        answer = connection.ask(request, OffsetCommitResponse, 9)
    return answer.topics[0].partitions[0].error_code


def made(broker: Broker) -> None:
    """The first that looks for a coordinator makes the topic of the offsets; a commit works from then on."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "first"})
    consumer.committed([TopicPartition("orders", 0)], 30.0)
    consumer.close()
    eventually(lambda: commit(broker, "g", "orders", 1) == 0, "a commit")


def fetched(broker: Broker, group_id: str, *, stable: bool = False) -> dict[tuple[str, int], tuple[int, int]]:
    """Offset and error code of what the group has of both topics; those without an offset are left out."""
    topics = [
        OffsetFetchRequest.OffsetFetchRequestTopics(name="orders", partition_indexes=[0, 1]),
        OffsetFetchRequest.OffsetFetchRequestTopics(name="payments", partition_indexes=[0]),
    ]
    wanted = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group_id, topics=topics)

    def fetch() -> OffsetFetchResponse | None:
        with RawConnection(broker.bootstrap) as connection:
            request = OffsetFetchRequest(groups=[wanted], require_stable=stable)
            answer = connection.ask(request, OffsetFetchResponse, 9)
        return None if answer.groups[0].error_code else answer

    return {
        (topic.name, partition.partition_index): (partition.committed_offset, partition.error_code)
        for topic in eventually(fetch, "loaded offsets").groups[0].topics
        for partition in topic.partitions
        if partition.committed_offset >= 0 or partition.error_code
    }


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_offsets_are_there_after_a_restart(broker: Broker, kill: bool) -> None:
    made(broker)
    commit(broker, "g", "orders", 7)
    commit(broker, "h", "payments", 8)
    broker.restart(kill=kill)
    assert fetched(broker, "g") == {("orders", 0): (7, 0)}
    assert fetched(broker, "h") == {("payments", 0): (8, 0)}


def test_offsets_go_with_their_topic_and_one_of_that_name_begins_without(broker: Broker) -> None:
    made(broker)
    commit(broker, "g", "orders", 7)
    commit(broker, "g", "payments", 8)
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.delete_topics(["orders"])
        eventually(
            lambda: fetched(broker, "g") == {("payments", 0): (8, 0)}, "offsets without those of orders"
        )
        admin.create_topics([NewTopic("orders", num_partitions=2)])
    broker.restart()
    assert fetched(broker, "g") == {("payments", 0): (8, 0)}
    assert commit(broker, "g", "orders", 1) == 0
    assert fetched(broker, "g") == {("orders", 0): (1, 0), ("payments", 0): (8, 0)}


@pytest.mark.parametrize("commits", [True, False], ids=["committed", "aborted"])
def test_offsets_of_a_transaction_wait_for_its_end_through_a_kill(broker: Broker, commits: bool) -> None:
    made(broker)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "tx"})
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    producer.init_transactions(30.0)
    producer.begin_transaction()
    positions = [TopicPartition("orders", 0, 20), TopicPartition("orders", 1, 21)]
    producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 30.0)
    unstable = (-1, int(ErrorCode.UNSTABLE_OFFSET_COMMIT))
    for _ in range(2):
        assert fetched(broker, "g") == {("orders", 0): (1, 0)}
        assert fetched(broker, "g", stable=True) == {("orders", 0): unstable, ("orders", 1): unstable}
        broker.restart(kill=True)
    if commits:
        producer.commit_transaction(30.0)
    else:
        producer.abort_transaction(30.0)
    expected = {("orders", 0): (20, 0), ("orders", 1): (21, 0)} if commits else {("orders", 0): (1, 0)}
    eventually(lambda: fetched(broker, "g", stable=True) == expected, "stable offsets")
    assert fetched(broker, "g") == expected
    consumer.close()
