"""The endpoints of the overview: health with reasons, figures and their history."""

from __future__ import annotations

from msgspec import Struct

from tidelog.console.api import Call, Endpoint
from tidelog.console.health import Health, health_of
from tidelog.console.history import Sample


class Latency(Struct):
    """Percentiles of a kind of request over about a minute, in milliseconds."""

    request: str
    count: int
    p50: float
    p95: float
    p99: float


class Overview(Struct):
    """The cluster in a few numbers. Numbers from a broker's memory are None for other clusters."""

    cluster_id: str
    controller: int | None
    brokers: int
    topics: int
    partitions: int
    groups: int
    records: int
    records_are_exact: bool
    bytes: int | None
    connections: int | None
    health: Health
    latency: list[Latency]


class HistoryAnswer(Struct):
    """The samples of the last minutes, oldest first, and the seconds between two of them."""

    seconds: float
    samples: list[Sample]


async def overview(call: Call[None, None]) -> Overview:
    """The health of the cluster and its most important figures."""
    snapshot = await call.cluster.snapshot()
    figures = None if call.cluster.local is None else await call.cluster.local.figures()
    totals = snapshot.totals
    return Overview(
        cluster_id=snapshot.cluster_id,
        controller=snapshot.controller,
        brokers=len(snapshot.brokers),
        topics=totals.topics,
        partitions=totals.partitions,
        groups=len(snapshot.groups),
        records=totals.records,
        records_are_exact=totals.is_exact,
        bytes=totals.size,
        connections=None if figures is None else figures.connections,
        health=health_of(snapshot, figures),
        latency=[]
        if figures is None
        else [
            Latency(name, found.count, found.p50, found.p95, found.p99)
            for name, found in figures.latency.items()
        ],
    )


async def history(call: Call[None, None]) -> HistoryAnswer:
    """The throughput and latency of the last minutes."""
    return HistoryAnswer(call.cluster.history.seconds, call.cluster.history.read())


ENDPOINTS = (
    Endpoint("GET", "/overview", overview, answer=Overview),
    Endpoint("GET", "/history", history, answer=HistoryAnswer),
)
