"""What a broker tells about itself agrees with what is on its disk and with what was done to it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.faults.client import BROKER, BROKER_LOGGER, TOPIC, Client, batch_of, produce_request
from tests.support.broker import Broker
from tests.support.wait import eventually
from tidelog.errors import ErrorCode
from tidelog.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from tidelog.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from tidelog.protocol.messages.describe_producers import DescribeProducersRequest, DescribeProducersResponse
from tidelog.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from tidelog.protocol.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from tidelog.protocol.messages.produce import ProduceResponse

UNKNOWN_TOPIC = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("facts")
    dirs = f"{folder / 'data'},{folder / 'more'}"
    with Broker(folder, {"log.dirs": dirs, "broker.id": "1", "num.partitions": "2"}) as running:
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.address) as connection:
        yield connection


# DescribeLogDirs


def log_dirs(
    client: Client, wanted: dict[str, list[int]] | None = None
) -> dict[str, DescribeLogDirsResponse.DescribeLogDirsResult]:
    topics = None
    if wanted is not None:
        topics = [
            DescribeLogDirsRequest.DescribableLogDirTopic(topic=name, partitions=partitions)
            for name, partitions in wanted.items()
        ]
    answer = client.ask(DescribeLogDirsRequest(topics=topics), DescribeLogDirsResponse, 4)
    assert answer.error_code == 0
    return {result.log_dir: result for result in answer.results}


def test_log_dirs_are_told_with_the_sizes_that_their_files_have(broker: Broker, client: Client) -> None:
    client.create_topic("sized", 3)
    for index in range(3):
        for _ in range(index + 1):
            client.produce("sized", index, batch_of(b"x" * 100))
    results = log_dirs(client, {"sized": [0, 1, 2]})
    assert set(results) == {str(broker.data), str(broker.folder / "more")}
    found: set[int] = set()
    for path, result in results.items():
        disk = os.statvfs(path)
        assert result.total_bytes == disk.f_blocks * disk.f_frsize
        for topic in result.topics:
            for partition in topic.partitions:
                folder = broker.folder / path / f"{topic.name}-{partition.partition_index}"
                assert partition.partition_size == sum(f.stat().st_size for f in folder.glob("*.log"))
                assert (partition.offset_lag, partition.is_future_key) == (0, False)
                found.add(partition.partition_index)
    assert found == {0, 1, 2}
    assert all(result.topics for result in results.values()), "partitions are spread over the folders"


def test_log_dirs_are_told_for_the_partitions_that_are_asked_for(client: Client) -> None:
    client.create_topic("asked", 2)
    told = [
        (topic.name, partition.partition_index)
        for result in log_dirs(client, {"asked": [1], "missing": [0]}).values()
        for topic in result.topics
        for partition in topic.partitions
    ]
    assert told == [("asked", 1)]


# DescribeTopicPartitions


def pages(client: Client, topics: list[str], limit: int) -> list[list[tuple[str, int, int]]]:
    """Every page as (topic, error, partition); a topic with an error has partition -1."""
    found = []
    cursor = None
    while True:
        request = DescribeTopicPartitionsRequest(
            topics=[DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in topics],
            response_partition_limit=limit,
            cursor=cursor,
        )
        answer = client.ask(request, DescribeTopicPartitionsResponse, 0)
        page = []
        for topic in answer.topics:
            name = topic.name or ""
            page += [(name, 0, partition.partition_index) for partition in topic.partitions]
            if topic.error_code:
                page.append((name, topic.error_code, -1))
        found.append(page)
        if answer.next_cursor is None:
            return found
        cursor = DescribeTopicPartitionsRequest.Cursor(
            topic_name=answer.next_cursor.topic_name, partition_index=answer.next_cursor.partition_index
        )
        assert len(found) < 50, "the pages never end"


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 100])
def test_partitions_come_in_pages_that_together_are_everything_once(client: Client, limit: int) -> None:
    client.create_topic("page-a", 3)
    client.create_topic("page-b", 1)
    client.create_topic("page-c", 4)
    names = ["page-c", "page-a", "page-b"]
    expected = [
        (name, 0, index)
        for name, count in (("page-a", 3), ("page-b", 1), ("page-c", 4))
        for index in range(count)
    ]
    found = pages(client, names, limit)
    assert [row for page in found for row in page] == expected
    assert all(len(page) == limit for page in found[:-1])


def test_unknown_topics_are_told_beside_the_known(client: Client) -> None:
    client.create_topic("known", 1)
    (page,) = pages(client, ["known", "no-such", "not a name"], 10)
    assert set(page) == {
        ("known", 0, 0),
        ("no-such", UNKNOWN_TOPIC, -1),
        ("not a name", ErrorCode.INVALID_TOPIC_EXCEPTION, -1),
    }


def test_no_names_are_all_topics(client: Client) -> None:
    client.create_topic("one-of-all", 2)
    told = [row[0] for page in pages(client, [], 2) for row in page]
    assert sorted(told) == sorted(name for name, count in client.partitions().items() for _ in range(count))


# ListConfigResources


def test_config_resources_are_listed_by_type(client: Client) -> None:
    client.create_topic("resource")

    def listed(*kinds: int) -> set[tuple[int, str]]:
        request = ListConfigResourcesRequest(resource_types=list(kinds))
        answer = client.ask(request, ListConfigResourcesResponse, 1)
        assert answer.error_code == 0
        return {(each.resource_type, each.resource_name) for each in answer.config_resources}

    topics = {(TOPIC, name) for name in client.partitions()}
    assert (TOPIC, "resource") in topics
    assert listed(TOPIC) == topics
    assert listed(BROKER, BROKER_LOGGER) == {(BROKER, "1"), (BROKER_LOGGER, "1")}
    assert listed() == topics | {(BROKER, "1"), (BROKER_LOGGER, "1")}
    wrong = client.ask(ListConfigResourcesRequest(resource_types=[77]), ListConfigResourcesResponse, 1)
    assert wrong.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert client.ask(ListConfigResourcesRequest(), ListConfigResourcesResponse, 0).config_resources == []


# DescribeProducers


def test_producers_are_told_as_they_last_wrote(client: Client) -> None:
    client.create_topic("producers")
    first, second = client.producer_id(), client.producer_id()
    assert first != second
    client.produce("producers", 0, batch_of(b"1", b"2", producer=(first, 0, 0), timestamp=1_700_000_000_000))
    client.produce("producers", 0, batch_of(b"3", producer=(first, 0, 2), timestamp=1_700_000_000_500))
    client.produce("producers", 0, batch_of(b"4", producer=(second, 3, 9), timestamp=1_700_000_000_900))
    topic = DescribeProducersRequest.TopicRequest(name="producers", partition_indexes=[0, 5])
    known, unknown = (
        client.ask(DescribeProducersRequest(topics=[topic]), DescribeProducersResponse, 0)
        .topics[0]
        .partitions
    )
    assert unknown.error_code == UNKNOWN_TOPIC
    told = {
        each.producer_id: (
            each.producer_epoch,
            each.last_sequence,
            each.last_timestamp,
            each.coordinator_epoch,
            each.current_txn_start_offset,
        )
        for each in known.active_producers
    }
    assert told == {
        first: (0, 2, 1_700_000_000_500, -1, -1),
        second: (3, 9, 1_700_000_000_900, -1, -1),
    }


# OffsetForLeaderEpoch


def test_the_epoch_of_the_leader_ends_at_the_end_of_the_log(broker: Broker) -> None:
    def ends(client: Client, *epochs: int, current: int = -1) -> list[tuple[int, int, int]]:
        answers = []
        for epoch in epochs:
            wanted = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
                partition=0, leader_epoch=epoch, current_leader_epoch=current
            )
            topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic="epochs", partitions=[wanted])
            request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[topic])
            (found,) = client.ask(request, OffsetForLeaderEpochResponse, 4).topics[0].partitions
            answers.append((found.error_code, found.leader_epoch, found.end_offset))
        return answers

    def leader_epoch(client: Client) -> int:
        topic = MetadataRequest.MetadataRequestTopic(name="epochs")
        answer = client.ask(MetadataRequest(topics=[topic]), MetadataResponse, 12)
        return answer.topics[0].partitions[0].leader_epoch

    with Client(broker.address) as client:
        client.create_topic("epochs")
        client.produce("epochs", 0, batch_of(b"1", b"2", b"3"))
        now = leader_epoch(client)
        assert ends(client, now, now + 1) == [(0, now, 3), (0, -1, -1)]
    broker.restart()
    with Client(broker.address) as client:
        assert leader_epoch(client) == now, "the only replica goes on leading, as with Kafka 3.9"
        client.produce("epochs", 0, batch_of(b"4", b"5"))
        assert ends(client, now, current=now) == [(0, now, 5)]
        assert ends(client, now, current=now + 1)[0][0] == ErrorCode.UNKNOWN_LEADER_EPOCH


# Topics that are made because somebody asks


def ask_for(client: Client, name: str, *, allow: bool = True, version: int = 12) -> int:
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=name)], allow_auto_topic_creation=allow
    )
    return client.ask(request, MetadataResponse, version).topics[0].error_code


def test_a_topic_that_is_asked_for_is_made(client: Client) -> None:
    assert ask_for(client, "made") == UNKNOWN_TOPIC
    eventually(lambda: ask_for(client, "made") == 0, "the topic is there")
    assert client.partitions()["made"] == 2, "with num.partitions partitions"
    assert client.produce("made", 1, batch_of(b"v")).error == 0


def test_no_topic_is_made_for_who_does_not_want_it(client: Client) -> None:
    assert ask_for(client, "unwanted", allow=False) == UNKNOWN_TOPIC
    assert ask_for(client, "bad name") == ErrorCode.INVALID_TOPIC_EXCEPTION
    client.create_topic("afterwards")  # changes are made one after the other: one under way would be done
    assert "unwanted" not in client.partitions()


def test_auto_creation_can_be_turned_off(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = {"auto.create.topics.enable": "false"}
    with Broker(tmp_path_factory.mktemp("off"), settings) as other, Client(other.address) as client:
        assert ask_for(client, "never") == UNKNOWN_TOPIC
        client.create_topic("afterwards")
        assert set(client.partitions()) == {"afterwards"}


# AlterConfigs


def test_alter_configs_replaces_everything_that_was_set(client: Client) -> None:
    client.create_topic("altered", configs={"max.message.bytes": "1000", "retention.ms": "5000"})
    large = batch_of(b"x" * 2000)
    assert client.produce("altered", 0, large).error == ErrorCode.MESSAGE_TOO_LARGE
    request = produce_request("altered", 0, large)
    (refused,) = client.ask(request, ProduceResponse, 9).responses[0].partition_responses
    assert refused.error_message == f"the batch has {len(large)} bytes; max.message.bytes is 1000"

    def alter(*, validate_only: bool = False, **configs: str) -> int:
        resource = AlterConfigsRequest.AlterConfigsResource(
            resource_type=TOPIC,
            resource_name="altered",
            configs=[
                AlterConfigsRequest.AlterableConfig(name=name.replace("_", "."), value=value)
                for name, value in configs.items()
            ],
        )
        request = AlterConfigsRequest(resources=[resource], validate_only=validate_only)
        return client.ask(request, AlterConfigsResponse, 2).responses[0].error_code

    assert alter(validate_only=True, retention_ms="7000") == 0
    assert client.config(TOPIC, "altered", "retention.ms") == "5000"
    assert alter(retention_ms="soon") == ErrorCode.INVALID_CONFIG
    assert alter(retention_ms="7000") == 0
    assert client.config(TOPIC, "altered", "retention.ms") == "7000"
    assert client.config(TOPIC, "altered", "max.message.bytes") == "1048588", "back at its default"
    assert client.produce("altered", 0, large).error == 0
