"""Listeners: where the broker binds, what it tells clients, and the mistakes that are refused."""

from __future__ import annotations

import pytest

from tidelog.config.values import ConfigError
from tidelog.server.config.broker import BrokerConfig


def load(**settings: str) -> BrokerConfig:
    return BrokerConfig.load(None, {name.replace("_", "."): value for name, value in settings.items()})


def refusal(**settings: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(**settings)
    return str(caught.value)


def bound(config: BrokerConfig) -> list[str]:
    return [str(endpoint) for endpoint in config.endpoints]


def advertised(config: BrokerConfig) -> list[str]:
    return [str(endpoint) for endpoint in config.advertised_endpoints]


TWO = {
    "listeners": "INSIDE://127.0.0.1:9092,outside://[::1]:9093",
    "listener_security_protocol_map": "inside:PLAINTEXT,OUTSIDE:PLAINTEXT",
    "inter_broker_listener_name": "INSIDE",
}


def test_several_named_listeners_are_advertised_apart() -> None:
    config = load(**TWO, advertised_listeners="INSIDE://a.example:1,OUTSIDE://b.example:2")
    assert bound(config) == ["INSIDE://127.0.0.1:9092", "OUTSIDE://[::1]:9093"]
    assert advertised(config) == ["INSIDE://a.example:1", "OUTSIDE://b.example:2"]
    assert config.inter_broker_listener == "INSIDE"


def test_some_listeners_need_not_be_advertised() -> None:
    assert advertised(load(**TWO, advertised_listeners="INSIDE://a.example:1")) == ["INSIDE://a.example:1"]


def test_an_empty_host_binds_everywhere_and_advertises_the_name_of_the_machine() -> None:
    config = load(listeners="PLAINTEXT://:9092")
    assert bound(config) == ["PLAINTEXT://:9092"]
    assert config.advertised_endpoints[0].host


def test_the_system_may_choose_every_port() -> None:
    both = load(
        listeners="A://127.0.0.1:0,B://127.0.0.1:0",
        listener_security_protocol_map="A:PLAINTEXT,B:PLAINTEXT",
        inter_broker_listener_name="A",
    )
    assert [endpoint.port for endpoint in both.endpoints] == [0, 0]


def test_one_port_serves_both_families_of_addresses() -> None:
    config = load(**{**TWO, "listeners": "INSIDE://127.0.0.1:9092,OUTSIDE://[::1]:9092"})
    assert len(config.endpoints) == 2


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"listeners": ""}, "at least one listener"),
        ({"listeners": "9092"}, "expected NAME://host:port"),
        ({"listeners": "PLAINTEXT://host:99999"}, "expected NAME://host:port"),
        ({"listeners": "PLAINTEXT://a:1,PLAINTEXT://b:2"}, "the name PLAINTEXT occurs twice"),
        ({**TWO, "listeners": "INSIDE://a:1,OUTSIDE://b:1"}, "listener INSIDE has that port"),
        ({"listeners": "OTHER://a:1"}, "OTHER has no protocol"),
        ({"listeners": "SSL://127.0.0.1:9092"}, "inter.broker.listener.name can be SSL"),
        ({"listeners": "PLAINTEXT://0.0.0.0:9092"}, "clients cannot connect to that"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"}, "clients cannot connect to that"),
        ({"advertised.listeners": "SSL://a:1"}, "listeners has no SSL"),
        ({"listener.security.protocol.map": "PLAINTEXT"}, "expected NAME:PROTOCOL"),
        ({"listener.security.protocol.map": "PLAINTEXT:HTTP"}, "expected NAME:PROTOCOL"),
        ({"listener.security.protocol.map": "A:SSL,a:SSL"}, "A occurs twice"),
        ({**TWO, "inter.broker.listener.name": "ELSEWHERE"}, "can be INSIDE, OUTSIDE"),
        ({"security.inter.broker.protocol": "SSL"}, "can be PLAINTEXT"),
        ({"controller.listener.names": "PLAINTEXT"}, "no listener is left for clients"),
    ],
)
def test_listeners_that_cannot_work_are_refused(settings: dict[str, str], problem: str) -> None:
    assert problem in refusal(**settings)


def test_an_address_for_everybody_can_be_bound_when_another_is_advertised() -> None:
    config = load(
        listeners="PLAINTEXT://0.0.0.0:9092", advertised_listeners="PLAINTEXT://broker.example:9092"
    )
    assert bound(config) == ["PLAINTEXT://0.0.0.0:9092"]
