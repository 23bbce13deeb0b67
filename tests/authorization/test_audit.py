"""The audit names who was denied and who changed what, in the log and in a topic."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import cast

import pytest

from tests.authorization.users import Users
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
        ("changed", "User:admin", "DeleteTopics", "Topic:t", "deleted"),
    ]
    assert {line["host"] for line in lines} == {"127.0.0.1"}
    assert "12345678" not in str(lines)


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
