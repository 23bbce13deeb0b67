"""Messages as JSON values: names in lower camel case, bytes as base64, uuids as base64url.

Tagged fields that hold their default are left out, like on the wire. With a `Redaction`, secrets are hidden.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import TypeAlias, TypeVar, cast

from tidelog.protocol.message import Message, layout_of
from tidelog.protocol.schema import Field, Struct
from tidelog.protocol.source import Layout
from tidelog.protocol.wire import ProtocolError, uuid_from_text, uuid_to_text

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
M = TypeVar("M", bound=Message)

HIDDEN = "[hidden]"


class Redaction:
    """Hides fields that are declared sensitive, and the values of secret settings.

    A setting is a struct with a name and a value; `is_secret` decides by the name.
    """

    __slots__ = ("is_secret",)

    def __init__(self, is_secret: Callable[[str], bool]) -> None:
        self.is_secret = is_secret

    def hides(self, struct: Struct, field: Field) -> bool:
        if field.sensitive:
            return True
        name = getattr(struct, "name", None)
        return field.name == "value" and isinstance(name, str) and self.is_secret(name)


def to_json(message: Message, version: int, redact: Redaction | None = None) -> dict[str, Json]:
    """A message as the JSON object of a version."""
    return _struct_to_json(message, layout_of(type(message), version), redact)


def _struct_to_json(struct: Struct, layout: Layout, redact: Redaction | None) -> dict[str, Json]:
    cls = type(struct)
    out: dict[str, Json] = {}
    for field in cls.FIELDS:
        value: object = getattr(struct, field.name)
        if not field.present(layout.version):
            continue
        if field.tag is not None and value == field.make_default(cls):
            continue
        if redact is not None and value is not None and redact.hides(struct, field):
            out[field.json_name] = HIDDEN
        elif field.array and value is not None:
            items = cast("list[object]", value)
            out[field.json_name] = [_to_json(field, item, layout, redact) for item in items]
        else:
            out[field.json_name] = _to_json(field, value, layout, redact)
    return out


def _to_json(field: Field, value: object, layout: Layout, redact: Redaction | None) -> Json:
    if isinstance(value, Struct):
        return _struct_to_json(value, layout, redact)
    if isinstance(value, bytes | bytearray | memoryview):
        if field.kind == "uuid":
            return uuid_to_text(bytes(value))
        return b64encode(value).decode("ascii")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return f"[{getattr(value, 'size', 0)} bytes of a file]"


def from_json(cls: type[M], version: int, value: dict[str, Json]) -> M:
    """The message that a JSON object of a version describes. Missing fields have their defaults."""
    return _struct_from_json(cls, layout_of(cls, version), value, cls.__qualname__)


S = TypeVar("S", bound=Struct)


def _struct_from_json(cls: type[S], layout: Layout, value: Json, where: str) -> S:
    if not isinstance(value, dict):
        raise ProtocolError(f"{where} is {value!r}; an object is expected")
    fields = {field.json_name: field for field in cls.FIELDS if field.present(layout.version)}
    struct = cls()
    for name, item in value.items():
        field = fields.get(name)
        if field is None:
            known = ", ".join(fields)
            raise ProtocolError(f"{where} has no field {name} in version {layout.version}; it has {known}")
        setattr(struct, field.name, _field_from_json(field, cls, layout, item, f"{where}.{name}"))
    return struct


def _field_from_json(field: Field, owner: type[Struct], layout: Layout, value: Json, where: str) -> object:
    if value is None:
        if not (field.nullable(layout.version) or field.is_optional_struct):
            raise ProtocolError(f"{where} is null, which version {layout.version} cannot carry")
        return None
    if not field.array:
        return _from_json(field, owner, layout, value, where)
    if not isinstance(value, list):
        raise ProtocolError(f"{where} is {value!r}; a list is expected")
    return [_from_json(field, owner, layout, item, f"{where}[{index}]") for index, item in enumerate(value)]


def _from_json(field: Field, owner: type[Struct], layout: Layout, value: Json, where: str) -> object:
    if field.kind == "struct":
        return _struct_from_json(field.struct_type(owner), layout, value, where)
    if field.kind in ("string", "uuid", "bytes", "records"):
        if not isinstance(value, str):
            raise ProtocolError(f"{where} is {value!r}; a string is expected")
        if field.kind == "string":
            return value
        if field.kind == "uuid":
            return uuid_from_text(value)
        try:
            return b64decode(value, validate=True)
        except ValueError:
            raise ProtocolError(f"{where} is {value!r}, which is no base64") from None
    if field.kind == "bool" and isinstance(value, bool):
        return value
    if field.kind == "float64" and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if field.kind not in ("bool", "float64") and isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ProtocolError(f"{where} is {value!r}; {field.kind} is expected")
