"""Groups watched and changed from outside by other people's admin clients; and groups of other kinds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tests.groups.brokers import QUICK_GROUPS
from tests.groups.outside import find_coordinator
from tests.interop.clients import Confluent, Message
from tests.support.own_cluster import any_broker
from tests.support.routing import routed_connection
from tests.support.wait import eventually
from tidelog import Admin, NewTopic
from tidelog.errors import ErrorCode
from tidelog.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from tidelog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from tidelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

NewName = Callable[[str], str]
PROTOCOLS = ["classic", "consumer"]


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker whose groups neither wait for more members nor take their time."""
    given = os.environ.get("TIDELOG_TEST_BOOTSTRAP")
    if given:
        yield given
        return
    with any_broker(tmp_path_factory.mktemp("broker"), QUICK_GROUPS) as broker:
        yield broker.bootstrap


@pytest.fixture
def topic(bootstrap: str, new_name: NewName) -> str:
    """Two partitions with twenty records in each."""
    name = new_name("grouped")
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(name, 2)])
    for partition in range(2):
        records = [Message(None, b"%d" % number) for number in range(20)]
        Confluent().produce(bootstrap, name, records, partition=partition)
    return name


def consumer(bootstrap: str, group: str, protocol: str = "classic") -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "client.id": "watched",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 50,
        }
    )


@contextmanager
def living_group(bootstrap: str, group: str, topic: str, protocol: str) -> Iterator[Consumer]:
    """A member that has read everything and committed it."""
    member = consumer(bootstrap, group, protocol)
    member.subscribe([topic])
    read = 0

    def done() -> bool:
        nonlocal read
        message = member.poll(0.2)
        read += message is not None and message.error() is None
        return read == 40

    eventually(done, "all records", 30, 0)
    member.commit(asynchronous=False)
    try:
        yield member
    finally:
        member.close()


def offsets(admin: AdminClient, group: str) -> dict[int, int]:
    (answer,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    return {entry.partition: entry.offset for entry in answer.result(20).topic_partitions}


def error_of(call: Callable[[], object]) -> str:
    """The name of the error with which confluent-kafka refuses."""
    with pytest.raises(KafkaException) as refused:
        call()
    name: str = refused.value.args[0].name()
    return name


def test_offsets_are_committed_by_somebody_who_is_no_member(
    bootstrap: str, topic: str, new_name: NewName
) -> None:
    group = new_name("outside")
    committer = consumer(bootstrap, group)
    answer = committer.commit(
        offsets=[TopicPartition(topic, 0, 7, metadata="seven"), TopicPartition(topic, 1, 3)],
        asynchronous=False,
    )
    assert [entry.error for entry in answer] == [None, None]
    found = committer.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], 20)
    assert [(entry.offset, entry.metadata) for entry in found] == [(7, "seven"), (3, None)]
    committer.close()
    admin = AdminClient({"bootstrap.servers": bootstrap})
    listed = {group.group_id: group for group in admin.list_consumer_groups().result(20).valid}
    assert (listed[group].state, listed[group].is_simple_consumer_group) == (ConsumerGroupState.EMPTY, True)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_confluent_kafka_watches_a_group(
    bootstrap: str, topic: str, new_name: NewName, protocol: str
) -> None:
    group, kind = new_name("watched"), ConsumerGroupType[protocol.upper()]
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def listed(**filters: object) -> bool:
        return group in {found.group_id for found in admin.list_consumer_groups(**filters).result(20).valid}

    with living_group(bootstrap, group, topic, protocol) as member:
        assert listed()
        assert listed(states={ConsumerGroupState.STABLE}, types={kind})
        assert not listed(states={ConsumerGroupState.EMPTY})
        assert not listed(types=set(ConsumerGroupType) - {kind, ConsumerGroupType.UNKNOWN})
        found = admin.describe_consumer_groups([group])[group].result(20)
        assert (found.state, found.type, found.is_simple_consumer_group) == (
            ConsumerGroupState.STABLE,
            kind,
            False,
        )
        (described,) = found.members
        assert (described.member_id, described.client_id) == (member.memberid(), "watched")
        assert described.host.lstrip("/") == "127.0.0.1"
        given = {(entry.topic, entry.partition) for entry in described.assignment.topic_partitions}
        assert given == {(topic, 0), (topic, 1)}
        assert offsets(admin, group) == {0: 20, 1: 20}
    found = eventually(
        lambda: (
            described
            if not (described := admin.describe_consumer_groups([group])[group].result(20)).members
            else None
        ),
        "the member has left",
    )
    assert found.state == ConsumerGroupState.EMPTY
    assert offsets(admin, group) == {0: 20, 1: 20}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_confluent_kafka_changes_a_group_only_while_it_is_empty(
    bootstrap: str, topic: str, new_name: NewName, protocol: str
) -> None:
    group = new_name("changed")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 5), TopicPartition(topic, 1, 20)])

    def alter() -> list[object]:
        (answer,) = admin.alter_consumer_group_offsets([wanted]).values()
        return [entry.error and entry.error.name() for entry in answer.result(20).topic_partitions]

    with living_group(bootstrap, group, topic, protocol):
        assert alter() == ["UNKNOWN_MEMBER_ID"] * 2
        assert error_of(lambda: admin.delete_consumer_groups([group])[group].result(20)) == "NON_EMPTY_GROUP"
        assert offsets(admin, group) == {0: 20, 1: 20}
    eventually(lambda: alter() == [None, None], "the group is empty")
    assert offsets(admin, group) == {0: 5, 1: 20}
    again = consumer(bootstrap, group, protocol)
    again.subscribe([topic])
    message = eventually(lambda: again.poll(0.2), "a record", 30, 0)
    assert (message.partition(), message.offset()) == (0, 5)
    again.close()
    eventually(
        lambda: not admin.describe_consumer_groups([group])[group].result(20).members, "the group is empty"
    )
    assert admin.delete_consumer_groups([group])[group].result(20) is None
    assert error_of(lambda: admin.delete_consumer_groups([group])[group].result(20)) == "GROUP_ID_NOT_FOUND"
    assert group not in {found.group_id for found in admin.list_consumer_groups().result(20).valid}
    assert set(offsets(admin, group).values()) <= {-1001}


