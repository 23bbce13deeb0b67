"""The pages of groups: the list with lags, and one group with its members, offsets, history and reset."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
from starlette.responses import Response

from tidelog.console.api import parse_query
from tidelog.console.api_groups import (
    GroupAnswer,
    GroupPartition,
    GroupsQuery,
    find_group,
    group_answer,
    group_list,
    history_sample,
)
from tidelog.console.errors import ApiError
from tidelog.console.group_reset import ResetAnswer, ResetBody, plan_rows, reset_target
from tidelog.console.pages import NavItem, Page, View

TABS = (("offsets", "Offsets"), ("members", "Members"), ("reset", "Reset"))
TARGETS = {
    "earliest": "the first records",
    "latest": "the end of the logs",
    "time": "a time",
    "offset": "an offset",
    "shift": "forwards or backwards",
    "group": "the offsets of another group",
}


async def groups_page(view: View) -> Response:
    query: GroupsQuery = parse_query(GroupsQuery, view.request)
    found = await group_list(view.cluster, query)
    is_part = view.request.headers.get("hx-target") == "groups"
    notes = (await view.cluster.snapshot()).notes
    return view.render(
        "groups/rows.html" if is_part else "groups/list.html", found=found, query=query, notes=notes
    )


async def group_page(view: View) -> Response:
    group_id = view.path["group"]
    found = await group_answer(view.cluster, group_id)
    tab = view.query.get("tab", "offsets")
    if view.request.headers.get("hx-target") == "offsets":
        return view.render("groups/offsets.html", found=found, topics=by_topic(found))
    reset, problem = (None, "")
    if tab == "reset" and view.query.get("target"):
        reset, problem = await _review(view, group_id)
    samples = [history_sample(sample) for sample in view.cluster.group_lags.history(group_id)]
    return view.render(
        "groups/group.html",
        found=found,
        tab=tab if tab in dict(TABS) else "offsets",
        tabs=TABS,
        targets=TARGETS,
        topics=by_topic(found),
        reset=reset,
        problem=problem,
        samples=msgspec.json.encode(samples).decode(),
    )


async def group_live(view: View) -> Response:
    """Events of a group: `sample` as JSON for the chart."""
    group_id = view.path["group"]
    await find_group(view.cluster, group_id)

    async def events() -> AsyncIterator[tuple[str, str]]:
        while True:
            await view.cluster.next_group_sample()
            history = view.cluster.group_lags.history(group_id)
            if history:
                yield "sample", msgspec.json.encode(history_sample(history[-1])).decode()

    return view.live(events())


async def _review(view: View, group_id: str) -> tuple[ResetAnswer | None, str]:
    """The dry run that the address of the page asks for, or the sentence that says why there is none."""
    try:
        view.access.check_role(view.principal, view.cluster.name, "group.reset", view.path)
        body: ResetBody = parse_query(ResetBody, view.request)
        target, topics = reset_target(body, group_id)
        return await plan_rows(view.cluster, group_id, target, topics), ""
    except ApiError as error:
        return None, error.message


def by_topic(
    found: GroupAnswer,
) -> list[tuple[str, int | None, float | None, bool, list[GroupPartition]]]:
    """The topics with their lag in records and time, whether the time is a lower limit, and partitions."""
    topics: dict[str, list[GroupPartition]] = {}
    for partition in found.partitions:
        topics.setdefault(partition.topic, []).append(partition)
    rows = []
    for topic, partitions in topics.items():
        lags = [partition.lag for partition in partitions if partition.lag is not None]
        times = [(each.seconds, each.at_least) for each in partitions if each.seconds is not None]
        seconds, at_least = max(times, default=(None, False))
        rows.append((topic, sum(lags) if lags else None, seconds, at_least, partitions))
    return rows


NAV = (NavItem("groups", "Groups", "/groups", "g"),)
PAGES = (
    Page("/groups", groups_page, action="group.view"),
    Page("/groups/{group:path}/live", group_live, action="group.view"),
    Page("/groups/{group:path}", group_page, action="group.view"),
)
