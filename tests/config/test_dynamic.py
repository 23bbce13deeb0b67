"""Broker settings and log levels that change while the broker runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.config.changes import incremented_broker
from tidelog.controller.config_changes import replaced
from tidelog.errors import InvalidConfig, InvalidRequest
from tidelog.server.config.broker import BrokerConfig
from tidelog.server.config.changes import AlterOperation, ConfigOp, check_broker
from tidelog.server.config.loggers import TRACE, BrokerLoggers


def test_a_changed_setting_is_seen_in_its_attribute_and_by_observers() -> None:
    config = BrokerConfig.load(None, {"message.max.bytes": "100"})
    seen: list[tuple[frozenset[str], int]] = []
    config.on_change(lambda names: seen.append((names, config.message_max_bytes)))
    config.set_dynamic(cluster_default={"message.max.bytes": "200"})
    config.set_dynamic(broker={"message.max.bytes": "300"})
    config.set_dynamic(cluster_default={})  # this broker's own value holds: nothing changes
    config.set_dynamic(broker={})
    name = frozenset({"message.max.bytes"})
    assert seen == [(name, 200), (name, 300), (name, 100)]


def test_a_change_of_what_stands_in_changes_what_is_resolved() -> None:
    config = BrokerConfig.load(None, {"log.roll.hours": "1"})
    config.set_dynamic(broker={"log.roll.ms": "5"})
    assert config.log_roll_ms == 5
    config.set_dynamic(broker={})
    assert config.log_roll_ms == 3_600_000


def test_a_limit_of_a_listener_changes() -> None:
    config = BrokerConfig.load()
    changed = config.set_dynamic(broker={"listener.name.plaintext.max.connections": "9"})
    assert changed == {"listener.name.plaintext.max.connections"}
    assert config.listener_limit("PLAINTEXT", "max.connections") == 9


def test_what_is_stored_and_bad_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    config = BrokerConfig.load()
    config.set_dynamic(broker={"num.io.threads": "none", "message.max.bytes": "5"})
    assert (config.num_io_threads, config.message_max_bytes) == (8, 5)
    assert "num.io.threads=none" in caplog.text
    assert config.set_dynamic(broker={"log.retention.ms": "0"}) == frozenset()
    assert config.message_max_bytes == 5


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"log.dirs": "/x"}, "log.dirs cannot change while the broker runs"),
        ({"num.io.threads": "100"}, "one step from 8 goes to 4 at least and 16 at most"),
        ({"log.segment.bytes": "1"}, "log.segment.bytes=1: expected at least 1048576"),
        ({"listeners": "PLAINTEXT://0.0.0.0:1"}, "clients cannot connect to that"),
    ],
)
def test_a_refused_change_is_named_and_changes_nothing(properties: dict[str, str], message: str) -> None:
    config = BrokerConfig.load()
    before = [(entry.name, entry.value) for entry in config.describe()]
    with pytest.raises(InvalidRequest) as caught:
        check_broker(config, properties, cluster_default=False)
    assert message in str(caught.value.message)
    assert [(entry.name, entry.value) for entry in config.describe()] == before


def test_only_this_brokers_own_settings_need_its_name() -> None:
    config = BrokerConfig.load()
    check_broker(config, {"listeners": "PLAINTEXT://127.0.0.1:1"}, cluster_default=False)
    with pytest.raises(InvalidRequest, match="name the broker"):
        check_broker(config, {"listeners": "PLAINTEXT://127.0.0.1:1"}, cluster_default=True)


def test_operations_start_from_what_was_changed_before() -> None:
    config = BrokerConfig.load()
    config.set_dynamic(cluster_default={"message.max.bytes": "5", "log.roll.ms": "6"})
    ops = [
        ConfigOp("message.max.bytes", AlterOperation.DELETE, None),
        ConfigOp("log.retention.ms", AlterOperation.SET, "7"),
    ]
    assert incremented_broker(config, ops, cluster_default=True) == {
        "log.roll.ms": "6",
        "log.retention.ms": "7",
    }
    assert replaced([("log.roll.ms", "8")]) == {"log.roll.ms": "8"}


def test_secrets_are_never_shown() -> None:
    config = BrokerConfig.load(None, {"ssl.keystore.password": "hunter2", "unknown.password": "hunter2"})
    config.set_dynamic(cluster_default={"some.secret": "hunter2"})
    shown = repr(list(config.describe())) + repr(config.describe_default()) + repr(config.warnings)
    assert "hunter2" not in shown


@pytest.fixture
def part() -> Iterator[logging.Logger]:
    logger = logging.getLogger("tidelog.test.part")
    yield logger
    logger.setLevel(logging.NOTSET)


def test_log_levels_change_while_running(part: logging.Logger) -> None:
    loggers = BrokerLoggers()
    loggers.apply([ConfigOp(part.name, AlterOperation.SET, "TRACE")])
    assert part.getEffectiveLevel() == TRACE
    (entry,) = loggers.describe([part.name])
    assert (entry.value, int(entry.source), int(entry.type)) == ("TRACE", 6, 0)
    loggers.apply([ConfigOp(part.name, AlterOperation.DELETE, None)])
    assert part.level == logging.NOTSET
    assert loggers.level(part.name) == loggers.level("root")


def test_one_bad_level_changes_none(part: logging.Logger) -> None:
    ops = [ConfigOp(part.name, AlterOperation.SET, "DEBUG"), ConfigOp("root", AlterOperation.SET, "LOUD")]
    with pytest.raises(InvalidConfig, match="LOUD"):
        BrokerLoggers().apply(ops)
    assert part.level == logging.NOTSET


def test_other_peoples_loggers_are_not_offered() -> None:
    logging.getLogger("somebody.else")
    names = BrokerLoggers().names()
    assert names[0] == "root"
    assert all(name == "root" or name.split(".")[0] == "tidelog" for name in names)
