"""Property files of Kafka 0.8 keep their meaning where they have one, and say what became of each name."""

from __future__ import annotations

import doctest

import pytest

from tests.clients.old_properties import CONSUMER, PRODUCER
from tidelog.clients import legacy_settings
from tidelog.clients.legacy_settings import old_names, translate
from tidelog.clients.settings import (
    consumer_definition,
    consumer_settings,
    producer_definition,
    producer_settings,
)
from tidelog.config import ConfigError
from tidelog.config.properties import parse_properties

STRING = "org.apache.kafka.common.serialization.StringSerializer"


def test_a_consumer_file_of_its_time_gives_todays_settings() -> None:
    settings, lines = translate(parse_properties(CONSUMER))
    assert settings == {
        "group.id": "cassandra-logger-consumer",
        "auto.commit.interval.ms": "1000",
        "partition.assignment.strategy": "range",
        "session.timeout.ms": "40000",
        "enable.auto.commit": "true",
    }
    assert lines == [
        "zookeeper.connect=10.0.0.67:2181 has no meaning any more: consumers do not look into ZooKeeper; "
        "bootstrap.servers names the brokers to ask",
        "request.required.acks=1 is a setting of producers, acks today: it means nothing to a consumer",
        "zookeeper.session.timeout.ms=40000 is session.timeout.ms=40000 today",
        "zookeeper.sync.time.ms=2000 has no meaning any more: consumers do not look into ZooKeeper",
        "auto.commit.enable=true is enable.auto.commit=true today",
    ]
    checked = consumer_settings(settings, bootstrap_servers="localhost:9092")
    assert (checked.session_timeout_ms, checked.auto_commit_interval_ms) == (40000, 1000)


def test_a_producer_file_of_its_time_gives_todays_settings() -> None:
    settings, lines = translate(parse_properties(PRODUCER))
    assert settings == {
        "bootstrap.servers": "10.0.0.82:9092,10.0.0.67:9092",
        "value.serializer": STRING,
        "key.serializer": STRING,
        "acks": "1",
    }
    assert len(lines) == 5
    assert producer_settings(settings).acks == 1


def test_what_is_given_beside_an_old_name_holds() -> None:
    given = parse_properties(PRODUCER) | {"bootstrap_servers": "localhost:9092"}
    settings, lines = translate(given)
    assert settings["bootstrap.servers"] == "localhost:9092"
    assert lines[0].endswith("gives way to bootstrap.servers=localhost:9092, which is given beside it")


def test_an_encoder_of_the_key_is_its_own() -> None:
    settings, _ = translate(
        {
            "serializer.class": "kafka.serializer.StringEncoder",
            "key.serializer.class": "kafka.serializer.DefaultEncoder",
        }
    )
    assert settings == {"value.serializer": STRING, "key.serializer": STRING.replace("String", "ByteArray")}


def test_a_java_class_is_not_taken_over() -> None:
    settings, lines = translate(
        {"serializer.class": "com.example.Json", "partitioner.class": "kafka.producer.DefaultPartitioner"}
    )
    assert settings == {}
    assert "Java class" in lines[0]
    assert "partitioner.class" in lines[1]


@pytest.mark.parametrize(("old", "new"), [("smallest", "earliest"), ("largest", "latest")])
def test_offset_resets_have_other_names(old: str, new: str) -> None:
    settings, lines = translate({"group.id": "g", "auto.offset.reset": old})
    assert settings["auto.offset.reset"] == new
    assert lines == [f"auto.offset.reset={old} is auto.offset.reset={new} today"]


@pytest.mark.parametrize(("old", "new"), [("-1", "all"), ("0", "0"), ("1", "1"), ("2", "all")])
def test_acknowledgements_keep_their_meaning(old: str, new: str) -> None:
    assert translate({"request.required.acks": old})[0] == {"acks": new}


def test_a_wrong_number_of_acknowledgements_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"request\.required\.acks=many: expected -1, 0 or 1"):
        translate({"request.required.acks": "many"})


def test_a_session_that_no_broker_would_accept_is_left_at_its_default() -> None:
    settings, lines = translate({"group.id": "g", "zookeeper.session.timeout.ms": "400"})
    assert settings == {"group.id": "g"}
    assert "6000 to 1800000 ms" in lines[0]


@pytest.mark.parametrize(
    ("old", "expected"),
    [
        ({"compression.codec": "2"}, {"compression.type": "snappy"}),
        ({"queue.enqueue.timeout.ms": "-1"}, {"max.block.ms": str(2**63 - 1)}),
        ({"topic.metadata.refresh.interval.ms": "-1"}, {}),
        ({"queue.buffering.max.ms": "20"}, {"linger.ms": "20"}),
        ({"fetch.message.max.bytes": "65536"}, {"max.partition.fetch.bytes": "65536"}),
        ({"block.on.buffer.full": "false"}, {}),
    ],
)  # fmt: skip
def test_values_are_translated_too(old: dict[str, object], expected: dict[str, object]) -> None:
    settings, lines = translate(old)
    assert settings == expected
    assert len(lines) == 1


def test_every_successor_is_a_setting_of_today_and_every_old_name_is_none() -> None:
    definitions = {"consumer": consumer_definition(), "producer": producer_definition()}
    for name, old in old_names().items():
        assert name not in definitions[old.side]
        assert old.why or old.today
        for successor in old.today:
            assert successor in definitions[old.side], (name, successor)


def test_every_old_name_has_exactly_one_line() -> None:
    for name, old in old_names().items():
        _, lines = translate({name: "1"}, old.side)
        assert len(lines) == 1
        assert lines[0].startswith(f"{name}=1 ")
        assert "\n" not in lines[0]


def test_settings_of_today_pass_without_a_word() -> None:
    assert translate({"group.id": "g", "fetch.min.bytes": "1"}) == (
        {"group.id": "g", "fetch.min.bytes": "1"},
        [],
    )


def test_the_example_runs() -> None:
    assert doctest.testmod(legacy_settings).failed == 0
