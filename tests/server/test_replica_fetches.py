"""Who claims to be a replica is taken at its word and checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.fixtures import bootstrap, new_name
from tests.support.small_client import Client
from tidelog.errors import ErrorCode
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse

__all__ = ["bootstrap", "new_name"]


@pytest.fixture
def client(bootstrap: str) -> Iterator[Client]:
    with Client(bootstrap) as client:
        yield client


@pytest.fixture
def topic(client: Client, new_name: Callable[[str], str]) -> str:
    name = new_name("replicas")
    assert client.create(name) == 0
    assert client.produce(name, 0, b"value").error_code == 0
    return name


def fetch(client: Client, topic: str, *, replica_id: int = -1) -> int:
    wanted = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    request = FetchRequest(
        replica_id=replica_id,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[wanted])],
    )
    return client.raw.ask(request, FetchResponse, 12).responses[0].partitions[0].error_code


@pytest.mark.parametrize("replica_id", [0, 1, 1001, 5])
def test_a_broker_without_a_replica_of_the_partition_gets_none_of_it(
    client: Client, topic: str, replica_id: int
) -> None:
    assert fetch(client, topic, replica_id=replica_id) == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("replica_id", [-1, -2])
def test_consumers_and_tools_are_no_replicas(client: Client, topic: str, replica_id: int) -> None:
    assert fetch(client, topic, replica_id=replica_id) == ErrorCode.NONE
