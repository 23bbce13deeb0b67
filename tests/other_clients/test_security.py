"""Clients of other languages log in over TLS by every mechanism, and say why a broker did not let them in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.other_clients.confluent import Confluent
from tests.other_clients.programs import OtherClient, Security, Task, all_clients
from tests.support.certificates import make_certificate
from tests.support.sasl_broker import sasl_ssl_broker
from tests.support.sasl_walks import MECHANISMS, fresh
from tests.support.tls_broker import TlsFiles, another_authority, authority
from tests.support.topics import topic_of_test
from tidelog.testing import Broker

PARTITIONS = 2
COUNT = 50
USERS = {
    "PLAIN": ("alice", "alice-secret"),
    "SCRAM-SHA-256": ("carol", "carol-secret"),
    "SCRAM-SHA-512": ("dave", "dave-secret"),
    "OAUTHBEARER": ("erin", ""),
}
# What each client writes about a broker's certificate that nobody of its authorities signed.
NOT_TRUSTED = {
    "confluent-kafka": "certificate verify failed",
    "kcat": "certificate verify failed",
    "franz": "certificate signed by unknown authority",
    "sarama": "certificate signed by unknown authority",
    "kafkajs": "unable to verify the first certificate",
}
# What each client writes when the broker closes the connection on its first request.
NOT_LOGGED_IN = {
    "kcat": "Failed to acquire metadata",
    "franz": "is SASL missing?",
    "sarama": "EOF",
    "kafkajs": "Closed connection",
}


@pytest.fixture(
    scope="module", params=[Confluent(), *all_clients()], ids=lambda client: getattr(client, "name", "")
)
def client(request: pytest.FixtureRequest) -> OtherClient:
    chosen: OtherClient = request.param
    reason = chosen.missing()
    if reason is not None:
        pytest.skip(reason)
    chosen.build()
    return chosen


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def broker(files: TlsFiles) -> Iterator[Broker]:
    broker = sasl_ssl_broker(files.server, files.trust)
    yield broker
    broker.close()


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> str:
    return topic_of_test(broker.address_of("PLAINTEXT"), request.node.name, PARTITIONS)


def login(files: TlsFiles, mechanism: str, password: str | None = None) -> Security:
    user, known = USERS[mechanism]
    return Security(files.trust, mechanism, user, known if password is None else password, fresh(sub=user))


def certificate(files: TlsFiles, name: str, *, expired: bool = False) -> Security:
    signed = make_certificate(authority(), name, expired=expired)
    return Security(
        files.trust,
        certificate=files.write(f"{name}.crt", signed.chain_pem),
        key=files.write(f"{name}.key", signed.key_pem()),
    )


def write_and_read(client: OtherClient, address: str, topic: str, security: Security) -> None:
    task = Task(address, topic, mode="plain", partitions=PARTITIONS, count=COUNT, security=security)
    client.produce(task)
    everything = COUNT * PARTITIONS
    reads = client.consume(
        Task(address, topic, group=f"of-{topic}", count=everything, members=1, security=security)
    )
    found = [[read.value for read in reads if read.partition == number] for number in range(PARTITIONS)]
    assert found == task.values("plain")


def refusal(client: OtherClient, address: str, security: Security) -> str:
    return client.refusal(Task(address, "any", security=security))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_mechanism_over_tls(
    broker: Broker, files: TlsFiles, client: OtherClient, topic: str, mechanism: str
) -> None:
    write_and_read(client, broker.address_of("SASL"), topic, login(files, mechanism))


def test_a_certificate_is_the_login(broker: Broker, files: TlsFiles, client: OtherClient, topic: str) -> None:
    write_and_read(client, broker.address_of("CERTIFICATE"), topic, certificate(files, "frank"))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_wrong_password(broker: Broker, files: TlsFiles, client: OtherClient, mechanism: str) -> None:
    said = refusal(client, broker.address_of("SASL"), login(files, mechanism, "wrong"))
    if mechanism == "PLAIN":
        assert "Authentication failed: Invalid username or password" in said
    else:
        assert "Authentication failed during authentication due to invalid credentials" in said


def test_a_broker_of_another_authority(broker: Broker, files: TlsFiles, client: OtherClient) -> None:
    stranger = files.write("stranger.pem", another_authority().certificate_pem)
    user, password = USERS["PLAIN"]
    said = refusal(client, broker.address_of("SASL"), Security(stranger, "PLAIN", user, password))
    assert NOT_TRUSTED[client.name] in said


def test_a_certificate_that_has_expired(broker: Broker, files: TlsFiles, client: OtherClient) -> None:
    said = refusal(client, broker.address_of("CERTIFICATE"), certificate(files, "late", expired=True))
    assert "expired" in said


def test_a_client_without_a_certificate(broker: Broker, files: TlsFiles, client: OtherClient) -> None:
    said = refusal(client, broker.address_of("CERTIFICATE"), Security(files.trust))
    assert "certificate" in said


def test_a_request_before_the_login(broker: Broker, files: TlsFiles, client: OtherClient) -> None:
    if client.name not in NOT_LOGGED_IN:
        pytest.skip("librdkafka tells its callback nothing and tries again; kcat shows what it does")
    said = refusal(client, broker.address_of("SASL"), Security(files.trust))
    assert NOT_LOGGED_IN[client.name] in said
