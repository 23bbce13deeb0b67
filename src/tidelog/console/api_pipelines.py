"""The endpoints of pipelines: running queries, micro-batches, tables with their newest rows, and alerts."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from msgspec import Meta, Struct

from tidelog.console import pipeline_data
from tidelog.console.api import Call, Endpoint
from tidelog.console.clusters import Cluster
from tidelog.console.errors import not_found
from tidelog.console.pipeline_data import AlertItem, TableAnswer, TableItem


class FlowItem(Struct):
    """A flow of a pipeline: `batch` is its last micro-batch, `running_batch` the one that is written now."""

    name: str
    state: str
    batch: int | None
    batch_ms: int
    rows: int
    rows_per_second: float
    lag: int | None
    late_rows_dropped: int
    running_batch: int | None
    running_seconds: float | None
    updated_seconds: float | None


class PipelineItem(Struct):
    """A pipeline that runs, or has run, on a data folder."""

    folder: int
    pipeline: str
    state: str
    host: str
    trigger: str
    started_ms: int | None
    updated_ms: int | None
    error: str | None
    rows: int
    rows_per_second: float
    lag: int | None
    flows: list[FlowItem]


class FolderItem(Struct):
    """A data folder. `note` says why it could not be read."""

    number: int
    path: str
    note: str


class PipelineList(Struct):
    folders: list[FolderItem]
    pipelines: list[PipelineItem]


async def list_pipelines(call: Call[None, None]) -> PipelineList:
    """The pipelines of all data folders with rows, rates and lag."""
    return await pipeline_list(call.cluster)


async def pipeline_list(cluster: Cluster) -> PipelineList:
    folders, pipelines = [], []
    for number, path in enumerate(cluster.pipelines):
        item = FolderItem(number, path, "")
        folders.append(item)
        try:
            found = await asyncio.to_thread(pipeline_data.statuses, path)
        except Exception as error:
            item.note = str(error)
            continue
        pipelines += [_pipeline(number, status) for status in found]
    return PipelineList(folders, pipelines)


def _pipeline(folder: int, status: Any) -> PipelineItem:
    is_running = status.state == "running"
    flows = [
        FlowItem(
            name=name,
            state=flow.state,
            batch=flow.batch,
            batch_ms=flow.batch_ms,
            rows=flow.rows,
            rows_per_second=flow.rows_per_second if is_running else 0.0,
            lag=flow.lag,
            late_rows_dropped=flow.late_rows_dropped,
            running_batch=flow.running_batch if is_running else None,
            running_seconds=pipeline_data.age_seconds(flow.running_since)
            if is_running and flow.running_batch is not None
            else None,
            updated_seconds=pipeline_data.age_seconds(flow.updated_at),
        )
        for name, flow in status.flows.items()
    ]
    return PipelineItem(
        folder=folder,
        pipeline=status.pipeline,
        state=status.state,
        host=status.host,
        trigger=status.trigger,
        started_ms=round(status.started_at * 1000) or None,
        updated_ms=round(status.updated_at * 1000) or None,
        error=status.error,
        rows=status.rows,
        rows_per_second=sum(flow.rows_per_second for flow in flows),
        lag=status.lag,
        flows=flows,
    )


class BatchItem(Struct):
    """A micro-batch of a flow."""

    pipeline: str
    flow: str
    batch: int
    started: str
    seconds: float
    rows_in: int | None
    rows_out: int | None
    quarantined: int | None
    late: int | None


class BatchList(Struct):
    batches: list[BatchItem]


async def list_batches(call: Call[None, None]) -> BatchList:
    """The newest micro-batches of a data folder."""
    return await batch_list(call.cluster, call.path["folder"], None)


async def batch_list(cluster: Cluster, folder: str, pipeline: str | None) -> BatchList:
    path = folder_of(cluster, folder)
    rows: list[Any] = list(await asyncio.to_thread(pipeline_data.batches, path, pipeline))
    return BatchList(
        [BatchItem(**{**row, "started": pipeline_data.shown(row["started"]) or ""}) for row in rows]
    )


class TableList(Struct):
    tables: list[TableItem]


async def list_tables(call: Call[None, None]) -> TableList:
    """The tables of a data folder with their rows and sizes."""
    return await table_list(call.cluster, call.path["folder"])


async def table_list(cluster: Cluster, folder: str) -> TableList:
    return TableList(await asyncio.to_thread(pipeline_data.tables, folder_of(cluster, folder)))


async def get_table(call: Call[None, None]) -> TableAnswer:
    """The newest rows of a table."""
    return await table_answer(call.cluster, call.path["folder"], call.path["table"])


async def table_answer(cluster: Cluster, folder: str, table: str) -> TableAnswer:
    return await asyncio.to_thread(pipeline_data.newest_rows, folder_of(cluster, folder), table)


class AlertList(Struct):
    alerts: list[AlertItem]


class AlertQuery(Struct):
    """`alert` is the id of one alert, which may be older than the newest."""

    alert: Annotated[str, Meta(max_length=1000)] | None = None


async def list_alerts(call: Call[AlertQuery, None]) -> AlertList:
    """The newest alerts of the detectors with their evidence, or one alert."""
    return await alert_list(call.cluster, call.path["folder"], call.query.alert)


async def alert_list(cluster: Cluster, folder: str, alert_id: str | None) -> AlertList:
    path = folder_of(cluster, folder)
    return AlertList(await asyncio.to_thread(pipeline_data.alerts, path, alert_id=alert_id))


def folder_of(cluster: Cluster, number: str) -> str:
    """The data folder with a number. Raises ApiError 404."""
    if number.isascii() and number.isdigit() and int(number[:9]) < len(cluster.pipelines):
        return cluster.pipelines[int(number[:9])]
    raise not_found(f"The data folder {number}")


ENDPOINTS = (
    Endpoint("GET", "/pipelines", list_pipelines, answer=PipelineList, action="pipeline.view"),
    Endpoint("GET", "/pipelines/{folder}/batches", list_batches, answer=BatchList, action="pipeline.view"),
    Endpoint("GET", "/pipelines/{folder}/tables", list_tables, answer=TableList, action="pipeline.view"),
    Endpoint(
        "GET",
        "/pipelines/{folder}/tables/{table}",
        get_table,
        answer=TableAnswer,
        action="pipeline.view",
    ),
    Endpoint(
        "GET",
        "/pipelines/{folder}/alerts",
        list_alerts,
        query=AlertQuery,
        answer=AlertList,
        action="pipeline.view",
    ),
)
