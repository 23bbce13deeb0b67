"""Tasks that read ranges from an Apache Kafka with TLS and SASL: let in, or told why not at once."""

from __future__ import annotations

import time

import pytest

from tests.kafka.test_client_security import Secured, kafka, password_for
from tidelog import Producer
from tidelog.clients.errors import SslAuthenticationException
from tidelog.errors import SaslAuthenticationFailed
from tidelog.spark.reader import OffsetRange, ReadSettings, read_range

__all__ = ["kafka"]  # the fixture
pytestmark = pytest.mark.kafka


def client(kafka: Secured, listener: str, mechanism: str) -> dict[str, str]:
    return {
        "bootstrap.servers": kafka.address(listener),
        "security.protocol": listener,
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": password_for(mechanism),
        "ssl.truststore.location": str(kafka.certificates.authority),
    }


@pytest.mark.parametrize(
    ("listener", "mechanism"),
    [("SASL_PLAINTEXT", "SCRAM-SHA-256"), ("SASL_SSL", "PLAIN"), ("SASL_SSL", "SCRAM-SHA-512")],
)
def test_a_range_is_read_through_tls_and_sasl(kafka: Secured, listener: str, mechanism: str) -> None:
    settings = client(kafka, listener, mechanism)
    topic = f"read-{listener.lower()}-{mechanism.lower()}"
    values = [b"%d" % number * 400 for number in range(2000)]
    with Producer(settings) as producer:
        for value in values:
            producer.send(topic, value, partition=0)
    found = read_range(OffsetRange(topic, 0, 5, 1995), ReadSettings(settings, poll_timeout_ms=30_000))
    assert [value for batch in found for value in batch["value"].to_pylist()] == values[5:1995]


def test_a_task_that_is_not_let_in_says_so_at_once(kafka: Secured) -> None:
    begun = time.monotonic()
    settings = {**client(kafka, "SASL_PLAINTEXT", "PLAIN"), "sasl.password": "wrong"}
    with pytest.raises(SaslAuthenticationFailed):
        list(read_range(OffsetRange("t", 0, 0, 5), ReadSettings(settings)))
    settings = client(kafka, "SASL_SSL", "PLAIN")
    del settings["ssl.truststore.location"]
    with pytest.raises(SslAuthenticationException, match="certificate verify failed"):
        list(read_range(OffsetRange("t", 0, 0, 5), ReadSettings(settings)))
    assert time.monotonic() - begun < 20
