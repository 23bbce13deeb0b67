"""The site: its links lead somewhere, its navigation has every page, what is made from code is complete."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path

import click
import pytest

import tidelog
import tidelog.testing
from tests.docs.pages import PROJECT, packaging_module
from tidelog.cli.main import TOOLS, main

links = packaging_module("links")
reference = packaging_module("reference")

NAVIGATION = re.findall(r": ([\w/-]+\.md)$", (PROJECT / "mkdocs.yml").read_text(), re.MULTILINE)
FROM_ROOT = {"changelog.md", "contributing.md", "bench.md"}


@pytest.mark.parametrize("page", links.pages(), ids=lambda page: str(page.relative_to(PROJECT)))
def test_everything_that_a_page_links_to_is_there(page: Path) -> None:
    # A checkout lacks the pages that are made when the site is built; only its home may link to them.
    made = set(reference.PAGES) if page.name == "index.md" else None
    assert list(links.broken(page, made)) == []


def test_a_broken_link_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "PROJECT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("# One two\n[a](#one-two) [b](#three) [c](no.md) `[d](no.md)` [e](page.md#one-two)\n")
    assert [problem.partition(": ")[0] for problem in links.broken(page)] == [
        "page.md links to #three",
        "page.md links to no.md",
    ]


def test_the_navigation_has_every_page_once() -> None:
    docs = PROJECT / "docs"
    there = {str(path.relative_to(docs)) for path in docs.rglob("*.md")}
    assert sorted(NAVIGATION) == sorted(there | FROM_ROOT | set(reference.PAGES))


def test_the_page_of_tools_has_every_flag() -> None:
    page = reference.cli_page()
    context = click.Context(main)
    for name in TOOLS:
        _, found, part = page.partition(f"\n## {name}\n")
        assert found, name
        command = main.get_command(context, name)
        assert command is not None
        inner = list(command.commands.values()) if isinstance(command, click.Group) else []
        for option in (option for each in (command, *inner) for option in each.params):
            if isinstance(option, click.Option):
                assert f"`{option.opts[0]}`" in part.partition("\n## ")[0], (name, option.opts)


def test_the_page_of_the_python_api_has_every_public_name() -> None:
    page = reference.api_page()
    for name in set(tidelog.__all__) - {"__version__"}:
        assert f"\n### {name}\n" in page or re.search(rf"^(\| |- )`{name}`", page, re.MULTILINE), name
    for name in tidelog.testing.__all__:
        assert f"\n### testing.{name}\n" in page
    assert "#### Producer.send_offsets_to_transaction\n" in page
    assert "#### AsyncConsumer.poll\n" in page


def test_the_page_of_metrics_has_what_the_page_about_them_promises() -> None:
    names = reference.metrics().keys()
    table = (PROJECT / "docs" / "metrics.md").read_text().partition("## All metrics")[2].partition("\n## ")[0]
    promised = re.findall(r"`((?:kafka|process|tidelog)_[\w*]+)`", table)
    assert len(promised) > 20
    assert [each for each in promised if not fnmatch.filter(names, each)] == []
    page = reference.metrics_page()
    assert all(f"| `{name}` |" in page for name in names)
