"""`tidelog top`: brokers, topics and groups of a cluster, live in the terminal."""

from __future__ import annotations

import os
import re
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from tidelog.cli.cluster_load import (
    GROUP_SORTS,
    SORTS,
    TOPIC_SORTS,
    ClusterLoad,
    ClusterSample,
    load_between,
    sample,
)
from tidelog.cli.flags import WrongUsage, bootstrap_server, error_words, switch, valued
from tidelog.cli.output import FORM, FORMS, connected_admin, failing, print_json, tool_command
from tidelog.cli.terminal import visible
from tidelog.errors import KafkaError

if TYPE_CHECKING:
    from rich.console import Group

    from tidelog.clients.admin import Admin

TIMEOUT_MS = 10_000
KEYS = "q ends, s next order, n name, r rate, z size"
ENDS = frozenset("qQ\x03\x1b")
SEQUENCE = re.compile(r"\x1b[\[O][0-9;]*[@-~]")
"""An arrow or function key. It begins as the escape key does."""
OTHER_LINES = 5
"""Lines of the terminal beside the rows: the cluster, the keys, the headers of three tables."""
LEAST_NAME = 12
"""Letters of a name on a narrow terminal."""


@tool_command("top")
@bootstrap_server
@valued("--command-config", "FILE", "A properties file with settings of the connection.")
@switch("--once", "Print one look with rates over the interval, and end: for scripts.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.05),
    default=2.0,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--sort", type=click.Choice(SORTS), default="rate", show_default=True, help="The first order.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=0,
    help="Show at most so many topics and groups (default all).",
)
@click.option("--output", type=click.Choice(["text", *FORMS]), default="text", help="The form of --once.")
@click.pass_context
def top(
    ctx: click.Context,
    bootstrap_server: str,
    command_config: str | None,
    once: bool,
    interval: float,
    sort: str,
    limit: int,
    output: str,
) -> None:
    """Show brokers, topics with rates and groups with lag. Keys: q ends, s, n, r and z change the order."""
    if output != "text" and not once:
        raise WrongUsage("--output goes with --once", ctx)
    if not once and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise WrongUsage("top needs a terminal; in a script give --once", ctx)
    ctx.meta[FORM] = output
    with failing(), connected_admin(bootstrap_server, command_config, timeout_ms=TIMEOUT_MS) as admin:
        if once:
            before = sample(admin)
            time.sleep(interval)
            print_once(load_between(before, sample(admin)), sort, limit, output)
        else:
            watch(admin, interval, sort, limit)


def arranged(load: ClusterLoad, sort: str, topics: int, groups: int) -> ClusterLoad:
    """The same load in an order, with the first topics and groups of it; 0 means all."""
    return ClusterLoad(
        load.cluster,
        load.seconds,
        load.brokers,
        sorted(load.topics, key=TOPIC_SORTS[sort])[: topics or None],
        sorted(load.groups, key=GROUP_SORTS[sort])[: groups or None],
    )


