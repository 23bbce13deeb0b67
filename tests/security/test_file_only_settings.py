"""A client that may change settings has the broker load no code, and connect to no address of its choice."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.sasl.test_settings import logs_in
from tests.support.sasl_broker import sasl_broker
from tests.support.sasl_walks import fresh, oauth
from tidelog import Admin
from tidelog.clients.admin import AlterConfigOp, ConfigResource, ResourceType
from tidelog.errors import InvalidRequest
from tidelog.server.config.broker import BrokerConfig
from tidelog.server.config.broker_definition import FILE_ONLY
from tidelog.testing import Broker

UNUSED_MODULE = "this"  # of Python's library; to import it prints its text
NEVER_ASKED = "http://127.0.0.1:9/keys"
OF_ONE_LISTENER = {
    "plain.sasl.server.callback.handler.class": f"{UNUSED_MODULE}.Zen",
    "sasl.server.callback.handler.class": f"{UNUSED_MODULE}.Zen",
    "oauthbearer.sasl.login.callback.handler.class": f"{UNUSED_MODULE}.Zen",
    "sasl.oauthbearer.token.endpoint.url": NEVER_ASKED,
    "sasl.oauthbearer.jwks.endpoint.url": NEVER_ASKED,
    "tidelog.sasl.oauthbearer.allowed.urls": NEVER_ASKED,
    "tidelog.sasl.oauthbearer.unsecured.enable": "true",
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    broker = sasl_broker(**{"node.id": 1})
    yield broker
    broker.close()


@pytest.mark.parametrize("name", OF_ONE_LISTENER)
def test_no_client_changes_them_for_one_listener(broker: Broker, name: str) -> None:
    resource = ConfigResource(ResourceType.BROKER, "1")
    change = AlterConfigOp(f"listener.name.sasl.{name}", OF_ONE_LISTENER[name])
    with (
        Admin(bootstrap_servers=broker.address_of("PLAINTEXT")) as admin,
        pytest.raises(InvalidRequest, match="only the file of the broker can set it"),
    ):
        admin.incremental_alter_configs({resource: [change]})
    assert UNUSED_MODULE not in sys.modules


@pytest.mark.parametrize("name", sorted(FILE_ONLY))
def test_no_client_changes_them_for_all_listeners(broker: Broker, name: str) -> None:
    for broker_name in ("1", ""):
        resource = ConfigResource(ResourceType.BROKER, broker_name)
        with (
            Admin(bootstrap_servers=broker.address_of("PLAINTEXT")) as admin,
            pytest.raises(InvalidRequest),
        ):
            admin.incremental_alter_configs({resource: [AlterConfigOp(name, "true")]})


@pytest.mark.parametrize("prefix", ["", "listener.name.sasl."])
@pytest.mark.parametrize("name", ["principal.builder.class", "ssl.engine.factory.class"])
def test_no_client_names_a_class_that_a_restart_would_load(broker: Broker, prefix: str, name: str) -> None:
    resource = ConfigResource(ResourceType.BROKER, "1")
    change = AlterConfigOp(f"{prefix}{name}", f"{UNUSED_MODULE}.Class")
    with (
        Admin(bootstrap_servers=broker.address_of("PLAINTEXT")) as admin,
        pytest.raises(InvalidRequest, match="names classes"),
    ):
        admin.incremental_alter_configs({resource: [change]})
    assert UNUSED_MODULE not in sys.modules


def test_a_provider_and_its_permission_in_one_request_are_refused(broker: Broker) -> None:
    """Else its keys would sign tokens for any user."""
    resource = ConfigResource(ResourceType.BROKER, "1")
    with Admin(bootstrap_servers=broker.address_of("PLAINTEXT")) as admin, pytest.raises(InvalidRequest):
        admin.incremental_alter_configs(
            {
                resource: [
                    AlterConfigOp(f"listener.name.sasl.{name}", OF_ONE_LISTENER[name])
                    for name in (
                        "tidelog.sasl.oauthbearer.allowed.urls",
                        "sasl.oauthbearer.jwks.endpoint.url",
                    )
                ]
            }
        )
    assert logs_in(broker, oauth(fresh()), "OAUTHBEARER")  # as before: the keys of nobody were asked for


@pytest.mark.parametrize("name", OF_ONE_LISTENER)
def test_a_stored_value_does_not_count(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever wrote it into the tree."""
    config = BrokerConfig.load()
    full = f"listener.name.plaintext.{name}"
    config.set_dynamic(broker={full: OF_ONE_LISTENER[name]}, cluster_default={full: OF_ONE_LISTENER[name]})
    assert config.text(full) is None
    assert f"only the file of the broker can set {full}" in caplog.text


def test_a_value_that_looks_like_a_reference_stays_as_it_is() -> None:
    """Kafka's config providers read files and variables by name. This broker has none."""
    references = {"a": "${file:/etc/passwd:root}", "b": "${env:HOME}", "c": "${directory:/etc:passwd}"}
    config = BrokerConfig.load(
        None, {f"listener.name.{name}.ssl.keystore.location": text for name, text in references.items()}
    )
    for name, text in references.items():
        assert config.text(f"listener.name.{name}.ssl.keystore.location") == text
    config = BrokerConfig.load(None, {"config.providers": "file"})
    assert any(warning.startswith("config.providers changes nothing") for warning in config.warnings)
