"""The pages of pipelines: running queries, tables with newest rows, alerts with evidence, the report."""

from __future__ import annotations

import asyncio
import json

from starlette.responses import HTMLResponse, Response

from tidelog.console import pipeline_data
from tidelog.console.api import parse_query
from tidelog.console.api_pipelines import (
    AlertQuery,
    alert_list,
    batch_list,
    folder_of,
    pipeline_list,
    table_answer,
    table_list,
)
from tidelog.console.pages import NavItem, Page, View

# The report has one style of its own and no script; nothing else can be loaded or run in it.
REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; sandbox"
)


async def pipelines_page(view: View) -> Response:
    found = await pipeline_list(view.cluster)
    is_part = view.request.headers.get("hx-target") == "pipelines"
    return view.render("pipelines/rows.html" if is_part else "pipelines/list.html", found=found)


async def pipeline_page(view: View) -> Response:
    """One pipeline with its flows and last micro-batches."""
    folder, name = view.path["folder"], view.path["pipeline"]
    found = await pipeline_list(view.cluster)
    chosen = [each for each in found.pipelines if each.pipeline == name and str(each.folder) == folder]
    folder_of(view.cluster, folder)
    batches = await batch_list(view.cluster, folder, name)
    return view.render(
        "pipelines/pipeline.html", pipeline=chosen[0] if chosen else None, name=name, batches=batches
    )


async def tables_page(view: View) -> Response:
    folder = view.path["folder"]
    found = await table_list(view.cluster, folder)
    return view.render("pipelines/tables.html", found=found, folder=folder)


async def table_page(view: View) -> Response:
    folder, name = view.path["folder"], view.path["table"]
    found = await table_answer(view.cluster, folder, name)
    return view.render("pipelines/table.html", found=found, folder=folder, name=name)


async def alerts_page(view: View) -> Response:
    folder = view.path["folder"]
    query = parse_query(AlertQuery, view.request)
    found = await alert_list(view.cluster, folder, query.alert)
    shown = [
        (alert, json.dumps(alert.evidence, indent=2, ensure_ascii=False, default=str))
        for alert in found.alerts
    ]
    return view.render("pipelines/alerts.html", alerts=shown, folder=folder, chosen=query.alert)


async def report_page(view: View) -> Response:
    text = await asyncio.to_thread(pipeline_data.report, folder_of(view.cluster, view.path["folder"]))
    return HTMLResponse(text, headers={"Content-Security-Policy": REPORT_POLICY})


NAV = (NavItem("pipelines", "Pipelines", "/pipelines", "p"),)
PAGES = (
    Page("/pipelines", pipelines_page, action="pipeline.view"),
    Page("/pipelines/{folder}/tables", tables_page, action="pipeline.view"),
    Page("/pipelines/{folder}/tables/{table}", table_page, action="pipeline.view"),
    Page("/pipelines/{folder}/alerts", alerts_page, action="pipeline.view"),
    Page("/pipelines/{folder}/report", report_page, action="pipeline.view"),
    Page("/pipelines/{folder}/runs/{pipeline}", pipeline_page, action="pipeline.view"),
)
