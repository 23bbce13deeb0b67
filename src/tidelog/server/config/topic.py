"""The settings of topics: checks them, and resolves them with the broker's settings as defaults."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache

from tidelog.config.definition import ConfigDef
from tidelog.config.entries import ConfigEntry, ConfigSource, ConfigSynonym
from tidelog.config.values import ConfigError, ConfigValue, render_value
from tidelog.errors import InvalidConfig
from tidelog.server.config import topic_settings
from tidelog.server.config.broker import BrokerConfig
from tidelog.storage.config import LogConfig

SEGMENT_BYTES_FOR_TESTS = "internal.segment.bytes"


@cache
def topic_definition() -> ConfigDef:
    return ConfigDef(topic_settings.SERVED + topic_settings.INTERNAL, topic_settings.NOT_SERVED)


class TopicConfigs:
    """The settings of all topics of a broker. The broker's settings are parsed again after each change."""

    __slots__ = ("_default_log_config", "_defaults", "_revision", "broker", "definition")

    def __init__(self, broker: BrokerConfig) -> None:
        """Raises ConfigError if a broker setting is invalid as the default of a topic setting."""
        self.broker = broker
        self.definition = topic_definition()
        self._defaults: dict[str, ConfigValue] = {}
        self._revision = -1
        self._default_log_config: LogConfig | None = None
        for key in self.definition.values():
            if key.synonyms:
                try:
                    key.parse(broker.resolved_text(key.synonyms[0])[0])
                except ConfigError as error:
                    raise ConfigError(key.synonyms[0], error.value, error.problem) from None

    def validate(self, overrides: Mapping[str, str | None]) -> None:
        """Raise InvalidConfig with the name of the setting if a topic cannot have these settings."""
        for name, text in overrides.items():
            key = self.definition.get(name)
            if key is None:
                raise InvalidConfig(f"{name} is not a topic setting")
            if key.retired:
                raise InvalidConfig(f"{name} is no topic setting any more: {key.reason}")
            if text is None:
                raise InvalidConfig(f"{name} has no value; leave it out for the default")
            try:
                key.parse(text)
            except ConfigError as error:
                raise InvalidConfig(str(error)) from None
        self._check_together({name: text for name, text in overrides.items() if text is not None})

    def _check_together(self, overrides: Mapping[str, str]) -> None:
        values = self.effective(overrides)
        least, most = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
        if isinstance(least, int) and isinstance(most, int) and least > most:
            raise InvalidConfig(f"min.compaction.lag.ms={least} is more than max.compaction.lag.ms={most}")
        if values["remote.storage.enable"]:
            raise InvalidConfig("remote.storage.enable=true: tiered storage is not served")

    def text(self, name: str, overrides: Mapping[str, str]) -> tuple[str | None, ConfigSource]:
        """The text of a setting of a topic, in the unit of the topic setting, and its source."""
        if name in overrides:
            return overrides[name], ConfigSource.DYNAMIC_TOPIC_CONFIG
        key = self.definition[name]
        if key.synonyms:
            return self.broker.resolved_text(key.synonyms[0])
        return key.default, ConfigSource.DEFAULT_CONFIG

    def effective(self, overrides: Mapping[str, str]) -> dict[str, ConfigValue]:
        """The values of all settings for a topic with these overrides.

        An invalid stored value counts as absent, so that no topic keeps the broker from starting.
        """
        values = self._broker_defaults().copy()
        for name, text in overrides.items():
            if (key := self.definition.get(name)) is not None:
                with suppress(ConfigError):
                    values[name] = key.parse(text)
        return values

    def _broker_defaults(self) -> dict[str, ConfigValue]:
        if self._revision != self.broker.revision:
            for name, key in self.definition.items():
                try:
                    self._defaults[name] = key.parse(self.text(name, {})[0])
                except ConfigError:  # an invalid stored value: the setting has its default
                    self._defaults[name] = key.parse(key.default)
            self._revision = self.broker.revision
            self._default_log_config = None
        return self._defaults

    def log_config(self, overrides: Mapping[str, str]) -> LogConfig:
        """The settings as the LogConfig of a log. Topics without overrides share one: nobody changes it."""
        if overrides:
            return self._log_config(self.effective(overrides))
        values = self._broker_defaults()
        if self._default_log_config is None:
            self._default_log_config = self._log_config(values.copy())
        return self._default_log_config

    def _log_config(self, values: dict[str, ConfigValue]) -> LogConfig:
        smaller = values.pop(SEGMENT_BYTES_FOR_TESTS)
        if smaller is not None:
            values["segment.bytes"] = smaller
        config = LogConfig()
        for name, value in values.items():
            if name == "cleanup.policy" and isinstance(value, tuple):
                config.cleanup_policy = frozenset(value)
            else:
                setattr(config, self.definition[name].attribute, value)
        config.producer_id_expiration_ms = self.broker.producer_id_expiration_ms
        config.transaction_verification_enable = self.broker.transaction_partition_verification_enable
        config.batch_unpacked_max_bytes = self.broker.tidelog_batch_unpacked_max_bytes
        return config

    def _listed(self) -> Iterable[str]:
        return (name for name, key in self.definition.items() if not key.retired and not key.unlisted)

    def created(self, overrides: Mapping[str, str]) -> list[ConfigEntry]:
        """The settings in the answer to CreateTopics: the text and source of each."""
        entries = []
        for name in self._listed():
            text, source = self.text(name, overrides)
            entries.append(ConfigEntry(name, text, source, type=self.definition[name].type))
        return entries

    def describe(
        self, overrides: Mapping[str, str], names: Iterable[str] | None = None, *, documentation: bool = False
    ) -> Iterator[ConfigEntry]:
        """The settings in the answer to DescribeConfigs, one by one: all, or the known ones of `names`."""
        values = self.effective(overrides)
        wanted = None if names is None else set(names)
        listed = (name for name in self._listed() if wanted is None or name in wanted)
        return (self._entry(name, values[name], overrides, documentation) for name in listed)

    def _entry(
        self, name: str, value: ConfigValue, overrides: Mapping[str, str], documentation: bool
    ) -> ConfigEntry:
        key = self.definition[name]
        shown = render_value(value)
        synonyms = self.broker.synonyms(key.synonyms[0]) if key.synonyms else []
        if name in overrides:
            synonyms.insert(0, ConfigSynonym(name, shown, ConfigSource.DYNAMIC_TOPIC_CONFIG))
        doc = None
        if documentation:
            from tidelog.server.config.docs import topic_texts  # the broker itself needs no documentation

            doc = topic_texts()[name]
        source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
        return ConfigEntry(name, shown, source, type=key.type, synonyms=synonyms, documentation=doc)
