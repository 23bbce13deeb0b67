"""docs/architecture.md and CONTRIBUTING.md name files that exist, and what these define."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent
SOURCE = PROJECT / "src" / "tidelog"
PAGE = (PROJECT / "docs" / "architecture.md").read_text()
CONTRIBUTING = (PROJECT / "CONTRIBUTING.md").read_text()
MAP = PAGE.partition("## The map")[2].partition("\n## ")[0]

# The walks by their headings, each with the file that has the names in the first column of its table.
WALKS = {
    "A produce": "protocol/messages/produce.py",
    "A fetch": "protocol/messages/fetch.py",
    "An offset commit": "protocol/messages/offset_commit.py",
    "A Spark micro-batch": "spark/option_names.py",
}


def walk(title: str) -> str:
    return PAGE.partition(f"### {title}, step by step\n")[2].partition("\n##")[0]


@cache
def defined(file: str) -> frozenset[str]:
    """The classes, functions and methods of a module: `Log`, `Log.read`, `read_batches`."""
    text = (SOURCE / file).read_text()
    if not file.endswith(".py"):
        return frozenset(re.findall(r"^(?:def|cdef class|cdef [\w ]+?) (\w+)[(:]", text, re.MULTILINE))
    names: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = (n for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
            names |= {f"{node.name}.{n.name}" for n in inner}
    return frozenset(names)


def undefined(text: str) -> list[str]:
    """The `file: name` of a text whose file is not there or does not define the name."""
    named = re.findall(r"`([\w/]+\.(?:py|pyx|pxi)): ([\w.]+)`", text)
    return [
        f"{file}: {name}"
        for file, name in named
        if not (SOURCE / file).is_file() or name not in defined(file)
    ]


def test_every_file_of_the_map_exists() -> None:
    files = re.findall(r"`([\w/]+\.(?:py|pxi))`", MAP)
    assert len(files) > 50
    assert [file for file in files if not (SOURCE / file).is_file()] == []


def test_every_name_of_the_map_is_defined_in_its_file() -> None:
    names = re.findall(r"`(\w+)` in `([\w/]+\.py)`", MAP)
    assert len(names) > 30
    for name, file in names:
        assert re.search(rf"^(?:class|def) {name}\b", (SOURCE / file).read_text(), re.MULTILINE), (name, file)


def test_every_folder_is_on_the_map() -> None:
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")} - {"config", "metrics"}
    assert folders == set(re.findall(r"^\| `(\w+)` \|", MAP, re.MULTILINE))


@pytest.mark.parametrize("title", WALKS)
def test_every_step_of_a_walk_names_a_function_that_exists(title: str) -> None:
    steps = re.findall(r"^\d+\. .*(?:\n {3,}.*)*", walk(title), re.MULTILINE)
    assert len(steps) >= 8
    assert [step for step in steps if not re.search(r"`[\w/]+\.(?:py|pxi): [\w.]+`", step)] == []
    assert undefined(walk(title)) == [], "docs/architecture.md: name the functions that do this now"


@pytest.mark.parametrize(("title", "file"), WALKS.items())
def test_every_field_of_a_walk_exists_and_leads_to_a_function(title: str, file: str) -> None:
    rows = re.findall(r"^\| (`.*?) \| (.*) \|$", walk(title), re.MULTILINE)
    assert len(rows) >= 6
    known = set(re.findall(r'^ +(\w+): |"(\w+)"', (SOURCE / file).read_text(), re.MULTILINE))
    for fields, decided in rows:
        for field in re.findall(r"`(\w+)`", fields):
            assert (field, "") in known or ("", field) in known, f"{file} has no {field}"
        assert ".py: " in decided, fields


# Kafka's brokers send these for KRaft and for directories by id; nothing here decides on them.
UNUSED = {"cluster_id", "replica_directory_id", "high_watermark"}


@pytest.mark.parametrize(("title", "file"), [entry for entry in WALKS.items() if "protocol" in entry[1]])
def test_every_field_of_a_request_is_in_the_table_of_its_walk(title: str, file: str) -> None:
    request = re.split(r"^class ", (SOURCE / file).read_text(), flags=re.MULTILINE)[1]
    fields = re.findall(r"^ +(\w+): [^=]+ = (\w+)\(", request, re.MULTILINE)
    values = {name for name, kind in fields if kind not in ("array", "struct")} - UNUSED
    rows = re.findall(r"^\| (`.*?) \|", walk(title), re.MULTILINE)
    assert len(values) >= 6
    assert values - {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set()


def test_what_contributing_names_exists() -> None:
    assert undefined(CONTRIBUTING) == []
    files = re.findall(r"`((?:src|tests|docs|packaging|bench)/[\w/.-]+)`", CONTRIBUTING)
    files += [
        f"src/tidelog/{file}"
        for file in re.findall(r"`([\w/]+/\w+\.(?:py|pxi))`", CONTRIBUTING)
        if not file.startswith(("src/", "tests/", "docs/", "packaging/", "bench/"))
    ]
    assert len(files) > 20
    assert [file for file in files if not (PROJECT / file).exists()] == []
