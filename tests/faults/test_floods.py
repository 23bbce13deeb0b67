"""Requests that ask for far too much at once get some of it or an error; the others are served meanwhile."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from tests.faults.client import Client, batch_of, peak_bytes, produce_request, surprises
from tests.support.broker import Broker
from tests.support.scale import scale
from tests.support.wait import eventually
from tidelog.errors import ErrorCode
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.protocol.messages.produce import ProduceResponse

MEGABYTE = 1 << 20


def turns_of(client: Client, busy: Client) -> int:
    """How many small produces are answered until the busy client has its answer."""
    turns = 0
    busy.socket.setblocking(False)
    while True:
        assert client.produce("other", 0, batch_of(b"x")).error == 0
        turns += 1
        try:
            busy.socket.recv(1, socket.MSG_PEEK)
            return turns
        except BlockingIOError:
            continue


def test_a_request_that_names_thousands_of_unknown_topics_makes_some_of_them(tmp_path: Path) -> None:
    names = [f"unknown-{number}" for number in range(scale(20_000, 200_000))]
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in names])
    with Broker(tmp_path) as broker, Client(broker.address) as client, Client(broker.address) as greedy:
        assert client.create_topic("other") == 0
        answer = greedy.ask(request, MetadataResponse, 9, 60)
        assert {topic.error_code for topic in answer.topics} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert client.produce("other", 0, batch_of(b"x")).error == 0
        first = eventually(lambda: len(client.partitions()) - 1, "topics are made")
        assert first <= 1000
        # Who asks again gets on.
        eventually(
            lambda: greedy.ask(few(names), MetadataResponse, 9).topics[0].error_code == 0, "they all come"
        )
        assert peak_bytes(broker.pid) < 400 * MEGABYTE
        began = time.monotonic()
        assert broker.terminate() == 0
        assert time.monotonic() - began < 15
        assert surprises(broker.log()) == []


def few(names: list[str]) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=names[-1])])


def test_a_partition_that_a_request_names_a_thousand_times_gets_one_batch(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Client(broker.address) as client:
        assert client.create_topic("t") == 0
        request = produce_request("t", 0, batch_of(b"first"))
        request.topic_data *= 999
        request.topic_data += produce_request("t", 0, batch_of(b"last")).topic_data
        answer = client.ask(request, ProduceResponse, 9)
        assert [len(topic.partition_responses) for topic in answer.responses] == [1]
        assert [stored.values for stored in client.read_all("t", 0)] == [[b"last"]]


def test_a_topic_of_more_partitions_than_a_request_may_make_is_refused(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Client(broker.address) as client:
        for count in (10_001, 2**31 - 1):
            assert client.create_topic("huge", count) != 0
        assert client.create_topic("small", 1) == 0
        assert client.grow_topic("small", 2**31 - 1) != 0
        assert client.partitions() == {"small": 1}
        assert peak_bytes(broker.pid) < 200 * MEGABYTE


def test_a_topic_of_many_partitions_is_made_between_the_requests_of_others(tmp_path: Path) -> None:
    from tidelog.protocol.messages.create_topics import CreateTopicsRequest

    topic = CreateTopicsRequest.CreatableTopic(
        name="wide", num_partitions=scale(500, 5000), replication_factor=1
    )
    with Broker(tmp_path) as broker, Client(broker.address) as client, Client(broker.address) as busy:
        assert client.create_topic("other") == 0
        busy.send(CreateTopicsRequest(topics=[topic]), 5)
        # However long the disk takes for a partition, others wait for a few of them only.
        assert turns_of(client, busy) > topic.num_partitions // 20
        assert client.partitions()["wide"] == topic.num_partitions
