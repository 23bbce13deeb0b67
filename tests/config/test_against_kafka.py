"""Our answers about settings are those that Kafka 4.3 gave; what differs on purpose has its reason here."""

from __future__ import annotations

from typing import Any

import pytest

from tests.config.changes import incremented_broker, incremented_topic
from tests.config.kafka import answers, kafka_broker, ours, theirs
from tidelog.controller.config_changes import replaced
from tidelog.errors import KafkaError
from tidelog.server.config.broker import BrokerConfig
from tidelog.server.config.changes import ConfigOp, check_broker
from tidelog.server.config.loggers import BrokerLoggers
from tidelog.server.config.topic import TopicConfigs

# A new Kafka 4.3 cluster stores this as a setting of all brokers, for a feature that we have not.
STORED_BY_KAFKA = {"min.insync.replicas"}
OTHER_DEFAULTS = {
    "listeners",
    "log.dir",
    "replica.socket.receive.buffer.bytes",
    "socket.receive.buffer.bytes",
    "socket.send.buffer.bytes",
}
# Kafka shows the default, not the file's value, of settings that a changed one stands in front of.
OVERSHADOWED = {
    "log.retention.hours",
    "log.retention.minutes",
    "log.roll.hours",
    "log.flush.scheduler.interval.ms",
}


def changed_broker() -> BrokerConfig:
    config = kafka_broker()
    config.set_dynamic(broker=answers()["dynamic"], cluster_default=answers()["dynamic_default"])
    return config


def without(described: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: entry for name, entry in described.items() if name not in names}


def listed_by_kafka(config: BrokerConfig) -> dict[str, Any]:
    own = {name for name, key in config.definition.items() if key.ours}
    return without(ours(config.describe()), own)


def test_a_broker_describes_itself_as_kafka_does() -> None:
    differing = STORED_BY_KAFKA | OTHER_DEFAULTS
    assert without(listed_by_kafka(kafka_broker()), differing) == without(
        theirs(answers()["before"]["broker"]), differing
    )


def test_a_broker_whose_settings_changed_describes_itself_as_kafka_does() -> None:
    differing = STORED_BY_KAFKA | OTHER_DEFAULTS | OVERSHADOWED
    assert without(listed_by_kafka(changed_broker()), differing) == without(
        theirs(answers()["after"]["broker"]), differing
    )


def test_the_settings_of_all_brokers_are_described_as_kafka_does() -> None:
    config = changed_broker()
    assert ours(config.describe_default()) == without(theirs(answers()["after"]["default"]), STORED_BY_KAFKA)
    assert kafka_broker().describe_default() == []


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_topic_is_described_as_kafka_does(moment: str) -> None:
    config = kafka_broker() if moment == "before" else changed_broker()
    described = ours(TopicConfigs(config).describe(answers()["t1"]))
    assert without(described, STORED_BY_KAFKA) == without(theirs(answers()[moment]["topic"]), STORED_BY_KAFKA)


@pytest.mark.parametrize(("moment", "recorded"), [("before", "created"), ("after", "created_after")])
def test_a_new_topic_is_answered_with_its_settings_as_kafka_does(moment: str, recorded: str) -> None:
    config = kafka_broker() if moment == "before" else changed_broker()
    created = [[e.name, e.value, int(e.source)] for e in TopicConfigs(config).created(answers()["t1"])]
    expected = answers()[recorded]
    assert [e for e in created if e[0] not in STORED_BY_KAFKA] == [
        e for e in expected if e[0] not in STORED_BY_KAFKA
    ]


def outcome(attempt: Any) -> int:
    try:
        attempt()
    except KafkaError as error:
        return error.code
    return 0


def test_new_topics_are_refused_with_the_errors_of_kafka() -> None:
    configs = TopicConfigs(kafka_broker())
    for entries, code in answers()["creates"]:
        assert outcome(lambda entries=entries: configs.validate(dict(entries))) == code, entries


# A setting that it stores; its controller's listener, which it misses; a negative interval, which it takes.
ANSWERED_OTHERWISE = {"min.insync.replicas", "listeners", "log.flush.interval.ms"}


def test_changes_of_brokers_are_refused_with_the_errors_of_kafka() -> None:
    config = kafka_broker()
    cases = [case for case in answers()["increments"] if case[0] == 4 and case[1] in ("1", "")]
    assert len(cases) > 100
    for _, entity, entries, code in cases:
        ops = [ConfigOp(*entry) for entry in entries]
        if ANSWERED_OTHERWISE & {op.name for op in ops}:
            continue
        assert (
            outcome(lambda ops=ops, e=entity: incremented_broker(config, ops, cluster_default=e == ""))
            == code
        ), ops


def test_changes_of_a_topic_are_refused_with_the_errors_of_kafka() -> None:
    configs = TopicConfigs(kafka_broker())
    for kind, entity, entries, code in answers()["increments"]:
        if kind == 2 and entity == "t1":
            ops = [ConfigOp(*entry) for entry in entries]
            assert outcome(lambda ops=ops: incremented_topic(configs, answers()["t1"], ops)) == code, ops


def test_changes_of_log_levels_are_refused_with_the_errors_of_kafka() -> None:
    loggers = BrokerLoggers()
    for kind, entity, entries, code in answers()["increments"]:
        if kind == 8 and entity == "1":
            ops = [ConfigOp(*entry) for entry in entries]
            assert outcome(lambda ops=ops: loggers.validate(ops)) == code, ops


def test_whole_replacements_are_refused_with_the_errors_of_kafka() -> None:
    config = kafka_broker()
    configs = TopicConfigs(config)
    for kind, entity, entries, code in answers()["alters"]:
        if kind == 2 and entity == "t1":
            assert outcome(lambda entries=entries: configs.validate(replaced(entries))) == code, entries
        elif kind == 4:
            default = entity == ""
            assert (
                outcome(lambda e=entries, d=default: check_broker(config, replaced(e), cluster_default=d))
                == code
            )
