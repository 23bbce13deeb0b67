"""Definitions of settings, from a table of text with one line for each setting.

A line has the name, type, default and importance. Then follow in any order:
- a rule (see rules),
- `per-broker` or `cluster-wide`, if the setting can change while the broker runs,
- `else=a,b`: the synonyms, which count if this setting has no value,
- `kafka=VALUE`: Kafka's default, if ours differs,
- `retired` (removed in Kafka 4), `ours` (not in Kafka), `unlisted` (shown only if it is set).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from tidelog.config.rules import Rule, parse_rule
from tidelog.config.values import ConfigError, ConfigType, ConfigValue, parse_value


class Importance(Enum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Dynamic(Enum):
    """Whether a setting can change while the broker runs: for one broker, or also for all brokers."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


@dataclass(slots=True)
class ConfigKey:
    name: str
    type: ConfigType
    default: str | None
    importance: Importance
    rule: Rule | None = None
    dynamic: Dynamic = Dynamic.READ_ONLY
    synonyms: tuple[str, ...] = ()
    reason: str | None = None  # why it is not served; None when it is
    kafka_default: str | None = None
    retired: bool = False
    ours: bool = False
    unlisted: bool = False

    @property
    def served(self) -> bool:
        return self.reason is None

    @property
    def sensitive(self) -> bool:
        return self.type is ConfigType.PASSWORD

    @property
    def attribute(self) -> str:
        return self.name.replace(".", "_")

    def parse(self, text: str | None) -> ConfigValue:
        """The typed value of `text`. Raises ConfigError if it is invalid."""
        if text is None:
            return None
        try:
            value = parse_value(self.name, self.type, text)
        except ConfigError as error:
            allowed = f": {self.rule.allowed()}" if self.rule is not None else ""
            raise ConfigError(self.name, self.shown(text), error.problem + allowed) from None
        if self.rule is not None and (problem := self.rule.problem(value)) is not None:
            raise ConfigError(self.name, self.shown(text), problem)
        return value

    def shown(self, text: str) -> str:
        return "[hidden]" if self.sensitive else text


_TYPES = {kind.name.lower(): kind for kind in ConfigType}
_IMPORTANCES = {importance.value: importance for importance in Importance}
_DYNAMIC = {dynamic.value: dynamic for dynamic in Dynamic}


def _default(text: str) -> str | None:
    return None if text == "null" else "" if text == '""' else text


def parse_key(line: str, reason: str | None = None) -> ConfigKey:
    name, kind, default, importance, *marks = line.split()
    key = ConfigKey(name, _TYPES[kind], _default(default), _IMPORTANCES[importance], reason=reason)
    for mark in marks:
        if mark in _DYNAMIC:
            key.dynamic = _DYNAMIC[mark]
        elif mark.startswith("else="):
            key.synonyms = tuple(mark[5:].split(","))
        elif mark.startswith("kafka="):
            key.kafka_default = mark[6:]
        elif mark == "retired":
            key.retired = True
        elif mark == "ours":
            key.ours = True
        elif mark == "unlisted":
            key.unlisted = True
        else:
            key.rule = parse_rule(mark)
    return key


class ConfigDef(Mapping[str, ConfigKey]):
    """The keys by name, in alphabetical order."""

    __slots__ = ("_keys",)

    def __init__(self, served: str, not_served: Mapping[str, str] | None = None) -> None:
        """`served` is a table; `not_served` has tables by the reason why their settings change nothing."""
        keys = [parse_key(line) for line in served.splitlines() if line]
        for reason, table in (not_served or {}).items():
            keys += [parse_key(line, reason) for line in table.splitlines() if line]
        keys.sort(key=lambda key: key.name)
        self._keys = {key.name: key for key in keys}
        if len(self._keys) != len(keys):
            raise ValueError("a setting is declared twice")

    def __getitem__(self, name: str) -> ConfigKey:
        return self._keys[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)
