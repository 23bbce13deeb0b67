"""The results of the search that Ctrl-K opens: pages, topics and groups by parts of their names."""

from __future__ import annotations

from itertools import islice
from typing import Final, NamedTuple

from starlette.responses import Response

from tidelog.console.api import segment
from tidelog.console.pages import Page, View

MOST: Final = 30


class Found(NamedTuple):
    label: str
    kind: str
    href: str


async def palette(view: View) -> Response:
    words = view.query.get("q", "")[:500].lower().split()
    snapshot = await view.cluster.snapshot()

    def fits(name: str) -> bool:
        return all(word in name.lower() for word in words)

    items = [Found(item.label, "page", view.link() + item.path) for item in view.site.nav if fits(item.label)]
    items += [
        Found(other.name, "cluster", f"/clusters/{segment(other.name)}")
        for other in view.clusters
        if other.name != view.cluster.name and fits(other.name)
    ]
    if words:
        topics = (name for name in snapshot.topics if fits(name))
        groups = (name for name in snapshot.groups if fits(name))
        items += [Found(name, "topic", view.link("topics", name)) for name in islice(topics, MOST)]
        items += [Found(name, "group", view.link("groups", name)) for name in islice(groups, MOST)]
    return view.render("palette.html", items=items[:MOST])


PAGES = (Page("/palette", palette, action="overview.view"),)
