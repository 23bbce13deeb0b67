"""Changes of settings as the broker makes them: the controller's steps with the server's rules."""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.controller.config_changes import changed
from tidelog.controller.interface import ConfigChange, ConfigEntity, ConfigKind
from tidelog.metadata.state import DEFAULT_ENTITY
from tidelog.server.config.broker import BrokerConfig
from tidelog.server.config.changes import ConfigOp
from tidelog.server.config.topic import TopicConfigs
from tidelog.server.dynamic_config import DynamicConfig


def incremented_topic(
    configs: TopicConfigs, current: Mapping[str, str], ops: list[ConfigOp]
) -> dict[str, str]:
    return _incremented(DynamicConfig(configs.broker), ConfigEntity(ConfigKind.TOPIC, "t"), current, ops)


def incremented_broker(config: BrokerConfig, ops: list[ConfigOp], *, cluster_default: bool) -> dict[str, str]:
    entity = ConfigEntity(ConfigKind.BROKER, DEFAULT_ENTITY if cluster_default else "1")
    current = config.dynamic(cluster_default=cluster_default)
    return _incremented(DynamicConfig(config), entity, current, ops)


def _incremented(
    rules: DynamicConfig, entity: ConfigEntity, current: Mapping[str, str], ops: list[ConfigOp]
) -> dict[str, str]:
    new = changed(current, [ConfigChange(*op) for op in ops], entity, rules)
    rules.validate(entity, new)
    return new
