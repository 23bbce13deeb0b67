"""Listeners with TLS serve every client as Kafka's do, and say who the client is."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer as ConfluentProducer

from kafka import KafkaConsumer, KafkaProducer
from tests.support.certificates import make_certificate
from tests.support.tls_broker import TlsFiles, another_authority, authority, tls_broker
from tests.support.wait import eventually
from tidelog import Admin, Consumer, Producer
from tidelog.config import ConfigError
from tidelog.errors import KafkaError
from tidelog.server.run import StartFailed
from tidelog.testing import Broker

LARGE = [bytes([n]) * 700_000 for n in range(8)]


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return TlsFiles(tmp_path)


@pytest.fixture
def broker(files: TlsFiles) -> Iterator[Broker]:
    with tls_broker(files) as broker:
        broker.create_topic("events")
        yield broker


def handshake(broker: Broker, context: ssl.SSLContext, host: str = "localhost") -> str | None:
    """The version of TLS after an ApiVersions, which only an authenticated client gets."""
    port = int(broker.address_of("SSL").rpartition(":")[2])
    with (
        socket.create_connection(("localhost", port), 20) as plain,
        context.wrap_socket(plain, server_hostname=host) as sock,
    ):
        sock.sendall(b"\0\0\0\x0a\0\x12\0\0\0\0\0\7\xff\xff")
        answer = sock.recv(100)
        if not answer:
            raise ConnectionError("closed without an answer")
        assert answer[4:8] == b"\0\0\0\7"
        return sock.version()


def wait_for_line(broker: Broker, words: str) -> None:
    """A refused connection may be seen closed before its reason is logged."""
    eventually(lambda: any(words in line for line in broker.log_lines()), f"{words!r} is logged")


def test_our_clients_produce_and_consume(broker: Broker, files: TlsFiles) -> None:
    settings = {"bootstrap.servers": broker.address_of("SSL"), **files.client_settings()}
    with Producer({**settings, "max.request.size": 2_000_000}) as producer:
        for value in LARGE:
            producer.send("events", value=value)
        producer.flush()
    found: list[bytes | None] = []
    with Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe(["events"])
        while len(found) < len(LARGE):
            found += [record.value for record in consumer.poll(10.0)]
    assert found == LARGE


def test_librdkafka_produces_and_consumes(broker: Broker, files: TlsFiles) -> None:
    settings = {
        "bootstrap.servers": broker.address_of("SSL"),
        "security.protocol": "SSL",
        "ssl.ca.location": files.trust,
    }
    producer = ConfluentProducer(settings)
    for value in LARGE:
        producer.produce("events", value)
    assert producer.flush(30) == 0
    consumer = ConfluentConsumer(settings | {"group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["events"])
    found = [message.value() for message in consumer.consume(len(LARGE), 30)]
    consumer.close()
    assert found == LARGE


def test_kafka_python_produces_and_consumes(broker: Broker, files: TlsFiles) -> None:
    settings = {
        "bootstrap_servers": broker.address_of("SSL"),
        "security_protocol": "SSL",
        "ssl_cafile": files.trust,
    }
    producer = KafkaProducer(**settings)
    for value in LARGE:
        producer.send("events", value).get(30)
    producer.close()
    consumer = KafkaConsumer("events", **settings, auto_offset_reset="earliest", consumer_timeout_ms=20_000)
    found = [next(consumer).value for _ in LARGE]
    consumer.close()
    assert found == LARGE


def test_aiokafka_produces_and_consumes(broker: Broker, files: TlsFiles) -> None:
    async def run() -> list[bytes | None]:
        settings = {
            "bootstrap_servers": broker.address_of("SSL"),
            "security_protocol": "SSL",
            "ssl_context": files.client_context(),
        }
        async with AIOKafkaProducer(**settings) as producer:
            for value in LARGE:
                await producer.send_and_wait("events", value)
        async with AIOKafkaConsumer("events", **settings, auto_offset_reset="earliest") as consumer:
            return [(await consumer.getone()).value for _ in LARGE]

    assert asyncio.run(run()) == LARGE


def test_metadata_names_the_address_of_the_listener_that_was_asked(broker: Broker, files: TlsFiles) -> None:
    for listener, settings in (("PLAINTEXT", {}), ("SSL", files.client_settings())):
        with Admin({"bootstrap.servers": broker.address_of(listener), **settings}) as admin:
            (node,) = admin.describe_cluster().nodes
        assert f"{node.host}:{node.port}" == broker.address_of(listener)


@pytest.mark.parametrize(
    ("enabled", "version", "answer"),
    [
        ("TLSv1.2", ssl.TLSVersion.TLSv1_2, "TLSv1.2"),
        ("TLSv1.3", ssl.TLSVersion.TLSv1_3, "TLSv1.3"),
        ("TLSv1.2,TLSv1.3", ssl.TLSVersion.TLSv1_2, "TLSv1.2"),
        ("TLSv1.2", ssl.TLSVersion.TLSv1_3, None),
        ("TLSv1.3", ssl.TLSVersion.TLSv1_2, None),
    ],
)
def test_only_enabled_versions_are_served(
    files: TlsFiles, enabled: str, version: ssl.TLSVersion, answer: str | None
) -> None:
    context = files.client_context()
    context.minimum_version = context.maximum_version = version
    with tls_broker(files, listener__name__ssl__ssl__enabled__protocols=enabled) as broker:
        if answer is None:
            with pytest.raises(ssl.SSLError):
                handshake(broker, context)
        else:
            assert handshake(broker, context) == answer


def test_only_enabled_suites_are_served(files: TlsFiles) -> None:
    suite = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
    settings = {"ssl__cipher__suites": suite, "ssl__enabled__protocols": "TLSv1.2"}
    with tls_broker(files, **settings) as broker:
        assert handshake(broker, files.client_context()) == "TLSv1.2"
        context = files.client_context()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
        with pytest.raises(ssl.SSLError):
            handshake(broker, context)


@pytest.mark.parametrize(
    ("client_auth", "certificate", "is_served"),
    [
        ("none", None, True),
        ("none", "alice", True),
        ("none", "stranger", True),  # it is not asked for
        ("requested", None, True),
        ("requested", "alice", True),
        ("requested", "stranger", False),
        ("required", None, False),
        ("required", "alice", True),
        ("required", "stranger", False),
        ("required", "expired", False),
    ],
)
def test_client_certificates_in_all_forms(
    files: TlsFiles, client_auth: str, certificate: str | None, is_served: bool
) -> None:
    paths = {
        "alice": lambda: files.client("alice"),
        "stranger": lambda: files.client("stranger", another_authority()),
        "expired": lambda: files.write("old.pem", make_certificate(authority(), "old", expired=True).pem()),
    }
    context = files.client_context(None if certificate is None else paths[certificate]())
    with tls_broker(files, ssl__client__auth=client_auth) as broker:
        if is_served:
            assert handshake(broker, context) == "TLSv1.3"
        else:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                handshake(broker, context)


@pytest.mark.parametrize(
    ("rules", "certificate", "principal"),
    [
        ("DEFAULT", "alice", "User:CN=alice"),
        ("RULE:^CN=(.*)$/$1/U,DEFAULT", "alice", "User:ALICE"),
        ("DEFAULT", None, "User:ANONYMOUS"),
    ],
)
def test_the_principal_of_a_request(
    files: TlsFiles, rules: str, certificate: str | None, principal: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "tidelog.request")
    settings = {
        "ssl__client__auth": "requested",
        "listener__name__ssl__ssl__principal__mapping__rules": rules,
    }
    path = None if certificate is None else files.client(certificate)
    with tls_broker(files, **settings) as broker:
        handshake(broker, files.client_context(path))
        fields = eventually(
            lambda: [vars(record)["fields"] for record in caplog.records if record.name == "tidelog.request"],
            "the request is logged",
        )
        assert [each["principal"] for each in fields] == [principal]


def test_a_name_that_no_rule_maps_is_refused(files: TlsFiles) -> None:
    settings = {"ssl__client__auth": "required", "ssl__principal__mapping__rules": "RULE:CN=bob/bob/"}
    with tls_broker(files, **settings) as broker:
        handshake(broker, files.client_context(files.client("bob")))
        with pytest.raises((ssl.SSLError, ConnectionError)):
            handshake(broker, files.client_context(files.client("alice")))
        wait_for_line(broker, "no rule of")


def test_a_client_that_trusts_others_or_expects_another_host_leaves(
    broker: Broker, files: TlsFiles
) -> None:
    stranger = ssl.create_default_context(cadata=another_authority().certificate_pem)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(broker, stranger)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(broker, files.client_context(), "broker.example.com")


def test_plaintext_to_a_tls_port_and_tls_to_a_plaintext_port(broker: Broker, files: TlsFiles) -> None:
    settings = {"default.api.timeout.ms": 1500, "request.timeout.ms": 500}
    with (
        pytest.raises(KafkaError),
        Admin({"bootstrap.servers": broker.address_of("SSL"), **settings}) as admin,
    ):
        admin.describe_cluster()
    host, _, port = broker.address_of("PLAINTEXT").rpartition(":")
    with socket.create_connection((host, int(port)), 20) as plain, pytest.raises((ssl.SSLError, OSError)):
        files.client_context().wrap_socket(plain, server_hostname="localhost")
    wait_for_line(broker, "without TLS")
    wait_for_line(broker, "failed authentication")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ssl__keystore__location": "/nowhere.pem"}, "ssl.keystore.location=/nowhere.pem"),
        ({"ssl__client__auth": "perhaps"}, "ssl.client.auth=perhaps"),
        ({"ssl__principal__mapping__rules": "RULE:x"}, "ssl.principal.mapping.rules=RULE:x"),
        ({"principal__builder__class": "com.example.Builder"}, "principal.builder.class=com.example.Builder"),
        ({"listener__name__ssl__ssl__keystore__type": "JKS"}, "listener.name.ssl.ssl.keystore"),
    ],
)
def test_settings_that_do_not_work_stop_the_start(
    files: TlsFiles, settings: dict[str, str], message: str
) -> None:
    with pytest.raises((StartFailed, ConfigError), match=re.escape(message)):
        tls_broker(files, **settings).start()


def test_brokers_that_could_not_connect_to_each_other_do_not_start(files: TlsFiles) -> None:
    files.write("server.pem", make_certificate(another_authority(), "broker").pem())
    with pytest.raises(StartFailed, match="cannot connect to each other"):
        tls_broker(files, inter__broker__listener__name="SSL").start()
