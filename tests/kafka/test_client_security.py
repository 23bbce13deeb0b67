"""Our clients against Apache Kafka's TLS and SASL: let in with the right credentials, told why otherwise."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.kafka.certificates import Certificates, make_certificates
from tests.kafka.jars import run_tool
from tests.kafka.servers import Kafka4, free_port
from tidelog.clients.errors import TlsFailed
from tidelog.clients.producer.face import Producer
from tidelog.errors import KafkaError, SaslAuthenticationFailed, UnsupportedSaslMechanism

PASSWORD = "a secret, with = and comma"
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MODULES = "org.apache.kafka.common.security"


@dataclass(slots=True, frozen=True)
class Secured:
    ports: dict[str, int]
    certificates: Certificates

    def address(self, listener: str) -> str:
        return f"127.0.0.1:{self.ports[listener]}"


def jaas(listener: str) -> dict[str, str]:
    prefix = f"listener.name.{listener.lower()}"
    plain = f'{MODULES}.plain.PlainLoginModule required user_alice="{PASSWORD}";'
    found = {f"{prefix}.plain.sasl.jaas.config": plain}
    for mechanism in SCRAM:
        found[f"{prefix}.{mechanism.lower()}.sasl.jaas.config"] = (
            f"{MODULES}.scram.ScramLoginModule required;"
        )
    return found


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    certificates = make_certificates(folder / "certificates", PASSWORD)
    ports = {name: free_port() for name in ("SSL", "SASL_PLAINTEXT", "SASL_SSL", "SHORT")}
    server = Kafka4(folder, folder / "data")
    server.extra = {
        "listeners": ",".join(
            [
                f"PLAINTEXT://{server.bootstrap}",
                f"CONTROLLER://127.0.0.1:{server.controller_port}",
                *(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
            ]
        ),
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL,"
        "SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL,SHORT:SASL_PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.server),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.authority),
        "listener.name.ssl.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": ",".join(("PLAIN", *SCRAM)),
        "listener.name.short.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.short.plain.connections.max.reauth.ms": "1500",
        **jaas("SASL_PLAINTEXT"),
        **jaas("SASL_SSL"),
        **{name: value for name, value in jaas("SHORT").items() if "plain" in name},
    }
    arguments = [f"--add-scram={name}=[name=alice,password={PASSWORD.replace(',', '')}]" for name in SCRAM]
    done = run_tool(
        "kafka4", "kafka.tools.StorageTool", "format", "-t", "b1CFs5UJTaSbmEhD5iKrHA",
        "-c", str(server.write_settings()), *arguments,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with server:
        yield Secured(ports, certificates)


def password_for(mechanism: str) -> str:
    return PASSWORD if mechanism == "PLAIN" else PASSWORD.replace(",", "")


def produce(**settings: object) -> int:
    with Producer(max_block_ms=15_000, **settings) as producer:
        return producer.send("secured", b"v").result(30).offset


@pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAM])
@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_sasl_lets_us_in(kafka: Secured, listener: str, mechanism: str) -> None:
    offset = produce(
        bootstrap_servers=kafka.address(listener),
        security_protocol=listener,
        sasl_mechanism=mechanism,
        sasl_username="alice",
        sasl_password=password_for(mechanism),
        ssl_truststore_location=str(kafka.certificates.authority),
    )
    assert offset >= 0


@pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAM])
def test_a_wrong_password_is_refused_at_once_and_in_one_line(kafka: Secured, mechanism: str) -> None:
    begun = time.monotonic()
    with pytest.raises(SaslAuthenticationFailed) as caught:
        produce(
            bootstrap_servers=kafka.address("SASL_PLAINTEXT"),
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            sasl_username="alice",
            sasl_password="wrong",
        )
    assert "\n" not in str(caught.value)
    assert "wrong" not in str(caught.value)
    assert time.monotonic() - begun < 10


def test_a_mechanism_that_is_not_offered_is_named_with_those_that_are(kafka: Secured) -> None:
    with pytest.raises(UnsupportedSaslMechanism, match="does not take SCRAM-SHA-512; it offers PLAIN"):
        produce(
            bootstrap_servers=kafka.address("SHORT"),
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="SCRAM-SHA-512",
            sasl_username="alice",
            sasl_password="secret",
        )


def test_tls_with_a_client_certificate(kafka: Secured) -> None:
    files = kafka.certificates
    shared = {"bootstrap_servers": kafka.address("SSL"), "security_protocol": "SSL"}
    trust = {"ssl_truststore_location": str(files.authority)}
    assert produce(**shared, **trust, ssl_keystore_location=str(files.client)) >= 0
    locked = {"ssl_keystore_location": str(files.client_locked), "ssl_key_password": PASSWORD}
    assert produce(**shared, **trust, **locked) >= 0
    text = files.client.read_text()
    end = text.index("-----BEGIN CERTIFICATE")
    inline = {
        "ssl_truststore_certificates": files.authority.read_text(),
        "ssl_keystore_key": text[:end],
        "ssl_keystore_certificate_chain": text[end:],
    }
    assert produce(**shared, **inline) >= 0


def test_a_broker_whom_we_do_not_trust_is_refused(kafka: Secured) -> None:
    with pytest.raises(TlsFailed, match="certificate verify failed"):
        produce(
            bootstrap_servers=kafka.address("SSL"),
            security_protocol="SSL",
            ssl_truststore_location=str(kafka.certificates.stranger),
        )


def test_speaking_plainly_to_a_tls_listener_ends_in_words(kafka: Secured) -> None:
    with (
        pytest.raises(KafkaError, match="no broker can be reached"),
        Producer(bootstrap_servers=kafka.address("SSL"), max_block_ms=3000) as producer,
    ):
        producer.send("secured", b"v").result(10)


def test_a_session_is_renewed_before_it_ends(kafka: Secured) -> None:
    """The broker cuts connections whose session is older than 1.5 s."""
    with Producer(
        bootstrap_servers=kafka.address("SHORT"),
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_username="alice",
        sasl_password=PASSWORD,
        linger_ms=0,
    ) as producer:
        end = time.monotonic() + 6
        while time.monotonic() < end:
            producer.send("secured", b"v").result(10)
        assert producer.metrics()["record-retry-total"] == 0
