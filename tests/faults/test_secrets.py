"""A secret that a client or a file gives the broker is in no log line and in no answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.client import BROKER, BROKER_LOGGER, TOPIC, Client, surprises
from tests.faults.corpus import golden_payloads, pointed_payloads
from tests.support.broker import Broker
from tests.support.raw import ConnectionClosed, NoAnswer, RawConnection
from tidelog.clients.connection import request_frame
from tidelog.protocol.messages.alter_configs import AlterConfigsRequest
from tidelog.protocol.messages.create_topics import CreateTopicsRequest
from tidelog.protocol.messages.describe_configs import DescribeConfigsRequest
from tidelog.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest

CLIENT_METRICS = 16
SECRET = "hunter2-is-my-password"
NAMES = [
    "ssl.key.password",
    "ssl.keystore.password",
    "ssl.keystore.key",
    "sasl.jaas.config",
    "listener.name.plaintext.ssl.key.password",
    "listener.name.plaintext.plain.sasl.jaas.config",
    "listener.name.internal.scram-sha-256.sasl.jaas.config",
    "password",
    "not.a.setting",
]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker that logs all it can."""
    properties = tmp_path / "server.properties"
    properties.write_text(
        f"ssl.key.password={SECRET}\nsasl.jaas.config={SECRET}\nssl.keystore.password = {SECRET}\n"
        f"listener.name.plaintext.ssl.truststore.password={SECRET}\npassword.encoder.secret={SECRET}\n"
    )
    with Broker(tmp_path, properties=properties) as running:
        with Client(running.address) as client:
            assert client.set_configs(BROKER_LOGGER, client.broker_id(), {"root": "TRACE"}) == 0
        yield running
        assert SECRET not in running.log()


def incremental(kind: int, resource: str, name: str, operation: int) -> IncrementalAlterConfigsRequest:
    config = IncrementalAlterConfigsRequest.AlterableConfig(
        name=name, config_operation=operation, value=SECRET
    )
    return IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=kind, resource_name=resource, configs=[config]
            )
        ]
    )


def replaced(kind: int, resource: str, name: str) -> AlterConfigsRequest:
    config = AlterConfigsRequest.AlterableConfig(name=name, value=SECRET)
    return AlterConfigsRequest(
        resources=[
            AlterConfigsRequest.AlterConfigsResource(
                resource_type=kind, resource_name=resource, configs=[config]
            )
        ]
    )


def test_passwords_that_clients_set_are_in_no_log_and_in_no_answer(broker: Broker) -> None:
    with Client(broker.address) as client:
        assert client.create_topic("t") == 0
        resources = [(TOPIC, "t"), (TOPIC, "unknown"), (BROKER, client.broker_id()), (BROKER, "")]
        resources += [(BROKER, "77"), (CLIENT_METRICS, "x")]
        answers = []
        for kind, resource in resources:
            for name in NAMES:
                for operation in range(4):
                    client.send(incremental(kind, resource, name, operation), 1)
                    answers.append((name, client.receive_frame()))
                client.send(replaced(kind, resource, name), 2)
                answers.append((name, client.receive_frame()))
            described = DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=kind, resource_name=resource
            )
            client.send(DescribeConfigsRequest(resources=[described], include_synonyms=True), 4)
            answers.append(("described", client.receive_frame()))
        assert {name for name, answer in answers if SECRET.encode() in answer} == set()
    assert "IncrementalAlterConfigs" in broker.log()
    assert "[hidden]" in broker.log()


def test_a_secret_in_a_topic_that_cannot_be_made_is_not_told(broker: Broker) -> None:
    with Client(broker.address) as client:
        for name in ("password", "ssl.key.password", "not.a.setting"):
            config = CreateTopicsRequest.CreatableTopicConfig(name=name, value=SECRET)
            topic = CreateTopicsRequest.CreatableTopic(
                name="made", num_partitions=1, replication_factor=1, configs=[config]
            )
            client.send(CreateTopicsRequest(topics=[topic]), 7)
            assert SECRET.encode() not in client.receive_frame()


def test_a_request_that_is_cut_or_damaged_shows_nothing_of_its_secret(broker: Broker) -> None:
    with Client(broker.address) as client:
        identity = client.broker_id()
    for version in (0, 1):
        frame = request_frame(incremental(BROKER, identity, "ssl.key.password", 0), version, 1, "c")[4:]
        for damaged in [frame[:end] for end in range(12, len(frame))] + [
            frame + b"x",
            frame[:20] + frame[21:],
        ]:
            with RawConnection(broker.address) as connection:
                connection.send_frame(damaged)
                try:
                    assert SECRET.encode() not in connection.receive_frame()
                except ConnectionClosed:
                    pass
    assert "malformed" in broker.log()
    assert surprises(broker.log()) == []


def test_the_request_log_bears_every_request(broker: Broker) -> None:
    """With bodies written to the log, well-formed and malformed requests are answered as without."""
    payloads = golden_payloads()[::3] + pointed_payloads(bytes(16))
    for payload in payloads:
        for data in (payload, payload[:-3], payload + b"more", payload[:30] + b"\xff" * 4 + payload[34:]):
            with RawConnection(broker.address) as connection:
                connection.send_frame(data)
                try:
                    connection.receive_frame(0.02 if data[:2] in (b"\0\0", b"\0\1") else 10)
                except ConnectionClosed:
                    pass
                except NoAnswer:
                    assert data[:2] in (b"\0\0", b"\0\1")
    assert surprises(broker.log()) == []
