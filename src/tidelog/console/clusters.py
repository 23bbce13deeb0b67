"""The clusters of a console: a name, a colour, an admin client and a snapshot for each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from tidelog.clients.admin.client import AsyncAdmin
from tidelog.console.local_broker import LocalBroker
from tidelog.console.snapshot import ClusterSnapshot

if TYPE_CHECKING:
    from tidelog.console.group_lag import GroupLags, GroupLagSampler
    from tidelog.console.history import History
    from tidelog.console.records.live_tails import LiveTails
    from tidelog.console.records.log_files import LocalLogs
    from tidelog.console.records.shared_pages import SharedPages

SNAPSHOT_SECONDS: Final = 1.0
"""The age up to which a snapshot is used again."""

SNAPSHOT_SHARE: Final = 20
"""A snapshot of a large cluster is used longer: making it takes at most this share of the time."""

MOST_FRESH_SECONDS: Final = 5.0

STALE_SECONDS: Final = 2.0
"""For so long after that a snapshot still answers while the next one is made."""

API_TIMEOUT_MS: Final = 10_000
"""How long a page waits for a cluster that does not answer."""

COLOURS: Final = ("teal", "violet", "amber", "rose", "blue", "green")


class Cluster:
    """A cluster that the console shows. `settings` are those of a Kafka client, with bootstrap.servers."""

    def __init__(
        self,
        name: str,
        settings: Mapping[str, object],
        *,
        colour: str = COLOURS[0],
        read_only: bool = False,
        local: LocalBroker | None = None,
        pipelines: tuple[str, ...] = (),
    ) -> None:
        """`pipelines` are the data folders of pipelines that read from this cluster."""
        self.name = name
        self.colour = colour
        self.read_only = read_only
        self.local = local
        self.pipelines = pipelines
        self.client_settings: dict[str, object] = dict(settings)
        self._admin: AsyncAdmin | None = None
        self._snapshot: ClusterSnapshot | None = None
        self._snapshot_at = 0.0
        self._fresh_seconds = SNAPSHOT_SECONDS
        self._making: asyncio.Task[ClusterSnapshot] | None = None
        self._history: History | None = None
        self._lags: GroupLagSampler | None = None
        self._tails: LiveTails | None = None
        self._searches: SharedPages | None = None

    @property
    def admin(self) -> AsyncAdmin:
        """The admin client, made on first use; it connects with its first request."""
        if self._admin is None:
            settings: dict[str, object] = {"default.api.timeout.ms": API_TIMEOUT_MS}
            self._admin = AsyncAdmin(settings | {"client.id": "tidelog-console"} | self.client_settings)
        return self._admin

    @property
    def local_logs(self) -> LocalLogs | None:
        """The logs of a broker on this host that the console may read from files; None if it has to fetch."""
        return self.local if self.local is not None and self.local.reads_files else None

    async def snapshot(self, *, fresh: bool = False) -> ClusterSnapshot:
        """The cluster a moment ago; `fresh` makes a new snapshot.

        An older snapshot answers at once while the next one is made. Raises the KafkaError of a cluster that
        cannot be reached.
        """
        age = time.monotonic() - self._snapshot_at
        if not fresh and self._snapshot is not None and age < self._fresh_seconds:
            return self._snapshot
        if fresh and self._making is not None:
            await asyncio.wait([self._making])  # it may have begun before the change
        if self._making is None:
            self._making = asyncio.create_task(self._make_snapshot())
        if not fresh and self._snapshot is not None and age < self._fresh_seconds + STALE_SECONDS:
            self._making.add_done_callback(_ignore_failure)
            return self._snapshot
        return await asyncio.shield(self._making)

    def forget_snapshot(self) -> None:
        """Make the next reader wait for a new snapshot: something was changed."""
        self._snapshot = None

    async def _make_snapshot(self) -> ClusterSnapshot:
        from tidelog.console.snapshot_reader import read_snapshot

        began = time.monotonic()
        try:
            if self.local is None:
                await self.admin.connect()  # report a cluster that is down at once, not after every retry
            snapshot = await read_snapshot(self)
            self._snapshot, self._snapshot_at = snapshot, began
            took = time.monotonic() - began
            self._fresh_seconds = min(max(SNAPSHOT_SECONDS, took * SNAPSHOT_SHARE), MOST_FRESH_SECONDS)
            return snapshot
        finally:
            self._making = None

    @property
    def history(self) -> History:
        """The figures of the last minutes, sampled while somebody looks."""
        from tidelog.console.history import History

        if self._history is None:
            self._history = History(self)
        return self._history

    @property
    def tails(self) -> LiveTails:
        """The records that browsers follow."""
        from tidelog.console.records.live_tails import LiveTails

        if self._tails is None:
            self._tails = LiveTails()
        return self._tails

    @property
    def searches(self) -> SharedPages:
        """The last pages of searches."""
        from tidelog.console.records.shared_pages import SharedPages

        if self._searches is None:
            self._searches = SharedPages()
        return self._searches

    @property
    def group_lags(self) -> GroupLags:
        """The lags of the groups in records and time. They are sampled from the first reading on."""
        return self._lag_sampler().lags

    def start_sampling(self) -> None:
        """Sample the lags of groups, so that they have a history before somebody looks."""
        self._lag_sampler()

    async def next_group_sample(self) -> None:
        """Wait for the next sample of the groups' lags."""
        await self._lag_sampler().next()

    def _lag_sampler(self) -> GroupLagSampler:
        from tidelog.console.group_lag import GroupLagSampler

        if self._lags is None:
            self._lags = GroupLagSampler(self)
        self._lags.start()
        return self._lags

    async def close(self) -> None:
        if self._history is not None:
            await self._history.close()
        if self._lags is not None:
            await self._lags.close()
        if self._tails is not None:
            await self._tails.close()
        if self._searches is not None:
            await self._searches.close()
        if self._making is not None:
            self._making.cancel()
        if self._admin is not None:
            await self._admin.close()


class Clusters:
    """The clusters by name, in the order in which they were given."""

    def __init__(self, clusters: list[Cluster]) -> None:
        self._by_name = {cluster.name: cluster for cluster in clusters}
        if len(self._by_name) != len(clusters) or not clusters:
            raise ValueError("a console needs clusters with different names")

    def get(self, name: str) -> Cluster | None:
        return self._by_name.get(name)

    @property
    def first(self) -> Cluster:
        return next(iter(self._by_name.values()))

    def __iter__(self) -> Iterator[Cluster]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    async def close(self) -> None:
        for cluster in self:
            await cluster.close()


def _ignore_failure(task: asyncio.Task[ClusterSnapshot]) -> None:
    """Take the error of a snapshot that nobody waits for; the next reader makes another one."""
    if not task.cancelled():
        task.exception()
