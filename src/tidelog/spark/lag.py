"""The position of a query as that of a consumer group, so that every Kafka tool shows it and its lag.

There are two ways to it, which may go together; the checkpoint alone decides where a query goes on, and the
group, which is never ahead of it, is for those who watch:
- the source option `publishGroup` (or `kafka.group.id`, where publishGroup does not say false). The stream's
  own process commits what is done when the next micro-batch is planned: by then the last one is in the
  query's log of commits. With a trigger of ten seconds that is up to ten seconds later;
- `publish(spark, ...)`, a listener of the driver's session that commits when a micro-batch has ended.
A group with members of its own refuses the commits, which is logged once and disturbs nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

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


# Long enough that a commit is there before a query ends, short enough to be no part of a micro-batch.
PATIENCE_SECONDS = 0.05


class GroupPublisher:
    """`publish` writes a position that changed; a slow broker is waited for in the background."""

    def __init__(self, group: str | None, link: AdminLink, patience: float = PATIENCE_SECONDS) -> None:
        self._group = group
        self._patience = patience
        self._link = link
        self._published: Offsets = {}
        self._complained = False

    def publish(self, done: Mapping[tuple[str, int], int]) -> None:
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
    """Commits the end of each micro-batch to the group that `group_of` gives for the name of its query.

    Queries without a name, those that `group_of` answers with None, and sources whose positions are not
    those of topics are passed over.
    """

    def __init__(self, client: Mapping[str, str], group_of: Callable[[str], str | None]) -> None:
        self._link = AdminLink(client)
        self._group_of = group_of
        self._publishers: dict[str, GroupPublisher] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing yet: there is no position."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        name = event.progress.name
        group = self._group_of(name) if name else None
        if group is None:
            return
        publisher = self._publishers.setdefault(group, GroupPublisher(group, self._link, patience=0))
        for source in event.progress.sources:
            publisher.publish(_position(source.endOffset))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """The position is where it was."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """The group keeps the last position."""

    def close(self) -> None:
        self._link.close()


def publish(
    spark: SparkSession, client: Mapping[str, str], group_of: Callable[[str], str | None] = str
) -> GroupListener:
    """Show the named queries of a session as groups, which have the queries' names unless told otherwise.

    `client` has Kafka's settings, `bootstrap.servers` among them. What comes back is taken away again with
    `spark.streams.removeListener(...)` and its own `close()`.
    """
    listener = GroupListener(client, group_of)
    spark.streams.addListener(listener)
    return listener


def _position(text: str | None) -> Offsets:
    """The position of a source in a query's progress; empty where it is not that of topics."""
    try:
        found = json.loads(text or "{}")
        return from_json(found) if isinstance(found, dict) else {}
    except (OptionError, ValueError):
        return {}
