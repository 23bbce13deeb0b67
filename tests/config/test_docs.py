"""The documentation covers every setting, and the page in the repository is the one that the tool prints."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from tidelog.cli.config_docs import config_docs
from tidelog.clients.setting_docs import client_texts
from tidelog.clients.settings import admin_definition, consumer_definition, producer_definition
from tidelog.server.config.broker_definition import broker_definition, internal_topic_settings
from tidelog.server.config.docs import broker_texts, topic_texts
from tidelog.server.config.topic import topic_definition

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGE = DOCS / "configuration.md"
CLIENTS_PAGE = DOCS / "client-settings.md"


def test_the_page_is_current() -> None:
    printed = CliRunner().invoke(config_docs, catch_exceptions=False).output
    assert PAGE.read_text() == printed, "run: tidelog config-docs > docs/configuration.md"


def test_the_page_of_the_clients_is_current() -> None:
    printed = CliRunner().invoke(config_docs, ["--clients"], catch_exceptions=False).output
    assert CLIENTS_PAGE.read_text() == printed, "run: tidelog config-docs --clients > docs/client-settings.md"


def test_every_setting_of_a_client_is_explained_once() -> None:
    texts = client_texts()
    definitions = {
        "producer": producer_definition(),
        "consumer": consumer_definition(),
        "admin": admin_definition(),
    }
    for kind, definition in definitions.items():
        explained = [*texts["common"], *texts[kind]]
        assert sorted(explained) == sorted(name for name, key in definition.items() if key.served)
    for text in (text for table in texts.values() for text in table.values()):
        assert len(text) > 12
        assert text.endswith(".")


def test_every_setting_is_explained() -> None:
    missing = "in server/config, each needs a line in {0}_settings.py and a text in {0}_docs.py"
    assert broker_texts().keys() ^ broker_definition().keys() == set(), missing.format("broker")
    assert topic_texts().keys() ^ topic_definition().keys() == set(), missing.format("topic")
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
