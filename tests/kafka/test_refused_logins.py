"""A Java client that our broker does not let in says what it says at Kafka 3.9."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.data.key_stores.record import PASSWORD
from tests.kafka.java_clients import list_topics, refusal, write
from tests.kafka.servers import new_kafka
from tests.support.certificates import make_certificate
from tests.support.ports import free_port
from tests.support.secured_broker import MECHANISMS, SECRET, STORES, client_file, secured_broker
from tests.support.tls_broker import TlsFiles, authority
from tidelog import Admin
from tidelog.clients.admin import ScramMechanism, UserScramCredentialUpsertion
from tidelog.security.jaas import OAUTHBEARER_MODULE, PLAIN_MODULE, SCRAM_MODULE

ERROR = re.compile(r"Error while executing topic command : (.+)")
PROTOCOLS = {"PLAINTEXT": "PLAINTEXT", "LOGIN": "SASL_SSL", "CERTIFICATE": "SSL"}
# A client that does not log in is disconnected, and tries again until this time is over.
PATIENCE = {"default.api.timeout.ms": "5000", "request.timeout.ms": "4000"}


@dataclass(slots=True, frozen=True)
class Brokers:
    """The address of each listener, at our broker and at Kafka 3.9."""

    ours: dict[str, str]
    kafka: dict[str, str]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def brokers(files: TlsFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    kafka = {name: f"127.0.0.1:{free_port()}" for name in PROTOCOLS}
    plaintext = int(kafka["PLAINTEXT"].rpartition(":")[2])
    with new_kafka("kafka3", tmp_path_factory.mktemp("kafka"), kafka_settings(files, kafka), port=plaintext):
        with Admin(bootstrap_servers=kafka["PLAINTEXT"]) as admin:
            for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
                admin.alter_user_scram_credentials([UserScramCredentialUpsertion("alice", SECRET, mechanism)])
        with secured_broker(**listening(files, dict.fromkeys(PROTOCOLS, "127.0.0.1:0"))) as broker:
            yield Brokers({name: broker.address_of(name) for name in PROTOCOLS}, kafka)


def listening(files: TlsFiles, addresses: dict[str, str]) -> dict[str, str]:
    return {
        "listeners": ",".join(f"{name}://{address}" for name, address in addresses.items()),
        "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in PROTOCOLS.items()),
        "listener.name.certificate.ssl.client.auth": "required",
        "listener.name.certificate.ssl.truststore.type": "PEM",
        "listener.name.certificate.ssl.truststore.location": files.trust,
    }


def kafka_settings(files: TlsFiles, addresses: dict[str, str]) -> dict[str, str]:
    """What `secured_broker` gives ours."""
    modules = {
        "plain": f'{PLAIN_MODULE} required user_alice="{SECRET}";',
        "oauthbearer": f'{OAUTHBEARER_MODULE} required unsecuredLoginStringClaim_sub="admin";',
        "scram-sha-256": f"{SCRAM_MODULE} required;",
        "scram-sha-512": f"{SCRAM_MODULE} required;",
    }
    jaas = {f"listener.name.login.{name}.sasl.jaas.config": module for name, module in modules.items()}
    return listening(files, addresses) | jaas | {
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.name.login.sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "ssl.keystore.location": str(STORES / "server.p12"),
        "ssl.keystore.password": PASSWORD,
        "ssl.key.password": PASSWORD,
        "ssl.keystore.type": "PKCS12",
        "connection.failed.authentication.delay.ms": "20",
    }  # fmt: skip


def trusting(settings: dict[str, str]) -> dict[str, str]:
    """A client without a login that trusts the brokers."""
    found = client_file("PLAIN")
    return {name: found[name] for name in found if name.startswith("ssl.")} | settings


def pem(files: TlsFiles, name: str, *, expired: bool = False) -> dict[str, str]:
    """The certificate of a client."""
    store = files.write(f"{name}.pem", make_certificate(authority(), name, expired=expired).pem())
    return {"ssl.keystore.type": "PEM", "ssl.keystore.location": store}


INVALID = "Authentication failed during authentication due to invalid credentials with SASL mechanism"
UNTRUSTED = "Failed to process post-handshake messages"
DISCONNECTED = "Timed out waiting for a node assignment. Call: listTopics"
CASES: dict[str, tuple[str, str]] = {
    "a wrong password, PLAIN": ("LOGIN", "Authentication failed: Invalid username or password"),
    "a wrong password, SCRAM-SHA-256": ("LOGIN", f"{INVALID} SCRAM-SHA-256"),
    "a wrong password, SCRAM-SHA-512": ("LOGIN", f"{INVALID} SCRAM-SHA-512"),
    "an expired certificate": ("CERTIFICATE", UNTRUSTED),
    "no certificate": ("CERTIFICATE", UNTRUSTED),
    "a request before the login": ("LOGIN", DISCONNECTED),
    "no TLS": ("LOGIN", DISCONNECTED),
}


def settings_of(case: str, files: TlsFiles) -> dict[str, str]:
    match case:
        case "an expired certificate":
            return trusting({"security.protocol": "SSL"} | pem(files, "late", expired=True))
        case "no certificate":
            return trusting({"security.protocol": "SSL"})
        case "a request before the login":
            return trusting({"security.protocol": "SSL"} | PATIENCE)
        case "no TLS":
            return {"security.protocol": "PLAINTEXT"} | PATIENCE
    return client_file(case.rpartition(" ")[2], "wrong")


@pytest.mark.parametrize("case", CASES)
def test_the_error_is_that_of_kafka(brokers: Brokers, files: TlsFiles, tmp_path: Path, case: str) -> None:
    listener, error = CASES[case]
    config = write(tmp_path, settings_of(case, files))
    for name, addresses in (("Kafka", brokers.kafka), ("ours", brokers.ours)):
        said = refusal(addresses[listener], config)
        assert ERROR.findall(said) == [error], f"{name}: {said}"


def test_the_right_logins_are_let_in(brokers: Brokers, files: TlsFiles, tmp_path: Path) -> None:
    """So the refusals above have the reasons that they name."""
    for addresses in (brokers.kafka, brokers.ours):
        list_topics(addresses["LOGIN"], write(tmp_path, client_file("PLAIN")))
        identity = trusting({"security.protocol": "SSL"} | pem(files, "frank"))
        list_topics(addresses["CERTIFICATE"], write(tmp_path, identity))
