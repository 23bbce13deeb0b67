"""The position of a query as that of a consumer group, so that every Kafka tool shows it and its lag.

It is on where the source option `publishGroup` names a group, or `kafka.group.id` does and publishGroup does
not say false. The stream's own process commits what is done when the next micro-batch is planned: by then
the last one is in the query's log of commits, so the group is never ahead of the checkpoint. The checkpoint
alone decides where a query goes on; the group is for those who watch. A group with members of its own
refuses the commits, which is logged once and disturbs nothing.
"""

from __future__ import annotations

import logging

from tidelog.spark.cluster import Cluster
from tidelog.spark.options import Offsets

log = logging.getLogger("tidelog.spark")


class GroupPublisher:
    """`publish` writes a position that changed, in the background."""

    def __init__(self, group: str | None, cluster: Cluster) -> None:
        self._group = group
        self._cluster = cluster
        self._published: Offsets = {}
        self._complained = False

    def publish(self, done: Offsets) -> None:
        if self._group is None or done == self._published:
            return
        changed = {key: offset for key, offset in done.items() if self._published.get(key) != offset}
        self._published = dict(done)
        if changed:
            self._cluster.commit(self._group, changed, self._failed)

    def _failed(self, why: str) -> None:
        self._published = {}
        if not self._complained:
            self._complained = True
            log.warning("the position of the query is not shown in the group %s: %s", self._group, why)
