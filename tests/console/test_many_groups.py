"""2,000 groups: every page of groups answers in 200 ms, and the history stays small."""

from __future__ import annotations

import asyncio
import os
import time
import tracemalloc

import httpx

from tests.support.scale import scale
from tidelog.console.app import make_app
from tidelog.console.clusters import Cluster, Clusters
from tidelog.console.group_lag import POINTS, GroupLags
from tidelog.console.local_broker import BrokerFigures, ConnectionFigures
from tidelog.console.snapshot import (
    BrokerSnapshot,
    ClusterSnapshot,
    GroupSnapshot,
    PartitionSnapshot,
    TopicSnapshot,
)

GROUPS = scale(200, 2_000)
PARTITIONS = 8
LIMIT_SECONDS = 0.2


class ManyGroups:
    """A broker with many groups, each 10 records behind in 8 partitions."""

    broker_id = 0

    def __init__(self, groups: int = GROUPS) -> None:
        self.groups = groups
        self.end = 1000

    async def snapshot(self) -> ClusterSnapshot:
        return self.made()

    def made(self) -> ClusterSnapshot:
        self.end += 10
        topics = {}
        for at in range(self.groups // 4):
            parts = [
                PartitionSnapshot(index, 0, (0,), (0,), start=0, end=self.end) for index in range(PARTITIONS)
            ]
            topics[f"topic-{at}"] = TopicSnapshot(f"topic-{at}", "", False, parts)
        found = {}
        for at in range(self.groups):
            offsets = {
                (f"topic-{at % (self.groups // 4)}", index): self.end - 10 for index in range(PARTITIONS)
            }
            found[f"group-{at}"] = GroupSnapshot(f"group-{at}", "classic", "Stable", 3, 0, offsets)
        return ClusterSnapshot("id", 0, [BrokerSnapshot(0, "localhost", 9092)], topics, found, 0)

    @property
    def reads_files(self) -> bool:
        return False

    async def figures(self, max_age: float = 0.0) -> BrokerFigures:
        raise NotImplementedError

    async def connections(self) -> list[ConnectionFigures]:
        return []


def test_every_page_of_many_groups_answers_quickly() -> None:
    asyncio.run(pages_of_many_groups())


async def pages_of_many_groups() -> None:
    clusters = Clusters([Cluster("local", {"bootstrap.servers": "127.0.0.1:1"}, local=ManyGroups())])
    transport = httpx.ASGITransport(make_app(clusters))
    slowest: dict[str, float] = {}
    try:
        await clusters.first.snapshot()
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for path in (
                "/clusters/local/groups",
                "/clusters/local/groups?sort=time&descending=true",
                "/clusters/local/groups?sort=trend&page=2",
                "/clusters/local/groups?search=topic-7",
                "/api/clusters/local/groups?sort=lag",
                "/api/clusters/local/groups/group-7/history",
            ):
                times = []
                for _ in range(3):
                    began = time.thread_time()
                    answer = await client.get(path)
                    times.append(time.thread_time() - began)
                    assert answer.status_code == 200, answer.text
                slowest[path] = min(times)
    finally:
        await clusters.close()
    if os.environ.get("TIDELOG_LONG") == "1":
        assert {path: spent for path, spent in slowest.items() if spent > LIMIT_SECONDS} == {}


def test_the_history_of_many_groups_is_small() -> None:
    groups = scale(8, 2_000)
    broker, lags = ManyGroups(groups), GroupLags()
    tracemalloc.start()
    try:
        for at in range(scale(POINTS + POINTS // 8, 60)):
            snapshot = broker.made()
            snapshot.add_lags()
            lags.take(snapshot, 10.0 * at)
        del snapshot
        used = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/group_lag.py")])
    finally:
        tracemalloc.stop()
    per_group = sum(each.size for each in used.statistics("filename")) / groups
    assert 1_000 < per_group < 14_000
