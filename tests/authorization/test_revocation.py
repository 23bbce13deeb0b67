"""A rule that is gone, or a deny rule that came, counts from the answer to its change on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from tests.authorization.users import Users
from tests.support.raw import RawConnection
from tests.support.wait import eventually
from tests.transactions.by_hand import open_transaction
from tidelog.errors import ErrorCode
from tidelog.protocol.json import Json
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.protocol.messages.produce import ProduceRequest, ProduceResponse
from tidelog.records.batch import Record, build_batch
from tidelog.testing import Broker

READ, WRITE, DESCRIBE = 3, 4, 8
TRANSACTIONAL_ID = 5
DENIED, ID_DENIED = 29, 53


@pytest.fixture
def users(monkeypatch: pytest.MonkeyPatch) -> Iterator[Users]:
    settings = {
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:admin;User:ANONYMOUS",
    }
    with Broker(settings) as broker:
        broker.create_topic("t")
        broker.create_topic("other")
        broker.produce("t", "first")
        yield Users(broker.bootstrap_servers, monkeypatch)


def allow(
    users: Users, user: str, operation: int, *, permission: int = 3, kind: int = 2, name: str = "t"
) -> None:
    rule: dict[str, Json] = {
        "resourceType": kind,
        "resourceName": name,
        "principal": f"User:{user}",
        "host": "*",
        "operation": operation,
        "permissionType": permission,
    }
    with users.connect("admin") as admin:
        answer = admin.call_json("CreateAcls", 3, {"creations": [rule]})
    assert cast("list[dict[str, Json]]", answer["results"])[0]["errorCode"] == 0


def revoke(users: Users, user: str, kind: int = 1) -> None:
    wanted: dict[str, Json] = {
        "resourceTypeFilter": kind,
        "resourceNameFilter": None,
        "patternTypeFilter": 1,
        "principalFilter": f"User:{user}",
        "hostFilter": None,
        "operation": 1,
        "permissionType": 1,
    }
    with users.connect("admin") as admin:
        admin.call_json("DeleteAcls", 3, {"filters": [wanted]})


def produce(
    connection: RawConnection,
    topic: str = "t",
    transaction: tuple[str, int, int] | None = None,
    sequence: int = -1,
) -> int:
    """The error code. A `transaction` is its id, producer id and epoch."""
    name, producer_id, epoch = transaction or (None, -1, -1)
    batch = build_batch(
        [Record(0, 1_700_000_000_000, b"k", b"v")],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transaction is not None,
    )
    partition = ProduceRequest.PartitionProduceData(index=0, records=batch)
    request = ProduceRequest(
        transactional_id=name,
        acks=1,
        timeout_ms=1000,
        topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[partition])],
    )
    answer = connection.ask(request, ProduceResponse, 9)
    return answer.responses[0].partition_responses[0].error_code


class Session:
    """A fetch session of topic t, on any connection."""

    def __init__(self) -> None:
        self.session_id = self.epoch = self.offset = 0

    def fetch(self, connection: RawConnection, wait_ms: int = 0) -> list[int]:
        """The error codes of the partitions in the answer, or that of the whole answer."""
        partition = FetchRequest.FetchPartition(
            partition=0, fetch_offset=self.offset, partition_max_bytes=10_000
        )
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=10_000,
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=[FetchRequest.FetchTopic(topic="t", partitions=[partition])] if self.offset >= 0 else [],
        )
        answer = connection.ask(request, FetchResponse, 12)
        if answer.error_code:
            return [answer.error_code]
        self.session_id, self.epoch = answer.session_id, self.epoch + 1
        return [part.error_code for topic in answer.responses for part in topic.partitions]

    def read_to_the_end(self, connection: RawConnection) -> None:
        """From here on the session has no news, and names no partition any more."""
        assert self.fetch(connection) == [0]
        self.offset = 1
        self.fetch(connection)
        self.offset = -1
        assert self.fetch(connection) == []


def test_a_produce_is_refused_once_its_rule_is_gone(users: Users) -> None:
    allow(users, "alice", WRITE)
    with users.connect("alice") as alice:
        assert [produce(alice) for _ in range(5)] == [0] * 5
        assert produce(alice, "other") == DENIED
        revoke(users, "alice")
        assert produce(alice) == DENIED
        allow(users, "alice", WRITE)
        assert produce(alice) == 0
        allow(users, "*", WRITE, permission=2)
        assert produce(alice) == DENIED


def test_a_client_that_may_write_to_a_topic_does_not_write_in_transactions_of_others(users: Users) -> None:
    """Also on a connection that remembers the topic, and after it remembered the transactional id."""
    allow(users, "alice", WRITE)
    with users.connect("admin") as admin, users.connect("alice") as alice:
        theirs = ("id", *open_transaction(admin, "t", transactional_id="id"))
        assert [produce(alice) for _ in range(3)] == [0] * 3
        assert produce(alice, transaction=theirs, sequence=1) == ID_DENIED
        allow(users, "alice", WRITE, kind=TRANSACTIONAL_ID, name="id")
        assert [produce(alice, transaction=theirs, sequence=number) for number in (1, 2, 3)] == [0] * 3
        revoke(users, "alice", TRANSACTIONAL_ID)
        assert [produce(alice) for _ in range(2)] == [0] * 2
        assert produce(alice, transaction=theirs, sequence=4) == ID_DENIED


def test_a_client_neither_adds_to_nor_ends_an_open_transaction_of_others(users: Users) -> None:
    """Without rights: also by the short way of small requests."""
    with users.connect("admin") as admin, users.connect("alice") as alice:
        producer_id, epoch = open_transaction(admin, "t", transactional_id="id")
        add: dict[str, Json] = {
            "v3AndBelowTransactionalId": "id",
            "v3AndBelowProducerId": producer_id,
            "v3AndBelowProducerEpoch": epoch,
            "v3AndBelowTopics": [{"name": "other", "partitions": [0]}],
        }
        answer = alice.call_json("AddPartitionsToTxn", 3, add)
        assert f"'partitionErrorCode': {ID_DENIED}" in str(answer)
        end: dict[str, Json] = {
            "transactionalId": "id",
            "producerId": producer_id,
            "producerEpoch": epoch,
            "committed": True,
        }
        for version in (1, 3, 5):
            assert alice.call_json("EndTxn", version, end)["errorCode"] == ID_DENIED
        assert admin.call_json("EndTxn", 3, end)["errorCode"] == 0


def test_one_connection_does_not_remember_for_another_user(users: Users) -> None:
    allow(users, "alice", WRITE)
    with users.connect("alice") as alice, users.connect("bob") as bob:
        assert produce(alice) == 0
        assert produce(bob) == DENIED


def test_a_produce_without_acks_closes_the_connection_of_a_denied_client(users: Users) -> None:
    partition = ProduceRequest.PartitionProduceData(
        index=0, records=build_batch([Record(0, 1_700_000_000_000, b"k", b"v")])
    )
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[partition])
    with users.connect("alice") as alice:
        alice.send(ProduceRequest(acks=0, timeout_ms=1000, topic_data=[topic]), 9)
        assert alice.is_closed_by_peer()


def test_a_fetch_session_ends_to_read_once_its_rule_is_gone(users: Users) -> None:
    allow(users, "alice", READ)
    session = Session()
    with users.connect("alice") as alice:
        session.read_to_the_end(alice)
        revoke(users, "alice")
        assert session.fetch(alice) == [DENIED]
        assert session.fetch(alice) == [DENIED]
        allow(users, "alice", READ)
        assert session.fetch(alice) == [0]


def test_a_fetch_session_of_another_client_gives_no_records(users: Users) -> None:
    allow(users, "alice", READ)
    session = Session()
    with users.connect("alice") as alice, users.connect("bob") as bob:
        session.read_to_the_end(alice)
        assert session.fetch(bob, wait_ms=5000) == [ErrorCode.FETCH_SESSION_ID_NOT_FOUND]


def test_a_pattern_finds_the_topics_that_the_member_may_describe(users: Users) -> None:
    allow(users, "alice", DESCRIBE)
    rule: dict[str, Json] = {
        "resourceType": 3,
        "resourceName": "g",
        "principal": "User:alice",
        "host": "*",
        "operation": READ,
        "permissionType": 3,
    }
    with users.connect("admin") as admin:
        admin.call_json("CreateAcls", 3, {"creations": [rule]})
        admin.call_json("FindCoordinator", 3, {"key": "g", "keyType": 0})  # makes the topic of groups
        found = admin.call_json("Metadata", 12, {"topics": [{"name": "t"}]})
        topic_id = cast("list[dict[str, Json]]", found["topics"])[0]["topicId"]
    with users.connect("alice") as alice:
        epoch = 0

        def assigned() -> Json:
            nonlocal epoch
            answer = alice.call_json(
                "ConsumerGroupHeartbeat",
                1,
                {
                    "groupId": "g",
                    "memberId": "member",
                    "memberEpoch": epoch,
                    "rebalanceTimeoutMs": 10000,
                    "subscribedTopicRegex": ".*",
                    "topicPartitions": [],
                },
            )
            epoch = cast("int", answer["memberEpoch"]) if not answer["errorCode"] else epoch
            assignment = cast("dict[str, Json] | None", answer["assignment"])
            return None if assignment is None else assignment["topicPartitions"] or None

        partitions = eventually(assigned, "the member has partitions", 20.0, 0.1)
    topics = {topic["topicId"] for topic in cast("list[dict[str, Json]]", partitions)}
    assert topics == {topic_id}


def test_a_topic_is_not_seen_by_clients_that_may_not_describe_it(users: Users) -> None:
    allow(users, "alice", DESCRIBE)
    with users.connect("alice") as alice, users.connect("bob") as bob:
        for user, expected in ((alice, {"t"}), (bob, set())):
            answer = user.call_json("Metadata", 12, {"topics": None})
            topics = cast("list[dict[str, Json]]", answer["topics"])
            assert {topic["name"] for topic in topics} == expected
        answer = bob.call_json("Metadata", 12, {"topics": [{"name": "t"}, {"name": "nowhere"}]})
        topics = cast("list[dict[str, Json]]", answer["topics"])
        assert {topic["errorCode"] for topic in topics} == {DENIED}
