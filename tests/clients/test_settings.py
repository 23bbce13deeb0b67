"""Settings: Kafka's names and defaults, what is refused, and what is only warned about."""

from __future__ import annotations

import logging
import runpy
from dataclasses import fields
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from tidelog.clients.settings import (
    AdminSettings,
    ClientSettings,
    ConsumerSettings,
    ProducerSettings,
    admin_definition,
    admin_settings,
    consumer_definition,
    consumer_settings,
    producer_definition,
    producer_settings,
)
from tidelog.clients.typed_settings import AdminClientConfig, ConsumerConfig, ProducerConfig
from tidelog.config import ConfigDef, ConfigError, ConfigType, Password

SERVER = {"bootstrap.servers": "localhost:9092"}
PYTHON_TYPES = {
    ConfigType.BOOLEAN: bool,
    ConfigType.INT: int,
    ConfigType.LONG: int,
    ConfigType.DOUBLE: float,
    ConfigType.STRING: str,
    ConfigType.PASSWORD: Password,
}


def test_a_setting_is_given_by_keyword_or_under_kafkas_name() -> None:
    assert producer_settings(SERVER, linger_ms=7).linger_ms == 7
    assert producer_settings({**SERVER, "linger.ms": "7"}).linger_ms == 7
    assert producer_settings(bootstrap_servers=["a:1", "b:2"]).bootstrap_servers == ("a:1", "b:2")


def test_defaults_are_those_of_kafka_4() -> None:
    settings = producer_settings(SERVER)
    assert (settings.acks, settings.linger_ms, settings.batch_size) == (-1, 5, 16384)
    assert settings.enable_idempotence
    assert consumer_settings(SERVER).max_poll_records == 500
    assert admin_settings(SERVER).connections_max_idle_ms == 300000


@pytest.mark.parametrize(
    ("kind", "definition"),
    [
        (ProducerSettings, producer_definition),
        (ConsumerSettings, consumer_definition),
        (AdminSettings, admin_definition),
    ],
)
def test_every_attribute_is_a_setting_of_its_type(kind: type[ClientSettings], definition: object) -> None:
    assert callable(definition)
    table = definition()
    assert isinstance(table, ConfigDef)
    hints = get_type_hints(kind)
    served = {key.attribute: key for key in table.values() if key.served}
    names = {item.name for item in fields(kind)} - {"given"}
    assert names == set(served)
    for name in names - {"acks"}:
        expected = PYTHON_TYPES.get(served[name].type)
        if expected is not None:
            assert expected in (get_args(hints[name]) or (hints[name],)), name


def test_an_unknown_name_warns_with_the_nearest_one(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tidelog.clients"):
        producer_settings(SERVER, linger_mss=5)
    assert caplog.messages == ["setting linger.mss is not known and changes nothing; did you mean linger.ms?"]


def test_a_setting_without_use_says_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tidelog.clients"):
        producer_settings(SERVER, ssl_provider="SunJSSE")
    assert caplog.messages == ["ssl.provider is accepted and changes nothing: it configures Java itself"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"acks": "2"}, "acks=2: expected one of all, -1, 0, 1"),
        ({"batch_size": -1}, "batch.size=-1: expected at least 0"),
        ({"linger_ms": "soon"}, "linger.ms=soon: expected a whole number: at least 0"),
        (
            {"compression_type": "brotli"},
            "compression.type=brotli: expected one of none, gzip, snappy, lz4, zstd",
        ),
        ({"transactional_id": ""}, "transactional.id=: expected a text that is not empty"),
        ({"bootstrap_servers": ""}, "bootstrap.servers: needed: a list of host:port"),
        ({"bootstrap_servers": 9092}, "bootstrap.servers=9092: expected a list of host:port"),
        ({"bootstrap_servers": ["a:1", b"b:1"]}, "bootstrap.servers=b'b:1': expected a list of host:port"),
    ],
)
def test_a_wrong_value_fails_with_what_is_allowed(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        producer_settings({**SERVER, **given})
    assert str(caught.value).startswith(message)


def test_the_same_setting_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="given twice"):
        producer_settings({"bootstrap.servers": "a:1"}, bootstrap_servers="b:1")


def test_a_password_does_not_show_itself() -> None:
    settings = producer_settings(SERVER, sasl_password="my word", sasl_username="me")
    assert "my word" not in repr(settings)
    assert settings.sasl_password == Password("my word")


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, True), ({"acks": 1}, False), ({"acks": "0"}, False), ({"retries": 0}, False), ({"acks": -1}, True)],
)
def test_idempotence_gives_way_where_nobody_asked_for_it(given: dict[str, object], expected: bool) -> None:
    assert producer_settings(SERVER, **given).enable_idempotence is expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"enable_idempotence": True, "acks": 1}, "acks=1"),
        ({"enable_idempotence": True, "retries": 0}, "retries=0"),
        ({"max_in_flight_requests_per_connection": 6}, "max.in.flight.requests.per.connection=6"),
        ({"transactional_id": "t", "acks": 1}, "transactional.id=t"),
        ({"transactional_id": "t", "enable_idempotence": False}, "transactional.id=t"),
        (
            {"transaction_two_phase_commit_enable": True, "transaction_timeout_ms": 5},
            "transaction.timeout.ms=5",
        ),
        ({"delivery_timeout_ms": 1000}, "delivery.timeout.ms=1000: expected at least linger.ms"),
    ],
)
def test_settings_that_exclude_each_other_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        producer_settings(SERVER, **given)
    assert str(caught.value).startswith(message)


def test_more_requests_in_flight_go_without_idempotence() -> None:
    settings = producer_settings(SERVER, enable_idempotence=False, max_in_flight_requests_per_connection=20)
    assert settings.max_in_flight_requests_per_connection == 20


def test_the_delivery_time_limit_grows_with_the_times_it_has_to_cover() -> None:
    assert producer_settings(SERVER, request_timeout_ms=200_000).delivery_timeout_ms == 200_005


def test_the_typed_settings_are_current() -> None:
    project = Path(__file__).parent.parent.parent
    printed = runpy.run_path(str(project / "packaging" / "typed_settings.py"))["typed_settings"]()
    committed = (project / "src" / "tidelog" / "clients" / "typed_settings.py").read_text()
    assert committed == printed, "run: make docs"


def test_every_setting_of_a_client_has_a_type() -> None:
    kinds = (
        (ProducerConfig, ProducerSettings, {"key_serializer", "value_serializer"}),
        (ConsumerConfig, ConsumerSettings, {"key_deserializer", "value_deserializer"}),
        (AdminClientConfig, AdminSettings, set()),
    )
    for typed, settings, parameters in kinds:
        names = {field.name for field in fields(settings)} - {"given"}
        assert typed.__optional_keys__ | parameters == names
