"""Shows the position of a query as a consumer group, so that every Kafka tool shows its lag.

The group is for monitoring only. The checkpoint alone decides where a query resumes, and the group is never
ahead of it. There are two ways to publish, and both can be used together:
- The source option `publishGroup`, or `kafka.group.id` unless publishGroup is false. The stream's process
  commits the end of a micro-batch when it plans the next one, since the query has logged the first as done by
  then. With a trigger of ten seconds the group is up to ten seconds behind.
- `publish(spark, ...)`, a listener in the driver's session that commits when a micro-batch ends.
A group that has members refuses the commits. That is logged once and does not disturb the query.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

from tidelog.partitions import PartitionKey
from tidelog.spark.cluster import AdminLink
from tidelog.spark.offsets import from_json
from tidelog.spark.options import Offsets, OptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

log = logging.getLogger("tidelog.spark")


# Long enough for a commit before a query ends, short enough not to slow down a micro-batch.
PATIENCE_SECONDS = 0.05


class GroupPublisher:
    """`publish` commits a position that changed. A slow broker is waited for in the background."""

    def __init__(self, group: str | None, link: AdminLink, patience: float = PATIENCE_SECONDS) -> None:
        self._group = group
        self._patience = patience
        self._link = link
        self._published: Offsets = {}
        self._complained = False

    def publish(self, done: Mapping[PartitionKey, int]) -> None:
        if self._group is None:
            return
        changed = {key: offset for key, offset in done.items() if self._published.get(key) != offset}
        if changed:
            self._published.update(changed)
            self._link.commit(self._group, changed, self._failed, self._patience)

    def _failed(self, why: str) -> None:
        self._published = {}
        if not self._complained:
            self._complained = True
            log.warning("the position of the query is not shown in the group %s: %s", self._group, why)


class GroupListener(StreamingQueryListener):
    """Commits the end of each micro-batch to the group that `group_of` returns for the query's name.

    It ignores queries without a name, queries without a group (None), and sources that do not read topics.
    """

    def __init__(self, client: Mapping[str, str], group_of: Callable[[str], str | None]) -> None:
        self._link = AdminLink(client)
        self._group_of = group_of
        self._publishers: dict[str, GroupPublisher] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """There is no position yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        name = event.progress.name
        group = self._group_of(name) if name else None
        if group is None:
            return
        publisher = self._publishers.setdefault(group, GroupPublisher(group, self._link, patience=0))
        for source in event.progress.sources:
            publisher.publish(_position(source.endOffset))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """The position has not changed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """The group keeps the last position."""

    def close(self) -> None:
        self._link.close()


def publish(
    spark: SparkSession, client: Mapping[str, str], group_of: Callable[[str], str | None] = str
) -> GroupListener:
    """Show the named queries of a session as groups. A group has the name of the query by default.

    `client` has Kafka's settings with `bootstrap.servers`. To end it, pass the returned listener to
    `spark.streams.removeListener(...)` and call its `close()`.
    """
    listener = GroupListener(client, group_of)
    spark.streams.addListener(listener)
    return listener


def _position(text: str | None) -> Offsets:
    """The position of a source in a query's progress; empty if the source does not read topics."""
    try:
        found = json.loads(text or "{}")
        return from_json(found) if isinstance(found, dict) else {}
    except (OptionError, ValueError):
        return {}
