"""Settings of topics and brokers change as a whole or step by step, and everyone concerned is told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.controller.hosts import BROKER, FewRules, RecordingHost, running
from tidelog.controller.config_changes import changed
from tidelog.controller.interface import ConfigChange, ConfigEntity, ConfigKind, ConfigOperation, NewTopic
from tidelog.errors import (
    InvalidConfig,
    InvalidRequest,
    InvalidTopic,
    KafkaError,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from tidelog.metadata.nodes import decode_config_change
from tidelog.metadata.state import DEFAULT_ENTITY

SET, DELETE, APPEND, SUBTRACT = ConfigOperation
DEMO = ConfigEntity(ConfigKind.TOPIC, "demo")
THIS_BROKER = ConfigEntity(ConfigKind.BROKER, str(BROKER))
ALL_BROKERS = ConfigEntity(ConfigKind.BROKER, DEFAULT_ENTITY)


def test_a_changed_setting_is_told_kept_and_noted_for_other_brokers(tmp_path: Path) -> None:
    async def run() -> None:
        host = RecordingHost()
        async with running(tmp_path, host) as controller:
            await controller.create_topics([NewTopic("demo", configs=[("cleanup.policy", "compact")])])
            before = controller.state
            await controller.incremental_alter_configs(DEMO, [ConfigChange("retention.ms", SET, "5")])
            assert host.configs == {"demo": {"cleanup.policy": "compact", "retention.ms": "5"}}
            assert host.states[-1].topics["demo"].configs == host.configs["demo"]
            assert before.topics["demo"].configs == {"cleanup.policy": "compact"}
            tree = controller._store.tree
            (notice,) = tree.children("/config/changes")
            assert decode_config_change(tree.get(f"/config/changes/{notice}")[0]) == "topics/demo"
        async with running(tmp_path) as controller:
            assert controller.state.topics["demo"].configs == host.configs["demo"]

    asyncio.run(run())


def test_all_settings_are_replaced_at_once(tmp_path: Path) -> None:
    async def run() -> None:
        host = RecordingHost()
        async with running(tmp_path, host) as controller:
            await controller.create_topics([NewTopic("demo", configs=[("cleanup.policy", "compact")])])
            await controller.alter_configs(DEMO, [("retention.ms", "5")])
            assert host.configs["demo"] == {"retention.ms": "5"}
            await controller.alter_configs(DEMO, [])
            assert host.configs["demo"] == {}

    asyncio.run(run())


def test_checking_alone_changes_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        host = RecordingHost()
        async with running(tmp_path, host) as controller:
            await controller.create_topics([NewTopic("demo")])
            await controller.alter_configs(DEMO, [("retention.ms", "5")], validate_only=True)
            with pytest.raises(InvalidConfig):
                await controller.alter_configs(DEMO, [("nope", "5")], validate_only=True)
            assert controller.state.topics["demo"].configs == {}
            assert host.configs == {}

    asyncio.run(run())


def test_broker_settings_hold_for_this_broker_or_for_all(tmp_path: Path) -> None:
    async def run() -> None:
        told: list[tuple[ConfigEntity, dict[str, str]]] = []
        async with running(tmp_path) as controller:
            controller._on_entity_config = lambda entity, overrides: told.append((entity, overrides))
            await controller.incremental_alter_configs(
                THIS_BROKER, [ConfigChange("log.cleaner.threads", SET, "2")]
            )
            await controller.incremental_alter_configs(
                ALL_BROKERS, [ConfigChange("log.cleaner.threads", SET, "3")]
            )
            assert told == [
                (THIS_BROKER, {"log.cleaner.threads": "2"}),
                (ALL_BROKERS, {"log.cleaner.threads": "3"}),
            ]
        async with running(tmp_path) as controller:
            assert controller.state.broker_configs(BROKER) == {"log.cleaner.threads": "2"}
            assert controller.state.broker_configs(None) == {"log.cleaner.threads": "3"}
            await controller.incremental_alter_configs(
                THIS_BROKER, [ConfigChange("log.cleaner.threads", DELETE, None)]
            )
            assert controller.state.broker_configs(BROKER) == {}

    asyncio.run(run())


REFUSED = [
    (DEMO, ConfigChange("retention.ms", SET, "abc"), InvalidConfig),
    (DEMO, ConfigChange("retention.ms", SET, None), InvalidRequest),
    (DEMO, ConfigChange("cleanup.policy", APPEND, None), InvalidRequest),
    (DEMO, ConfigChange("retention.ms", APPEND, "5"), InvalidConfig),
    (DEMO, ConfigChange("nope", APPEND, "5"), InvalidConfig),
    (DEMO, ConfigChange("retention.ms", 9, "5"), UnknownServerError),
    (ConfigEntity(ConfigKind.TOPIC, "nope"), ConfigChange("retention.ms", SET, "5"), UnknownTopicOrPartition),
    (ConfigEntity(ConfigKind.TOPIC, "a/b"), ConfigChange("retention.ms", SET, "5"), InvalidTopic),
    (ConfigEntity(ConfigKind.TOPIC, ""), ConfigChange("retention.ms", SET, "5"), InvalidRequest),
    (ConfigEntity(ConfigKind.TOPIC, DEFAULT_ENTITY), ConfigChange("retention.ms", SET, "5"), InvalidRequest),
    (ConfigEntity(ConfigKind.BROKER, "99"), ConfigChange("log.cleaner.threads", SET, "5"), InvalidRequest),
    (ConfigEntity(ConfigKind.BROKER, "abc"), ConfigChange("log.cleaner.threads", SET, "5"), InvalidRequest),
]


@pytest.mark.parametrize(("entity", "change", "error"), REFUSED)
def test_a_change_that_breaks_a_rule_is_refused(
    tmp_path: Path, entity: ConfigEntity, change: ConfigChange, error: type[KafkaError]
) -> None:
    async def run() -> None:
        async with running(tmp_path) as controller:
            await controller.create_topics([NewTopic("demo")])
            before = controller.state
            with pytest.raises(KafkaError) as raised:
                await controller.incremental_alter_configs(entity, [change])
            assert type(raised.value) is error
            assert controller.state is before

    asyncio.run(run())


def test_a_setting_named_twice_is_refused() -> None:
    changes = [ConfigChange("retention.ms", DELETE, None), ConfigChange("retention.ms", SET, "5")]
    with pytest.raises(InvalidRequest, match=r"retention\.ms"):
        changed({}, changes, DEMO, FewRules())


@pytest.mark.parametrize(
    ("present", "operation", "value", "after"),
    [
        (None, APPEND, "compact", "delete,compact"),
        (None, APPEND, " compact , delete ", "delete,compact"),
        ("compact", APPEND, "compact", "compact"),
        ("delete,compact", SUBTRACT, "compact", "delete"),
        (None, SUBTRACT, "delete", ""),
        ("compact", SUBTRACT, "delete", "compact"),
    ],
)
def test_lists_are_added_to_and_taken_from(
    present: str | None, operation: ConfigOperation, value: str, after: str
) -> None:
    before = {} if present is None else {"cleanup.policy": present}
    change = ConfigChange("cleanup.policy", operation, value)
    assert changed(before, [change], DEMO, FewRules()) == {"cleanup.policy": after}


def test_taking_away_what_is_not_there_is_no_error() -> None:
    assert changed({"a": "1"}, [ConfigChange("b", DELETE, "x")], DEMO, FewRules()) == {"a": "1"}


def test_notices_go_after_fifteen_minutes(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as controller:
            await controller.create_topics([NewTopic("demo")])
            for value in ("1", "2"):
                await controller.alter_configs(DEMO, [("retention.ms", value)])
            tree = controller._store.tree
            assert len(tree.children("/config/changes")) == 2
            controller._clock.advance(15 * 60 + 1)  # type: ignore[attr-defined]
            await controller.alter_configs(DEMO, [("retention.ms", "3")])
            assert tree.children("/config/changes") == ["config_change_0000000002"]

    asyncio.run(run())
