"""Options mean what they mean to Spark's Kafka connector, and what it refuses is refused."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest
from pyspark import SparkFiles

from tidelog.config import ConfigError
from tidelog.protocol.offset_specs import EARLIEST, LATEST
from tidelog.spark import option_names
from tidelog.spark.client_options import on_this_machine
from tidelog.spark.contact import first_contact
from tidelog.spark.options import (
    Assign,
    AtOffsets,
    AtTime,
    AtTimes,
    Everywhere,
    OptionError,
    SourceOptions,
    Subscribe,
    SubscribePattern,
    batch_options,
    sink_options,
    source_options,
    stream_options,
)

BASE = {"kafka.bootstrap.servers": "localhost:9092"}


def parsed(**options: str) -> SourceOptions:
    return source_options({**BASE, "subscribe": "orders", **options})


def test_names_of_options_do_not_mind_their_case() -> None:
    options = source_options(
        {"KAFKA.Bootstrap.Servers": "localhost:9092", "SUBSCRIBE": "orders", "failondataloss": "FALSE"}
    )
    assert options.bootstrap_servers == "localhost:9092"
    assert options.selection == Subscribe(("orders",))
    assert not options.fail_on_data_loss


def test_defaults_are_those_of_the_connector() -> None:
    options = parsed()
    assert options.starting is None
    assert options.ending is None
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert options.fetch_offset_retries == 3
    assert options.fetch_offset_retry_interval_ms == 1000
    assert options.max_trigger_delay_ms == 15 * 60 * 1000
    assert options.isolation_level == "read_uncommitted"
    assert options.publish_group is None


def test_topics_are_named_in_one_of_three_ways() -> None:
    assert parsed(subscribe=" a, b ,,a").selection == Subscribe(("a", "b"))
    assert source_options({**BASE, "subscribePattern": "ml_.*"}).selection == SubscribePattern("ml_.*")
    assigned = source_options({**BASE, "assign": '{"a":[0,2],"b":[1]}'}).selection
    assert assigned == Assign(frozenset({("a", 0), ("a", 2), ("b", 1)}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "One of the following options must be specified"),
        ({"subscribe": "a", "assign": '{"a":[0]}'}, "Only one of the following options can be specified"),
        ({"subscribe": "a", "subscribePattern": "b"}, "Only one of the following options can be specified"),
        ({"subscribe": " , "}, "No topics to subscribe to as specified value for option 'subscribe'"),
        ({"subscribePattern": "  "}, "Pattern to subscribe is empty"),
        ({"subscribePattern": "a("}, "not a regular expression"),
        ({"subscribePattern": "t[0-9&&[^3]]$"}, "do not have Java's &&"),
        ({"assign": "a"}, "No topicpartitions to assign"),
        ({"assign": "{}"}, "No topicpartitions to assign"),
        ({"assign": '{"a":0}'}, 'expected e.g. {"topicA":[0,1],"topicB":[0,1]}'),
        ({"assign": '{"a":["0"]}'}, 'expected e.g. {"topicA":[0,1],"topicB":[0,1]}'),
        ({"assign": "{"}, 'expected e.g. {"topicA":[0,1],"topicB":[0,1]}'),
    ],
)
def test_a_choice_of_topics_that_says_nothing_or_too_much_is_refused(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(OptionError) as raised:
        source_options({**BASE, **options})
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("auto.offset.reset", "Instead set the source option 'startingOffsets'"),
        ("key.deserializer", "keys are deserialized as byte arrays"),
        ("value.deserializer", "values are deserialized as byte arrays"),
        ("enable.auto.commit", "is not supported"),
        ("interceptor.classes", "is not supported"),
    ],
)
def test_settings_that_the_connector_refuses_are_refused(name: str, reason: str) -> None:
    with pytest.raises(OptionError, match=f"Kafka option '{name}'") as raised:
        parsed(**{f"kafka.{name}": "x"})
    assert reason in str(raised.value)


def test_the_brokers_have_to_be_named() -> None:
    with pytest.raises(OptionError, match=r"'kafka\.bootstrap\.servers' must be specified"):
        source_options({"subscribe": "orders"})


def test_every_other_setting_of_the_clients_is_passed_on() -> None:
    options = parsed(
        **{
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.jaas.config": 'x required username="u" password="p";',
            "kafka.isolation.level": "read_committed",
            "kafka.max.partition.fetch.bytes": "5000000",
        }
    )
    assert options.client["security.protocol"] == "SASL_SSL"
    assert options.client["max.partition.fetch.bytes"] == "5000000"
    assert options.isolation_level == "read_committed"


def test_a_setting_that_no_client_could_use_is_refused_with_its_name() -> None:
    with pytest.raises(OptionError, match=r"kafka\.isolation\.level=committed: expected one of"):
        parsed(**{"kafka.isolation.level": "committed"})


def test_offsets_are_words_or_json() -> None:
    assert parsed(startingOffsets="EARLIEST").starting == Everywhere(EARLIEST)
    assert parsed(startingOffsets=" latest ").starting == Everywhere(LATEST)
    found = parsed(startingOffsets='{"a":{"0":23,"1":-1},"b":{"0":-2}}').starting
    assert found == AtOffsets({("a", 0): 23, ("a", 1): LATEST, ("b", 0): EARLIEST})
    assert parsed(startingTimestamp="1000").starting == AtTime(1000)
    assert parsed(endingOffsetsByTimestamp='{"a":{"0":7}}').ending == AtTimes({("a", 0): 7})


def test_a_time_for_all_goes_before_times_and_these_before_offsets() -> None:
    offsets = {"startingOffsets": "earliest"}
    times = {"startingOffsetsByTimestamp": '{"a":{"0":7}}'}
    assert parsed(**offsets, **times).starting == AtTimes({("a", 0): 7})
    assert parsed(**offsets, **times, startingTimestamp="9").starting == AtTime(9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "first"}, "startingOffsets: expected e.g."),
        ({"startingOffsets": '{"a":{"0":-3}}'}, "startingOffsets: expected e.g."),
        ({"startingOffsets": '{"a":[0]}'}, "startingOffsets: expected e.g."),
        ({"startingOffsets": '{"a":{"x":0}}'}, "startingOffsets: expected e.g."),
        ({"startingTimestamp": "today"}, "Expected a single long value, got today"),
        ({"endingOffsetsByTimestamp": "1000"}, "endingOffsetsByTimestamp: expected e.g."),
        ({"startingOffsetsByTimestampStrategy": "skip"}, "expected error or latest"),
        ({"minPartitions": "0"}, "minPartitions must be positive"),
        ({"minPartitions": "many"}, "minPartitions=many: expected a whole number"),
        ({"maxRecordsPerPartition": "-1"}, "maxRecordsPerPartition must be positive"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay=soon: expected a time such as"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss=maybe: expected true or false"),
        ({"includeHeaders": "1"}, "includeHeaders=1: expected true or false"),
        ({"partition.metadata.cache.ttl.ms": "0"}, "must be a positive number of milliseconds"),
        ({"publishGroup": "true"}, "name the group, or set kafka.group.id"),
        (
            {"minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "5"},
            "The value of minOffsetsPerTrigger(10) is higher than the maxOffsetsPerTrigger(5)",
        ),
    ],
)
def test_a_value_that_cannot_be_used_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as raised:
        parsed(**options)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("500", 500), ("500ms", 500), ("30s", 30_000), ("15m", 900_000), ("2min", 120_000), ("2h", 7_200_000)],
)
def test_times_have_units(text: str, milliseconds: int) -> None:
    assert parsed(maxTriggerDelay=text).max_trigger_delay_ms == milliseconds


@pytest.mark.parametrize("name", ["endingOffsets", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    value = {"endingOffsets": "latest"}.get(name, '{"orders":{"0":1}}')
    with pytest.raises(OptionError, match="not valid in streaming queries"):
        stream_options({**BASE, "subscribe": "orders", name: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "latest"}, "starting offset can't be latest for batch queries"),
        ({"startingOffsets": '{"a":{"0":-1}}'}, "startingOffsets for a-0 can't be latest"),
        ({"endingOffsets": "earliest"}, "ending offset can't be earliest for batch queries"),
        ({"endingOffsets": '{"a":{"0":-2}}'}, "ending offset for a-0 can't be earliest"),
        (
            {"startingOffsets": '{"a":{"0":5}}', "endingOffsets": '{"a":{"0":4}}'},
            "The specified start offset 5 is greater than the end offset 4 for topic a partition 0",
        ),
        (
            {"startingOffsets": '{"a":{"0":5}}', "endingOffsets": '{"a":{"1":9}}'},
            "should have the same topic-partitions",
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"a":{"0":5}}',
                "endingOffsetsByTimestamp": '{"a":{"0":4}}',
            },
            "The specified start timestamp 5 is greater than the end timestamp 4",
        ),
    ],
)
def test_a_batch_begins_before_it_ends(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as raised:
        batch_options({**BASE, "subscribe": "a", **options})
    assert message in str(raised.value)


def test_limits_of_triggers_are_ignored_in_a_batch_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    batch_options({**BASE, "subscribe": "a", "maxOffsetsPerTrigger": "5"})
    assert "maxOffsetsPerTrigger option ignored in batch queries" in caplog.text


def test_the_position_is_published_to_the_group_that_is_named() -> None:
    assert parsed(publishGroup="watch").publish_group == "watch"
    assert parsed(**{"kafka.group.id": "billing"}).publish_group == "billing"
    assert parsed(**{"kafka.group.id": "billing", "publishGroup": "false"}).publish_group is None
    assert parsed(**{"kafka.group.id": "billing", "publishGroup": "true"}).publish_group == "billing"


def test_the_options_travel_to_the_tasks() -> None:
    options = parsed(startingOffsets='{"orders":{"0":3}}', publishGroup="watch")
    assert pickle.loads(pickle.dumps(options)) == options


def test_the_sink_takes_a_topic_and_refuses_serializers() -> None:
    options = sink_options({**BASE, "Topic": " orders ", "kafka.acks": "all", "exactlyOnce": "true"})
    assert options.topic == "orders"
    assert options.client["acks"] == "all"
    assert options.exactly_once
    assert options.transactional_id_prefix == "tidelog-spark"
    for name in ("key.serializer", "value.serializer"):
        with pytest.raises(OptionError, match=f"Kafka option '{name}' is not supported"):
            sink_options({**BASE, f"kafka.{name}": "x"})
    with pytest.raises(OptionError, match=r"'kafka\.bootstrap\.servers' must be specified"):
        sink_options({"topic": "orders"})
    with pytest.raises(OptionError, match=r"kafka\.acks=some: expected one of"):
        sink_options({**BASE, "kafka.acks": "some"})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("startingOffset", "did you mean startingOffsets?"),
        ("failOnDataloss2", "did you mean failOnDataLoss?"),
        ("bootstrap.servers", "did you mean kafka.bootstrap.servers?"),
        ("group.id", "did you mean kafka.group.id?"),
        ("kafka.bootstrap.server", "did you mean kafka.bootstrap.servers?"),
        ("kafka.isolation.levle", "did you mean kafka.isolation.level?"),
        ("zzz", "which knows assign, "),
    ],
)
def test_a_misspelled_option_of_the_source_is_refused(name: str, hint: str) -> None:
    with pytest.raises(OptionError, match=f"^option {re.escape(name.lower())} is not known") as raised:
        parsed(**{name: "earliest"})
    assert hint in str(raised.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("exactlyOnc", "did you mean exactlyOnce?"),
        ("exactly_once", "did you mean exactlyOnce?"),
        ("topics", "did you mean topic?"),
        ("kafka.ack", "did you mean kafka.acks?"),
        ("linger.ms", "did you mean kafka.linger.ms?"),
    ],
)
def test_a_misspelled_option_of_the_sink_is_refused(name: str, hint: str) -> None:
    with pytest.raises(OptionError, match=f"^option {re.escape(name.lower())} is not known") as raised:
        sink_options({**BASE, name: "true"})
    assert hint in str(raised.value)


def test_a_misspelled_name_is_told_of_before_what_it_makes_missing() -> None:
    with pytest.raises(OptionError, match="did you mean subscribe"):
        source_options({**BASE, "subscribes": "orders"})
    with pytest.raises(OptionError, match=r"did you mean kafka\.bootstrap\.servers"):
        sink_options({"kafka.bootstrap.server": "localhost:9092"})


def test_options_of_spark_itself_and_of_java_s_clients_change_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    parsed(path="/x", checkpointLocation="/c", queryName="q", asyncProgressTrackingEnabled="true")
    assert not caplog.messages
    sink_options({**BASE, "checkpointLocation": "/c", "queryName": "q", "subscribe": "orders"})
    assert caplog.messages == ["option subscribe changes nothing in the sink"]
    caplog.clear()
    parsed(**{"kafka.auto.include.jmx.reporter": "false"})
    assert "option kafka.auto.include.jmx.reporter is not known" in caplog.text


def test_every_documented_option_is_known() -> None:
    page = Path(__file__).parents[2] / "docs" / "spark.md"
    documented = {name.lower() for name in re.findall(r"`([\w.]+)(?:=\w+)?`", page.read_text())}
    known = {name.lower() for name in (*option_names.SOURCE, *option_names.SINK, *option_names.COMMON)}
    assert known <= documented, "every option stands in docs/spark.md"


def test_secrets_are_not_shown() -> None:
    secrets = {
        "kafka.sasl.jaas.config": 'Module required password="pass word";',
        "kafka.ssl.keystore.password": "pass word",
        "kafka.ssl.keystore.key": "pass word",
        "kafka.ssl.truststore.certificates": "pass word",
        "kafka.sasl.oauthbearer.client.credentials.client.secret": "pass word",
    }
    shown = {"kafka.sasl.mechanism": "PLAIN"}
    for options in (
        source_options({**BASE, "subscribe": "orders", **secrets, **shown}),
        sink_options({**BASE, **secrets, **shown}),
    ):
        assert "pass word" not in repr(options)
        assert "'sasl.mechanism': 'PLAIN'" in repr(options)
        again = pickle.loads(pickle.dumps(options))
        assert again.client["ssl.keystore.password"] == "pass word"
        assert "pass word" not in repr(again)


def test_an_error_of_a_secret_does_not_show_it() -> None:
    wrong = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN"}
    line = 'org.example.Module required password="pass word";'
    options = sink_options({**BASE, **wrong, "kafka.sasl.jaas.config": line})
    with pytest.raises(ConfigError, match=r"sasl\.jaas\.config=\[hidden\]: org\.example\.Module") as caught:
        first_contact(options.client, 1000)
    assert "pass word" not in str(caught.value)


def test_a_store_is_found_among_the_files_that_spark_distributed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trust.jks").write_bytes(b"")
    monkeypatch.setattr(SparkFiles, "_root_directory", str(tmp_path))
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    client = {"ssl.truststore.location": "trust.jks", "ssl.keystore.location": "/etc/key.jks"}
    found = on_this_machine(client)
    assert found["ssl.truststore.location"] == str(tmp_path / "trust.jks")
    assert found["ssl.keystore.location"] == "/etc/key.jks"
    monkeypatch.setattr(SparkFiles, "_root_directory", str(tmp_path / "session"))
    assert on_this_machine(client) == found
    missing = {"ssl.truststore.location": "missing.jks"}
    assert on_this_machine(missing) == missing
