"""A setting in the answer to DescribeConfigs: its value, the source of the value, and synonyms."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from tidelog.config.values import ConfigType


class ConfigSource(IntEnum):
    """The source of a value, with Kafka's number."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class Synonym(NamedTuple):
    """A value of a setting. The first synonym is in effect, each next one without the ones before it."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(slots=True)
class ConfigEntry:
    name: str
    value: str | None
    source: ConfigSource
    type: ConfigType = ConfigType.UNKNOWN
    read_only: bool = False
    sensitive: bool = False
    synonyms: list[Synonym] = field(default_factory=list)
    documentation: str | None = None
