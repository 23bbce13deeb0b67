"""Brokers need ClusterAction for their requests, and a forwarded request what its client needs."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.authorization.audit_events import audit_events
from tests.authorization.cases import CASES
from tests.cluster.controlled import leader_and_isr
from tests.server.cluster_broker import BROKERS, CLIENTS, ClusterBroker
from tests.server.test_controller_requests import create_topic, envelope, principal
from tests.support.raw import RawConnection, message_class
from tidelog.clients.connection import answer_body
from tidelog.errors import ElectionNotNeeded, ErrorCode, NoReassignmentInProgress
from tidelog.partitions import TopicPartition
from tidelog.protocol.api import API
from tidelog.protocol.json import Json
from tidelog.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from tidelog.protocol.messages.envelope import EnvelopeResponse
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.security.acl import AccessControlEntry, AclPermissionType, ResourcePattern
from tidelog.security.acl_authorizer import AclAuthorizer
from tidelog.security.operations import AclOperation, AclResourceType
from tidelog.server.apis import FAMILIES_OF_CLUSTER, served_apis

RECORDED = Path(__file__).parent.parent / "data" / "acl_matrix_kafka3.json.gz"
CLUSTER = ResourcePattern(AclResourceType.CLUSTER, "kafka-cluster")
OF_BROKERS = {api.key for api in served_apis(cluster=True).values() if api.from_brokers}
CASES_OF_BROKERS = [case for case in CASES if message_class(f"{case.api}Request").KEY in OF_BROKERS]
DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def entry(principal: str, operation: AclOperation, host: str = "*") -> AccessControlEntry:
    return AccessControlEntry(principal, host, operation, AclPermissionType.ALLOW)


@pytest.fixture
def authorizer() -> AclAuthorizer:
    return AclAuthorizer()


@pytest.fixture
def broker(tmp_path: Path, authorizer: AclAuthorizer) -> Iterator[ClusterBroker]:
    with ClusterBroker(tmp_path / "log") as running:
        running.services.authorizer = authorizer
        yield running


def let_brokers_in(authorizer: AclAuthorizer) -> None:
    authorizer.cache.replace(CLUSTER, [entry("User:ANONYMOUS", AclOperation.CLUSTER_ACTION)])


def without_names(value: Json) -> Json:
    """An answer of the matrix without what its cells leave out."""
    if isinstance(value, list):
        return [without_names(item) for item in value]
    if isinstance(value, dict):
        return {
            key: without_names(item)
            for key, item in value.items()
            if key in ("errorCode", "topicName", "partitionIndex") or (item and isinstance(item, list))
        }
    return value


@pytest.mark.parametrize("case", CASES_OF_BROKERS, ids=lambda case: case.name)
def test_a_broker_without_cluster_action_is_denied_as_in_kafka(
    broker: ClusterBroker, authorizer: AclAuthorizer, case: object
) -> None:
    found = next(each for each in CASES_OF_BROKERS if each is case)
    (version,) = found.versions
    recorded: dict[str, Json] = json.loads(gzip.decompress(RECORDED.read_bytes()))
    connection = broker.connect()
    answer = connection.call_json(found.api, version, found.request(version))
    assert without_names(answer) == recorded[f"{found.name}/none/{version}"]
    let_brokers_in(authorizer)
    answer = connection.call_json(found.api, version, found.request(version))
    assert answer["errorCode"] != DENIED


def test_every_api_between_brokers_has_a_case() -> None:
    assert {case.api for case in CASES_OF_BROKERS} == {API[key].name for key in OF_BROKERS} - {"Envelope"}
    assert FAMILIES_OF_CLUSTER == ("controller_requests", "broker_requests", "envelope")


def test_every_api_declares_its_checks() -> None:
    kinds = {kind.name for kind in AclResourceType}
    operations = {operation.name for operation in AclOperation}
    for api in served_apis(cluster=True).values():
        assert api.access is not None, f"{API[api.key].name}: name its checks with access=, or NOT_CHECKED"
        for check in api.access:
            kind, _, operation = check.partition(" ")
            assert (kind in kinds, operation in operations) == (True, True), check


def created(broker: ClusterBroker, user: str) -> tuple[int, list[int]]:
    """The error of an Envelope with a new topic, and the errors of the answer in it."""
    request = envelope(create_topic(), principal=principal(user))
    answer = broker.connect().ask(request, EnvelopeResponse, 0)
    if answer.response_data is None:
        return answer.error_code, []
    body = answer_body(CreateTopicsRequest, 7, bytes(answer.response_data))
    inner = CreateTopicsResponse.decode(body, 7)
    return answer.error_code, [topic.error_code for topic in inner.topics]


def test_a_forwarded_request_is_checked_with_the_client_and_its_address(
    broker: ClusterBroker, authorizer: AclAuthorizer
) -> None:
    assert created(broker, "alice") == (DENIED, [])
    let_brokers_in(authorizer)
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert created(broker, "alice") == (0, [denied])
    topic = ResourcePattern(AclResourceType.TOPIC, "new")
    authorizer.cache.replace(topic, [entry("User:alice", AclOperation.CREATE, "10.0.0.1")])
    assert created(broker, "alice") == (0, [denied])
    authorizer.cache.replace(topic, [entry("User:alice", AclOperation.CREATE, "127.0.0.2")])
    assert created(broker, "bob") == (0, [denied])
    assert broker.controller.created == []
    assert created(broker, "alice") == (0, [0])
    assert broker.controller.created == ["new"]


def test_a_follower_needs_cluster_action_and_not_read(
    broker: ClusterBroker, authorizer: AclAuthorizer
) -> None:
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    request = FetchRequest(
        replica_id=2,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1000,
        topics=[FetchRequest.FetchTopic(topic="t", partitions=[partition])],
    )

    def code() -> int:
        answer = cast("FetchResponse", broker.connect().call(request, 12))
        return answer.responses[0].partitions[0].error_code

    topic = ResourcePattern(AclResourceType.TOPIC, "t")
    authorizer.cache.replace(topic, [entry("User:ANONYMOUS", AclOperation.READ)])
    assert code() == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    authorizer.cache.replace(topic, [])
    let_brokers_in(authorizer)
    assert code() == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_what_a_client_has_the_controller_do_is_in_the_audit(
    broker: ClusterBroker, authorizer: AclAuthorizer
) -> None:
    """Markers of a coordinator are not: each transaction has some."""
    may_alter, may_act = (
        entry("User:ANONYMOUS", operation) for operation in (AclOperation.ALTER, AclOperation.CLUSTER_ACTION)
    )
    authorizer.cache.replace(CLUSTER, [may_alter, may_act])
    with audit_events() as events:
        broker.services.audit.is_on = True
        client = broker.connect()
        t, u = TopicPartition("t", 0), TopicPartition("u", 1)
        broker.controller.errors = {t: None, u: ElectionNotNeeded()}
        topics: list[Json] = [{"topic": "t", "partitions": [0]}, {"topic": "u", "partitions": [1]}]
        client.call_json("ElectLeaders", 2, {"electionType": 1, "topicPartitions": topics, "timeoutMs": 1})
        broker.controller.errors = {t: None, u: None, TopicPartition("u", 2): NoReassignmentInProgress()}
        moved: Json = {"name": "t", "partitions": [{"partitionIndex": 0, "replicas": [2, 1]}]}
        stopped: list[Json] = [{"partitionIndex": index, "replicas": None} for index in (1, 2)]
        wanted: list[Json] = [moved, {"name": "u", "partitions": stopped}]
        client.call_json("AlterPartitionReassignments", 0, {"topics": wanted, "timeoutMs": 1})
        client.call(leader_and_isr("t", 0), 7)
        marker: Json = {
            "producerId": 7,
            "producerEpoch": 0,
            "transactionResult": False,
            "topics": [{"name": "t", "partitionIndexes": [0]}],
            "coordinatorEpoch": 0,
        }
        sender = "broker-1-txn-marker-sender"
        of_coordinator = RawConnection(broker.server.addresses[BROKERS], client_id=sender)
        of_client = RawConnection(broker.server.addresses[CLIENTS], client_id=sender)
        with of_coordinator, of_client:
            authorizer.cache.replace(CLUSTER, [may_alter])  # a name makes no broker of a client
            of_coordinator.call_json("WriteTxnMarkers", 1, {"markers": [marker]})
            authorizer.cache.replace(CLUSTER, [may_alter, may_act])
            for connection in (client, of_coordinator, of_client):
                connection.call_json("WriteTxnMarkers", 1, {"markers": [marker]})
    aborted = ("WriteTxnMarkers", "Topic:t", "transaction of producer 7 aborted: partitions 0")
    assert [(event["api"], event["resource"], event["change"]) for event in events] == [
        ("ElectLeaders", "Topic:t", "leader elected (unclean): partitions 0"),
        ("AlterPartitionReassignments", "Topic:t", "reassigned: partitions 0"),
        ("AlterPartitionReassignments", "Topic:u", "reassignment cancelled: partitions 1"),
        aborted,
        aborted,
        aborted,
    ]
    assert {(event["principal"], event["host"]) for event in events} == {("User:ANONYMOUS", "127.0.0.1")}
