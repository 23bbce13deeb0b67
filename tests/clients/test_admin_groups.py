"""Questions about groups find their coordinator, also while it moves, and keep groups apart."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from tidelog.clients import admin_coordinators, admin_groups
from tidelog.clients.admin import Admin, Node
from tidelog.clients.admin_groups import GroupAdmin
from tidelog.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    ErrorCode,
    GroupIdNotFound,
    NotCoordinator,
    RequestTimedOut,
    UnknownServerError,
)
from tidelog.protocol.message import Message
from tidelog.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from tidelog.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse

Answer = Callable[[Message], Message]


class Cluster(Admin):
    """Two brokers that answer what they are told to, without a socket."""

    def __init__(self) -> None:
        self.coordinator = 1
        self.lookups: deque[int] = deque()
        self.answers: deque[Answer] = deque()
        self.asked: list[int] = []
        self.versions: dict[type[Message], int] = {}

    @property
    def any_broker(self) -> Cluster:  # type: ignore[override]
        return self

    def connection_to(self, node: Node) -> Cluster:  # type: ignore[override]
        return self

    def nodes(self) -> list[Node]:
        return [Node(1, "one", 9092), Node(2, "two", 9092)]

    def serves(self, request: type[Message]) -> bool:
        return True

    def version_for(self, request: type[Message]) -> int:
        return self.versions.get(request, request.VERSIONS.high)

    def call(self, request: FindCoordinatorRequest, answer: type[Message]) -> FindCoordinatorResponse:
        error = self.lookups.popleft() if self.lookups else 0
        if self.version_for(FindCoordinatorRequest) < 4:
            return FindCoordinatorResponse(node_id=self.coordinator, host="old", port=1, error_code=error)
        return FindCoordinatorResponse(
            coordinators=[
                FindCoordinatorResponse.Coordinator(
                    key=key, node_id=self.coordinator, host="one", port=9092, error_code=error
                )
                for key in request.coordinator_keys
            ]
        )

    def call_node(self, node: Node, request: Message, answer: type[Message], **_: object) -> Message:  # type: ignore[override]
        self.asked.append(node.id)
        return self.answers.popleft()(request)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    for module in (admin_coordinators, admin_groups):
        monkeypatch.setattr(module, "PAUSE_SECONDS", 0.001)
    return Cluster()


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
    assert GroupAdmin(cluster).delete(["a", "b"]) == {"a": None, "b": None}
    assert cluster.asked == [1, 2]


def test_a_lookup_without_a_coordinator_is_made_again(cluster: Cluster) -> None:
    cluster.lookups.extend([ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE, 0])
    cluster.answers.append(deleted(a=0))
    assert GroupAdmin(cluster).delete(["a"]) == {"a": None}


def test_coordinators_of_older_brokers_are_looked_up_one_by_one(cluster: Cluster) -> None:
    cluster.versions[FindCoordinatorRequest] = 3
    cluster.answers.append(deleted(a=0, b=0))
    assert GroupAdmin(cluster).delete(["a", "b"]) == {"a": None, "b": None}


def test_the_time_ends_and_the_last_answer_is_told(cluster: Cluster) -> None:
    cluster.answers.extend([deleted(a=NotCoordinator.code, b=0)] + [deleted(a=NotCoordinator.code)] * 1000)
    results = GroupAdmin(cluster, timeout=0.05).delete(["a", "b"])
    assert results["b"] is None
    assert isinstance(results["a"], RequestTimedOut)
    assert "NOT_COORDINATOR" in str(results["a"])


def test_what_is_wrong_with_one_group_is_told_for_it_alone(cluster: Cluster) -> None:
    cluster.answers.append(deleted(a=0, b=GroupIdNotFound.code))
    results = GroupAdmin(cluster).delete(["a", "b", "c"])
    assert results["a"] is None
    assert isinstance(results["b"], GroupIdNotFound)
    # A broker that says nothing of a group has not deleted it.
    assert isinstance(results["c"], UnknownServerError)


def test_groups_of_all_brokers_are_listed_by_name(cluster: Cluster) -> None:
    def listed(*names: str, error: int = 0) -> Answer:
        def answer(request: Message) -> Message:
            assert isinstance(request, ListGroupsRequest)
            groups = [
                ListGroupsResponse.ListedGroup(group_id=name, protocol_type="consumer") for name in names
            ]
            return ListGroupsResponse(groups=groups, error_code=error)

        return answer

    cluster.answers.extend([listed("c", "a"), listed(error=CoordinatorLoadInProgress.code), listed("b")])
    assert [group.group_id for group in GroupAdmin(cluster).list_groups()] == ["a", "b", "c"]
    assert cluster.asked == [1, 2, 2]
