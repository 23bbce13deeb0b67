"""Questions about groups find their coordinator, also while it moves, and keep groups apart."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import pytest

from tidelog import AsyncAdmin
from tidelog.clients.admin import Results
from tidelog.clients.admin.driver import Deadline, R
from tidelog.clients.metadata import BrokerNode
from tidelog.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupIdNotFound,
    NotCoordinator,
    UnknownServerError,
)
from tidelog.partitions import PartitionKey
from tidelog.protocol.message import Message
from tidelog.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from tidelog.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tidelog.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse

Answer = Callable[[Message], Message]


class FakeConnection:
    """A connection to any broker: it knows who coordinates a group, and passes other requests on."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def version_for(self, request: type[Message], *, at_most: int | None = None) -> int:
        return self._cluster.versions.get(request, at_most or request.VERSIONS.high)

    async def call(self, request: Message, answer: type[Message], *, version: int) -> Message:
        node = self._cluster.coordinator
        if not isinstance(request, FindCoordinatorRequest):
            return self._cluster.answers.popleft()(request)
        error = self._cluster.lookups.popleft() if self._cluster.lookups else 0
        if version < 4:
            self._cluster.looked_up.append(request.key)
            return FindCoordinatorResponse(node_id=node, host="old", port=1, error_code=error)
        self._cluster.looked_up += request.coordinator_keys
        found = [
            FindCoordinatorResponse.Coordinator(
                key=key, node_id=node, host="one", port=9092, error_code=error
            )
            for key in request.coordinator_keys
        ]
        return FindCoordinatorResponse(coordinators=found)


class Cluster(AsyncAdmin):
    """Two brokers that answer what they are told to, without a socket."""

    def __init__(self) -> None:
        super().__init__(bootstrap_servers="127.0.0.1:1", retry_backoff_ms=1, retry_backoff_max_ms=1)
        self.coordinator = 1
        self.lookups: deque[int] = deque()
        self.looked_up: list[str] = []
        self.answers: deque[Answer] = deque()
        self.asked: list[int] = []
        self.versions: dict[type[Message], int] = {}
        self._client.view.add_nodes((BrokerNode(1, "one", 9092), BrokerNode(2, "two", 9092)))

        async def connection(*_: object, **__: object) -> FakeConnection:
            return FakeConnection(self)

        links = self._client._links
        links.any_connection = links.connection = connection  # type: ignore[assignment, method-assign]
        self.driver.call = self._call  # type: ignore[method-assign]

    async def _call(self, node_id: int, request: Message, answer: type[R], deadline: Deadline) -> R:
        self.asked.append(node_id)
        found = self.answers.popleft()(request)
        assert isinstance(found, answer)
        return found


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def delete(cluster: Cluster, *names: str, timeout: float | None = None) -> Results[str, None]:
    async def run() -> Results[str, None]:
        async with cluster:
            return await cluster.delete_consumer_groups(names, partial=True, timeout=timeout)

    return asyncio.run(run())


def deleted(**codes: int) -> Answer:
    def answer(request: Message) -> Message:
        assert isinstance(request, DeleteGroupsRequest)
        return DeleteGroupsResponse(
            results=[
                DeleteGroupsResponse.DeletableGroupResult(group_id=name, error_code=codes[name])
                for name in request.groups_names
                if name in codes
            ]
        )

    return answer


@pytest.mark.parametrize("passing", [CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator])
def test_a_coordinator_on_its_way_is_asked_again_where_it_is_then(cluster: Cluster, passing: type) -> None:
    def moves(request: Message) -> Message:
        cluster.coordinator = 2
        return deleted(a=passing.code, b=0)(request)

    cluster.answers.extend([moves, deleted(a=0)])
    results = delete(cluster, "a", "b")
    assert (set(results), results.errors) == ({"a", "b"}, {})
    assert cluster.asked == [1, 2]


def test_offsets_are_committed_where_the_coordinator_has_moved(cluster: Cluster) -> None:
    def committed(error: int) -> Answer:
        def answer(request: Message) -> Message:
            assert isinstance(request, OffsetCommitRequest)
            done = OffsetCommitResponse.OffsetCommitResponsePartition(partition_index=0, error_code=error)
            topic = OffsetCommitResponse.OffsetCommitResponseTopic(name="t", partitions=[done])
            return OffsetCommitResponse(topics=[topic])

        return answer

    async def run() -> Results[PartitionKey, None]:
        async with cluster:
            return await cluster.alter_consumer_group_offsets("a", {("t", 0): 5})

    cluster.answers.extend([committed(NotCoordinator.code), committed(0)])
    assert list(asyncio.run(run())) == [("t", 0)]
    assert cluster.looked_up == ["a", "a"]


def test_a_lookup_without_a_coordinator_is_made_again(cluster: Cluster) -> None:
    cluster.lookups.extend([CoordinatorNotAvailable.code, CoordinatorNotAvailable.code, 0])
    cluster.answers.append(deleted(a=0))
    assert list(delete(cluster, "a")) == ["a"]
    assert cluster.looked_up == ["a"] * 3


def test_coordinators_of_older_brokers_are_looked_up_as_well(cluster: Cluster) -> None:
    cluster.versions[FindCoordinatorRequest] = 3
    cluster.answers.append(deleted(a=0, b=0))
    assert list(delete(cluster, "a", "b")) == ["a", "b"]
    assert cluster.looked_up == ["a", "b"]


def test_the_time_ends_and_the_last_answer_is_told(cluster: Cluster) -> None:
    cluster.answers.extend([deleted(a=NotCoordinator.code, b=0)] + [deleted(a=NotCoordinator.code)] * 1000)
    results = delete(cluster, "a", "b", timeout=0.5)
    assert list(results) == ["b"]
    assert isinstance(results.errors["a"], TimeoutError)
    assert "NOT_COORDINATOR" in str(results.errors["a"])


def test_what_is_wrong_with_one_group_is_told_for_it_alone(cluster: Cluster) -> None:
    cluster.answers.append(deleted(a=0, b=GroupIdNotFound.code))
    results = delete(cluster, "a", "b", "c")
    assert list(results) == ["a"]
    assert isinstance(results.errors["b"], GroupIdNotFound)
    # A broker that says nothing of a group has not deleted it.
    assert isinstance(results.errors["c"], UnknownServerError)


def test_groups_of_all_brokers_are_listed_by_name(cluster: Cluster) -> None:
    def listed(*names: str, error: int = 0) -> Answer:
        def answer(request: Message) -> Message:
            assert isinstance(request, ListGroupsRequest)
            groups = [
                ListGroupsResponse.ListedGroup(group_id=name, protocol_type="consumer") for name in names
            ]
            return ListGroupsResponse(groups=groups, error_code=error)

        return answer

    async def run() -> list[str]:
        async with cluster:
            return [group.group_id for group in await cluster.list_groups()]

    cluster.answers.extend([listed("c", "a"), listed(error=CoordinatorLoadInProgress.code), listed("b")])
    assert asyncio.run(run()) == ["a", "b", "c"]
    assert cluster.asked == [1, 2, 2]
