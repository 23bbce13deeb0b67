"""Values of Avro as plain JSON: bytes are text with a character per byte, times and decimals are text."""

from __future__ import annotations

import math
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def to_json(value: object) -> Json:
    """A decoded value of Avro as JSON."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, dict):
        return {str(name): to_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(each) for each in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal | UUID):
        return str(value)
    raise ValueError(f"{type(value).__name__} has no form in JSON")


def from_json(value: object, schema: object, named: dict[str, object] | None = None) -> object:
    """JSON as the value that a schema asks for. What does not fit stays as it is: the writer refuses it."""
    named = {} if named is None else named
    if isinstance(schema, str):
        return _plain(value, schema, None) if schema not in named else from_json(value, named[schema], named)
    if isinstance(schema, list):
        return _of_union(value, schema, named)
    assert isinstance(schema, dict)
    kind, logical = schema["type"], schema.get("logicalType")
    if isinstance(schema.get("name"), str):
        named[schema["name"]] = schema
    if kind == "record" and isinstance(value, dict):
        kinds = {field["name"]: field["type"] for field in schema["fields"]}
        return {
            name: from_json(each, kinds[name], named) if name in kinds else each
            for name, each in value.items()
        }
    if kind == "array" and isinstance(value, list):
        return [from_json(each, schema["items"], named) for each in value]
    if kind == "map" and isinstance(value, dict):
        return {name: from_json(each, schema["values"], named) for name, each in value.items()}
    if isinstance(kind, list | dict):
        return from_json(value, kind, named)
    return _plain(value, str(kind), logical)


def _of_union(value: object, branches: list[object], named: dict[str, object]) -> object:
    """By the first branch that fits the JSON: null for null, another one for everything else."""
    if value is None:
        return None
    others = [branch for branch in branches if branch != "null"]
    for branch in others:
        kind = branch.get("type") if isinstance(branch, dict) else branch
        if _fits(value, str(kind)):
            return from_json(value, branch, named)
    return from_json(value, others[0], named) if len(others) == 1 else value


def _fits(value: object, kind: str) -> bool:
    wanted: dict[str, type | tuple[type, ...]] = {
        "string": str, "enum": str, "bytes": str, "fixed": str, "boolean": bool, "int": int, "long": int,
        "float": (int, float), "double": (int, float), "array": list, "map": dict, "record": dict,
    }  # fmt: skip
    expected = wanted.get(kind, dict)
    return isinstance(value, expected) and (kind == "boolean") == isinstance(value, bool)


def _plain(value: object, kind: str, logical: object) -> object:
    if not isinstance(value, str):
        return value
    if logical == "decimal":
        return Decimal(value)
    if kind in ("bytes", "fixed"):
        return value.encode("latin-1")
    if logical == "date":
        return date.fromisoformat(value)
    if isinstance(logical, str) and logical.startswith(("timestamp", "local-timestamp")):
        return datetime.fromisoformat(value)
    if isinstance(logical, str) and logical.startswith("time"):
        return time.fromisoformat(value)
    if kind in ("float", "double"):
        return float(value)
    return value