def fitting(height: int, brokers: int, topics: int, groups: int) -> tuple[int, int]:
    """How many topics and groups a terminal shows: half of the lines each, and those that the other leaves.

    A table that is cut has a line less for its rows: that line says how many are missing.
    """
    free = max(6, height - OTHER_LINES - brokers)
    group_lines = min(groups, max(free // 2, free - topics))
    topic_lines = min(topics, free - group_lines)
    return topic_lines - (topic_lines < topics), group_lines - (group_lines < groups)


def print_once(load: ClusterLoad, sort: str, limit: int, output: str) -> None:
    load = arranged(load, sort, limit, limit)
    if output in ("table", "csv"):
        print_json([{"kind": kind, "name": name, **cells} for kind, name, cells in flat(load)])
    elif output != "text":
        print_json(asdict(load))
    else:
        from rich.console import Console

        width = 200 if not sys.stdout.isatty() else None
        Console(highlight=False, width=width).print(view(load, sort))


def flat(load: ClusterLoad) -> Iterator[tuple[str, str, dict[str, object]]]:
    """A row for each broker, topic and group."""
    for broker in load.brokers:
        yield "broker", str(broker.broker), asdict(broker)
    for topic in load.topics:
        yield "topic", topic.topic, asdict(topic)
    for group in load.groups:
        yield "group", group.group, asdict(group)


def view(
    load: ClusterLoad, sort: str, *, keys: bool = False, more: tuple[int, int] = (0, 0), notice: str = ""
) -> Group:
    """Three tables. Names come from others: control characters of theirs are escaped.

    `keys` adds a line with the keys, `notice` one with its text, `more` says how many topics and groups are
    not shown.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    def table(names: tuple[str, ...], rows: Sequence[tuple[str, ...]], missing: int = 0) -> Table:
        made = Table(box=None, pad_edge=False)
        for index, name in enumerate(names):
            # Only columns that may wrap give way on a narrow terminal: names are cut, figures never.
            if index == 0:
                made.add_column(name, min_width=LEAST_NAME)
            else:
                made.add_column(name, justify="right", no_wrap=True)
        for row in rows:
            made.add_row(*(line(cell) for cell in row))
        if missing:
            made.add_row(line(f"… {missing:,} more"))
        return made

    def line(text: str) -> Text:
        return Text(visible(text), no_wrap=True, overflow="ellipsis")

    brokers = [
        (
            f"{each.broker} {each.address}" + (" controller" if each.controller else ""),
            f"{each.leaders:,}",
            f"{each.replicas:,}",
            rate(each.records_per_second),
            size(each.bytes),
        )
        for each in load.brokers
    ]
    topics = [
        (
            each.topic,
            f"{each.partitions:,}",
            rate(each.records_per_second),
            size(each.bytes_per_second) + "/s",
            size(each.bytes),
            f"{each.out_of_sync:,}",
        )
        for each in load.topics
    ]
    groups = [
        (each.group, each.state, f"{each.lag:,}", rate(each.consumed_per_second), f"{each.topics:,}")
        for each in load.groups
    ]
    return Group(
        line(f"cluster {load.cluster}, sorted by {sort}"),
        *([line(f"keys: {KEYS}")] if keys else []),
        *([line(notice)] if notice else []),
        table(("broker", "leaders", "replicas", "records", "bytes"), brokers),
        table(("topic", "partitions", "records", "bytes in", "bytes", "out of sync"), topics, more[0]),
        table(("group", "state", "lag", "consumed", "topics"), groups, more[1]),
    )


def screen(load: ClusterLoad, sort: str, limit: int, height: int, notice: str = "") -> Group:
    """What fits on a terminal of so many lines."""
    topics, groups = len(load.topics), len(load.groups)
    free = height - bool(notice)
    shown = (limit, limit) if limit else fitting(free, len(load.brokers), topics, groups)
    more = (max(topics - shown[0], 0), max(groups - shown[1], 0))
    return view(arranged(load, sort, *shown), sort, keys=True, more=more, notice=notice)


def rate(number: float) -> str:
    return f"{number:,.0f}/s" if number >= 10 or number == 0 else f"{number:,.1f}/s"


def size(number: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:,.0f} {unit}" if unit == "B" else f"{number:,.1f} {unit}"
        number /= 1024
    return f"{number:,.1f} TiB"


def watch(admin: Admin, interval: float, sort: str, limit: int) -> None:
    """Draw until q or Ctrl-C. While no broker answers, the last figures stay, with a line that says so."""
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    before: ClusterSample = sample(admin)
    after = before
    notice = ""
    due = time.monotonic() + interval
    with Live(console=console, screen=True, auto_refresh=False) as live, keys() as pressed:
        while True:
            shown = screen(load_between(before, after), sort, limit, console.height, notice)
            live.update(shown, refresh=True)
            pressed_keys = pressed(max(0.0, due - time.monotonic()))
            if not ENDS.isdisjoint(pressed_keys):
                return
            for key in pressed_keys:
                sort = next_sort(sort, key)
            if not pressed_keys:
                try:
                    before, after = after, sample(admin)
                    notice = ""
                except KafkaError as error:
                    notice = f"no answer, asking again: {error_words(error)}"
                due = time.monotonic() + interval


def next_sort(sort: str, key: str) -> str:
    """The order after a key: s goes to the next one, n, r and z choose name, rate and size."""
    if key == "s":
        return SORTS[(SORTS.index(sort) + 1) % len(SORTS)]
    return {"n": "name", "r": "rate", "z": "size"}.get(key, sort)


@contextmanager
def keys() -> Iterator[Callable[[float], str]]:
    """Reads keys of the terminal: a call waits up to so many seconds, and returns "" without a key."""
    import termios
    import tty

    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    tty.setcbreak(file)

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([file], [], [], seconds)
        return SEQUENCE.sub(" ", os.read(file, 64).decode(errors="replace")) if ready else ""

    try:
        yield pressed
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)
