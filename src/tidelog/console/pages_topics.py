"""The pages of topics: the list, and one topic with its partitions."""

from __future__ import annotations

from starlette.responses import Response

from tidelog.console.api import parse_query
from tidelog.console.api_topics import TopicsQuery, topic_list
from tidelog.console.pages import NavItem, Page, View


async def topics_page(view: View) -> Response:
    query: TopicsQuery = parse_query(TopicsQuery, view.request)
    snapshot = await view.cluster.snapshot()
    found = topic_list(list(snapshot.topics.values()), query)
    template = "topics/rows.html" if view.request.headers.get("hx-target") == "topics" else "topics/list.html"
    return view.render(template, found=found, query=query, notes=snapshot.notes)


NAV = (NavItem("topics", "Topics", "/topics", "t"),)
PAGES = (Page("/topics", topics_page),)
