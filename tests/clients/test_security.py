"""What clients say to prove who they are, and the TLS contexts that settings make."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tests.clients.fake_broker import FakeBroker
from tests.data.key_stores.record import PASSWORD
from tests.support.certificates import make_authority, make_certificate
from tidelog import Admin, Consumer
from tidelog.clients.connection import Connection
from tidelog.clients.errors import SslAuthenticationException
from tidelog.clients.producer.blocking import Producer
from tidelog.clients.sasl.credentials import Credentials
from tidelog.clients.sasl.plain import plain_steps
from tidelog.clients.sasl.scram import scram_steps
from tidelog.clients.security import Security
from tidelog.clients.settings import ProducerSettings, producer_settings
from tidelog.config import ConfigError
from tidelog.errors import SaslAuthenticationFailed
from tidelog.security.jaas import PLAIN_MODULE, SCRAM_MODULE
from tidelog.security.tls import TlsSettings, server_context

STORES = Path(__file__).parent.parent / "data" / "key_stores"

# The exchange that RFC 7677 prints.
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
PROOF = b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def settings(**given: object) -> ProducerSettings:
    return producer_settings(bootstrap_servers="localhost:9092", **given)


def test_plain_is_one_message() -> None:
    assert list(plain_steps(Credentials("alice", "secret"))) == [b"\0alice\0secret"]


def test_scram_is_what_the_standard_prints() -> None:
    steps = scram_steps(Credentials("user", "pencil"), "SCRAM-SHA-256", NONCE)
    assert next(steps) == b"n,,n=user,r=" + NONCE.encode()
    assert steps.send(SERVER_FIRST).endswith(PROOF)
    with pytest.raises(StopIteration):
        steps.send(SERVER_FINAL)


@pytest.mark.parametrize(
    ("first", "final", "message"),
    [
        (SERVER_FIRST, b"v=AAAA", "does not know the password"),
        (SERVER_FIRST, b"e=invalid-proof", "refused 'user': invalid-proof"),
        (b"e=unknown-user", b"", "refused 'user': unknown-user"),
        (b"r=somebody-else,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", b"", "a nonce that does not follow ours"),
        (SERVER_FIRST.replace(b"4096", b"12"), b"", "asks for 12 rounds; at least 4096 are safe"),
        (SERVER_FIRST.replace(b"4096", b"2147483647"), b"", "asks for 2147483647 rounds; at most 1000000"),
        (SERVER_FIRST, "v=\u00fc".encode(), "does not know the password"),
        (SERVER_FIRST, b"v=", "does not know the password"),
        (b"what?", b"", "lacks nonce, salt or count"),
    ],
)
def test_a_broker_that_cannot_prove_itself_is_refused(first: bytes, final: bytes, message: str) -> None:
    steps = scram_steps(Credentials("user", "pencil"), "SCRAM-SHA-256", NONCE)
    next(steps)
    with pytest.raises(SaslAuthenticationFailed, match=message):
        steps.send(first)
        steps.send(final)


def test_names_with_commas_are_escaped_and_tokens_say_what_they_are() -> None:
    steps = scram_steps(Credentials("a=b,c", "secret", is_token=True), "SCRAM-SHA-512", "nonce")
    assert next(steps) == b"n,,n=a=3Db=2Cc,r=nonce,tokenauth=true"


def test_credentials_come_from_settings_or_from_a_jaas_line() -> None:
    options = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
    plain = Security(settings(**options, sasl_username="alice", sasl_password="secret"))
    line = f'{PLAIN_MODULE} required username="bob" password="pass word";'
    jaas = Security(settings(**options, sasl_jaas_config=line))
    assert plain.credentials is not None
    assert jaas.credentials is not None
    assert (plain.credentials.username, plain.credentials.password) == ("alice", "secret")
    assert (jaas.credentials.username, jaas.credentials.password) == ("bob", "pass word")
    assert "secret" not in repr(plain.credentials)
    databricks = Security(settings(**options, sasl_jaas_config=f"kafkashaded.{line}"))
    assert databricks.credentials is not None
    assert databricks.credentials.username == "bob"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"sasl\.username: expected with sasl\.password"),
        ({"sasl_mechanism": "CRAM-MD5"}, r"sasl\.mechanism=CRAM-MD5: expected one of PLAIN, SCRAM-SHA-256"),
        ({"sasl_mechanism": "GSSAPI"}, r"sasl\.kerberos\.service\.name: needed by GSSAPI"),
        (
            {"sasl_mechanism": "OAUTHBEARER"},
            r"sasl\.oauthbearer\.token\.endpoint\.url: needed by OAUTHBEARER",
        ),
        ({"sasl_jaas_config": f"{PLAIN_MODULE} required;"}, r"jaas\.config=\[hidden\]: expected username"),
        (
            {"sasl_jaas_config": f"{SCRAM_MODULE} required;"},
            r"ScramLoginModule is not the login module of PLAIN",
        ),
        ({"sasl_jaas_config": "org.example.Module required;"}, r"Module is not a known login module"),
    ],
)
def test_what_is_missing_is_named_when_the_client_is_made(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Security(settings(**{"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", **given}))


def tls_context(given: ProducerSettings) -> ssl.SSLContext:
    context = Security(given).context
    assert context is not None
    return context


def test_tls_follows_the_settings(tmp_path: Path) -> None:
    context = tls_context(settings(security_protocol="SSL"))
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    only_new = tls_context(
        settings(
            security_protocol="SSL", ssl_enabled_protocols="TLSv1.3", ssl_endpoint_identification_algorithm=""
        )
    )
    assert only_new.minimum_version is ssl.TLSVersion.TLSv1_3
    assert not only_new.check_hostname
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("nothing")
    for store in ("keystore", "truststore"):
        given = {"security_protocol": "SSL", f"ssl_{store}_location": str(nothing)}
        with pytest.raises(
            ConfigError, match=rf"ssl\.{store}\.location=.*nothing\.pem: .* none of JKS, PKCS12"
        ):
            tls_context(settings(**given))
    with pytest.raises(ConfigError, match=r"ssl\.keystore\.type=BKS: expected one of JKS, PKCS12, PEM"):
        settings(ssl_keystore_type="BKS")


def test_a_store_of_java_works_as_it_is() -> None:
    trust = {"ssl_truststore_location": str(STORES / "trust.jks"), "ssl_truststore_password": PASSWORD}
    context = tls_context(settings(security_protocol="SSL", **trust))
    assert len(context.get_ca_certs()) == 2
    with pytest.raises(ConfigError, match=r"^ssl\.truststore\.password=\[hidden\]: it does not open"):
        tls_context(settings(security_protocol="SSL", **{**trust, "ssl_truststore_password": "wrong"}))


def test_a_broker_that_refuses_our_certificate_refuses_for_good() -> None:
    """In TLS 1.3 its alert comes after the client's side of the handshake is done."""
    authority = make_authority()
    server = make_certificate(authority)
    inline = {"ssl.keystore.key": server.key_pem(), "ssl.keystore.certificate.chain": server.chain_pem}
    trusted = {"ssl.truststore.certificates": authority.certificate_pem}
    tls = server_context(TlsSettings.of({**inline, **trusted, "ssl.client.auth": "required"}))
    listening = socket.create_server(("127.0.0.1", 0))
    listening.settimeout(0.05)
    stopped = threading.Event()

    def refuse() -> None:
        while not stopped.is_set():
            try:
                connection, _ = listening.accept()
            except TimeoutError:
                continue
            connection.settimeout(10)
            with tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False) as secured:
                with suppress(ssl.SSLError):
                    secured.do_handshake()
                # What the client sent has to be read: otherwise its system throws the alert away.
                os.set_blocking(secured.fileno(), True)
                secured.shutdown(socket.SHUT_WR)
                while os.read(secured.fileno(), 4096):
                    pass

    thread = threading.Thread(target=refuse)
    thread.start()
    port = listening.getsockname()[1]
    given = {
        "bootstrap_servers": f"127.0.0.1:{port}",
        "security_protocol": "SSL",
        "ssl_truststore_certificates": authority.certificate_pem,
    }
    try:
        with pytest.raises(SslAuthenticationException, match="certificate"), Producer(**given) as producer:
            producer.send("t", b"v").result(10)
        with pytest.raises(SslAuthenticationException, match="certificate"):
            Connection("127.0.0.1", port, security=Security(producer_settings(**given)))
    finally:
        stopped.set()
        thread.join(10)
        listening.close()


