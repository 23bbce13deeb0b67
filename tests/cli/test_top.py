"""`tidelog top`: rates between two looks, orders, one look for scripts, and keys on a terminal."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import nullcontext
from dataclasses import replace
from io import StringIO
from typing import cast

import pytest
from rich.console import Console, Group

from tests.cli.client_tools import NewName, Tool, tool
from tests.cli.test_terminals import HIDE_CURSOR, SHOW_CURSOR, Terminal, on_a_terminal
from tests.support.group_members import Members
from tests.support.wait import eventually
from tidelog.cli import top
from tidelog.cli.cluster_load import ClusterLoad, ClusterSample, load_between
from tidelog.cli.top import arranged, fitting, next_sort, rate, screen, size, view
from tidelog.clients.admin import Admin
from tidelog.errors import KafkaError, NetworkException
from tidelog.testing import Broker

__all__ = ["tool"]

BEFORE = ClusterSample(
    at=10.0,
    cluster_id="c",
    controller=1,
    nodes={1: "a:1", 2: "b:1"},
    leaders={("t", 0): 1, ("t", 1): 2, ("u", 0): None},
    replicas={1: 2, 2: 1},
    out_of_sync={"t": 1},
    ends={("t", 0): 100, ("t", 1): 50},
    sizes={(1, "t"): 1000, (2, "t"): 500},
    groups={"g\x1b": "Stable"},
    committed={"g\x1b": {("t", 0): 90}},
)
AFTER = replace(
    BEFORE,
    at=12.0,
    ends={("t", 0): 140, ("t", 1): 50, ("u", 0): 7},
    sizes={(1, "t"): 3000, (2, "t"): 500, (1, "u"): 9},
    committed={"g\x1b": {("t", 0): 130}},
)


def test_rates_and_lag() -> None:
    load = load_between(BEFORE, AFTER)
    assert [(each.broker, each.records_per_second, each.bytes) for each in load.brokers] == [
        (1, 20.0, 3009),
        (2, 0.0, 500),
    ]
    first, second = load.topics
    assert (first.topic, first.records_per_second, first.bytes_per_second) == ("t", 20.0, 1000.0)
    assert (second.topic, second.records_per_second, second.bytes) == ("u", 0.0, 9), (
        "new since the first look"
    )
    (group,) = load.groups
    assert (group.lag, group.consumed_per_second, group.topics) == (10, 20.0, 1)


def test_orders() -> None:
    load = load_between(BEFORE, AFTER)
    assert [each.topic for each in arranged(load, "rate", 1, 1).topics] == ["t"]
    assert [each.topic for each in arranged(load, "name", 0, 0).topics] == ["t", "u"]
    assert next_sort("rate", "s") == "size"
    assert next_sort("name", "s") == "rate"
    assert next_sort("rate", "n") == "name"
    assert next_sort("rate", "x") == "rate"
    assert [size(number) for number in (0, 1023, 2048, 3 << 40)] == ["0 B", "1,023 B", "2.0 KiB", "3.0 TiB"]


@pytest.mark.parametrize(
    ("height", "topics", "groups", "expected"),
    [
        (24, 6, 1, (6, 1)),
        (24, 40, 1, (14, 1)),
        (24, 40, 40, (7, 7)),
        (24, 2, 40, (2, 13)),
        (4, 40, 40, (2, 2)),
        (50, 0, 0, (0, 0)),
    ],
)
def test_topics_and_groups_share_the_lines_of_a_terminal(
    height: int, topics: int, groups: int, expected: tuple[int, int]
) -> None:
    assert fitting(height, 3, topics, groups) == expected


def test_a_screen_is_full_and_says_what_it_leaves_out() -> None:
    load = load_between(BEFORE, AFTER)
    many = replace(load, topics=[replace(load.topics[0], topic=f"t{number}") for number in range(40)])
    console = Console(width=80, height=24, record=True, file=StringIO())
    console.print(screen(many, "name", 0, 24))
    lines = console.export_text().splitlines()
    assert len(lines) == 24
    assert "q ends" in lines[1]
    assert [line.strip() for line in lines if "more" in line] == ["… 25 more"]


def test_names_stay_on_a_narrow_terminal() -> None:
    console = Console(width=40, record=True, file=StringIO())
    console.print(view(load_between(BEFORE, AFTER), "rate"))
    assert [line for line in console.export_text().splitlines() if line.startswith("1 a:1 contr")]


def test_names_of_others_are_escaped() -> None:
    console = Console(width=120, record=True, file=StringIO())
    console.print(view(load_between(BEFORE, AFTER), "rate"))
    text = console.export_text()
    assert "\x1b" not in text
    assert "g\\x1b" in text


def test_a_long_name_gives_way_to_figures() -> None:
    long = replace(load_between(BEFORE, AFTER).topics[0], topic="x" * 249)
    console = Console(width=80, record=True, file=StringIO())
    console.print(view(replace(load_between(BEFORE, AFTER), topics=[long]), "rate"))
    (line,) = [line for line in console.export_text().splitlines() if "xxx…" in line]
    figures = [rate(long.records_per_second), f"{size(long.bytes_per_second)}/s", size(long.bytes)]
    assert " ".join(line.split()[1:]) == " ".join([f"{long.partitions}", *figures, f"{long.out_of_sync}"])


def test_one_look_for_scripts(bootstrap: str, tool: Tool, new_name: NewName) -> None:
    members = Members(bootstrap)
    topic, group = members.topic(new_name("t"), 1, 5), new_name("g")
    members.commit(group, {(topic, 0): 2})
    result = tool("top", "--once", "--interval", "0.05", "--output", "json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert topic in [each["topic"] for each in found["topics"]]
    (mine,) = [each for each in found["groups"] if each["group"] == group]
    assert mine["lag"] == 3
    text = tool("top", "--once", "--interval", "0.05", "--sort", "name").stdout
    assert topic in text
    assert "\x1b" not in text


@pytest.mark.parametrize("arguments", [("--output", "json"), ()])
def test_without_a_terminal_it_asks_for_once(tool: Tool, arguments: tuple[str, ...]) -> None:
    result = tool("top", *arguments)
    assert result.exit_code == 1
    assert "--once" in result.stderr


def test_the_last_figures_stay_while_no_broker_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[ClusterSample | KafkaError] = [BEFORE, NetworkException("nobody is there"), AFTER]
    presses = ["", "", "q"]
    shown: list[str] = []

    def sample(admin: object) -> ClusterSample:
        look = looks.pop(0)
        if isinstance(look, KafkaError):
            raise look
        return look

    def drawn(load: ClusterLoad, sort: str, limit: int, height: int, notice: str) -> Group:
        made = screen(load, sort, limit, height, notice)
        console = Console(width=100, record=True, file=StringIO())
        console.print(made)
        shown.append(console.export_text())
        return made

    monkeypatch.setattr(top, "sample", sample)
    monkeypatch.setattr(top, "screen", drawn)
    monkeypatch.setattr(top, "keys", lambda: nullcontext(lambda seconds: presses.pop(0)))
    top.watch(cast("Admin", None), 0.0, "rate", 0)
    first, without, again = shown
    assert "no answer" not in first + again
    assert "no answer, asking again: nobody is there" in without
    assert "20/s" in again


def test_keys_on_a_terminal() -> None:
    def press(process: subprocess.Popen[bytes], terminal: Terminal) -> None:
        eventually(lambda: "orders" in terminal.shown, "the topic is shown", timeout=60)
        os.write(terminal._ours, b"\x1b[B")  # an arrow key does not end it
        os.write(terminal._ours, b"n")
        eventually(lambda: "sorted by name" in terminal.shown, "the order changes", timeout=60)
        os.write(terminal._ours, b"q")

    with Broker() as broker:  # of its own: the topics of other tests would fill the screen
        broker.create_topic("orders", 1)
        ran = on_a_terminal(broker.bootstrap_servers, "top", "--interval", "0.3", meanwhile=press)
    assert ran.exit_code == 0, ran.terminal
    assert ran.terminal.rfind(SHOW_CURSOR) > ran.terminal.rfind(HIDE_CURSOR) >= 0
    assert ran.terminal.rfind("\x1b[?1049l") > ran.terminal.rfind("\x1b[?1049h") >= 0, "the screen is back"
