"""The messages that Apache Kafka serialised: values and bytes of every message in every version."""

from __future__ import annotations

import gzip
import importlib
import json
import pkgutil
from functools import cache
from pathlib import Path
from typing import NamedTuple

import tidelog.protocol.messages
from tidelog.protocol import Message
from tidelog.protocol.json import Json

DATA = Path(__file__).parent.parent / "data" / "wire.jsonl.gz"


class Sample(NamedTuple):
    name: str
    key: int | None
    version: int
    flexible: bool
    values: dict[str, Json]
    wire: bytes

    @property
    def cls(self) -> type[Message]:
        return messages()[self.name]

    def __repr__(self) -> str:
        return f"{self.name}-v{self.version}"


@cache
def messages() -> dict[str, type[Message]]:
    """Every declared message by its name."""
    found: dict[str, type[Message]] = {}
    for module in pkgutil.iter_modules(tidelog.protocol.messages.__path__):
        loaded = importlib.import_module(f"tidelog.protocol.messages.{module.name}")
        for name, value in vars(loaded).items():
            if isinstance(value, type) and issubclass(value, Message) and value is not Message:
                found[name] = value
    return found


@cache
def samples() -> list[Sample]:
    out = []
    with gzip.open(DATA, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            out.append(
                Sample(
                    row["name"],
                    row["key"],
                    row["version"],
                    row["flexible"],
                    row["json"],
                    bytes.fromhex(row["hex"]),
                )
            )
    return out
