"""Every API answers with the same errors as Kafka, whatever the access rules say."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.authorization.audit_events import audit_events
from tests.authorization.cases import CASES
from tests.authorization.matrix import Matrix, plain_connection, plain_settings, user_of
from tidelog.errors import ErrorCode
from tidelog.protocol.json import Json
from tidelog.security.acl_authorizer import AclAuthorizer
from tidelog.security.authorizer import AuthorizableRequestContext
from tidelog.security.operations import AclOperation, AclResourceType, Action
from tidelog.server.apis import served_apis
from tidelog.server.audit import AuditEvent
from tidelog.testing import Broker

DATA = Path(__file__).parent.parent / "data"
KINDS = ("kafka3", "kafka4")

Cells = dict[str, Json]


@pytest.fixture(scope="module")
def monkeypatch_module() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def asked(monkeypatch_module: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """The operations that the handlers of each API asked the authorizer for."""
    found: dict[str, set[str]] = defaultdict(set)
    authorize, by_type = AclAuthorizer.authorize, AclAuthorizer.authorize_by_resource_type

    def note(context: AuthorizableRequestContext, kind: AclResourceType, operation: AclOperation) -> None:
        found[context.entry.name].add(f"{kind.name} {operation.name}")  # type: ignore[attr-defined]

    def noted(
        self: AclAuthorizer, context: AuthorizableRequestContext, actions: Sequence[Action]
    ) -> list[bool]:
        if len(actions) == len({action.name for action in actions}):  # not the authorized operations
            for action in actions:
                note(context, action.resource_type, action.operation)
        return authorize(self, context, actions)

    def noted_by_type(
        self: AclAuthorizer,
        context: AuthorizableRequestContext,
        operation: AclOperation,
        kind: AclResourceType,
    ) -> bool:
        note(context, kind, operation)
        return by_type(self, context, operation, kind)

    monkeypatch_module.setattr(AclAuthorizer, "authorize", noted)
    monkeypatch_module.setattr(AclAuthorizer, "authorize_by_resource_type", noted_by_type)
    return found


@pytest.fixture(scope="module")
def events() -> Iterator[list[AuditEvent]]:
    with audit_events() as found:
        yield found


@pytest.fixture(scope="module")
def ours(asked: dict[str, set[str]], events: list[AuditEvent]) -> Iterator[Cells]:
    settings = plain_settings() | {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS;User:admin",
        "offsets.topic.num.partitions": "3",
    }
    with Broker(settings) as broker:
        address = broker.address_of("SASL_PLAINTEXT")
        matrix = Matrix(lambda user: plain_connection(address, user))
        matrix.prepare()
        yield dict(matrix.play())


def recorded(kind: str) -> Cells:
    found: Cells = json.loads(gzip.decompress((DATA / f"acl_matrix_{kind}.json.gz").read_bytes()))
    return found


def test_every_cell_is_as_in_kafka_3_9_or_4_3(ours: Cells) -> None:
    kafkas = [recorded(kind) for kind in KINDS]
    wrong = []
    for cell, answer in ours.items():
        expected = [kafka[cell] for kafka in kafkas if cell in kafka]
        if expected and answer not in expected:
            wrong.append(f"{cell}: {answer}, in Kafka {expected}")
    assert wrong == []


def test_every_served_api_has_a_case(ours: Cells) -> None:
    played = {cell.partition("/")[0] for cell in ours}
    apis = {case.api for case in CASES if case.name in played}
    from tidelog.protocol.api import API

    checked = {API[key].name for key, api in served_apis().items() if api.access}
    assert checked - apis == {"CreateDelegationToken"}  # in test_token_access


def test_handlers_check_what_their_apis_declare(ours: Cells, asked: dict[str, set[str]]) -> None:
    from tidelog.protocol.api import API

    declared = {
        API[key].name: set(api.access or ()) - {"TRANSACTIONAL_ID TWO_PHASE_COMMIT"}
        for key, api in served_apis().items()
        if not API[key].name.endswith("DelegationToken")  # there are none: test_token_access has some
    }
    assert {name: asked.get(name, set()) for name in declared} == declared


REFUSALS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}


def is_refused(answer: Json) -> bool:
    """Whether an error in the answer says so. The hidden settings of a created topic are no refusal."""
    if isinstance(answer, list):
        return any(map(is_refused, answer))
    if not isinstance(answer, dict):
        return False
    own = (value for key, value in answer.items() if key in ("errorCode", "partitionErrorCode"))
    return not REFUSALS.isdisjoint(own) or any(map(is_refused, answer.values()))


def test_every_refusal_is_in_the_audit(ours: Cells, events: list[AuditEvent]) -> None:
    denied = {(event["principal"], event["api"]) for event in events if event["event"] == "denied"}
    cases = {case.name: case for case in CASES}
    refused = set()
    for cell, answer in ours.items():
        name, scenario, _ = cell.split("/")
        if is_refused(answer):
            refused.add((f"User:{user_of(cases[name], scenario)}", cases[name].api))
    assert len(refused) > 300
    assert refused - denied == set()
    assert {event["host"] for event in events} == {"127.0.0.1"}
    assert all(event["resource"] and event["operation"] for event in events if event["event"] == "denied")
