"""The audit names who was denied and who changed what, in the log and in a topic."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import cast

import pytest

from tests.authorization.matrix import plain_connection
from tests.authorization.test_token_access import SETTINGS as WITH_TOKENS
from tests.authorization.test_token_access import create
from tests.authorization.users import Users
from tests.support.raw import RawConnection
from tests.support.wait import eventually
from tidelog.protocol.json import Json
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
    found: list[AuditEvent] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.fields)  # type: ignore[attr-defined]

    logger, handler = logging.getLogger("tidelog.authorizer"), Collect()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield found
    logger.removeHandler(handler)
    logger.setLevel(before)


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
