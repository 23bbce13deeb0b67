"""Our clients against Apache Kafka's TLS and SASL: let in with the right credentials, told why otherwise."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.kafka.certificates import Certificates, make_certificates
from tests.kafka.jars import run_tool
from tests.kafka.servers import Kafka4
from tests.support.ports import free_port
from tidelog.cli.main import main
from tidelog.clients.errors import SslAuthenticationException
from tidelog.clients.producer.blocking import Producer
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
    with pytest.raises(SslAuthenticationException, match="certificate verify failed"):
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


SIZED = ("--record-size", "10")
TOOLS = [
    ("topics", "--list"),
    ("topics", "--describe", "--topic", "secured"),
    ("groups", "--list"),
    # Without JSON it ends with 0 whatever happens, as Kafka's does.
    ("consumer-groups", "--list", "--output", "json"),
    ("log-dirs", "--describe"),
    ("configs", "--describe", "--topic", "secured"),
    ("get-offsets", "--topic", "secured"),
    ("broker-api-versions",),
    ("console-consumer", "--topic", "secured", "--from-beginning", "--max-messages", "1"),
    ("end-to-end-latency", *("--topic", "secured", "--num-records", "5", "--producer-acks", "1"), *SIZED),
]


def command_config(kafka: Secured, folder: Path, listener: str, password: str = PASSWORD) -> str:
    """A file of settings as people give it to Kafka's tools."""
    lines = [f"security.protocol={listener}", f"ssl.truststore.location={kafka.certificates.authority}"]
    if listener == "SSL":
        lines.append(f"ssl.keystore.location={kafka.certificates.client}")
    else:
        module = f"{MODULES}.plain.PlainLoginModule"
        lines.append("sasl.mechanism=PLAIN")
        lines.append(f'sasl.jaas.config={module} required username="alice" password="{password}";')
    file = folder / "client.properties"
    file.write_text("\n".join(lines))
    return str(file)


@pytest.mark.parametrize("listener", ["SSL", "SASL_SSL"])
@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: "-".join(tool[:2]))
def test_every_tool_takes_the_settings_of_a_file(
    kafka: Secured, tmp_path: Path, tool: tuple[str, ...], listener: str
) -> None:
    produce(
        bootstrap_servers=kafka.address("SSL"),
        security_protocol="SSL",
        ssl_truststore_location=str(kafka.certificates.authority),
        ssl_keystore_location=str(kafka.certificates.client),
    )
    name, *flags = tool
    where = ["--bootstrap-server", kafka.address(listener)]
    file = command_config(kafka, tmp_path, listener)
    result = CliRunner().invoke(main, [name, *where, "--command-config", file, *flags])
    assert result.exit_code == 0, result.output
    assert result.stdout or name in ("groups", "consumer-groups")


def test_records_are_deleted_and_transactions_listed_with_the_settings_of_a_file(
    kafka: Secured, tmp_path: Path
) -> None:
    file = command_config(kafka, tmp_path, "SASL_SSL")
    where = ["--bootstrap-server", kafka.address("SASL_SSL"), "--command-config", file]
    offsets = tmp_path / "offsets.json"
    offsets.write_text('{"partitions": [{"topic": "secured", "partition": 0, "offset": 0}]}')
    deleted = CliRunner().invoke(main, ["delete-records", *where, "--offset-json-file", str(offsets)])
    assert deleted.exit_code == 0, deleted.output
    listed = CliRunner().invoke(main, ["transactions", *where, "list"])
    assert listed.exit_code == 0, listed.output


@pytest.mark.parametrize("tool", TOOLS[:6], ids=lambda tool: "-".join(tool[:2]))
def test_a_tool_says_in_one_line_that_it_was_not_let_in(
    kafka: Secured, tmp_path: Path, tool: tuple[str, ...]
) -> None:
    name, *flags = tool
    file = command_config(kafka, tmp_path, "SASL_SSL", "wrong")
    where = ["--bootstrap-server", kafka.address("SASL_SSL"), "--command-config", file]
    result = CliRunner().invoke(main, [name, *where, *flags])
    assert result.exit_code == 1
    assert "Authentication failed" in result.output
    assert "Traceback" not in result.output
