"""Passwords among stored settings are encrypted with password.encoder.secret."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.faults.client import Client, surprises
from tests.support.broker import Broker
from tidelog.config.values import ConfigError
from tidelog.errors import InvalidConfig
from tidelog.security.password_encoder import is_encoded
from tidelog.server.config.broker import BrokerConfig
from tidelog.server.config.stored_passwords import StoredPasswords

NAME = "listener.name.plaintext.ssl.key.password"
CLUSTER = {"zookeeper.connect": "127.0.0.1:2181"}
SECRET = {"password.encoder.secret": "encoder"}


def passwords(settings: dict[str, str]) -> StoredPasswords:
    return StoredPasswords(BrokerConfig.load(None, settings))


@pytest.mark.parametrize("settings", [SECRET, SECRET | CLUSTER], ids=["alone", "cluster"])
def test_a_password_is_encrypted_and_other_settings_are_not(settings: dict[str, str]) -> None:
    store = passwords(settings)
    stored = store.encoded({NAME: "hunter2", "log.cleaner.threads": "2"}, {})
    assert is_encoded(stored[NAME])
    assert stored["log.cleaner.threads"] == "2"
    assert store.decoded(stored) == {NAME: "hunter2", "log.cleaner.threads": "2"}
    again = store.encoded({NAME: "hunter2", "log.cleaner.threads": "3"}, stored)
    assert again[NAME] == stored[NAME]
    assert store.encoded({NAME: "other"}, stored)[NAME] != stored[NAME]


def test_without_the_secret_a_cluster_stores_no_password_and_a_broker_alone_stores_it_as_it_is() -> None:
    with pytest.raises(InvalidConfig, match=r"password\.encoder\.secret"):
        passwords(CLUSTER).encoded({NAME: "hunter2"}, {})
    assert passwords(CLUSTER).encoded({"log.cleaner.threads": "2"}, {}) == {"log.cleaner.threads": "2"}
    assert passwords({}).encoded({NAME: "hunter2"}, {}) == {NAME: "hunter2"}


def test_a_password_of_another_secret_is_left_out_and_named(caplog: pytest.LogCaptureFixture) -> None:
    stored = passwords(SECRET).encoded({NAME: "hunter2", "log.cleaner.threads": "2"}, {})
    with caplog.at_level(logging.ERROR):
        for settings in ({"password.encoder.secret": "new"}, {}):
            assert passwords(settings).decoded(stored) == {"log.cleaner.threads": "2"}
    assert NAME in caplog.text
    assert "hunter2" not in caplog.text
    renewed = {"password.encoder.secret": "new", "password.encoder.old.secret": "encoder"}
    assert passwords(renewed).decoded(stored)[NAME] == "hunter2"


def test_a_key_length_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError, match="128, 192 or 256"):
        BrokerConfig.load(None, {"password.encoder.key.length": "100"})


def test_a_broker_reads_its_password_again_after_a_restart(tmp_path: Path) -> None:
    with Broker(tmp_path, SECRET) as broker:
        with Client(broker.address) as client:
            assert client.set_configs(4, client.broker_id(), {NAME: "hunter2"}) == 0
            assert client.set_configs(4, client.broker_id(), {"log.cleaner.threads": "2"}) == 0
        broker.restart()
        with Client(broker.address) as client:
            assert client.config(4, client.broker_id(), "log.cleaner.threads") == "2"
            assert client.set_configs(4, client.broker_id(), {NAME: None}) == 0
        assert surprises(broker.log()) == []
