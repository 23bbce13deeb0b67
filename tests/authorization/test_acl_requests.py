"""CreateAcls, DescribeAcls and DeleteAcls answer as Kafka 3.9 does."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.authorization.acl_requests import play
from tests.authorization.users import Users
from tidelog.protocol.json import Json
from tidelog.testing import Broker

RECORDED = Path(__file__).parent.parent / "data" / "acl_requests.json.gz"

# INVALID_REQUEST, as in Kafka 4.3: 3.9 answers UNKNOWN_SERVER_ERROR.
OF_KAFKA_4 = ("a principal without a type", "an empty principal")

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
}


def test_rules_are_created_described_and_deleted_as_in_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    expected: dict[str, Json] = json.loads(gzip.decompress(RECORDED.read_bytes()))
    with Broker(AUTHORIZER) as broker:
        users = Users(broker.bootstrap_servers, monkeypatch)
        found = play(lambda: users.connect("admin"))
    differing = {name for name in expected if expected[name] != found[name]}
    assert {name for name in differing if name.partition(": ")[2] not in OF_KAFKA_4} == set()
    for name in differing:
        assert found[name] == {"results": [{"errorCode": 42}]}


@pytest.mark.parametrize("version", [1, 2, 3])
def test_without_an_authorizer_security_is_disabled(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Broker() as broker, Users(broker.bootstrap_servers, monkeypatch).connect("admin") as admin:
        rule: dict[str, Json] = {
            "resourceType": 2,
            "resourceName": "t",
            "principal": "User:a",
            "host": "*",
            "operation": 3,
            "permissionType": 3,
        }
        wanted: dict[str, Json] = {
            "resourceTypeFilter": 1,
            "resourceNameFilter": None,
            "principalFilter": None,
            "hostFilter": None,
            "operation": 1,
            "permissionType": 1,
        }
        described = admin.call_json("DescribeAcls", version, wanted)
        created = admin.call_json("CreateAcls", version, {"creations": [rule, rule]})
        deleted = admin.call_json("DeleteAcls", version, {"filters": [wanted]})
    assert described["errorCode"] == 54
    assert [result["errorCode"] for result in created["results"]] == [54, 54]  # type: ignore[union-attr,call-overload,index]
    assert [result["errorCode"] for result in deleted["filterResults"]] == [54]  # type: ignore[union-attr,call-overload,index]