def test_kafka_python_watches_and_changes_a_group(bootstrap: str, topic: str, new_name: NewName) -> None:
    from kafka.admin import MemberToRemove, OffsetSpec
    from kafka.errors import GroupSubscribedToTopicError, NoError, NonEmptyGroupError, UnknownMemberIdError

    from kafka import KafkaAdminClient, OffsetAndMetadata
    from kafka import TopicPartition as Partition

    group = new_name("kafka-python")
    both = [Partition(topic, 0), Partition(topic, 1)]
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        with living_group(bootstrap, group, topic, "classic") as member:
            listed = {found["group_id"]: found for found in admin.list_groups(states_filter=["Stable"])}
            assert (listed[group]["group_type"], listed[group]["protocol_type"]) == ("classic", "consumer")
            described = admin.describe_groups([group])[group]
            assert (described["group_state"], described["protocol_data"]) == ("Stable", "range")
            assert [entry["member_id"] for entry in described["members"]] == [member.memberid()]
            found = admin.list_group_offsets({group: None})[group]
            assert {partition.partition: entry.offset for partition, entry in found.items()} == {0: 20, 1: 20}
            refused = admin.alter_group_offsets(group, {both[0]: OffsetAndMetadata(1, "", -1)})
            assert refused == {both[0]: UnknownMemberIdError}
            assert admin.delete_groups([group]) == {group: NonEmptyGroupError.__name__}
            assert admin.delete_group_offsets(group, both) == dict.fromkeys(both, GroupSubscribedToTopicError)
            removed = MemberToRemove(member_id=member.memberid())
            assert list(admin.remove_group_members(group, [removed]).values()) == [NoError]
        eventually(lambda: admin.describe_groups([group])[group]["group_state"] == "Empty", "an empty group")
        reset = admin.reset_group_offsets(group, {both[0]: OffsetSpec.EARLIEST, both[1]: 7})
        assert {entry["offset"] for entry in reset.values()} == {0, 7}
        assert admin.delete_group_offsets(group, both[:1]) == {both[0]: NoError}
        found = admin.list_group_offsets({group: None})[group]
        assert {partition.partition: entry.offset for partition, entry in found.items()} == {1: 7}
        admin.delete_groups([group])
        assert group not in {found["group_id"] for found in admin.list_groups()}
    finally:
        admin.close()


