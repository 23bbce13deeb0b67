"""The documentation covers every setting, and the page in the repository is the one that the tool prints."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from tidelog.cli.config_docs import config_docs
from tidelog.server.config.broker import broker_definition, internal_topic_settings
from tidelog.server.config.docs import broker_texts, topic_texts
from tidelog.server.config.topic import topic_definition

PAGE = Path(__file__).parent.parent.parent / "docs" / "configuration.md"


def test_the_page_is_current() -> None:
    printed = CliRunner().invoke(config_docs).output
    assert PAGE.read_text() == printed, "run: tidelog config-docs > docs/configuration.md"


def test_every_setting_is_explained() -> None:
    assert broker_texts().keys() == broker_definition().keys()
    assert topic_texts().keys() == topic_definition().keys()
    for text in [*broker_texts().values(), *topic_texts().values()]:
        assert len(text) > 12
        assert text.endswith(".")


def test_every_setting_stands_on_the_page_with_its_default() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    for key in [*broker_definition().values(), *topic_definition().values()]:
        internal = key.name in internal_topic_settings()
        default = "`1`" if internal else f"`{key.default}`" if key.default else ""
        own = [line for line in lines if line.startswith(f"| `{key.name}` | ") and default in line]
        assert any(f"| {key.importance.value} |" in line for line in own), key.name
