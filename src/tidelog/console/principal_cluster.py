"""PrincipalCluster: a cluster as one logged-in principal sees it.

Its clients log in as the principal, so the ACLs of the cluster decide about everything that is asked and
changed. A snapshot that comes from the memory of the broker, or from the own client of the console, is cut
down to the topics and groups that the principal may see.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tidelog.clients.admin.client import AsyncAdmin
from tidelog.console.clusters import Cluster
from tidelog.console.sessions import without_login
from tidelog.console.snapshot import ClusterSnapshot
from tidelog.errors import KafkaError
from tidelog.security.operations import AclOperation

if TYPE_CHECKING:
    from tidelog.console.group_lag import GroupLags
    from tidelog.console.history import History
    from tidelog.console.records.log_files import LocalLogs

NAMES_SECONDS: Final = 5.0
"""The age up to which the names that the cluster lists for a principal are used again."""
PREPARE_SECONDS: Final = 5.0

Names = tuple[frozenset[str], frozenset[str]]


class PrincipalCluster(Cluster):
    """`credentials` are client settings; without them the console's own client is used.

    `sees` tells for a resource such as `topic:orders` whether the principal's role covers it; None if it
    covers all.
    """

    def __init__(
        self, base: Cluster, credentials: Mapping[str, object], sees: Callable[[str], bool] | None
    ) -> None:
        super().__init__(
            base.name,
            {**(without_login(base.client_settings) if credentials else base.client_settings), **credentials},
            colour=base.colour,
            read_only=base.read_only,
            local=base.local,
            pipelines=base.pipelines,
        )
        self._base = base
        self._has_credentials = bool(credentials)
        self._sees = sees
        self._names: Names | None = None
        self._names_at = 0.0
        self._cut: tuple[ClusterSnapshot, Names | None, ClusterSnapshot] | None = None

    @property
    def _asks_itself(self) -> bool:
        """Whether snapshots are made by requests as the principal, which the cluster filters."""
        return self._has_credentials and self._base.local is None

    async def prepare(self) -> None:
        """Remove the figures of the broker's memory if the principal may not describe the cluster."""
        if not self._has_credentials or self.local is None:
            return
        try:
            found = await self.admin.describe_cluster(
                include_authorized_operations=True, timeout=PREPARE_SECONDS
            )
        except KafkaError:
            self.local = None
            return
        allowed = found.authorized_operations
        if allowed is not None and AclOperation.DESCRIBE not in allowed:
            self.local = None

    @property
    def admin(self) -> AsyncAdmin:
        return super().admin if self._has_credentials else self._base.admin

    @property
    def local_logs(self) -> LocalLogs | None:
        """None for a principal of its own: the cluster decides what the principal may read."""
        return None if self._has_credentials else super().local_logs

    async def snapshot(self, *, fresh: bool = False) -> ClusterSnapshot:
        if self._asks_itself:
            return self._cut_down(await super().snapshot(fresh=fresh), None)
        names = await self._visible(fresh) if self._has_credentials else None
        return self._cut_down(await self._base.snapshot(fresh=fresh), names)

    def forget_snapshot(self) -> None:
        super().forget_snapshot()
        self._base.forget_snapshot()
        self._names = None

    @property
    def group_lags(self) -> GroupLags:
        return super().group_lags if self._asks_itself else self._base.group_lags

    async def next_group_sample(self) -> None:
        await (super().next_group_sample() if self._asks_itself else self._base.next_group_sample())

    @property
    def history(self) -> History:
        return super().history if self._asks_itself else self._base.history

    async def _visible(self, fresh: bool) -> Names:
        """The topics and groups that the cluster lists for the principal."""
        now = time.monotonic()
        if self._names is None or fresh or now - self._names_at > NAMES_SECONDS:
            topics = frozenset(await self.admin.list_topics(list_internal=True))
            groups = frozenset(group.group_id for group in await self.admin.list_groups())
            self._names, self._names_at = (topics, groups), now
        return self._names

    def _cut_down(self, snapshot: ClusterSnapshot, names: Names | None) -> ClusterSnapshot:
        if names is None and self._sees is None:
            return snapshot
        if self._cut is not None and self._cut[0] is snapshot and self._cut[1] is names:
            return self._cut[2]
        topics = {
            name: topic
            for name, topic in snapshot.topics.items()
            if (names is None or name in names[0]) and (self._sees is None or self._sees(f"topic:{name}"))
        }
        groups = {
            name: group
            for name, group in snapshot.groups.items()
            if (names is None or name in names[1]) and (self._sees is None or self._sees(f"group:{name}"))
        }
        if len(groups) < len(snapshot.groups):
            topics = {
                name: replace(topic, groups=[each for each in topic.groups if each.group_id in groups])
                for name, topic in topics.items()
            }
        if len(topics) < len(snapshot.topics):
            groups = {
                name: replace(
                    group,
                    offsets={key: offset for key, offset in group.offsets.items() if key[0] in topics},
                    lags={topic: lag for topic, lag in group.lags.items() if topic in topics},
                )
                for name, group in groups.items()
            }
        cut = replace(snapshot, topics=topics, groups=groups)
        self._cut = (snapshot, names, cut)
        return cut