def test_a_client_certificate_of_the_settings_is_accepted() -> None:
    authority = make_authority()
    server, client = make_certificate(authority), make_certificate(authority, "client", hosts=())
    inline = {"ssl.keystore.key": server.key_pem(), "ssl.keystore.certificate.chain": server.chain_pem}
    trusted = {"ssl.truststore.certificates": authority.certificate_pem}
    tls = server_context(TlsSettings.of({**inline, **trusted, "ssl.client.auth": "required"}))
    with (
        FakeBroker(tls=tls) as broker,
        Producer(
            bootstrap_servers=broker.bootstrap,
            security_protocol="SSL",
            ssl_truststore_certificates=authority.certificate_pem,
            ssl_keystore_key=client.key_pem(),
            ssl_keystore_certificate_chain=client.chain_pem,
        ) as producer,
    ):
        producer.send("t", b"v").result(10)


def test_a_client_with_an_unusable_store_is_not_made(tmp_path: Path) -> None:
    given = {"bootstrap_servers": "localhost:1", "security_protocol": "SSL"}
    for client in (Producer, Consumer, Admin):
        with pytest.raises(ConfigError, match=r"^ssl\.truststore\.location=.*: the file cannot be read"):
            client(**given, ssl_truststore_location=str(tmp_path / "nothing.jks"))
