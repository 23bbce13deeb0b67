"""A topic's own settings go before the broker's, and the log gets them in the form it uses."""

from __future__ import annotations

import dataclasses

import pytest

from tests.config.changes import incremented_topic
from tidelog.config.entries import ConfigSource
from tidelog.config.values import ConfigError
from tidelog.errors import InvalidConfig
from tidelog.server.config.broker import BrokerConfig
from tidelog.server.config.changes import AlterOperation, ConfigOp
from tidelog.server.config.topic import TopicConfigs, topic_definition
from tidelog.storage.config import LogConfig

# A log on its own has no coordinator to verify transactions with; those of a broker do.
BY_DEFAULT = LogConfig(transaction_verification_enable=True)


def topics(**settings: str) -> TopicConfigs:
    return TopicConfigs(
        BrokerConfig.load(None, {name.replace("_", "."): text for name, text in settings.items()})
    )


def test_a_topic_without_settings_has_the_defaults_of_the_log() -> None:
    assert topics().log_config({}) == BY_DEFAULT


def test_every_topic_setting_reaches_the_log() -> None:
    fields = {field.name for field in dataclasses.fields(LogConfig)}
    ours = {key.attribute for key in topic_definition().values() if not key.unlisted}
    assert ours <= fields
    assert fields - ours == {
        "producer_id_expiration_ms",
        "transaction_verification_enable",
        "batch_unpacked_max_bytes",
    }


def test_the_topic_goes_before_the_broker_and_units_are_the_topics() -> None:
    configs = topics(log_retention_hours="2", log_segment_bytes="2000000", producer_id_expiration_ms="5")
    config = configs.log_config({"segment.bytes": " 3000000 ", "cleanup.policy": "compact,delete"})
    assert config.retention_ms == 7_200_000
    assert config.segment_bytes == 3_000_000
    assert config.cleanup_policy == {"compact", "delete"}
    assert config.producer_id_expiration_ms == 5


def test_tests_may_ask_for_smaller_segments_than_operators() -> None:
    configs = topics()
    small = {"internal.segment.bytes": "100"}
    configs.validate(small)
    assert configs.log_config(small).segment_bytes == 100
    assert [entry.name for entry in configs.describe(small) if entry.name.startswith("internal")] == []


def test_a_change_of_the_broker_reaches_topics_that_have_no_value_of_their_own() -> None:
    configs = topics()
    configs.broker.set_dynamic(cluster_default={"log.retention.ms": "5", "message.max.bytes": "77"})
    assert configs.log_config({}).retention_ms == 5
    assert configs.log_config({"max.message.bytes": "99"}).max_message_bytes == 99
    (entry,) = configs.describe({}, ["max.message.bytes"])
    assert (entry.value, entry.source) == ("77", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)


def test_a_stored_setting_that_cannot_be_read_counts_as_absent() -> None:
    assert topics().log_config({"retention.ms": "soon", "left.by.a.newer.broker": "1"}) == BY_DEFAULT


def test_a_stored_setting_of_the_broker_that_no_topic_could_have_is_passed_over() -> None:
    configs = topics()
    configs.broker.set_dynamic(broker={"log.flush.interval.ms": "-1"})
    assert configs.log_config({}) == BY_DEFAULT


def test_a_broker_whose_setting_no_topic_could_have_does_not_start() -> None:
    with pytest.raises(ConfigError, match=r"^log\.flush\.interval\.ms=-1: expected at least 0"):
        topics(log_flush_interval_ms="-1")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"retention.ms": "abc"}, "retention.ms=abc: expected a whole number: at least -1"),
        ({"retention.ms": None}, "retention.ms has no value"),
        ({"no.such": "1"}, "no.such is not a topic setting"),
        ({"message.format.version": "3.0"}, "message.format.version is no topic setting any more"),
        (
            {"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"},
            "min.compaction.lag.ms=9 is more than",
        ),
        ({"remote.storage.enable": "true"}, "tiered storage is not served"),
    ],
)
def test_a_refused_setting_is_named(overrides: dict[str, str | None], message: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        topics().validate(overrides)
    assert caught.value.message is not None
    assert message in caught.value.message


def test_lists_grow_and_shrink_from_what_holds() -> None:
    configs = topics()
    append = ConfigOp("cleanup.policy", AlterOperation.APPEND, "compact")
    subtract = ConfigOp("cleanup.policy", AlterOperation.SUBTRACT, "delete")
    grown = incremented_topic(configs, {}, [append])
    assert grown == {"cleanup.policy": "delete,compact"}
    assert incremented_topic(configs, grown, [append]) == grown
    shrunk = incremented_topic(configs, grown, [subtract])
    assert shrunk == {"cleanup.policy": "compact"}
    assert incremented_topic(configs, {}, [subtract]) == {"cleanup.policy": ""}


def test_a_refused_operation_changes_nothing() -> None:
    current = {"retention.ms": "5"}
    ops = [
        ConfigOp("retention.ms", AlterOperation.DELETE, None),
        ConfigOp("segment.ms", AlterOperation.SET, "x"),
    ]
    with pytest.raises(InvalidConfig):
        incremented_topic(topics(), current, ops)
    assert current == {"retention.ms": "5"}


def test_documentation_comes_when_asked_for() -> None:
    configs = topics()
    assert all(entry.documentation for entry in configs.describe({}, documentation=True))
    assert all(entry.documentation is None for entry in configs.describe({}))
