"""A setting as DescribeConfigs has it: its value, the source of the value, and synonyms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from tidelog.config.values import ConfigType


class ConfigSource(IntEnum):
    """The source of a config's value, with its number in DescribeConfigs."""

    UNKNOWN = -1
    NONE = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8

    @classmethod
    def _missing_(cls, value: object) -> ConfigSource:
        return cls.UNKNOWN  # from a broker that is newer than this client


class ConfigSynonym(NamedTuple):
    """A value of a setting. The first synonym is in effect, each next one without the ones before it."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(slots=True, frozen=True)
class ConfigEntry:
    """A config and its value; clients see None for the value of a password."""

    name: str
    value: str | None
    source: ConfigSource
    is_sensitive: bool = False
    is_read_only: bool = False
    type: ConfigType = ConfigType.UNKNOWN
    synonyms: Sequence[ConfigSynonym] = ()
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        return self.source is ConfigSource.DEFAULT_CONFIG