# --- groups of another protocol type, as Connect's workers make them


class Worker:
    def __init__(self, bootstrap: str, group: str) -> None:
        self.connection = routed_connection(bootstrap, client_id="worker")
        self.group = group
        self.member_id = ""
        self.joined = JoinGroupResponse()

    def send_join(self) -> None:
        protocols = [
            JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=name.encode() + b" of a worker")
            for name in ("sessioned", "compatible")
        ]
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id=self.member_id,
            protocol_type="connect",
            protocols=protocols,
        )
        self.connection.send(request, 7)

    def receive_join(self) -> JoinGroupResponse:
        answer = self.connection.receive(JoinGroupRequest, 7, 20)
        assert isinstance(answer, JoinGroupResponse)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            self.send_join()
            return self.receive_join()
        assert answer.error_code == 0, ErrorCode(answer.error_code).name
        self.joined = answer
        return answer

    def sync(self, assignments: dict[str, bytes]) -> bytes:
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.joined.generation_id,
            member_id=self.member_id,
            protocol_type="connect",
            protocol_name="sessioned",
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=member, assignment=assignment)
                for member, assignment in assignments.items()
            ],
        )
        answer = self.connection.ask(request, SyncGroupResponse, 5, 20)
        assert (answer.error_code, answer.protocol_type) == (0, "connect")
        return answer.assignment

    def heartbeat(self) -> int:
        request = HeartbeatRequest(
            group_id=self.group, generation_id=self.joined.generation_id, member_id=self.member_id
        )
        return self.connection.ask(request, HeartbeatResponse, 4).error_code


def test_connect_workers_bring_their_own_protocol(bootstrap: str, topic: str, new_name: NewName) -> None:
    group = new_name("connect")
    first, second = Worker(bootstrap, group), Worker(bootstrap, group)
    find_coordinator(first.connection, group)
    first.send_join()
    first.receive_join()
    assert (first.joined.protocol_name, first.joined.leader) == ("sessioned", first.member_id)
    assert first.sync({first.member_id: b"all"}) == b"all"
    second.send_join()
    # The first answer to the second gives it a name, and its second request starts the rebalance.
    answer = second.connection.receive(JoinGroupRequest, 7, 20)
    assert isinstance(answer, JoinGroupResponse)
    second.member_id = answer.member_id
    second.send_join()
    eventually(lambda: first.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS, "the rebalance")
    first.send_join()
    leader, other = first.receive_join(), second.receive_join()
    assert leader.generation_id == other.generation_id == 2
    assert {member.member_id: member.metadata for member in leader.members} == {
        first.member_id: b"sessioned of a worker",
        second.member_id: b"sessioned of a worker",
    }
    assert other.members == []
    assert first.sync({first.member_id: b"half", second.member_id: b"other half"}) == b"half"
    assert second.sync({}) == b"other half"
    assert first.heartbeat() == second.heartbeat() == 0
    described = first.connection.ask(DescribeGroupsRequest(groups=[group]), DescribeGroupsResponse, 5).groups[
        0
    ]
    assert (described.group_state, described.protocol_type, described.protocol_data) == (
        "Stable",
        "connect",
        "sessioned",
    )
    assert {member.member_assignment for member in described.members} == {b"half", b"other half"}
    # A consumer cannot join them.
    stranger = consumer(bootstrap, group)
    stranger.subscribe([topic])
    message = eventually(lambda: stranger.poll(0.2), "the refusal", 20, 0)
    error = message.error()
    assert error is not None
    assert error.name() == "INCONSISTENT_GROUP_PROTOCOL"
    stranger.close()
    for worker in (first, second):
        worker.connection.close()
