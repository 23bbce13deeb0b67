"""Finds the value that does not fit its field, after a writer has failed. Slow, but it names the field."""

from __future__ import annotations

import struct

from tidelog.protocol.schema import FIXED, Field, Struct
from tidelog.protocol.source import Layout
from tidelog.protocol.wire import MAX_STRING_BYTES


def first_misfit(message: Struct, layout: Layout, path: str = "") -> str | None:
    """Describes the first value of a message that does not fit its field; None if all fit."""
    for field in [*layout.plain(type(message)), *layout.tagged(type(message))]:
        where = path + field.name
        if not hasattr(message, field.name):
            return f"{where} is not set"
        found = _misfit_of_field(field, getattr(message, field.name), type(message), layout, where)
        if found:
            return found
    return None


def _misfit_of_field(
    field: Field, value: object, owner: type[Struct], layout: Layout, where: str
) -> str | None:
    if value is None:
        absent = field.nullable(layout.version) or field.is_optional_struct
        return None if absent else f"{where} is None, which version {layout.version} cannot carry"
    if not field.array:
        return _misfit(field, value, owner, layout, where)
    if not isinstance(value, list | tuple):
        return f"{where} is {value!r}; a list is expected"
    for index, item in enumerate(value):
        found = _misfit(field, item, owner, layout, f"{where}[{index}]")
        if found:
            return found
    return None


def _misfit(field: Field, value: object, owner: type[Struct], layout: Layout, where: str) -> str | None:
    if field.kind == "struct":
        expected = field.struct_type(owner)
        if not isinstance(value, expected):
            return f"{where} is {value!r}; {expected.__qualname__} is expected"
        return first_misfit(value, layout, where + ".")
    if field.kind == "string":
        if not isinstance(value, str):
            return f"{where} is {value!r}; a string is expected"
        size = len(value.encode("utf-8", "replace"))
        return (
            f"{where} takes {size} bytes; at most {MAX_STRING_BYTES} fit" if size > MAX_STRING_BYTES else None
        )
    if field.kind in FIXED:
        try:
            struct.pack(">" + FIXED[field.kind], value)
        except (struct.error, TypeError):
            return f"{where} is {value!r}; {field.kind} is expected"
        return None
    if isinstance(value, bytes | bytearray | memoryview):
        return None
    if field.kind == "records" and hasattr(value, "size"):
        return f"{where} is a part of a file, which only a list of parts can hold"
    return f"{where} is {value!r}; bytes are expected"
