"""A group's own settings go before the broker's, within the bounds that the broker sets."""

from __future__ import annotations

import pytest

from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.config.entries import ConfigSource
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.errors import InvalidConfig, InvalidRequest
from tidelog.server.config.broker import BrokerConfig
from tidelog.server.config.group import GroupConfigs, group_definition, overrides_of


def broker(**settings: str) -> BrokerConfig:
    return BrokerConfig.load(None, {name.replace("_", "."): text for name, text in settings.items()})


def test_every_setting_of_a_group_has_the_broker_to_fall_back_on_or_a_default() -> None:
    config = broker()
    entries = GroupConfigs(config).describe("g", {}, documentation=True)
    assert [entry.name for entry in entries] == list(group_definition())
    for entry in entries:
        assert entry.value is not None
        assert entry.source is ConfigSource.DEFAULT_CONFIG
        assert entry.documentation
        assert entry.synonyms[0].value == entry.value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("consumer.session.timeout.ms", "44999"),
        ("consumer.session.timeout.ms", "60001"),
        ("consumer.heartbeat.interval.ms", "4999"),
        ("consumer.heartbeat.interval.ms", "15001"),
        ("consumer.heartbeat.interval.ms", "soon"),
        ("consumer.assignment.interval.ms", "15001"),
        ("consumer.assignment.interval.ms", "-1"),
        ("share.isolation.level", "none"),
        ("streams.session.timeout.ms", "1"),
        ("consumer.magic", "1"),
    ],
)
def test_what_the_broker_does_not_allow_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(InvalidConfig, match=name):
        GroupConfigs(broker()).validate({name: text})


def test_the_bounds_are_the_brokers_of_that_moment() -> None:
    configs = GroupConfigs(
        broker(group_consumer_min_session_timeout_ms="1000", group_consumer_max_session_timeout_ms="90000")
    )
    configs.validate({"consumer.session.timeout.ms": "1000"})
    configs.validate({"consumer.session.timeout.ms": "90000"})


def test_a_group_shows_its_own_value_and_what_stands_behind_it() -> None:
    configs = GroupConfigs(broker(group_consumer_session_timeout_ms="46000"))
    own = {"consumer.session.timeout.ms": "50000"}
    (entry,) = configs.describe("g", own, ["consumer.session.timeout.ms", "nothing"])
    assert (entry.value, entry.source) == ("50000", ConfigSource.DYNAMIC_GROUP_CONFIG)
    assert [(synonym.name, synonym.value, int(synonym.source)) for synonym in entry.synonyms] == [
        ("consumer.session.timeout.ms", "50000", 8),
        ("group.consumer.session.timeout.ms", "46000", 4),
        ("group.consumer.session.timeout.ms", "45000", 5),
    ]


def test_a_group_without_a_name_has_no_settings() -> None:
    with pytest.raises(InvalidRequest):
        GroupConfigs(broker()).describe("", {})


def test_the_coordinator_obeys_the_groups_setting_then_the_brokers() -> None:
    metadata = MetadataCache("cluster")
    config = broker(group_consumer_heartbeat_interval_ms="6000")
    settings = GroupSettings(config.__getitem__, overrides_of(metadata))
    assert settings.consumer_heartbeat_interval_ms("a b") == 6000
    changed = metadata.snapshot.with_entity_configs(
        "groups/a%20b", {"consumer.heartbeat.interval.ms": "7000"}
    )
    metadata.update(changed)
    assert settings.consumer_heartbeat_interval_ms("a b") == 7000
    assert settings.consumer_heartbeat_interval_ms("other") == 6000
    assert settings.consumer_session_timeout_ms("a b") == 45_000


def test_a_file_of_kafka_39_names_assignors_by_their_classes() -> None:
    package = "org.apache.kafka.coordinator.group.assignor"
    config = broker(group_consumer_assignors=f"{package}.RangeAssignor,{package}.UniformAssignor")
    assert list(GroupSettings(config.__getitem__).consumer_assignors) == ["range", "uniform"]
    assert list(GroupSettings(broker().__getitem__).consumer_assignors) == ["uniform", "range"]
