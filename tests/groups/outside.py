"""A group seen from outside, by plain requests: members, state, committed offsets; and the ends of logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tests.support.raw import ConnectionClosed, NoAnswer, RawConnection
from tests.support.routing import routed_connection
from tests.support.wait import eventually
from tidelog.errors import ErrorCode
from tidelog.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from tidelog.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from tidelog.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tidelog.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse

Partition = tuple[str, int]
GONE = (ConnectionClosed, NoAnswer, OSError)
NOT_NOW = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
)


@dataclass(slots=True, frozen=True)
class Seen:
    state: str
    members: frozenset[str]  # their client ids
    epoch: int  # of a consumer group, else -1
    owners: Mapping[Partition, list[str]]  # of a consumer group: who has each partition now


def find_coordinator(connection: RawConnection, group: str) -> None:
    """Until the broker says that it coordinates the group; the first such request makes the offsets topic."""

    def found() -> bool:
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
        answer = connection.ask(request, FindCoordinatorResponse, 4)
        return answer.coordinators[0].error_code == 0

    eventually(found, f"a coordinator of {group}", 30, 0.05)


class Group:
    def __init__(self, bootstrap: str, name: str, *, consumer_protocol: bool = False) -> None:
        self.bootstrap = bootstrap
        self.name = name
        self.consumer_protocol = consumer_protocol

    def seen(self) -> Seen | None:
        """None while the broker does not answer, or does not know the group."""
        try:
            with routed_connection(self.bootstrap, timeout=5) as connection:
                return (
                    self._describe_new(connection) if self.consumer_protocol else self._describe(connection)
                )
        except GONE:
            return None

    def _describe(self, connection: RawConnection) -> Seen | None:
        answer = connection.ask(DescribeGroupsRequest(groups=[self.name]), DescribeGroupsResponse, 5)
        group = answer.groups[0]
        if group.error_code:
            return None
        return Seen(group.group_state, frozenset(member.client_id for member in group.members), -1, {})

    def _describe_new(self, connection: RawConnection) -> Seen | None:
        request = ConsumerGroupDescribeRequest(group_ids=[self.name], include_authorized_operations=False)
        group = connection.ask(request, ConsumerGroupDescribeResponse, 1).groups[0]
        if group.error_code:
            return None
        owners: dict[Partition, list[str]] = {}
        for member in group.members:
            for topic in member.assignment.topic_partitions:
                for partition in topic.partitions:
                    owners.setdefault((topic.topic_name, partition), []).append(member.client_id)
        members = frozenset(member.client_id for member in group.members)
        return Seen(group.group_state, members, group.group_epoch, owners)

    def wait_until_there(self, client_id: str, timeout: float = 40.0) -> None:
        """Until the group has such a member."""

        def there() -> bool:
            seen = self.seen()
            return seen is not None and client_id in seen.members

        eventually(there, f"{self.name} with {client_id}", timeout, 0.02)

    def wait_until_gone(self, client_id: str, timeout: float = 20.0) -> None:
        """Until the group has no such member any more."""

        def gone() -> bool:
            seen = self.seen()
            return seen is not None and client_id not in seen.members

        eventually(gone, f"{self.name} without {client_id}", timeout, 0.05)

    def wait_until_stable(self, members: Iterable[str], timeout: float = 30.0) -> Seen:
        wanted = frozenset(members)

        def stable() -> Seen | None:
            seen = self.seen()
            return seen if seen is not None and seen.state == "Stable" and seen.members == wanted else None

        return eventually(stable, f"{self.name} stable with {sorted(wanted)}", timeout, 0.05)

    def committed(self) -> dict[Partition, int] | None:
        """Every committed offset; None while the broker cannot say."""
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=self.name, topics=None)]
        )
        try:
            with routed_connection(self.bootstrap, timeout=5) as connection:
                group = connection.ask(request, OffsetFetchResponse, 8).groups[0]
        except GONE:
            return None
        if group.error_code in NOT_NOW:
            return None
        assert group.error_code == 0, ErrorCode(group.error_code).name
        return {
            (topic.name, partition.partition_index): partition.committed_offset
            for topic in group.topics
            for partition in topic.partitions
        }

    def commit(self, offsets: Mapping[Partition, int], generation: int = -1, member: str = "") -> set[int]:
        """Commit by a plain request; the error codes of the partitions."""
        with routed_connection(self.bootstrap) as connection:
            return commit(connection, self.name, offsets, generation, member)


def commit(
    connection: RawConnection,
    group: str,
    offsets: Mapping[Partition, int],
    generation: int = -1,
    member: str = "",
) -> set[int]:
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequest.OffsetCommitRequestPartition(
                        partition_index=partition, committed_offset=offset, committed_metadata=""
                    )
                ],
            )
            for (topic, partition), offset in offsets.items()
        ],
    )
    answer = connection.ask(request, OffsetCommitResponse, 9)
    return {partition.error_code for topic in answer.topics for partition in topic.partitions}


def log_ends(bootstrap: str, topic: str, partitions: int) -> dict[Partition, int] | None:
    """The end of each log; None while the broker cannot say."""
    found: list[ListOffsetsResponse.ListOffsetsPartitionResponse] = []
    try:
        with routed_connection(bootstrap, timeout=5) as connection:
            for index in range(partitions):
                wanted = ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=-1)
                named = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[wanted])
                request = ListOffsetsRequest(replica_id=-1, topics=[named])
                found += connection.ask(request, ListOffsetsResponse, 7).topics[0].partitions
    except GONE:
        return None
    if any(partition.error_code for partition in found):
        return None
    return {(topic, partition.partition_index): partition.offset for partition in found}
