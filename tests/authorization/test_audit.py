"""The audit names who was denied and who changed what, in the log and in a topic."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.authorization.audit_events import audit_events
from tests.authorization.matrix import plain_connection
from tests.authorization.test_token_access import SETTINGS as WITH_TOKENS
from tests.authorization.test_token_access import create
from tests.authorization.users import Users
from tests.support.raw import RawConnection
from tests.support.wait import eventually
from tidelog.protocol.api import API
from tidelog.protocol.json import Json
from tidelog.server.apis import served_apis
from tidelog.server.audit import AuditEvent
from tidelog.server.audit_topic import MAX_WAITING, AuditTopic
from tidelog.testing import Broker

KEYS = ("event", "principal", "api", "resource")
AUTHORIZER = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:admin;User:ANONYMOUS",
}


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[AuditEvent]]:
    """The events of the logger, which grows with the log."""
    with audit_events() as found:
        yield found


def commit(connection: RawConnection, group: str) -> Json:
    """The error code of a commit for a group without members."""
    offset: dict[str, Json] = {"partitionIndex": 0, "committedOffset": 0, "committedMetadata": ""}
    topic: dict[str, Json] = {"name": "t", "partitions": [offset]}
    answer = connection.call_json("OffsetCommit", 8, {"groupId": group, "topics": [topic]})
    return answer["topics"][0]["partitions"][0]["errorCode"]  # type: ignore[index,call-overload]


def test_denials_and_changes_are_in_the_log(
    lines: list[AuditEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Broker(AUTHORIZER) as broker:
        users = Users(broker.bootstrap_servers, monkeypatch)
        with users.connect("alice") as alice, users.connect("admin") as admin:
            alice.call_json("Metadata", 12, {"topics": [{"name": "secret"}], "allowAutoTopicCreation": False})
            alice.call_json("Metadata", 12, {"topics": None})
            topic: dict[str, Json] = {"name": "t", "numPartitions": 1, "replicationFactor": 1}
            admin.call_json("CreateTopics", 7, {"topics": [topic]})
            setting: dict[str, Json] = {"name": "retention.ms", "configOperation": 0, "value": "12345678"}
            resource: dict[str, Json] = {"resourceType": 2, "resourceName": "t", "configs": [setting]}
            admin.call_json("IncrementalAlterConfigs", 1, {"resources": [resource]})
            rule: dict[str, Json] = {
                "resourceType": 2,
                "resourceName": "t",
                "principal": "User:alice",
                "host": "*",
                "operation": 3,
                "permissionType": 3,
            }
            admin.call_json("CreateAcls", 3, {"creations": [rule]})
            below: dict[str, Json] = {"partitionIndex": 0, "offset": 0}
            records: dict[str, Json] = {"topics": [{"name": "t", "partitions": [below]}], "timeoutMs": 5000}
            admin.call_json("DeleteRecords", 2, records)
            admin.call_json("FindCoordinator", 3, {"key": "g", "keyType": 0})
            eventually(lambda: commit(admin, "g") == 0, "the group has an offset")
            admin.call_json("DeleteGroups", 2, {"groupsNames": ["g", "no-such-group"]})
            admin.call_json("DeleteTopics", 6, {"topics": [{"name": "t"}], "timeoutMs": 5000})
    brief = [
        (*(line[key] for key in KEYS), line["operation" if line["event"] == "denied" else "change"])
        for line in lines
    ]
    assert brief == [
        ("denied", "User:alice", "Metadata", "Topic:secret", "Describe"),
        ("changed", "User:admin", "CreateTopics", "Topic:t", "created"),
        ("changed", "User:admin", "IncrementalAlterConfigs", "TopicConfig:t", "changed: retention.ms"),
        (
            "changed",
            "User:admin",
            "CreateAcls",
            "Acl:Allow User:alice Read from * on Topic:LITERAL:t",
            "created",
        ),
        ("changed", "User:admin", "DeleteRecords", "Topic:t", "records deleted from 1 partitions"),
        ("changed", "User:admin", "DeleteGroups", "Group:g", "deleted"),
        ("changed", "User:admin", "DeleteTopics", "Topic:t", "deleted"),
    ]
    assert {line["host"] for line in lines} == {"127.0.0.1"}
    assert "12345678" not in str(lines)


AUDITED = {
    "AlterClientQuotas",
    "AlterConfigs",
    "AlterPartitionReassignments",
    "AlterReplicaLogDirs",
    "AlterUserScramCredentials",
    "CreateAcls",
    "CreateDelegationToken",
    "CreatePartitions",
    "CreateTopics",
    "DeleteAcls",
    "DeleteGroups",
    "DeleteRecords",
    "DeleteTopics",
    "ElectLeaders",
    "ExpireDelegationToken",
    "IncrementalAlterConfigs",
    "Metadata",  # creates topics
    "OffsetDelete",
    "RenewDelegationToken",
    "WriteTxnMarkers",
}
OF_RECORDS_AND_MEMBERS = {
    "AddOffsetsToTxn",
    "AddPartitionsToTxn",
    "ConsumerGroupHeartbeat",
    "EndTxn",
    "Heartbeat",
    "InitProducerId",
    "JoinGroup",
    "LeaveGroup",
    "OffsetCommit",
    "Produce",
    "PushTelemetry",
    "SaslAuthenticate",
    "SyncGroup",
    "TxnOffsetCommit",
}
"""What clients do all the time: the topics and groups have it."""

ANSWER_ALONE = {
    "ApiVersions",
    "ConsumerGroupDescribe",
    "Fetch",
    "FindCoordinator",
    "GetTelemetrySubscriptions",
    "OffsetFetch",
    "OffsetForLeaderEpoch",
    "SaslHandshake",
}


def test_every_api_is_audited_or_changes_nothing_that_an_administrator_does() -> None:
    apis = {API[key].name for key, api in served_apis(cluster=True).items() if not api.from_brokers}
    reads = {name for name in apis if name.startswith(("Describe", "List"))}
    assert apis - reads == AUDITED | OF_RECORDS_AND_MEMBERS | ANSWER_ALONE


def test_changes_of_settings_quotas_users_and_offsets_are_in_the_log(
    lines: list[AuditEvent], tmp_path: Path
) -> None:
    folders = [str(tmp_path / "a"), str(tmp_path / "b")]
    with Broker(AUTHORIZER | {"log.dirs": ",".join(folders), "broker.id": "0"}) as broker:
        client = RawConnection(broker.bootstrap_servers)
        broker.create_topic("t", partitions=1)
        lines.clear()

        def do(api: str, version: int, body: dict[str, Json]) -> None:
            before = len(lines)
            answer = client.call_json(api, version, body)
            assert [line["api"] for line in lines[before:]] == [api], answer

        setting: dict[str, Json] = {"name": "retention.ms", "value": "12345678"}
        resource: dict[str, Json] = {"resourceType": 2, "resourceName": "t", "configs": [setting]}
        do("AlterConfigs", 2, {"resources": [resource]})
        level: dict[str, Json] = {"name": "tidelog.server", "configOperation": 0, "value": "INFO"}
        logger: dict[str, Json] = {"resourceType": 8, "resourceName": "0", "configs": [level]}
        do("IncrementalAlterConfigs", 1, {"resources": [logger]})
        quota: dict[str, Json] = {"key": "producer_byte_rate", "value": 1.0, "remove": False}
        user: dict[str, Json] = {"entityType": "user", "entityName": "bob"}
        do("AlterClientQuotas", 1, {"entries": [{"entity": [user], "ops": [quota]}]})
        secret: dict[str, Json] = {
            "name": "bob",
            "mechanism": 1,
            "iterations": 4096,
            "salt": "c2FsdA==",
            "saltedPassword": "c2VjcmV0c2VjcmV0",
        }
        do("AlterUserScramCredentials", 0, {"deletions": [], "upsertions": [secret]})
        do("CreatePartitions", 3, {"topics": [{"name": "t", "count": 3, "assignments": None}]})
        every: dict[str, Json] = {
            "resourceTypeFilter": 1,
            "resourceNameFilter": None,
            "patternTypeFilter": 1,
            "principalFilter": None,
            "hostFilter": None,
            "operation": 1,
        }
        rule = {"resourceType": 2, "resourceName": "t", "principal": "User:bob", "host": "*", "operation": 3}
        do("CreateAcls", 3, {"creations": [{**rule, "permissionType": 3}]})
        do("DeleteAcls", 3, {"filters": [{**every, "permissionType": 1}]})
        client.call_json("FindCoordinator", 3, {"key": "g", "keyType": 0})
        eventually(lambda: commit(client, "g") == 0, "the group has an offset")
        lines.clear()
        committed: dict[str, Json] = {"name": "t", "partitions": [{"partitionIndex": 0}]}
        do("OffsetDelete", 0, {"groupId": "g", "topics": [committed]})
        moved: dict[str, Json] = {"path": folders[0], "topics": [{"name": "t", "partitions": [0]}]}
        do("AlterReplicaLogDirs", 2, {"dirs": [moved]})
        marker: dict[str, Json] = {
            "producerId": 7,
            "producerEpoch": 0,
            "transactionResult": False,
            "topics": [{"name": "t", "partitionIndexes": [1, 2, 9]}],
            "coordinatorEpoch": 0,
        }
        do("WriteTxnMarkers", 1, {"markers": [marker]})
        assert lines[-1]["resource"] == "Topic:t"
        assert lines[-1]["change"] == "transaction of producer 7 aborted: partitions 1, 2"
        asked: dict[str, Json] = {"topics": [{"name": "made"}], "allowAutoTopicCreation": True}
        client.call_json("Metadata", 12, asked)
        made = eventually(lambda: lines[-1] if lines[-1]["api"] == "Metadata" else None, "the topic is made")
        assert (made["resource"], made["change"]) == ("Topic:made", "created automatically")
        client.close()
    assert "c2Vj" not in str(lines)
    assert "12345678" not in str(lines)


def test_the_life_of_a_token_is_in_the_log(lines: list[AuditEvent]) -> None:
    with Broker(WITH_TOKENS) as broker:
        made = create(broker, "alice", "alice")
        hmac: dict[str, Json] = {"hmac": made["hmac"]}
        with plain_connection(broker.address_of("SASL_PLAINTEXT"), "alice") as alice:
            alice.call_json("RenewDelegationToken", 2, hmac | {"renewPeriodMs": 50_000})
            alice.call_json("ExpireDelegationToken", 2, hmac | {"expiryTimePeriodMs": -1})
            alice.call_json("ExpireDelegationToken", 2, hmac | {"expiryTimePeriodMs": -1})
    resource = f"DelegationToken:{made['tokenId']}"
    assert [(line["principal"], line["resource"], line["change"]) for line in lines] == [
        ("User:alice", resource, "created for User:alice"),
        ("User:alice", resource, "renewed"),
        ("User:alice", resource, "expired"),
    ]
    assert made["hmac"] not in str(lines)


def test_allowed_operations_are_told_at_debug_even_if_they_are_remembered(
    lines: list[AuditEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Broker(AUTHORIZER) as broker:
        broker.create_topic("t")
        broker.produce("t", "one", "two")
        logging.getLogger("tidelog.authorizer").setLevel(logging.DEBUG)
        lines.clear()
        broker.produce("t", "three")
        writes = [line for line in lines if line.get("operation") == "Write" and line["api"] == "Produce"]
        assert [line["resource"] for line in writes] == ["Topic:t"]


def test_without_an_authorizer_nothing_is_told(lines: list[AuditEvent]) -> None:
    with Broker() as broker:
        broker.create_topic("t")
    assert lines == []


def test_events_are_records_of_a_topic(lines: list[AuditEvent], monkeypatch: pytest.MonkeyPatch) -> None:
    with Broker(AUTHORIZER | {"tidelog.audit.topic": "audit"}) as broker:
        users = Users(broker.bootstrap_servers, monkeypatch)
        with users.connect("alice") as alice:
            for name in ("secret", "audit"):
                wanted: dict[str, Json] = {"topics": [{"name": name}], "allowAutoTopicCreation": False}
                alice.call_json("Metadata", 12, wanted)

        def events() -> list[dict[str, Json]] | None:
            try:
                records = broker.records("audit")
            except Exception:  # the topic is not there yet
                return None
            return [json.loads(cast("bytes", record.value)) for record in records] or None

        found = eventually(events, "the denial is in the topic", 20.0, 0.2)
        (denied,) = [event for event in found if event["event"] == "denied"]
        assert (denied["principal"], denied["resource"]) == ("User:alice", "Topic:secret")
        assert denied["broker"] == 1001
        assert "Topic:audit" not in {event["resource"] for event in found}


class _Replicas:
    """Replicas of a broker that does not have the topic."""

    def __init__(self) -> None:
        from tidelog.clock import SimulatedScheduler

        self.scheduler = SimulatedScheduler()
        self.topics: dict[str, object] = {}


def test_events_that_come_too_fast_are_dropped_and_counted() -> None:
    replicas = _Replicas()
    topic = AuditTopic("audit", 1, cast("object", replicas), cast("object", None))  # type: ignore[arg-type]
    for number in range(MAX_WAITING + 7):
        topic.record({"event": "denied", "resource": f"Topic:t{number}"})
    topic.record({"event": "denied", "resource": "Topic:audit"})
    assert topic.dropped == 7
