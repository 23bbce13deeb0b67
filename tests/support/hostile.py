"""Requests with huge arrays, made from the declarations of the messages: one for each array of each API."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import cast

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Field, Struct
from tidelog.protocol.wire import write_uvarint

Path = tuple[str, ...]

# Fields in which any number would be refused before the array is looked at.
NUMBERS = {
    "acks": -1,
    "timeout_ms": 1000,
    "session_timeout_ms": 10_000,
    "rebalance_timeout_ms": 10_000,
    "transaction_timeout_ms": 1000,
    "min_bytes": 1,
    "max_bytes": 1 << 20,
    "partition_max_bytes": 1 << 20,
    "session_epoch": -1,
    "resource_type": 2,
    "num_partitions": 1,
    "replication_factor": 1,
    "response_partition_limit": 2000,
    "replica_id": -1,
    "current_leader_epoch": -1,
    "key_type": 0,
}


def array_paths(cls: type[Struct], version: int, before: Path = ()) -> Iterator[Path]:
    """The names that lead to each array of a message, outer arrays first."""
    for field in cls.FIELDS:
        if not field.present(version):
            continue
        if field.array:
            yield (*before, field.name)
        if field.kind == "struct":
            yield from array_paths(field.struct_type(cls), version, (*before, field.name))


def request_with(cls: type[Message], version: int, path: Path, count: int) -> Message:
    """A request whose array at `path` has `count` different elements, and the arrays on the way there one."""
    return cast("Message", _struct(cls, version, path, count, 0))


def empty_elements(cls: type[Message], version: int, path: Path, size: int) -> bytes:
    """The body of a request of about `size` bytes, all of it the smallest elements of the array at `path`."""
    field = _field_at(cls, path)
    none = _struct(cls, version, path, 0, 0)
    one = _struct(cls, version, path, 1, 0)
    _place(one, path, [_smallest(field, version)])
    empty, single = cast("Message", none).encode(version), cast("Message", one).encode(version)
    at = next(n for n, (a, b) in enumerate(zip(empty, single, strict=False)) if a != b)
    element = len(single) - len(empty)
    count = size // max(element, 1)
    if cls.FLEXIBLE.has(version) and field.compact:
        begin, length = at, write_uvarint(count + 1)
        after = at + 1
    else:
        begin, length = at - 3, count.to_bytes(4, "big")
        after = at + 1
    return single[:begin] + length + single[after : after + element] * count + single[after + element :]


def _field_at(cls: type[Struct], path: Path) -> Field:
    field = next(field for field in cls.FIELDS if field.name == path[0])
    return field if len(path) == 1 else _field_at(field.struct_type(cls), path[1:])


def _place(struct: Struct, path: Path, items: list[object]) -> None:
    if len(path) == 1:
        (item,) = getattr(struct, path[0])
        setattr(struct, path[0], [items[0] if items[0] is not None else item])
        return
    inner = getattr(struct, path[0])
    _place(inner[0] if isinstance(inner, list) else inner, path[1:], items)


def _smallest(field: Field, version: int) -> object:
    """The value of an element that takes the fewest bytes; None leaves a struct as it is."""
    return {"string": "", "bytes": b"", "struct": None}.get(field.kind, 0)


def _struct(cls: type[Struct], version: int, path: Path, count: int, at: int) -> Struct:
    struct = cls()
    for field in cls.FIELDS:
        if not field.present(version):
            continue
        on_path = bool(path) and path[0] == field.name
        if field.array:
            number = (count if len(path) == 1 else 1) if on_path else 0
            inner = path[1:] if on_path else ()
            setattr(struct, field.name, [_value(field, cls, version, inner, count, n) for n in range(number)])
        elif (field.kind == "struct" or field.tag is not None) and not on_path:
            continue
        else:
            setattr(struct, field.name, _value(field, cls, version, path[1:] if on_path else (), count, at))
    return struct


def _value(field: Field, owner: type[Struct], version: int, path: Path, count: int, at: int) -> object:
    if field.kind == "struct":
        return _struct(field.struct_type(owner), version, path, count, at)
    if field.kind == "string":
        return f"t{at}"
    if field.kind in ("bytes", "records"):
        return b""
    if field.kind == "uuid":
        return bytes(16) if field.nullable(version) else random.Random(at).randbytes(16) if at else bytes(16)
    if field.kind == "bool":
        return field.name == "validate_only"
    if field.kind == "float64":
        return 0.0
    number = NUMBERS.get(field.name, at)
    return number if field.kind in ("int32", "int64") else number % 100
