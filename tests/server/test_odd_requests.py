"""What Kafka 4.3 answers to requests that no client should send, asked of it and held here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.client import Client, batch_of
from tests.support.broker import Broker
from tests.support.wait import eventually
from tidelog.errors import ErrorCode
from tidelog.protocol.messages.describe_producers import DescribeProducersRequest, DescribeProducersResponse
from tidelog.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("odd")) as running:
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.address) as connection:
        yield connection


def make(client: Client, name: str, partitions: int = 1) -> bytes:
    """A topic with a record, by its id."""
    assert client.create_topic(name, partitions) == 0
    assert client.produce(name, 0, batch_of(b"x")).error == 0
    wanted = MetadataRequest.MetadataRequestTopic(name=name)
    return client.ask(MetadataRequest(topics=[wanted]), MetadataResponse, 12).topics[0].topic_id


def delete(client: Client, name: str) -> None:
    assert client.delete_topic(name) == 0
    eventually(lambda: name not in client.partitions(), f"{name} is gone")


def fetch(
    client: Client,
    topic: str | bytes | None,
    *,
    version: int = 13,
    session: tuple[int, int] = (0, -1),
    isolation_level: int = 0,
    current_leader_epoch: int = -1,
) -> FetchResponse:
    partition = FetchRequest.FetchPartition(
        partition=0, partition_max_bytes=1 << 20, current_leader_epoch=current_leader_epoch
    )
    topics = []
    if isinstance(topic, bytes):
        topics = [FetchRequest.FetchTopic(topic_id=topic, partitions=[partition])]
    elif topic is not None:
        topics = [FetchRequest.FetchTopic(topic=topic, partitions=[partition])]
    request = FetchRequest(
        max_wait_ms=0,
        max_bytes=1 << 20,
        isolation_level=isolation_level,
        session_id=session[0],
        session_epoch=session[1],
        topics=topics,
    )
    return client.ask(request, FetchResponse, version)


def errors(answer: FetchResponse) -> list[int]:
    return [partition.error_code for topic in answer.responses for partition in topic.partitions]


def test_a_session_tells_a_topic_that_is_gone_from_one_that_was_made_anew(client: Client) -> None:
    old = make(client, "anew")
    session = fetch(client, old, session=(0, 0)).session_id
    delete(client, "anew")
    for epoch in (1, 2):
        answer = fetch(client, None, session=(session, epoch))
        assert errors(answer) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    new = make(client, "anew")
    for epoch, named in ((3, None), (4, old)):
        answer = fetch(client, named, session=(session, epoch))
        assert errors(answer) == [ErrorCode.INCONSISTENT_TOPIC_ID]
    assert errors(fetch(client, new, session=(session, 5))) == [ErrorCode.INCONSISTENT_TOPIC_ID, 0]
    assert errors(fetch(client, old)) == [ErrorCode.UNKNOWN_TOPIC_ID], "without a session nothing is known"


def test_an_id_that_was_never_known_stays_so_in_a_session(client: Client) -> None:
    answer = fetch(client, b"?" * 16, session=(0, 0))
    assert errors(answer) == [ErrorCode.UNKNOWN_TOPIC_ID]
    answer = fetch(client, None, session=(answer.session_id, 1))
    assert errors(answer) == [ErrorCode.UNKNOWN_TOPIC_ID]


@pytest.mark.parametrize("level", [2, -1, 127])
def test_an_isolation_level_that_there_is_not_is_refused(client: Client, level: int) -> None:
    name = f"isolated{level}"
    topic_id = make(client, name)
    unknown = ErrorCode.UNKNOWN_SERVER_ERROR
    answer = fetch(client, topic_id, isolation_level=level)
    assert (answer.error_code, answer.responses) == (unknown, [])
    for version in (7, 12):
        answer = fetch(client, name, version=version, isolation_level=level)
        assert (answer.error_code, errors(answer)) == (unknown, [unknown])
    for version in (4, 6):
        assert errors(fetch(client, name, version=version, isolation_level=level)) == [unknown]
    assert list_offsets(client, name, isolation_level=level) == (unknown, -1)


def list_offsets(
    client: Client, name: str, *, isolation_level: int = 0, current_leader_epoch: int = -1
) -> tuple[int, int]:
    wanted = ListOffsetsRequest.ListOffsetsPartition(
        partition_index=0, timestamp=-1, current_leader_epoch=current_leader_epoch
    )
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=[wanted])],
    )
    found = client.ask(request, ListOffsetsResponse, 7).topics[0].partitions[0]
    return found.error_code, found.offset


def epoch_end(
    client: Client, name: str, epoch: int, *, current_leader_epoch: int = -1
) -> tuple[int, int, int]:
    wanted = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
        partition=0, current_leader_epoch=current_leader_epoch, leader_epoch=epoch
    )
    topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=name, partitions=[wanted])
    request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[topic])
    found = client.ask(request, OffsetForLeaderEpochResponse, 4).topics[0].partitions[0]
    return found.error_code, found.leader_epoch, found.end_offset


def test_a_current_epoch_below_none_is_fenced_but_not_in_a_fetch(client: Client) -> None:
    topic_id = make(client, "fenced")
    for epoch in (-2, -100):
        assert epoch_end(client, "fenced", 0, current_leader_epoch=epoch) == (74, -1, -1)
        assert list_offsets(client, "fenced", current_leader_epoch=epoch) == (74, -1)
        assert errors(fetch(client, topic_id, current_leader_epoch=epoch)) == [0]
    assert epoch_end(client, "fenced", -1) == (0, -1, -1)
    assert epoch_end(client, "fenced", -2) == (0, -2, 0)


def describe(
    client: Client, names: list[str], cursor: tuple[str, int]
) -> list[tuple[int, str | None, list[int]]]:
    request = DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in names],
        response_partition_limit=2000,
        cursor=DescribeTopicPartitionsRequest.Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )
    answer = client.ask(request, DescribeTopicPartitionsResponse, 0)
    return [
        (topic.error_code, topic.name, [partition.partition_index for partition in topic.partitions])
        for topic in answer.topics
    ]


def test_a_cursor_has_to_be_on_a_topic_that_is_asked_for(client: Client) -> None:
    make(client, "pages", 4)
    make(client, "other")
    refused: list[tuple[int, str | None, list[int]]] = [(42, "pages", []), (42, "other", [])]
    for cursor in (("zzz", 0), ("a", 0), ("", 0), ("pages", -1)):
        assert describe(client, ["pages", "other"], cursor) == refused
    assert describe(client, ["pages", "other"], ("pages", 2)) == [(0, "pages", [2, 3])]
    assert describe(client, ["pages"], ("pages", 99)) == [(0, "pages", [])]
    assert describe(client, ["pages", "pagez"], ("pagez", 1)) == [(3, "pagez", [])]
    assert describe(client, [], ("pages", -1)) == []
    assert describe(client, [], ("zzz", 0)) == []


@pytest.mark.parametrize(
    ("name", "code"),
    [("no such", ErrorCode.INVALID_TOPIC_EXCEPTION), ("absent", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)],
)
def test_the_producers_of_a_name_that_no_topic_can_have_are_refused(
    client: Client, name: str, code: int
) -> None:
    wanted = DescribeProducersRequest.TopicRequest(name=name, partition_indexes=[0])
    answer = client.ask(DescribeProducersRequest(topics=[wanted]), DescribeProducersResponse, 0)
    assert answer.topics[0].partitions[0].error_code == code
