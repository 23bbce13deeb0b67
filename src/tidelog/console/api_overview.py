"""The endpoints of the overview: health with reasons, figures and their history."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from tidelog.console.api import Call, Endpoint
from tidelog.console.health import Health, health_of
from tidelog.console.history import Sample
from tidelog.console.pipeline_alerts import NEWEST, AlertDigests

FRESH_SECONDS: Final = 1.0
"""The age up to which the broker's figures are shown again. All browsers share them."""


class Latency(Struct):
    """Percentiles of a kind of request over about a minute, in milliseconds; None without such a request."""

    request: str
    count: int
    p50: float | None
    p95: float | None
    p99: float | None


class NewestAlert(Struct):
    """An alert of a pipeline. `folder` and `alert_id` find its evidence."""

    folder: int
    alert_id: str
    pipeline: str
    rule: str
    subject: str
    raised_at: str


class PipelineAlerts(Struct):
    """The alerts of all data folders. `is_complete` is False while a folder is not read, or cannot be."""

    count: int
    newest: list[NewestAlert]
    is_complete: bool


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
    alerts: PipelineAlerts | None
    """None if there are no pipelines, or if the principal may not see them."""


class HistoryAnswer(Struct):
    """The samples of the last minutes, oldest first, and the seconds between two of them."""

    seconds: float
    samples: list[Sample]


async def overview(call: Call[None, None]) -> Overview:
    """The health of the cluster and its most important figures."""
    snapshot = await call.cluster.snapshot()
    figures = None if call.cluster.local is None else await call.cluster.local.figures(FRESH_SECONDS)
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
        alerts=await pipeline_alerts(call),
    )


async def pipeline_alerts(call: Call[None, None]) -> PipelineAlerts | None:
    folders = call.cluster.pipelines
    if not folders or not call.access.may(call.principal, "pipeline.view", "", call.cluster.name):
        return None
    digests: AlertDigests = call.request.app.state.alerts
    found = await digests.get(folders)
    newest = [
        NewestAlert(number, each.alert_id, each.pipeline, each.rule, each.subject, each.raised_at)
        for number, digest in enumerate(found)
        if digest is not None
        for each in digest.newest
    ]
    newest.sort(key=lambda alert: alert.raised_at, reverse=True)
    count = sum(digest.count for digest in found if digest is not None)
    return PipelineAlerts(count, newest[:NEWEST], None not in found)


async def history(call: Call[None, None]) -> HistoryAnswer:
    """The throughput and latency of the last minutes."""
    return HistoryAnswer(call.cluster.history.seconds, call.cluster.history.read())


ENDPOINTS = (
    Endpoint("GET", "/overview", overview, answer=Overview, action="overview.view"),
    Endpoint("GET", "/history", history, answer=HistoryAnswer, action="overview.view"),
)
