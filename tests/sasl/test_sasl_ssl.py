"""SASL over TLS: passwords travel encrypted, and the principal is SASL's, not the certificate's."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.support.sasl_broker import SETTINGS, sasl_broker
from tests.support.tls_broker import TlsFiles
from tests.support.wait import eventually, patience
from tidelog import Admin, Consumer, NewTopic, Producer
from tidelog.errors import SaslAuthenticationFailed
from tidelog.testing import Broker

SESSION_MS = int(min(patience(1500), 6000))
"""librdkafka renews a session when nine tenths of it are over: a busy machine needs a longer tenth."""

USERS = {"PLAIN": ("alice", "alice-secret"), "SCRAM-SHA-512": ("dave", "dave-secret")}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def broker(files: TlsFiles) -> Iterator[Broker]:
    protocols = str(SETTINGS["listener.security.protocol.map"]).replace("SASL_PLAINTEXT", "SASL_SSL")
    broker = sasl_broker(
        **{
            "listeners": str(SETTINGS["listeners"]).replace("127.0.0.1", "localhost"),
            "listener.security.protocol.map": protocols,
            "listener.name.reauth.connections.max.reauth.ms": SESSION_MS,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": files.server,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": files.trust,
        }
    )
    with Admin(bootstrap_servers=broker.address_of("PLAINTEXT")) as admin:
        admin.create_topics([NewTopic("demo", 1, 1)])
    yield broker
    broker.close()


def settings(broker: Broker, files: TlsFiles, mechanism: str, listener: str = "SASL") -> dict[str, object]:
    user, password = USERS[mechanism]
    return files.client_settings() | {
        "bootstrap.servers": broker.address_of(listener),
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


@pytest.mark.parametrize("mechanism", USERS)
def test_our_clients_log_in_over_tls(broker: Broker, files: TlsFiles, mechanism: str) -> None:
    ours = settings(broker, files, mechanism)
    with Producer(ours) as producer:
        producer.send("demo", b"x" * 100_000).result(20)
    with Consumer(ours | {"group.id": mechanism, "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe(["demo"])
        assert eventually(lambda: list(consumer.poll(1.0)), "records come", 20.0)


def test_a_wrong_password_over_tls(broker: Broker, files: TlsFiles) -> None:
    wrong = settings(broker, files, "PLAIN") | {"sasl.password": "wrong"}
    with pytest.raises(SaslAuthenticationFailed), Admin(wrong) as admin:
        admin.describe_cluster(timeout=10)


def test_confluent_kafka_re_authenticates_over_tls(broker: Broker, files: TlsFiles) -> None:
    from confluent_kafka import Producer as ConfluentProducer

    ours = settings(broker, files, "PLAIN", "REAUTH")
    producer = ConfluentProducer(
        {name: value for name, value in ours.items() if not name.startswith("ssl.")}
        | {"ssl.ca.location": files.trust}
    )
    problems: list[object] = []
    lines = broker.log_count
    ends = time.monotonic() + 2.2 * SESSION_MS / 1000

    def sent_for_two_sessions() -> bool:
        producer.produce("demo", b"again", on_delivery=lambda error, _: problems.append(error))
        assert producer.flush(20) == 0
        return time.monotonic() > ends

    eventually(sent_for_two_sessions, "two sessions have passed", 40.0, interval=0.04)
    assert set(problems) == {None}
    assert not [line for line in broker.log_lines(lines) if "session has ended" in line]
