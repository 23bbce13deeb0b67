"""Delegation tokens of other users: who may create and who may see them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.authorization.matrix import plain_connection
from tidelog import Admin
from tidelog.clients.admin import AclBinding, AclOperation, AclResourceType
from tidelog.errors import ErrorCode
from tidelog.protocol.json import Json
from tidelog.testing import Broker

SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'user_alice="alice" user_bob="bob" user_carol="carol";'
    ),
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "delegation.token.secret.key": "token-secret",
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as broker:
        yield broker


def allow(broker: Broker, user: str, operation: AclOperation, kind: AclResourceType, name: str) -> None:
    with Admin(bootstrap_servers=broker.address_of("PLAINTEXT")) as admin:
        admin.create_acls([AclBinding(kind, name, f"User:{user}", operation)])


def call(broker: Broker, user: str, api: str, body: dict[str, Json]) -> Json:
    with plain_connection(broker.address_of("SASL_PLAINTEXT"), user) as connection:
        return connection.call_json(api, 3, body)


def create(broker: Broker, user: str, owner: str) -> Json:
    body: dict[str, Json] = {"ownerPrincipalType": "User", "ownerPrincipalName": owner}
    return call(broker, user, "CreateDelegationToken", body | {"renewers": [], "maxLifetimeMs": 100_000})


def owners_seen(broker: Broker, user: str) -> list[str]:
    answer = call(broker, user, "DescribeDelegationToken", {"owners": None})
    assert answer["errorCode"] == 0
    return sorted(token["principalName"] for token in answer["tokens"])


def test_a_token_of_another_user_needs_rules(broker: Broker) -> None:
    denied = create(broker, "alice", "bob")
    assert denied["errorCode"] == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    allow(broker, "alice", AclOperation.CREATE_TOKENS, AclResourceType.USER, "User:bob")
    made = create(broker, "alice", "bob")
    assert made["errorCode"] == 0
    assert create(broker, "alice", "alice")["errorCode"] == 0

    assert owners_seen(broker, "bob") == ["bob"]
    assert owners_seen(broker, "carol") == []
    token_id = made["tokenId"]
    allow(broker, "carol", AclOperation.DESCRIBE, AclResourceType.DELEGATION_TOKEN, token_id)
    assert owners_seen(broker, "carol") == ["bob"]
    allow(broker, "carol", AclOperation.DESCRIBE_TOKENS, AclResourceType.USER, "User:alice")
    assert owners_seen(broker, "carol") == ["alice", "bob"]
