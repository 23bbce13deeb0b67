"""The pages of topics: the list, a new topic, and one topic with partitions, settings and groups."""

from __future__ import annotations

from starlette.responses import Response

from tidelog.console.api import parse_query
from tidelog.console.api_topics import TopicsQuery, find_topic, topic_item, topic_list
from tidelog.console.configs import topic_configs
from tidelog.console.errors import not_found
from tidelog.console.pages import NavItem, Page, TopicTab, View


async def topics_page(view: View) -> Response:
    query: TopicsQuery = parse_query(TopicsQuery, view.request)
    snapshot = await view.cluster.snapshot()
    found = topic_list(list(snapshot.topics.values()), query)
    template = "topics/rows.html" if view.request.headers.get("hx-target") == "topics" else "topics/list.html"
    return view.render(template, found=found, query=query, notes=snapshot.notes)


async def new_topic_page(view: View) -> Response:
    snapshot = await view.cluster.snapshot()
    return view.render("topics/new.html", brokers=len(snapshot.brokers))


async def topic_page(view: View) -> Response:
    topic = await find_topic(view)
    return view.render(
        "topics/topic.html", topic=topic_item(topic), partitions=topic.partitions, tab="partitions"
    )


async def settings_page(view: View) -> Response:
    topic = await find_topic(view)
    configs = await topic_configs(view.cluster, topic.name)
    if view.query.get("all") is None:
        own = [config for config in configs if config.is_own]
        shown = own or configs
    else:
        shown = configs
    return view.render(
        "topics/settings.html", topic=topic_item(topic), configs=shown, total=len(configs), tab="settings"
    )


async def setting_form(view: View) -> Response:
    """The form for one setting, in the place of its value."""
    name = view.path["name"]
    configs = await topic_configs(view.cluster, view.path["topic"])
    config = next((config for config in configs if config.name == name), None)
    if config is None:
        raise not_found(f"The setting {name}")
    return view.render("topics/setting_form.html", config=config, topic=view.path["topic"])


async def groups_page(view: View) -> Response:
    topic = await find_topic(view)
    groups = (await view.cluster.snapshot()).groups
    rows = [
        (groups[group.group_id], group.lag)
        for group in sorted(topic.groups, key=lambda group: -(group.lag or 0))
        if group.group_id in groups
    ]
    return view.render("topics/groups.html", topic=topic_item(topic), rows=rows, tab="groups")


NAV = (NavItem("topics", "Topics", "/topics", "t"),)
TOPIC_TABS = (
    TopicTab("partitions", "Partitions", ""),
    TopicTab("settings", "Settings", "/settings"),
    TopicTab("groups", "Groups", "/groups"),
)
PAGES = (
    Page("/topics", topics_page, action="topic.view"),
    Page("/new-topic", new_topic_page, action="topic.create"),
    Page("/topics/{topic}", topic_page, action="topic.view"),
    Page("/topics/{topic}/settings", settings_page, action="topic.view"),
    Page("/topics/{topic}/settings/{name}", setting_form, action="topic.edit"),
    Page("/topics/{topic}/groups", groups_page, action="topic.view"),
)
