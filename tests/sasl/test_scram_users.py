"""SCRAM users of the tree: Kafka's error codes for every wrong request, and nothing secret in any answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.scram_cases import CASES, answers
from tidelog import Admin
from tidelog.clients.admin.users import ScramMechanism, UserScramCredentialUpsertion
from tidelog.metadata.embedded_tree import FILE_NAME, EmbeddedTree
from tidelog.protocol.json import Json
from tidelog.testing import Broker

KAFKA = json.loads((Path(__file__).parent.parent / "data" / "scram-answers.json").read_text())


@pytest.fixture(scope="module")
def ours() -> Iterator[dict[str, Json]]:
    with Broker() as broker:
        yield answers(broker.bootstrap_servers)


def without_messages(value: Json) -> Json:
    """The texts are ours, the codes are Kafka's."""
    if isinstance(value, dict):
        return {
            name: bool(part) if name == "errorMessage" else without_messages(part)
            for name, part in value.items()
        }
    return [without_messages(part) for part in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", CASES)
def test_the_answer_is_kafkas(ours: dict[str, Json], name: str) -> None:
    assert without_messages(ours[name]) == without_messages(KAFKA[name])


def test_users_survive_a_restart_as_kafka_writes_them(tmp_path: Path) -> None:
    with Broker({"log.dir": str(tmp_path)}) as broker:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.alter_user_scram_credentials(
                [
                    UserScramCredentialUpsertion(
                        "a b", "secret", ScramMechanism.SCRAM_SHA_256, 4096, salt=b"salt1234"
                    )
                ]
            )
        broker.restart()
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            assert list(admin.describe_user_scram_credentials()) == ["a b"]
    tree = EmbeddedTree(tmp_path / FILE_NAME)
    data = json.loads(tree.get("/config/users/a%20b")[0])
    tree.close()
    assert data["version"] == 1
    assert data["config"]["SCRAM-SHA-256"].startswith("salt=c2FsdDEyMzQ=,stored_key=")
