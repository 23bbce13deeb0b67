"""Kafka 3.9 still gives the recorded answers of tests/data; with TIDELOG_RECORD=1 they are recorded anew."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka.servers import Kafka3, ZooKeeper
from tests.support import sasl_walks, scram_cases
from tests.support.ports import free_port
from tests.support.sasl_broker import PLAIN_MODULE, USERS
from tests.support.sasl_walks import MAX_RECEIVE, REAUTH_MS
from tidelog import Admin
from tidelog.clients.admin.users import ScramMechanism, UserScramCredentialUpsertion
from tidelog.protocol.json import Json

DATA = Path(__file__).parent.parent / "data"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


class SaslKafka(Kafka3):
    """With the listeners of the walks."""

    def listeners(self) -> dict[str, str]:
        if not hasattr(self, "_ports"):
            self._ports = {"all": free_port(), "reauth": free_port()}
        return {name: f"127.0.0.1:{port}" for name, port in self._ports.items()}

    def settings(self) -> dict[str, str]:
        found = self.listeners()
        plain = f"{PLAIN_MODULE} required {USERS};"
        return super().settings() | {
            "listeners": f"PLAINTEXT://{self.bootstrap},SASL://{found['all']},REAUTH://{found['reauth']}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,REAUTH:SASL_PLAINTEXT",
            "listener.name.sasl.sasl.enabled.mechanisms": ",".join(sasl_walks.MECHANISMS),
            "listener.name.sasl.plain.sasl.jaas.config": plain,
            "listener.name.sasl.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
            "listener.name.sasl.scram-sha-512.sasl.jaas.config": f"{SCRAM_MODULE} required;",
            "listener.name.sasl.oauthbearer.sasl.jaas.config": (
                f'{OAUTH_MODULE} required unsecuredLoginStringClaim_sub="admin";'
            ),
            "listener.name.reauth.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "listener.name.reauth.plain.sasl.jaas.config": plain,
            "listener.name.reauth.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
            "listener.name.reauth.plain.connections.max.reauth.ms": str(REAUTH_MS),
            "listener.name.reauth.scram-sha-256.connections.max.reauth.ms": str(REAUTH_MS),
            "connection.failed.authentication.delay.ms": "20",
            "sasl.server.max.receive.size": str(MAX_RECEIVE),
        }


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslKafka]:
    folder = tmp_path_factory.mktemp("sasl")
    with ZooKeeper(folder / "zookeeper") as zookeeper, SaslKafka(folder, folder / "data", zookeeper) as kafka:
        yield kafka


def compare(file: str, found: dict[str, Json]) -> None:
    path = DATA / file
    if os.environ.get("TIDELOG_RECORD"):
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    assert found == json.loads(path.read_text())


def test_scram_users(kafka: SaslKafka) -> None:
    compare("scram-answers.json", scram_cases.answers(kafka.bootstrap))


def test_walks(kafka: SaslKafka) -> None:
    with Admin(bootstrap_servers=kafka.bootstrap) as admin:
        admin.alter_user_scram_credentials(
            [
                UserScramCredentialUpsertion(
                    user, password, ScramMechanism.SCRAM_SHA_256, sasl_walks.ITERATIONS
                )
                for user, password in sasl_walks.SCRAM_USERS.items()
            ]
        )
    found = {name: sasl_walks.take(name, kafka.listeners()) for name in sasl_walks.WALKS}
    compare("sasl-walks.json", json.loads(json.dumps(found)))
