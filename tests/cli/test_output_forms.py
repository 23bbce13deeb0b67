"""`--output yaml|table|csv`: the same values as JSON, in every form."""

from __future__ import annotations

import csv
from io import StringIO

import click
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.client_tools import NewName, Tool, make_topic, tool
from tests.support.scale import scale
from tidelog.cli.main import TOOLS, main
from tidelog.cli.output_forms import write_form

__all__ = ["tool"]

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(
        [
            "null",
            "yes",
            "No",
            "1e3",
            "0x1f",
            "12:30",
            "2020-01-01",
            "=",
            "<<",
            "- a",
            "a: b",
            "#x",
            "~",
            "1_000",
            "a:",
            "a\n",
            "null\n",
            ".5",
            "-",
        ]
    )
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
)


@settings(max_examples=scale(60, 2000))
@given(values)
def test_yaml_is_read_back_as_the_same_value(value: object) -> None:
    assert yaml.safe_load(write_form(value, "yaml")) == value


def test_a_list_within_objects_makes_the_rows() -> None:
    topics = [
        {"name": "a", "partitions": [{"partition": 0, "isr": [1, 2]}, {"partition": 1, "isr": []}]},
        {"name": "b", "partitions": []},
    ]
    rows = list(csv.reader(StringIO(write_form(topics, "csv"))))
    assert rows == [["name", "partition", "isr"], ["a", "0", "1,2"], ["a", "1", ""], ["b", "", ""]]
    assert write_form(topics, "table").splitlines() == [
        "NAME  PARTITION  ISR",
        "a             0  1,2",
        "a             1",
        "b",
    ]


def test_what_is_nested_further_is_json_in_a_cell() -> None:
    assert write_form([{"a": {"b": 1}, "c": True, "d": None}], "csv") == 'a,c,d\n"{""b"":1}",true,\n'
    assert write_form([], "csv") == write_form([], "table") == ""
    assert write_form(["x", "y"], "csv") == "value\nx\ny\n"


def test_control_characters_do_not_reach_a_table() -> None:
    assert "\x1b" not in write_form([{"group": "\x1b[2J"}], "table")
    assert "\x1b" not in write_form([{"group": "\x1b[2J"}], "yaml")


def test_tools_print_the_forms(tool: Tool, new_name: NewName) -> None:
    name = make_topic(tool, new_name("t"), 2)
    described = ("topics", "--describe", "--topic", name, "--output")
    assert yaml.safe_load(tool(*described, "yaml").stdout)[0]["name"] == name
    header, *rows = csv.reader(StringIO(tool(*described, "csv").stdout))
    assert len(rows) == 2
    assert {"name", "partition", "leader"} <= set(header)
    assert tool(*described, "table").stdout.startswith("NAME ")
    assert tool(*described, "text").stdout == tool("topics", "--describe", "--topic", name).stdout


def with_output(command: click.Command) -> list[click.Command]:
    inner = list(command.commands.values()) if isinstance(command, click.Group) else []
    found = [each for child in inner for each in with_output(child)]
    return found + [command for option in command.params if "--output" in option.opts]


# Tools that neither list nor describe: they run, write, read records, or print texts for other programs.
WITHOUT = {
    "adopt", "bundle", "completion", "config-docs", "console", "console-consumer", "console-producer",
    "consume", "consume-with", "demo", "dump-log", "produce", "profile",
    "replica-verification", "security", "sql", "start", "top", "tree", "verifiable-consumer",
    "verifiable-producer", "zookeeper",
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in TOOLS if name not in WITHOUT])
def test_every_listing_has_every_form(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    found = with_output(command)
    assert found, f"{name} has no --output"
    for each in found:
        (option,) = [option for option in each.params if "--output" in option.opts]
        assert isinstance(option.type, click.Choice)
        events = (name, each.name) == ("pipeline", "run")  # prints event after event
        assert events or set(option.type.choices) == {"text", "json", "yaml", "table", "csv"}
    assert CliRunner().invoke(main, [name, "--help"]).exit_code == 0
