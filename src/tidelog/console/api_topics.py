"""The endpoints of topics: the list, one topic, and every change of topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Protocol

from msgspec import Meta, Struct

from tidelog.console.api import Call, Endpoint
from tidelog.console.clusters import Cluster
from tidelog.console.errors import not_found
from tidelog.console.snapshot import PartitionSnapshot, TopicSnapshot

PageNumber = Annotated[int, Meta(ge=1, le=1_000_000)]
PageSize = Annotated[int, Meta(ge=1, le=1000)]
SortKey = Literal["name", "records", "size", "rate", "last", "partitions", "lag"]


class Named(Protocol):
    """A call of the API or a view of a page whose path names a topic."""

    @property
    def cluster(self) -> Cluster: ...

    @property
    def path(self) -> Mapping[str, str]: ...


class TopicsQuery(Struct):
    """Which topics, in which order: `search` is a part of the name, `-` before the key sorts downwards."""

    search: Annotated[str, Meta(max_length=500)] = ""
    internal: bool = False
    sort: SortKey = "name"
    descending: bool = False
    page: PageNumber = 1
    size: PageSize = 100
    only: Annotated[list[str], Meta(max_length=1000)] = []


class TopicGroupItem(Struct):
    group: str
    lag: int | None


class TopicItem(Struct):
    """A topic. `records` is an exact count if `is_exact`, else the difference of offsets."""

    name: str
    topic_id: str
    is_internal: bool
    partitions: int
    replication_factor: int
    records: int | None
    is_exact: bool
    bytes: int | None
    records_per_s: float | None
    bytes_in_per_s: float | None
    bytes_out_per_s: float | None
    last_ms: int | None
    cleanup_policy: str | None
    under_replicated: int
    offline: int
    groups: list[TopicGroupItem]


class TopicList(Struct):
    """One page of the topics; `total` counts the topics of all pages."""

    total: int
    page: int
    pages: int
    topics: list[TopicItem]


async def list_topics(call: Call[TopicsQuery, None]) -> TopicList:
    """The topics with their counts, sizes, rates and groups, filtered and sorted."""
    snapshot = await call.cluster.snapshot()
    return topic_list(list(snapshot.topics.values()), call.query)


def topic_list(topics: list[TopicSnapshot], query: TopicsQuery) -> TopicList:
    """One page of the topics that a query selects."""
    words = query.search.lower().split()
    wanted = set(query.only)
    found = [
        topic
        for topic in topics
        if (query.internal or not topic.is_internal)
        and (not wanted or topic.name in wanted)
        and all(word in topic.name.lower() for word in words)
    ]
    found.sort(key=lambda topic: topic.name)
    if query.sort != "name":
        found.sort(key=lambda topic: _sort_value(topic, query.sort), reverse=query.descending)
    elif query.descending:
        found.reverse()
    pages = max(-(-len(found) // query.size), 1)
    page = min(query.page, pages)
    shown = found[(page - 1) * query.size : page * query.size]
    return TopicList(len(found), page, pages, [topic_item(topic) for topic in shown])


def _sort_value(topic: TopicSnapshot, key: SortKey) -> float:
    value: float | None
    if key == "records":
        value = topic.records
    elif key == "size":
        value = topic.size
    elif key == "rate":
        value = topic.records_per_s
    elif key == "last":
        value = topic.last_ms
    elif key == "lag":
        value = max((group.lag or 0 for group in topic.groups), default=None)
    else:
        value = len(topic.partitions)
    return -1 if value is None else value


def topic_item(topic: TopicSnapshot) -> TopicItem:
    """A topic of the snapshot as the API shows it."""
    return TopicItem(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=len(topic.partitions),
        replication_factor=topic.replication_factor,
        records=topic.records,
        is_exact=topic.is_exact,
        bytes=topic.size,
        records_per_s=topic.records_per_s,
        bytes_in_per_s=topic.bytes_in_per_s,
        bytes_out_per_s=topic.bytes_out_per_s,
        last_ms=topic.last_ms,
        cleanup_policy=topic.cleanup_policy,
        under_replicated=topic.under_replicated_count,
        offline=topic.offline_count,
        groups=[TopicGroupItem(group.group_id, group.lag) for group in topic.groups],
    )


class PartitionItem(Struct):
    """A partition with its replicas, offsets, size and exact count if it is known."""

    partition: int
    leader: int
    replicas: list[int]
    isr: list[int]
    offline: list[int]
    start: int | None
    end: int | None
    records: int | None
    bytes: int | None
    last_ms: int | None


class TopicAnswer(Struct):
    topic: TopicItem
    partitions: list[PartitionItem]


async def get_topic(call: Call[None, None]) -> TopicAnswer:
    """A topic with its partitions."""
    topic = await find_topic(call)
    return TopicAnswer(topic_item(topic), [_partition_item(partition) for partition in topic.partitions])


async def find_topic(call: Named) -> TopicSnapshot:
    """The topic of the path. Raises ApiError 404 if a fresh snapshot does not have it either."""
    name = call.path["topic"]
    topic = (await call.cluster.snapshot()).topics.get(name)
    if topic is None:
        topic = (await call.cluster.snapshot(fresh=True)).topics.get(name)
    if topic is None:
        raise not_found(f"The topic {name}")
    return topic


def _partition_item(partition: PartitionSnapshot) -> PartitionItem:
    return PartitionItem(
        partition=partition.index,
        leader=partition.leader,
        replicas=list(partition.replicas),
        isr=list(partition.isr),
        offline=list(partition.offline),
        start=partition.start,
        end=partition.end,
        records=partition.records,
        bytes=partition.size,
        last_ms=partition.last_ms,
    )


ENDPOINTS = (
    Endpoint("GET", "/topics", list_topics, query=TopicsQuery, answer=TopicList, action="topic.view"),
    Endpoint("GET", "/topics/{topic}", get_topic, answer=TopicAnswer, action="topic.view"),
)
