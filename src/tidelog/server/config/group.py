"""The settings of groups: checks them, and describes them with the broker's settings as defaults.

The settings of consumer groups take effect. Share and streams groups are not served: their settings are only
stored and described.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache

from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.config.definition import ConfigDef
from tidelog.config.entries import ConfigEntry, ConfigSource, ConfigSynonym
from tidelog.config.values import ConfigError, ConfigValue, render_value
from tidelog.errors import InvalidConfig, InvalidRequest
from tidelog.metadata.paths import entity_path
from tidelog.server.config.broker import BrokerConfig

SERVED = """\
consumer.assignment.interval.ms int 1000 medium >=0 else=group.consumer.assignment.interval.ms
consumer.heartbeat.interval.ms int 5000 medium >=1 else=group.consumer.heartbeat.interval.ms
consumer.session.timeout.ms int 45000 medium >=1 else=group.consumer.session.timeout.ms
"""

_SHARE = """\
share.assignment.interval.ms int 1000 medium >=0 else=group.share.assignment.interval.ms
share.auto.offset.reset string latest medium
share.delivery.count.limit int 5 medium >=2 else=group.share.delivery.count.limit
share.heartbeat.interval.ms int 5000 medium >=1 else=group.share.heartbeat.interval.ms
share.isolation.level string read_uncommitted medium in(read_committed,read_uncommitted)
share.partition.max.record.locks int 2000 medium >=100 else=group.share.partition.max.record.locks
share.record.lock.duration.ms int 30000 medium >=1000 else=group.share.record.lock.duration.ms
share.renew.acknowledge.enable boolean true medium
share.session.timeout.ms int 45000 medium >=1 else=group.share.session.timeout.ms
"""

_STREAMS = """\
streams.assignment.interval.ms int 1000 medium >=0 else=group.streams.assignment.interval.ms
streams.heartbeat.interval.ms int 5000 medium >=1 else=group.streams.heartbeat.interval.ms
streams.initial.rebalance.delay.ms int 3000 medium >=0 else=group.streams.initial.rebalance.delay.ms
streams.num.standby.replicas int 0 medium >=0 else=group.streams.num.standby.replicas
streams.session.timeout.ms int 45000 medium >=1 else=group.streams.session.timeout.ms
"""

NOT_SERVED = {"share groups are not served": _SHARE, "streams groups are not served": _STREAMS}

# The documentation of group settings without a broker setting.
DOCUMENTATION = {
    "share.auto.offset.reset": "Where a share group begins to read a partition: `latest`, `earliest` or "
    "`by_duration:` and how far back.",
    "share.isolation.level": "Whether a share group gets records of open and aborted transactions.",
    "share.renew.acknowledge.enable": "Whether members of a share group may keep a record for longer.",
}


@cache
def group_definition() -> ConfigDef:
    return ConfigDef(SERVED, NOT_SERVED)


def overrides_of(metadata: MetadataCache) -> Callable[[str], Mapping[str, str]]:
    """A function that looks up the overrides of a group; most groups have none."""

    def find(group_id: str) -> Mapping[str, str]:
        return metadata.snapshot.entity_configs.get(entity_path("groups", group_id), {})

    return find


class GroupConfigs:
    """The settings of all groups of a broker."""

    __slots__ = ("broker", "definition")

    def __init__(self, broker: BrokerConfig) -> None:
        self.broker = broker
        self.definition = group_definition()

    def validate(self, overrides: Mapping[str, str | None]) -> None:
        """Raise InvalidConfig with the name of the setting if a group cannot have these settings."""
        for name, text in overrides.items():
            key = self.definition.get(name)
            if key is None:
                raise InvalidConfig(f"{name} is not a group setting")
            if text is None:
                raise InvalidConfig(f"{name} has no value; leave it out for the default")
            try:
                self._check_bounds(name, key.parse(text))
            except ConfigError as error:
                raise InvalidConfig(str(error)) from None

    def _check_bounds(self, name: str, value: ConfigValue) -> None:
        """Check the broker's limits: group.consumer.min.X and group.consumer.max.X limit consumer.X."""
        kind, _, rest = name.partition(".")
        low, high = (self._bound(f"group.{kind}.{side}.{rest}") for side in ("min", "max"))
        if isinstance(value, int) and low is not None and value < low:
            raise InvalidConfig(f"{name}={value} is less than group.{kind}.min.{rest}={low}")
        if isinstance(value, int) and high is not None and value > high:
            raise InvalidConfig(f"{name}={value} is more than group.{kind}.max.{rest}={high}")

    def _bound(self, name: str) -> int | None:
        if name not in self.broker.definition:
            return None
        value = self.broker[name]
        return value if isinstance(value, int) else None

    def text(self, name: str, overrides: Mapping[str, str]) -> str | None:
        key = self.definition[name]
        if name in overrides:
            return overrides[name]
        return self.broker.resolved_text(key.synonyms[0])[0] if key.synonyms else key.default

    def describe(
        self,
        group_id: str,
        overrides: Mapping[str, str],
        names: Iterable[str] | None = None,
        *,
        documentation: bool = False,
    ) -> list[ConfigEntry]:
        """The settings in the answer to DescribeConfigs: all, or the known ones of `names`."""
        if not group_id:
            raise InvalidRequest("the id of the group is empty")
        wanted = None if names is None else set(names)
        return [
            self._entry(name, overrides, documentation)
            for name in self.definition
            if wanted is None or name in wanted
        ]

    def _entry(self, name: str, overrides: Mapping[str, str], documentation: bool) -> ConfigEntry:
        key = self.definition[name]
        shown = render_value(key.parse(self.text(name, overrides)))
        if key.synonyms:
            synonyms = self.broker.synonyms(key.synonyms[0])
        else:
            synonyms = [ConfigSynonym(name, key.default, ConfigSource.DEFAULT_CONFIG)]
        if name in overrides:
            synonyms.insert(0, ConfigSynonym(name, shown, ConfigSource.DYNAMIC_GROUP_CONFIG))
        doc = None
        if documentation:
            from tidelog.server.config.docs import broker_texts  # the broker itself needs no documentation

            doc = broker_texts()[key.synonyms[0]] if key.synonyms else DOCUMENTATION[name]
        return ConfigEntry(
            name, shown, synonyms[0].source, type=key.type, synonyms=synonyms, documentation=doc
        )
