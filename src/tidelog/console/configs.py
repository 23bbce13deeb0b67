"""Settings of topics and brokers with their defaults and sources, as pages and API show them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from tidelog.clients.admin.configs import ConfigResource, ResourceType
from tidelog.config.entries import ConfigEntry, ConfigSource
from tidelog.console.clusters import Cluster
from tidelog.errors import KafkaError

log = logging.getLogger("tidelog.console")

SOURCES: Final = {
    ConfigSource.DYNAMIC_TOPIC_CONFIG: "topic",
    ConfigSource.DYNAMIC_BROKER_CONFIG: "broker, changed while it runs",
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG: "all brokers, changed while they run",
    ConfigSource.STATIC_BROKER_CONFIG: "file of the broker",
    ConfigSource.DEFAULT_CONFIG: "default",
}
FALLBACKS: Final = {
    "retention.ms": (("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000)),
    "segment.ms": (("log.roll.hours", 3_600_000),),
    "segment.jitter.ms": (("log.roll.jitter.hours", 3_600_000),),
    "flush.ms": (("log.flush.scheduler.interval.ms", 1),),
}
"""Settings of the broker, with their milliseconds, that count if the synonym in milliseconds is not set.

A broker does not name them among the synonyms of a topic's setting.
"""
OWN: Final = (ConfigSource.DYNAMIC_TOPIC_CONFIG, ConfigSource.DYNAMIC_BROKER_CONFIG)


class ConfigItem(Struct):
    """A setting: its value, the value that it has without being set here, and where the value comes from.

    The value of a secret is None. `is_own` marks a value that this topic or broker was given.
    """

    name: str
    value: str | None
    default: str | None
    source: str
    is_own: bool
    is_read_only: bool
    is_sensitive: bool
    documentation: str | None


async def topic_configs(cluster: Cluster, topic: str) -> list[ConfigItem]:
    """The settings of a topic by name. Raises UnknownTopicOrPartition."""
    items = await _configs(cluster, ConfigResource(ResourceType.TOPIC, topic))
    without = [item for item in items if item.is_own and item.default is None and item.name in FALLBACKS]
    if without:
        values = await _values_of_a_broker(cluster)
        for item in without:
            item.default = _fallback(values, item.name)
    return items


async def _values_of_a_broker(cluster: Cluster) -> dict[str, str | None]:
    """The settings of any broker; none if it does not answer, or if this console may not see them."""
    for broker in (await cluster.snapshot()).brokers[:1]:
        try:
            return {item.name: item.value for item in await broker_configs(cluster, broker.broker_id)}
        except KafkaError as error:
            log.debug("the settings of broker %d are not known: %s", broker.broker_id, error)
    return {}


def _fallback(values: Mapping[str, str | None], name: str) -> str | None:
    """The value of a topic's setting that follows from settings of the broker in other units."""
    for broker_name, milliseconds in FALLBACKS[name]:
        value = values.get(broker_name)
        if value is not None:
            return str(max(int(value) * milliseconds, -1))
    return None


async def broker_configs(cluster: Cluster, broker_id: int) -> list[ConfigItem]:
    """The settings of a broker by name."""
    return await _configs(cluster, ConfigResource(ResourceType.BROKER, str(broker_id)))


async def _configs(cluster: Cluster, resource: ConfigResource) -> list[ConfigItem]:
    found = await cluster.admin.describe_configs(
        [resource], include_synonyms=True, include_documentation=True
    )
    return [_item(entry) for _, entry in sorted(found[resource].items())]


async def own_topic_configs(cluster: Cluster, topic: str) -> dict[str, str]:
    """The settings that a topic was given, without secrets."""
    items = await _configs(cluster, ConfigResource(ResourceType.TOPIC, topic))
    return {item.name: item.value for item in items if item.is_own and item.value is not None}


def _item(entry: ConfigEntry) -> ConfigItem:
    is_own = entry.source in OWN
    default = entry.value
    if entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG:
        default = next((other.value for other in entry.synonyms if other.source not in OWN), None)
    elif entry.source is not ConfigSource.DEFAULT_CONFIG:
        defaults = (other.value for other in entry.synonyms if other.source is ConfigSource.DEFAULT_CONFIG)
        default = next(defaults, None)
    return ConfigItem(
        name=entry.name,
        value=None if entry.is_sensitive else entry.value,
        default=None if entry.is_sensitive else default,
        source=SOURCES.get(entry.source, "unknown"),
        is_own=is_own,
        is_read_only=entry.is_read_only,
        is_sensitive=entry.is_sensitive,
        documentation=entry.documentation,
    )


def parse_settings(text: str) -> dict[str, str]:
    """The settings of a form: lines `name=value`. Raises ValueError that names the wrong line."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"{line.strip()!r} is not a line name=value.")
        found[name.strip()] = value.strip()
    return found


class BrokerConfigRow(Struct):
    """A setting of all brokers: the value of each by its id, None for a secret or a broker without it."""

    name: str
    values: dict[str, str | None]
    sources: dict[str, str]
    default: str | None
    differs: bool
    is_changed: bool
    documentation: str | None


def compare(by_broker: Mapping[int, list[ConfigItem]]) -> list[BrokerConfigRow]:
    """The settings of several brokers side by side, by name."""
    items = {broker: {item.name: item for item in found} for broker, found in by_broker.items()}
    names = sorted({name for found in items.values() for name in found})
    rows = []
    for name in names:
        having = {broker: found[name] for broker, found in items.items() if name in found}
        values = {str(broker): item.value for broker, item in having.items()}
        first = next(iter(having.values()))
        rows.append(
            BrokerConfigRow(
                name=name,
                values=values,
                sources={str(broker): item.source for broker, item in having.items()},
                default=first.default,
                differs=len(set(values.values())) > 1 or len(having) < len(items),
                is_changed=any(item.source != "default" for item in having.values()),
                documentation=first.documentation,
            )
        )
    return rows
