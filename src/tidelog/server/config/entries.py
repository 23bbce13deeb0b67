"""What DescribeConfigs tells of a setting: its value, where it comes from, and what stands behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from tidelog.config.values import ConfigType


class ConfigSource(IntEnum):
    """Where a value comes from; the numbers are those on the wire."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    GROUP = 8


class Synonym(NamedTuple):
    """A value that holds, or would hold if those before it were not there."""

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
