"""DynamicConfig: checks and applies changed settings while the broker runs (Kafka's DynamicBrokerConfig)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tidelog.config.values import ConfigType
from tidelog.controller.interface import ConfigEntity, ConfigKind
from tidelog.errors import InvalidRequest
from tidelog.metadata.state import DEFAULT_ENTITY, ClusterState
from tidelog.server.config.broker import BrokerConfig
from tidelog.server.config.broker_definition import key_of
from tidelog.server.config.changes import ConfigOp, check_broker
from tidelog.server.config.client_metrics import ClientMetricsConfigs
from tidelog.server.config.group import GroupConfigs
from tidelog.server.config.loggers import BrokerLoggers
from tidelog.server.config.quotas import QUOTA_KINDS, check_quotas
from tidelog.server.config.stored_passwords import StoredPasswords
from tidelog.server.config.topic import TopicConfigs

if TYPE_CHECKING:
    from tidelog.server.tls_listeners import TlsListeners

# Kafka can add and remove listeners while it runs; this broker keeps the listeners of its start.
AT_START_ONLY = ("listeners", "listener.security.protocol.map")


class DynamicConfig:
    """Checks settings before the controller writes them, and applies them after."""

    def __init__(self, broker: BrokerConfig) -> None:
        self.broker = broker
        self.topics = TopicConfigs(broker)
        self.groups = GroupConfigs(broker)
        self.client_metrics = ClientMetricsConfigs()
        self._passwords = StoredPasswords(broker)
        self.loggers = BrokerLoggers()
        # Called with the settings of users, clients and addresses, by path below /config.
        self.on_quota_change: Callable[[str, dict[str, str]], None] | None = None
        # Called after a log level changed: the network caches whether it logs requests.
        self.on_level_change: Callable[[], None] | None = None
        # Set when the listeners are made; None without TLS.
        self.tls: TlsListeners | None = None

    # Checks for the controller (controller.interface.ConfigRules)

    def validate(self, entity: ConfigEntity, overrides: Mapping[str, str]) -> None:
        if entity.kind == ConfigKind.TOPIC:
            self.topics.validate(overrides)
        elif entity.kind == ConfigKind.BROKER:
            self._refuse_new_listeners(overrides)
            trial = check_broker(self.broker, overrides, cluster_default=entity.name == DEFAULT_ENTITY)
            if self.tls is not None:
                self.tls.check(trial)
        elif entity.kind == ConfigKind.GROUP:
            self.groups.validate(overrides)
        elif entity.kind in QUOTA_KINDS:
            check_quotas(entity.kind, overrides)
        elif entity.kind == ConfigKind.CLIENT_METRICS:
            self.client_metrics.validate(entity.name, overrides)
        else:
            raise InvalidRequest(f"settings of {entity.kind} are not served")

    def _refuse_new_listeners(self, overrides: Mapping[str, str]) -> None:
        for name in AT_START_ONLY:
            if name in overrides and overrides[name] != self.broker.text(name):
                raise InvalidRequest(
                    f"{name} cannot change while the broker runs: change it in the file, then restart"
                )

    def inherited_list(self, entity: ConfigEntity, name: str) -> str | None:
        if entity.kind in (ConfigKind.GROUP, ConfigKind.CLIENT_METRICS) or entity.kind in QUOTA_KINDS:
            return None  # they have no lists; Kafka does not append to those of client metrics
        topic = entity.kind == ConfigKind.TOPIC
        key = self.topics.definition.get(name) if topic else key_of(name)
        if key is None or key.type is not ConfigType.LIST:
            return None
        return (self.topics.text(name, {})[0] if topic else self.broker.default(name)) or ""

    def encoded(
        self, entity: ConfigEntity, configs: Mapping[str, str], stored: Mapping[str, str]
    ) -> dict[str, str]:
        return self._passwords.encoded(configs, stored) if entity.kind == ConfigKind.BROKER else dict(configs)

    def decoded(self, entity: ConfigEntity, stored: Mapping[str, str]) -> dict[str, str]:
        return self._passwords.decoded(stored) if entity.kind == ConfigKind.BROKER else dict(stored)

    # Changes from the controller

    def entity_changed(self, entity: ConfigEntity, overrides: dict[str, str]) -> None:
        if entity.kind == ConfigKind.BROKER:
            found = self._passwords.decoded(overrides)
            if entity.name == DEFAULT_ENTITY:
                self.broker.set_dynamic(cluster_default=found)
            else:
                self.broker.set_dynamic(broker=found)
            if self.tls is not None:
                self.tls.update()
        elif entity.kind in QUOTA_KINDS and self.on_quota_change is not None:
            self.on_quota_change(entity.path, overrides)

    def load(self, state: ClusterState, broker_id: int) -> None:
        """Apply the settings that were stored before this start."""
        self.broker.set_dynamic(
            broker=self._passwords.decoded(state.broker_configs(broker_id)),
            cluster_default=self._passwords.decoded(state.broker_configs(None)),
        )

    def change_levels(self, operations: list[ConfigOp]) -> None:
        self.loggers.apply(operations)
        if self.on_level_change is not None:
            self.on_level_change()
