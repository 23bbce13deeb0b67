"""ElectLeaders and reassignments of a broker of a cluster: its controller decides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.cluster_broker import CLIENTS, ClusterBroker
from tidelog.errors import ElectionNotNeeded, ErrorCode, NoReassignmentInProgress, PreferredLeaderNotAvailable
from tidelog.metadata.state import PartitionState
from tidelog.partitions import TopicPartition
from tidelog.protocol.election_type import ElectionType
from tidelog.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from tidelog.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from tidelog.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ClusterBroker]:
    with ClusterBroker(tmp_path) as broker:
        yield broker


@pytest.mark.parametrize("is_for_all", [False, True])
def test_the_controller_elects(broker: ClusterBroker, is_for_all: bool) -> None:
    broker.controller.errors = {
        A0: None,
        A1: ElectionNotNeeded("it leads"),
        B0: PreferredLeaderNotAvailable("it is down"),
    }
    wanted = [ElectLeadersRequest.TopicPartitions(topic="a", partitions=[0, 1])]
    request = ElectLeadersRequest(topic_partitions=None if is_for_all else wanted, timeout_ms=3000)
    answer = broker.connect(CLIENTS).ask(request, ElectLeadersResponse, 2)
    found = [
        (topic.topic, result.partition_id, result.error_code, result.error_message)
        for topic in answer.replica_election_results
        for result in topic.partition_result
    ]
    failed = ("b", 0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "it is down")
    needless = [] if is_for_all else [("a", 1, ErrorCode.ELECTION_NOT_NEEDED, "it leads")]
    assert found == [("a", 0, 0, None), *needless, failed]
    assert broker.controller.asked == [(None if is_for_all else [A0, A1], ElectionType.PREFERRED, 3.0)]


def test_an_unknown_election_type_does_not_reach_the_controller(broker: ClusterBroker) -> None:
    request = ElectLeadersRequest(election_type=5, topic_partitions=[])
    answer = broker.connect(CLIENTS).ask(request, ElectLeadersResponse, 2)
    assert (answer.error_code, broker.controller.asked) == (ErrorCode.INVALID_REQUEST, [])


@pytest.mark.parametrize("version", [0, 1])
def test_the_controller_reassigns(broker: ClusterBroker, version: int) -> None:
    broker.controller.errors = {A0: None, B0: NoReassignmentInProgress("it stays")}
    kind = AlterPartitionReassignmentsRequest
    request = kind(
        topics=[
            kind.ReassignableTopic(
                name=name, partitions=[kind.ReassignablePartition(partition_index=0, replicas=replicas)]
            )
            for name, replicas in (("b", None), ("a", [1, 2]))
        ],
    )
    if version:
        request.allow_replication_factor_change = False
    answer = broker.connect(CLIENTS).ask(request, AlterPartitionReassignmentsResponse, version)
    found = [
        (topic.name, result.partition_index, result.error_code, result.error_message)
        for topic in answer.responses
        for result in topic.partitions
    ]
    assert found == [("b", 0, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "it stays"), ("a", 0, 0, None)]
    assert broker.controller.asked == [({B0: None, A0: [1, 2]}, version == 0)]


def test_the_controller_lists_reassignments(broker: ClusterBroker) -> None:
    broker.controller.moving = {
        A1: PartitionState([2, 3, 1], 1, 5, [1], adding=[2, 3], removing=[1]),
    }
    kind = ListPartitionReassignmentsRequest
    for topics, asked in (
        (None, None),
        ([kind.ListPartitionReassignmentsTopics(name="a", partition_indexes=[0, 1])], [A0, A1]),
    ):
        answer = broker.connect(CLIENTS).ask(kind(topics=topics), ListPartitionReassignmentsResponse, 0)
        ((moving,),) = [topic.partitions for topic in answer.topics]
        assert (answer.topics[0].name, moving.partition_index) == ("a", 1)
        assert (moving.replicas, moving.adding_replicas, moving.removing_replicas) == ([2, 3, 1], [2, 3], [1])
        assert broker.controller.asked[-1] == asked
