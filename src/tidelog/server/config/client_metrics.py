"""The settings of client metrics subscriptions: which clients push which metrics, and how often."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache

from tidelog.config.definition import ConfigDef
from tidelog.config.entries import ConfigEntry, ConfigSource, ConfigSynonym
from tidelog.config.values import ConfigError
from tidelog.errors import InvalidConfig, InvalidRequest

SERVED = """\
interval.ms int 300000 medium
match list "" medium
metrics list "" medium
"""

DOCUMENTATION = {
    "interval.ms": "How often clients push their metrics, in milliseconds: 100 to 3600000.",
    "match": "The clients of the subscription, as KEY=PATTERN: a client matches if every pattern does. Keys "
    "are client_instance_id, client_id, client_software_name, client_software_version, "
    "client_source_address and client_source_port. Without patterns every client matches.",
    "metrics": "The beginnings of the names of the metrics that clients push; `*` means all.",
}

DEFAULT_INTERVAL_MS = 300_000
LEAST_INTERVAL_MS, MOST_INTERVAL_MS = 100, 3_600_000
MATCH_KEYS = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)


@cache
def client_metrics_definition() -> ConfigDef:
    return ConfigDef(SERVED, {})


def split_list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def parse_match(text: str) -> list[tuple[str, re.Pattern[str]]]:
    """The patterns of `match`. Raises InvalidConfig, as Kafka does."""
    patterns = []
    for part in split_list(text):
        key, equals, pattern = (piece.strip() for piece in part.partition("="))
        try:
            if not equals or key not in MATCH_KEYS:
                raise ValueError(f"expected one of {', '.join(MATCH_KEYS)}, then = and a pattern")
            patterns.append((key, re.compile(pattern)))
        except (ValueError, re.error, RecursionError, OverflowError) as error:
            raise InvalidConfig(f"match={part}: {error}") from None
    return patterns


class ClientMetricsConfigs:
    """Checks and describes the settings of subscriptions."""

    __slots__ = ("definition",)

    def __init__(self) -> None:
        self.definition = client_metrics_definition()

    def validate(self, name: str, overrides: Mapping[str, str]) -> None:
        """Raise InvalidRequest or InvalidConfig if a subscription cannot have these settings."""
        if not name:
            raise InvalidRequest("the name of the subscription is empty")
        for setting, text in overrides.items():
            if setting not in self.definition:
                raise InvalidRequest(f"{setting} is not a setting of client metrics")
            if setting == "match":
                parse_match(text)
            elif setting == "interval.ms":
                self._check_interval(text)

    def _check_interval(self, text: str) -> None:
        try:
            value = self.definition["interval.ms"].parse(text)
        except ConfigError as error:
            raise InvalidConfig(str(error)) from None
        if not isinstance(value, int) or not LEAST_INTERVAL_MS <= value <= MOST_INTERVAL_MS:
            raise InvalidRequest(f"interval.ms={text}: expected {LEAST_INTERVAL_MS} to {MOST_INTERVAL_MS}")

    def describe(
        self,
        name: str,
        overrides: Mapping[str, str],
        names: Iterable[str] | None = None,
        *,
        documentation: bool = False,
    ) -> list[ConfigEntry]:
        """The settings in the answer to DescribeConfigs: all, or the known ones of `names`."""
        if not name:
            raise InvalidRequest("the name of the subscription is empty")
        wanted = None if names is None else set(names)
        return [
            self._entry(setting, overrides, documentation)
            for setting in self.definition
            if wanted is None or setting in wanted
        ]

    def _entry(self, name: str, overrides: Mapping[str, str], documentation: bool) -> ConfigEntry:
        key = self.definition[name]
        own = name in overrides
        value = overrides[name] if own else key.default
        source = ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG if own else ConfigSource.DEFAULT_CONFIG
        return ConfigEntry(
            name,
            value,
            source,
            type=key.type,
            # As in Kafka, the default is not a synonym here.
            synonyms=[ConfigSynonym(name, value, source)] if own else [],
            documentation=DOCUMENTATION[name] if documentation else None,
        )
