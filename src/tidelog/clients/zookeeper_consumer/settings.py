"""The settings of a consumer on ZooKeeper, under the names of Kafka 0.8.

Settings of fetches are translated to settings of `tidelog.Consumer`.

>>> given = {"zookeeper.connect": "localhost:2181", "group.id": "loggers", "fetch.message.max.bytes": "2048"}
>>> settings = zookeeper_consumer_settings(given, rebalance_max_retries=8)
>>> settings.rebalance_max_retries, settings.rebalance_backoff_ms, settings.fetching
(8, 2000, {'max.partition.fetch.bytes': '2048', 'auto.offset.reset': 'latest'})
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from tidelog.clients.legacy_settings import OFFSET_RESETS, translate
from tidelog.clients.settings import setting_values, with_keywords
from tidelog.config import ConfigDef, ConfigError

log = logging.getLogger("tidelog.clients")

TABLE = """\
auto.commit.enable boolean true high
auto.commit.interval.ms long 60000 high >=1
auto.offset.reset string largest high in(smallest,largest)
consumer.id string null low nonempty
consumer.timeout.ms long -1 high >=-1
exclude.internal.topics boolean true low
group.id string null high nonempty
offsets.storage string zookeeper high in(zookeeper)
partition.assignment.strategy string range low in(range)
queued.max.message.chunks int 2 low >=1
rebalance.backoff.ms long null high >=0
rebalance.max.retries int 4 high >=1
zookeeper.connect string null high nonempty
zookeeper.connection.timeout.ms int null high >=1
zookeeper.session.timeout.ms int 6000 high >=1
zookeeper.sync.time.ms int 2000 low >=0
"""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


@dataclass(slots=True, kw_only=True)
class ZooKeeperConsumerSettings:
    """`fetching` has the settings of the `AsyncConsumer` that fetches the records."""

    auto_commit_enable: bool
    auto_commit_interval_ms: int
    consumer_id: str | None
    consumer_timeout_ms: int
    exclude_internal_topics: bool
    group_id: str
    queued_max_message_chunks: int
    rebalance_backoff_ms: int
    rebalance_max_retries: int
    zookeeper_connect: str
    zookeeper_connection_timeout_ms: int
    zookeeper_session_timeout_ms: int
    fetching: dict[str, object]


@cache
def zookeeper_consumer_definition() -> ConfigDef:
    return ConfigDef(TABLE)


def zookeeper_consumer_settings(
    config: Mapping[str, object] | None = None, /, **named: object
) -> ZooKeeperConsumerSettings:
    """Raises ConfigError if zookeeper.connect or group.id is missing, or a value is not allowed."""
    definition = zookeeper_consumer_definition()
    given = with_keywords(config, named)
    values = setting_values(definition, {name: given[name] for name in given if name in definition})
    for name in ("zookeeper.connect", "group.id"):
        if values[name.replace(".", "_")] is None:
            raise ConfigError(name, None, "needed by a consumer on ZooKeeper")
    for name in ("group.id", "consumer.id"):
        text = values[name.replace(".", "_")]
        if text is not None and not _LEGAL.fullmatch(str(text)):
            # They are the names of nodes.
            raise ConfigError(name, str(text), "expected letters, digits, '.', '_' and '-'")
    fetching, lines = translate({name: given[name] for name in given if name not in definition}, "consumer")
    for line in lines:
        log.info("%s", line)
    fetching["auto.offset.reset"] = OFFSET_RESETS[str(values.pop("auto_offset_reset"))]
    # A rebalance that failed waits until a slow ZooKeeper server shows what the others have changed.
    sync_time = values.pop("zookeeper_sync_time_ms")
    if values["rebalance_backoff_ms"] is None:
        values["rebalance_backoff_ms"] = sync_time
    if values["zookeeper_connection_timeout_ms"] is None:
        values["zookeeper_connection_timeout_ms"] = values["zookeeper_session_timeout_ms"]
    # Both have one allowed value.
    del values["offsets_storage"], values["partition_assignment_strategy"]
    return ZooKeeperConsumerSettings(**values, fetching=fetching)  # type: ignore[arg-type]  # typed by TABLE
