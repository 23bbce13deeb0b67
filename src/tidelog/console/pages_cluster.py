"""The pages of the cluster: brokers as a picture, log folders, settings, reassignments, connections."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Final

from msgspec import Struct
from starlette.responses import Response

from tidelog.console.api import Call
from tidelog.console.api_cluster import broker_items, list_broker_configs, list_connections, list_log_dirs
from tidelog.console.api_reassignments import PlanBody, make_plan, parse_wish, running
from tidelog.console.errors import ApiError
from tidelog.console.pages import NavItem, Page, View
from tidelog.console.snapshot import ClusterSnapshot
from tidelog.errors import KafkaError

PROGRESS_SECONDS: Final = 1.0
MOST_CELLS: Final = 2000
CELL: Final = 11


class Cell(Struct):
    """A replica in the picture: its place, its look and what it is."""

    x: int
    y: int
    look: str
    text: str


class BrokerPicture(Struct):
    """The replicas on a broker as squares: leaders first."""

    broker: int
    cells: list[Cell]
    width: int
    height: int
    more: int


def picture(snapshot: ClusterSnapshot, columns: int = 40) -> list[BrokerPicture]:
    """One square for each replica on each broker, at most MOST_CELLS for a broker."""
    looks: dict[int, list[tuple[str, str]]] = {broker.broker_id: [] for broker in snapshot.brokers}
    for topic in snapshot.topics.values():
        for partition in topic.partitions:
            for replica in partition.replicas:
                if replica not in looks:
                    continue
                look = "follower"
                if replica == partition.leader:
                    look = "leader" if partition.is_led_by_preferred else "acting"
                elif replica not in partition.isr:
                    look = "behind"
                looks[replica].append((look, f"{topic.name}-{partition.index}"))
    order = {"leader": 0, "acting": 1, "follower": 2, "behind": 3}
    pictures = []
    for broker, found in looks.items():
        found.sort(key=lambda cell: order[cell[0]])
        shown = found[:MOST_CELLS]
        cells = [
            Cell(at % columns * CELL, at // columns * CELL, look, text)
            for at, (look, text) in enumerate(shown)
        ]
        rows = max(-(-len(shown) // columns), 1)
        pictures.append(BrokerPicture(broker, cells, columns * CELL, rows * CELL, len(found) - len(shown)))
    return pictures


async def brokers_page(view: View) -> Response:
    snapshot = await view.cluster.snapshot()
    not_preferred = sum(
        not partition.is_led_by_preferred and not partition.is_offline
        for topic in snapshot.topics.values()
        for partition in topic.partitions
    )
    return view.render(
        "cluster/brokers.html",
        snapshot=snapshot,
        brokers=broker_items(snapshot),
        pictures=picture(snapshot),
        not_preferred=not_preferred,
        tab="brokers",
    )


async def log_dirs_page(view: View) -> Response:
    found = await list_log_dirs(_call(view))
    return view.render("cluster/log_dirs.html", found=found, tab="log-dirs")


async def configs_page(view: View) -> Response:
    found = await list_broker_configs(_call(view))
    show = view.query.get("show", "changed")
    words = view.query.get("search", "").lower().split()
    rows = [
        row
        for row in found.rows
        if (show == "all" or (row.differs if show == "different" else row.is_changed))
        and all(word in row.name for word in words)
    ]
    return view.render("cluster/configs.html", brokers=found.brokers, rows=rows, show=show, tab="configs")


async def connections_page(view: View) -> Response:
    if view.cluster.local is None:
        return view.render("cluster/connections.html", found=None, software=[], tab="connections")
    found = (await list_connections(_call(view))).connections
    software = Counter((item.software, item.version) for item in found).most_common()
    shown = sorted(found, key=lambda item: item.idle_seconds)[:500]
    return view.render(
        "cluster/connections.html", found=shown, total=len(found), software=software, tab="connections"
    )


async def reassign_page(view: View) -> Response:
    """The wizard: choose topics and brokers, look at what moves, start; below it the moves that run."""
    wish = PlanBody(
        view.query.get("topics", ""), view.query.get("brokers", ""), _number(view.query.get("factor"))
    )
    found, problem = None, ""
    snapshot = await view.cluster.snapshot()
    if "preview" in view.query:
        try:
            topics, brokers = parse_wish(wish)
            found = make_plan(snapshot, topics, brokers, wish.replication_factor)
        except ApiError as error:
            problem = error.message
    moving = await running(view.cluster)
    return view.render(
        "cluster/reassign.html",
        wish=wish,
        found=found,
        problem=problem,
        snapshot=snapshot,
        moving=moving,
        tab="reassign",
    )


async def reassign_live(view: View) -> Response:
    """Events of the running moves: `moving` as HTML each second."""

    async def events() -> AsyncIterator[tuple[str, str]]:
        while True:
            try:
                yield "moving", view.fragment("cluster/moving.html", moving=await running(view.cluster))
            except KafkaError as error:
                yield "moving", view.fragment("cluster/moving.html", moving=[], problem=str(error))
            await asyncio.sleep(PROGRESS_SECONDS)

    return view.live(events())


def _call(view: View) -> Call[None, None]:
    return Call(view.request, view.cluster, view.principal, view.access, view.path, None, None)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and 0 < int(text) <= 1000 else None


NAV = (NavItem("cluster", "Cluster", "/cluster", "c"),)
PAGES = (
    Page("/cluster", brokers_page, action="cluster.view"),
    Page("/cluster/log-dirs", log_dirs_page, action="cluster.view"),
    Page("/cluster/configs", configs_page, action="cluster.view"),
    Page("/cluster/connections", connections_page, action="connection.view"),
    Page("/cluster/reassign", reassign_page, action="cluster.view"),
    Page("/cluster/reassign/live", reassign_live, action="cluster.view"),
)
