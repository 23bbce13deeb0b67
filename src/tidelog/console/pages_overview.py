"""The overview page: health with its reasons, figures, and charts that move."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
from starlette.responses import Response

from tidelog.console.api import Call
from tidelog.console.api_overview import Overview, overview
from tidelog.console.pages import NavItem, Page, View
from tidelog.errors import KafkaError


async def overview_page(view: View) -> Response:
    found = await _overview(view)
    samples = view.cluster.history.read()
    return view.render("overview/overview.html", found=found, samples=msgspec.json.encode(samples).decode())


async def overview_live(view: View) -> Response:
    """Events of the overview: `tiles` as HTML, `sample` as JSON for the charts."""

    async def events() -> AsyncIterator[tuple[str, str]]:
        while True:
            sample = await view.cluster.history.next()
            yield "sample", msgspec.json.encode(sample).decode()
            try:
                yield "tiles", view.fragment("overview/tiles.html", found=await _overview(view))
            except KafkaError as error:
                yield "tiles", view.fragment("overview/silent.html", reason=str(error))

    return view.live(events())


async def summary_page(view: View) -> Response:
    """The row of the cluster in the list of all clusters. It never fails: a cluster that is down says so."""
    try:
        return view.render("overview/summary.html", found=await _overview(view), reason="")
    except KafkaError as error:
        return view.render("overview/summary.html", found=None, reason=str(error))


async def _overview(view: View) -> Overview:
    return await overview(
        Call(view.request, view.cluster, view.principal, view.access, view.path, None, None)
    )


NAV = (NavItem("overview", "Overview", "", "o"),)
PAGES = (
    Page("", overview_page, action="overview.view"),
    Page("/overview/live", overview_live, action="overview.view"),
    Page("/overview/summary", summary_page, action="overview.view"),
)
