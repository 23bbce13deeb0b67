"""kafka-python and aiokafka log in over TLS by every mechanism, and by certificates."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from typing import Any

import aiokafka
import aiokafka.errors
import kafka.errors
import pytest
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from kafka.net.sasl.oauth import AbstractTokenProvider

import kafka
from tests.support.certificates import make_certificate
from tests.support.sasl_broker import sasl_ssl_broker
from tests.support.sasl_walks import MECHANISMS, fresh
from tests.support.tls_broker import TlsFiles, authority
from tests.support.topics import topic_of_test
from tidelog.testing import Broker

VALUES = [b"%d" % number for number in range(100)]
USERS = {
    "PLAIN": ("alice", "alice-secret"),
    "SCRAM-SHA-256": ("carol", "carol-secret"),
    "SCRAM-SHA-512": ("dave", "dave-secret"),
}


class Tokens(AbstractTokenProvider):  # type: ignore[misc]
    def token(self) -> str:
        return fresh(sub="erin")


class AioTokens(AioTokenProvider):  # type: ignore[misc]
    async def token(self) -> str:
        return fresh(sub="erin")


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
    return topic_of_test(broker.address_of("PLAINTEXT"), request.node.name)


def login(broker: Broker, context: ssl.SSLContext, mechanism: str, tokens: object) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap_servers": broker.address_of("SASL"),
        "security_protocol": "SASL_SSL",
        "ssl_context": context,
        "sasl_mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        return settings | {"sasl_oauth_token_provider": tokens}
    user, password = USERS[mechanism]
    return settings | {"sasl_plain_username": user, "sasl_plain_password": password}


def certificate(broker: Broker, context: ssl.SSLContext) -> dict[str, Any]:
    address = broker.address_of("CERTIFICATE")
    return {"bootstrap_servers": address, "security_protocol": "SSL", "ssl_context": context}


def by_kafka_python(topic: str, settings: dict[str, Any]) -> list[bytes]:
    producer = kafka.KafkaProducer(**settings)
    for value in VALUES:
        producer.send(topic, value)
    producer.flush(30)
    producer.close()
    consumer = kafka.KafkaConsumer(
        topic, **settings, auto_offset_reset="earliest", consumer_timeout_ms=30_000
    )
    found = [next(consumer).value for _ in VALUES]
    consumer.close()
    return found


def by_aiokafka(topic: str, settings: dict[str, Any]) -> list[bytes]:
    async def run() -> list[bytes]:
        async with aiokafka.AIOKafkaProducer(**settings) as producer:
            await asyncio.gather(*[await producer.send(topic, value) for value in VALUES])
        async with aiokafka.AIOKafkaConsumer(topic, **settings, auto_offset_reset="earliest") as consumer:
            return [(await consumer.getone()).value for _ in VALUES]

    return asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python(broker: Broker, files: TlsFiles, topic: str, mechanism: str) -> None:
    settings = login(broker, files.client_context(), mechanism, Tokens())
    assert by_kafka_python(topic, settings) == VALUES


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka(broker: Broker, files: TlsFiles, topic: str, mechanism: str) -> None:
    assert by_aiokafka(topic, login(broker, files.client_context(), mechanism, AioTokens())) == VALUES


def test_certificates(broker: Broker, files: TlsFiles, topic: str) -> None:
    settings = certificate(broker, files.client_context(files.client("frank")))
    assert by_kafka_python(topic, settings) == VALUES
    assert by_aiokafka(topic, settings) == VALUES


@pytest.mark.parametrize("listener", ["CERTIFICATE", "SASL"])
def test_an_expired_certificate_and_a_client_without_a_login(
    broker: Broker, files: TlsFiles, listener: str
) -> None:
    """The broker closes the connection, as Kafka does: after the handshake of TLS 1.3, or at the request."""
    late = files.write("late.pem", make_certificate(authority(), "late", expired=True).pem())
    settings = {
        "bootstrap_servers": broker.address_of(listener),
        "security_protocol": "SSL",
        "ssl_context": files.client_context(late if listener == "CERTIFICATE" else None),
    }
    with pytest.raises(kafka.errors.KafkaTimeoutError):
        kafka.KafkaProducer(**settings, bootstrap_timeout_ms=500)

    async def start() -> None:
        producer = aiokafka.AIOKafkaProducer(**settings)
        try:
            await producer.start()
        finally:
            await producer.stop()

    with pytest.raises(aiokafka.errors.KafkaConnectionError):
        asyncio.run(start())
