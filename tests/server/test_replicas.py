"""Elections and moves between brokers get the answers of a Kafka that has one broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.broker import Broker
from tests.support.raw import RawConnection
from tidelog.errors import ErrorCode
from tidelog.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from tidelog.protocol.messages.create_topics import CreateTopicsRequest
from tidelog.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from tidelog.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

NEEDLESS = ErrorCode.ELECTION_NOT_NEEDED
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
INVALID = ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawConnection]:
    settings = {"broker.id": "1"}
    folder = tmp_path_factory.mktemp("replicas")
    with Broker(folder, settings) as broker, RawConnection(broker.address) as connection:
        topic = CreateTopicsRequest.CreatableTopic(name="t", num_partitions=2, replication_factor=1)
        connection.call(CreateTopicsRequest(topics=[topic]), 7)
        yield connection


def elect(
    connection: RawConnection, kind: int, wanted: dict[str, list[int]] | None, version: int = 2
) -> tuple[int, dict[str, list[tuple[int, int]]]]:
    """The error of the election as a whole, and by topic the partitions with theirs."""
    topics = None
    if wanted is not None:
        topics = [
            ElectLeadersRequest.TopicPartitions(topic=name, partitions=indexes)
            for name, indexes in wanted.items()
        ]
    request = ElectLeadersRequest(topic_partitions=topics)
    if version > 0:
        request.election_type = kind
    answer = connection.ask(request, ElectLeadersResponse, version)
    return answer.error_code, {
        topic.topic: [(result.partition_id, result.error_code) for result in topic.partition_result]
        for topic in answer.replica_election_results
    }


@pytest.mark.parametrize(("kind", "version"), [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2)])
def test_a_partition_that_is_led_needs_no_election(
    connection: RawConnection, kind: int, version: int
) -> None:
    wanted = {"t": [0, 99], "missing": [0]}
    found = elect(connection, kind, wanted, version)
    assert found == (0, {"t": [(0, NEEDLESS), (99, UNKNOWN)], "missing": [(0, UNKNOWN)]})


def test_an_election_of_all_partitions_names_none_that_is_led(connection: RawConnection) -> None:
    assert elect(connection, 0, None) == (0, {"t": []})


def test_an_election_of_an_unknown_kind_is_invalid(connection: RawConnection) -> None:
    code = ErrorCode.INVALID_REQUEST
    assert elect(connection, 5, {"t": [0]}) == (code, {"t": [(0, code)]})


@pytest.mark.parametrize(
    ("topic", "partition", "replicas", "code"),
    [
        ("t", 0, [1], 0),  # where it is
        ("t", 0, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        ("t", 0, [], INVALID),
        ("t", 0, [9], INVALID),
        ("t", 0, [1, 9], INVALID),
        ("t", 0, [1, 1], INVALID),
        ("t", 0, [-1], INVALID),
        ("t", 9, [1], UNKNOWN),
        ("t", 9, None, UNKNOWN),
        ("missing", 0, [9], UNKNOWN),
    ],
)
@pytest.mark.parametrize("version", [0, 1])
def test_a_partition_can_only_be_assigned_to_the_broker_that_is_there(
    connection: RawConnection, version: int, topic: str, partition: int, replicas: list[int] | None, code: int
) -> None:
    wanted = AlterPartitionReassignmentsRequest.ReassignablePartition(
        partition_index=partition, replicas=replicas
    )
    request = AlterPartitionReassignmentsRequest(
        topics=[AlterPartitionReassignmentsRequest.ReassignableTopic(name=topic, partitions=[wanted])]
    )
    answer = connection.ask(request, AlterPartitionReassignmentsResponse, version)
    assert (answer.error_code, answer.error_message) == (0, None)
    [of_topic] = answer.responses
    [result] = of_topic.partitions
    assert (of_topic.name, result.partition_index, result.error_code) == (topic, partition, code)
    assert (result.error_message is None) == (code == 0)


@pytest.mark.parametrize("wanted", [None, {}, {"t": [0, 9]}, {"missing": [0]}])
def test_no_partition_is_ever_on_its_way(
    connection: RawConnection, wanted: dict[str, list[int]] | None
) -> None:
    topics = None
    if wanted is not None:
        topics = [
            ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics(
                name=name, partition_indexes=indexes
            )
            for name, indexes in wanted.items()
        ]
    request = ListPartitionReassignmentsRequest(topics=topics)
    answer = connection.ask(request, ListPartitionReassignmentsResponse, 0)
    assert (answer.error_code, answer.error_message, answer.topics) == (0, None, [])
