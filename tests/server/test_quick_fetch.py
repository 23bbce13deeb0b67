"""The short way of a fetch gives the answers of the way that all fetches can take.

A `cluster_id` is a tagged field that changes nothing, and only the long way reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.fixtures import bootstrap, new_name
from tests.support.small_client import Client
from tidelog.errors import ErrorCode
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.records.loops import parse_one_fetch

__all__ = ["bootstrap", "new_name"]

LONG_WAY = "a cluster"
NO_SESSION = -1

Named = tuple[int, int, int]
"""A partition, the fetch offset and the most bytes."""


@pytest.fixture
def client(bootstrap: str) -> Iterator[Client]:
    with Client(bootstrap) as client:
        yield client


@pytest.fixture
def topic(client: Client, new_name: Callable[[str], str]) -> str:
    name = new_name("quick")
    assert client.create(name, 2) == 0
    return name


def topic_id(client: Client, topic: str) -> bytes:
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)])
    return client.raw.ask(request, MetadataResponse, 12).topics[0].topic_id


class Session:
    """One fetch session, whose requests take the short way or the long way."""

    def __init__(self, client: Client, topic: str, version: int, *, is_short: bool) -> None:
        self._client = client
        self._topic = FetchRequest.FetchTopic()
        if version >= 13:
            self._topic.topic_id = topic_id(client, topic)
        else:
            self._topic.topic = topic
        self._version = version
        self._is_short = is_short
        self._id, self._epoch = 0, 0

    def fetch(self, *named: Named, isolation_level: int = 0, epoch: int | None = None) -> FetchResponse:
        self._topic.partitions = [
            FetchRequest.FetchPartition(partition=index, fetch_offset=at, partition_max_bytes=most)
            for index, at, most in named
        ]
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=isolation_level,
            session_id=0 if epoch == NO_SESSION else self._id,
            session_epoch=self._epoch if epoch is None else epoch,
            topics=[self._topic] if named else [],
            cluster_id=None if self._is_short else LONG_WAY,
        )
        takes_short = parse_one_fetch(request.encode(self._version), 0, self._version) is not None
        assert takes_short == (self._is_short and len(named) < 2)
        answer = self._client.raw.ask(request, FetchResponse, self._version)
        if request.session_epoch == NO_SESSION:
            assert answer.session_id == 0
            return answer
        if self._epoch == 0:
            self._id = answer.session_id
        if not answer.error_code:
            assert answer.session_id == self._id
            self._epoch += 1
        answer.session_id = 0
        return answer


@pytest.mark.parametrize("version", range(12, 19))
def test_both_ways_answer_alike(client: Client, topic: str, version: int) -> None:
    short = Session(client, topic, version, is_short=True)
    long = Session(client, topic, version, is_short=False)

    def both(*named: Named, isolation_level: int = 0, epoch: int | None = None) -> FetchResponse:
        answers = [
            session.fetch(*named, isolation_level=isolation_level, epoch=epoch) for session in (short, long)
        ]
        assert answers[0].encode(version) == answers[1].encode(version)
        return answers[0]

    def partitions(answer: FetchResponse) -> list[tuple[int, int, int]]:
        return [
            (found.partition_index, found.error_code, len(bytes(found.records or b"")))
            for of_topic in answer.responses
            for found in of_topic.partitions
        ]

    most = 1 << 20
    assert partitions(both((0, 0, most), (1, 0, most))) == [(0, 0, 0), (1, 0, 0)]
    assert partitions(both()) == []
    size = 0
    for value in (b"a", b"b" * 100):
        assert client.produce(topic, 1, value).error_code == 0
    ((index, error, size),) = partitions(both())
    assert (index, error) == (1, 0)
    assert partitions(both()) == [(1, 0, size)], "it was not fetched further"
    assert partitions(both((1, 2, most))) == []
    assert partitions(both((1, 0, 1)))[0][2] < size
    assert partitions(both((1, 1, most)))[0][2] < size
    assert partitions(both((1, 9, most))) == [(1, ErrorCode.OFFSET_OUT_OF_RANGE, 0)]
    assert partitions(both(isolation_level=1)) == [(1, ErrorCode.OFFSET_OUT_OF_RANGE, 0)]
    assert partitions(both((1, 0, most), isolation_level=1)) == [(1, 0, size)]
    assert both((1, 2, most), epoch=77).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert partitions(both((1, 2, most))) == []
    assert partitions(both((1, 0, most), epoch=NO_SESSION)) == [(1, 0, size)]
    assert partitions(both((1, 2, most), epoch=NO_SESSION)) == [(1, 0, 0)]
    assert partitions(both((1, 9, most), epoch=NO_SESSION)) == [(1, ErrorCode.OFFSET_OUT_OF_RANGE, 0)]
    assert partitions(both((7, 0, most), epoch=NO_SESSION)) == [(7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)]
    assert partitions(both(epoch=NO_SESSION)) == []
    unknown_level = both(isolation_level=9)
    assert unknown_level.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert partitions(both((2, 0, most))) == [(2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)]
