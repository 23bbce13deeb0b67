"""The JSON of files that name partitions: `{"version": 1, "partitions": [{"topic": "t", "partition": 0}]}`.

Each function raises ValueError with a message for the user; `what` is the name of the file in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeGuard

FILE_VERSION = 1
SHOWN_CHARACTERS = 80


def parse_object(text: str, what: str) -> dict[str, object]:
    """The JSON object of a file of version 1. A file without a version is of version 1."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"the {what} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"the {what} is {shortened(found)}; expected an object")
    version = found.get("version", FILE_VERSION)
    if not is_integer(version) or version != FILE_VERSION:
        raise ValueError(f"the {what} has version {shortened(version)}; expected {FILE_VERSION}")
    return found


def list_field(found: Mapping[str, object], name: str, what: str, *, required: bool = False) -> list[object]:
    """A field that is a list; an optional field that is missing is an empty list."""
    if required and name not in found:
        raise ValueError(f"the {what} has no field `{name}`")
    value = found.get(name, [])
    if not isinstance(value, list):
        raise ValueError(f"`{name}` of the {what} is {shortened(value)}; expected a list")
    return value


def is_integer(value: object, bits: int = 64) -> TypeGuard[int]:
    """Whether a value is a signed integer of this size; JSON's true is an int in Python, too."""
    most = 1 << (bits - 1)
    return isinstance(value, int) and not isinstance(value, bool) and -most <= value < most


def is_id(value: object) -> TypeGuard[int]:
    """Whether a value can be the id of a broker or the number of a partition."""
    return is_integer(value, 32) and value >= 0


def shortened(value: object) -> str:
    """A JSON value for a message."""
    text = json.dumps(value)
    return text if len(text) < SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 3]}..."
