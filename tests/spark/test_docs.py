"""What docs/pipeline.md says of the pipelines is what they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidelog.spark.pipelines.declare import Table, Topic
from tidelog.spark.pipelines.registry import BUILT_IN, find
from tidelog.spark.pipelines.settings import resolve

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGE = (DOCS / "pipeline.md").read_text()


def settings_table() -> str:
    """The table of settings as the page has it."""
    lines = ["| pipeline | setting | default | meaning |", "|---|---|---|---|"]
    for name in BUILT_IN:
        pipeline = find(name)
        for setting in pipeline.settings:
            default = str(setting.default)
            shown = default.lower() if isinstance(setting.default, bool) else default
            allowed = f" ({setting.allowed})" if setting.allowed else ""
            meaning = f"{setting.doc}{allowed}".replace("|", r"\|")
            lines.append(f"| {name} | `{setting.name}` | {shown} | {meaning} |")
    return "\n".join(lines)


def test_every_setting_is_there_with_its_default() -> None:
    written = re.search(r"<!-- settings -->\n(.*?)\n<!-- /settings -->", PAGE, re.DOTALL)
    assert written is not None
    assert written[1] == settings_table(), f"the table should be:\n{settings_table()}"


@pytest.mark.parametrize("name", list(BUILT_IN))
def test_the_tables_and_topics_of_every_pipeline_are_named(name: str) -> None:
    row = re.search(rf"^\| `{name}` \|.*$", PAGE, re.MULTILINE)
    assert row is not None
    pipeline = find(name)
    for flow in pipeline.flows(resolve([pipeline], {})[name]):
        for sink in flow.sinks:
            if isinstance(sink, Table | Topic):
                assert f"`{sink.name}`" in row[0], sink.name


def test_every_page_that_a_page_links_to_is_there() -> None:
    for page in sorted(DOCS.glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (DOCS / target).exists(), f"{page.name} links to {target}"
