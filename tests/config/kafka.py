"""What Apache Kafka 4.3 answered about its settings: `config-answers.json.gz`, recorded from one broker."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

from tidelog.config.entries import ConfigEntry
from tidelog.server.config.broker import BrokerConfig

DATA = Path(__file__).parent.parent / "data" / "config-answers.json.gz"

Described = tuple[str | None, bool, int, bool, int, list[tuple[str, str | None, int]]]


@cache
def answers() -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads(gzip.decompress(DATA.read_bytes()))
    return recorded


def kafka_broker() -> BrokerConfig:
    """A broker with the settings of the recorded one."""
    return BrokerConfig(answers()["static"])


def theirs(recorded: list[list[Any]]) -> dict[str, Described]:
    return {
        name: (value, read_only, source, sensitive, kind, [(s[0], s[1], s[2]) for s in synonyms])
        for name, value, read_only, source, sensitive, kind, synonyms in recorded
    }


def ours(entries: list[ConfigEntry]) -> dict[str, Described]:
    return {
        entry.name: (
            entry.value,
            entry.is_read_only,
            int(entry.source),
            entry.is_sensitive,
            int(entry.type),
            [(synonym.name, synonym.value, int(synonym.source)) for synonym in entry.synonyms],
        )
        for entry in entries
    }
