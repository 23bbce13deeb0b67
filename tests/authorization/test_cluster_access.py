"""APIs that need one operation on the cluster refuse the whole request as Kafka does."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.authorization.cases import CASES
from tests.server.cluster_broker import ClusterBroker
from tests.support.raw import message_class
from tidelog.network.request import Request
from tidelog.protocol.json import Json, from_json, to_json
from tidelog.protocol.message import Message
from tidelog.security.acl import AclOperation
from tidelog.security.acl_authorizer import AclAuthorizer
from tidelog.security.authorizer import Action
from tidelog.server.apis import cluster_access
from tidelog.server.audit import AuditLog
from tidelog.server.services import Services

RECORDED = Path(__file__).parent.parent / "data" / "acl_matrix_kafka3.json.gz"
GUARDED: dict[str, tuple[AclOperation, Callable[[Any], Message]]] = {
    "describe_client_quotas": (AclOperation.DESCRIBE_CONFIGS, cluster_access.no_client_quotas),
    "alter_client_quotas": (AclOperation.ALTER_CONFIGS, cluster_access.unaltered_client_quotas),
    "describe_user_scram_credentials": (AclOperation.DESCRIBE, cluster_access.no_scram_credentials),
    "alter_user_scram_credentials": (AclOperation.ALTER, cluster_access.unaltered_scram_credentials),
}


class OneRule:
    """Allows one action, to everybody."""

    def __init__(self, allowed: str) -> None:
        self.allowed = allowed

    def authorize(self, context: object, actions: Sequence[Action]) -> list[bool]:
        names = [f"{action.resource_type.name} {action.name} {action.operation.name}" for action in actions]
        return [name == self.allowed for name in names]


def services(allowed: str) -> Services:
    return cast("Services", SimpleNamespace(authorizer=OneRule(allowed), audit=AuditLog()))


REQUEST = cast("Request", SimpleNamespace(principal="User:alice"))


def error_codes(value: Json) -> Json:
    """An answer as a cell of the matrix."""
    if isinstance(value, list):
        return [error_codes(item) for item in value]
    assert isinstance(value, dict)
    return {
        key: item if key == "errorCode" else error_codes(item)
        for key, item in value.items()
        if key == "errorCode" or (key in ("entries", "results") and item)
    }


@pytest.mark.parametrize("name", GUARDED)
def test_a_guarded_handler_is_called_for_allowed_clients_alone(name: str) -> None:
    operation, refused = GUARDED[name]
    recorded: dict[str, Json] = json.loads(gzip.decompress(RECORDED.read_bytes()))
    case = next(case for case in CASES if case.name == name)
    (version,) = case.versions
    body = from_json(message_class(f"{case.api}Request"), version, case.request(version))
    answer = message_class(f"{case.api}Response")()
    handler = cluster_access.guarded(lambda *_: answer, operation, refused)
    denied = handler(services("nothing"), REQUEST, body)
    assert isinstance(denied, Message)
    assert error_codes(to_json(denied, version)) == recorded[f"{name}/none/{version}"]
    allowed = services(f"CLUSTER kafka-cluster {operation.name}")
    assert handler(allowed, REQUEST, body) is answer
    assert case.needs == ((4, "kafka-cluster", operation),)


def test_tokens_of_others_need_a_rule() -> None:
    for_bob = services("USER User:bob CREATE_TOKENS")
    assert cluster_access.may_create_token(for_bob, REQUEST, "User:alice")
    assert cluster_access.may_create_token(for_bob, REQUEST, "User:bob")
    assert not cluster_access.may_create_token(for_bob, REQUEST, "User:eve")
    for rule, expected in (
        ("DELEGATION_TOKEN id DESCRIBE", True),
        ("USER User:bob DESCRIBE_TOKENS", True),
        ("USER User:eve DESCRIBE_TOKENS", False),
    ):
        assert cluster_access.may_describe_token(services(rule), REQUEST, "id", "User:bob") is expected


def test_an_api_without_declared_checks_is_refused(tmp_path: Path) -> None:
    with ClusterBroker(tmp_path / "log") as broker:
        authorizer = AclAuthorizer()
        authorizer.configure({"super.users": "User:ANONYMOUS"})
        broker.services.authorizer = authorizer
        versions: dict[str, Json] = {"clientSoftwareName": "t", "clientSoftwareVersion": "1"}
        broker.services.apis[18] = replace(broker.services.apis[18], access=None)
        assert broker.connect().call_json("ApiVersions", 3, versions)["errorCode"] == 31
        broker.services.authorizer = None
        assert broker.connect().call_json("ApiVersions", 3, versions)["errorCode"] == 0
