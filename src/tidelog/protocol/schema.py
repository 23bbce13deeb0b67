"""Declares messages: typed classes, whose fields name the versions that have them.

    class HeartbeatResponse(Message, key=12, versions="0-4", flexible="4+"):
        throttle_time_ms: int = int32("1+", ignorable=True)
        error_code: int = int16("0+")

A declaration costs little: constructors, readers and writers are generated when they are first used.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from struct import calcsize
from typing import ClassVar, NamedTuple, TypeVar, cast, dataclass_transform

from tidelog.protocol.wire import ZERO_UUID, Buffer, RecordData

T = TypeVar("T")


class Versions(NamedTuple):
    """A closed range of versions; `high` below `low` is the empty range."""

    low: int
    high: int

    def has(self, version: int) -> bool:
        return self.low <= version <= self.high


LATEST = 0x7FFF  # versions are int16 on the wire


@cache
def parse_versions(text: str) -> Versions:
    """The range written as `3`, `3-13`, `9+` or `none`."""
    if text == "none":
        return Versions(0, -1)
    if text.endswith("+"):
        return Versions(int(text[:-1]), LATEST)
    low, _, high = text.partition("-")
    return Versions(int(low), int(high or low))


# The types of fixed size: their codes in the struct module, and their sizes in bytes.
FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
FIXED_SIZE = {kind: calcsize(">" + code) for kind, code in FIXED.items()}


class Field:
    """One field of a struct: its type, the versions that have it, those in which it may be null, its tag."""

    __slots__ = (
        "annotation", "array", "compact", "default", "ignorable", "json_name", "kind", "name", "nullable_in",
        "sensitive", "tag", "versions_in",
    )  # fmt: skip

    def __init__(
        self,
        kind: str,
        versions: str,
        *,
        array: bool = False,
        nullable: str = "none",
        tag: int | None = None,
        default: object = None,
        ignorable: bool = False,
        compact: bool = True,
        sensitive: bool = False,
        json: str | None = None,
    ) -> None:
        self.kind = kind
        self.array = array
        self.versions_in = versions
        self.nullable_in = nullable
        self.tag = tag
        self.default = default
        self.ignorable = ignorable
        self.compact = compact
        self.sensitive = sensitive
        self.json_name = json or ""
        self.name = self.annotation = ""

    def bind(self, name: str, annotation: str) -> None:
        """Set the name and the annotation that the field has in its class."""
        self.name = name
        self.annotation = annotation
        if not self.json_name:
            first, *rest = name.split("_")
            self.json_name = first + "".join(map(str.capitalize, rest))

    def named(self, name: str) -> Field:
        """Set the name of the field. Returns the field."""
        self.name = name
        return self

    def present(self, version: int) -> bool:
        return parse_versions(self.versions_in).has(version)

    def nullable(self, version: int) -> bool:
        return parse_versions(self.nullable_in).has(version)

    @property
    def is_optional_struct(self) -> bool:
        """Whether the field is a struct that may be null or a missing tagged field. Both are None here."""
        return (
            self.kind == "struct" and not self.array and (self.tag is not None or self.nullable_in != "none")
        )

    def make_default(self, owner: type[Struct]) -> object:
        """The default value of the field. Arrays and structs are new objects."""
        if self.array:
            return None if self.default is None else []
        if self.kind == "struct" and not self.is_optional_struct:
            return self.struct_type(owner)()
        return self.default

    def struct_type(self, owner: type[Struct]) -> type[Struct]:
        """The struct class that the annotation of a struct or an array of structs names."""
        match = re.fullmatch(r"(?:list\[)?([\w.]+)\]?(?: \| None)?", self.annotation)
        if match is None:
            raise TypeError(f"{owner.__qualname__}.{self.name}: {self.annotation!r} names no struct")
        first, *rest = match[1].split(".")
        found: object = sys.modules[owner.__module__].__dict__[first]
        for part in rest:
            found = getattr(found, part)
        return cast("type[Struct]", found)


@dataclass_transform(kw_only_default=True)
class StructType(type):
    """Makes the fields of a class body its slots, and keeps them in order as FIELDS."""

    FIELDS: tuple[Field, ...]

    def __new__(
        mcls, name: str, bases: tuple[type, ...], body: dict[str, object], **options: object
    ) -> StructType:
        fields = []
        annotations = cast("dict[str, str]", body.get("__annotations__", {}))
        for field_name, annotation in annotations.items():
            field = body.get(field_name)
            if isinstance(field, Field):
                field.bind(field_name, annotation)
                fields.append(field)
                del body[field_name]
        body["__slots__"] = tuple(field.name for field in fields)
        body["FIELDS"] = tuple(fields)
        return super().__new__(mcls, name, bases, body, **options)


class UnknownTags(metaclass=StructType):
    """Keeps the tagged fields of a newer peer that this version does not know, to pass them on."""

    unknown_tags: dict[int, bytes] | None = cast("None", Field("tags", "none"))


class Struct(UnknownTags):
    """A group of fields. The constructor takes any of them by keyword; the others get their defaults."""

    FIELDS: ClassVar[tuple[Field, ...]]

    def __init__(self, **values: object) -> None:
        cls = type(self)
        constructor = make_constructor(cls)
        cls.__init__ = constructor  # type: ignore[method-assign, assignment]
        constructor(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.unknown_tags == other.unknown_tags and all(
            getattr(self, field.name) == getattr(other, field.name) for field in self.FIELDS
        )

    __hash__ = None  # type: ignore[assignment]  # structs are mutable

    def __repr__(self) -> str:
        shown = [f"{field.name}={getattr(self, field.name)!r}" for field in self.FIELDS]
        if self.unknown_tags:
            shown.append(f"unknown_tags={self.unknown_tags!r}")
        return f"{type(self).__qualname__}({', '.join(shown)})"


class _Constructor:
    """The type of a generated constructor, which is a plain function."""

    def __call__(self, instance: Struct, **values: object) -> None: ...


def make_constructor(cls: type[Struct]) -> _Constructor:
    """Generates the keyword constructor of a class: several times faster than a loop over its fields."""
    names: dict[str, object] = {"MISSING": object()}
    parameters, lines = ["unknown_tags=None"], ["self.unknown_tags = unknown_tags"]
    for field in cls.FIELDS:
        name = field.name
        fresh = ""
        if field.array and field.default is not None:
            fresh = "[]"
        elif field.kind == "struct" and not field.array and not field.is_optional_struct:
            names[f"make_{name}"] = field.struct_type(cls)
            fresh = f"make_{name}()"
        if fresh:
            parameters.append(f"{name}=MISSING")
            lines.append(f"self.{name} = {fresh} if {name} is MISSING else {name}")
        else:
            parameters.append(f"{name}={field.default!r}")
            lines.append(f"self.{name} = {name}")
    source = f"def __init__(self, *, {', '.join(parameters)}):\n    " + "\n    ".join(lines)
    exec(compile(source, f"<constructor of {cls.__qualname__}>", "exec"), names)
    return cast(_Constructor, names["__init__"])


# Functions that declare fields. Each returns a Field, but is typed as the value of the field, as
# dataclasses.field is: a declaration reads `acks: int = int16("0+")`.


def boolean(
    versions: str,
    *,
    default: bool = False,
    tag: int | None = None,
    ignorable: bool = False,
    json: str | None = None,
) -> bool:
    return cast(bool, Field("bool", versions, default=default, tag=tag, ignorable=ignorable, json=json))


class _IntegerField:
    """Declares a field of one of the integer types."""

    __slots__ = ("kind",)

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(
        self,
        versions: str,
        *,
        default: int = 0,
        tag: int | None = None,
        ignorable: bool = False,
        json: str | None = None,
    ) -> int:
        field = Field(self.kind, versions, default=default, tag=tag, ignorable=ignorable, json=json)
        return cast(int, field)


int8 = _IntegerField("int8")
int16 = _IntegerField("int16")
uint16 = _IntegerField("uint16")
int32 = _IntegerField("int32")
uint32 = _IntegerField("uint32")
int64 = _IntegerField("int64")


def float64(versions: str, *, default: float = 0.0, ignorable: bool = False) -> float:
    return cast(float, Field("float64", versions, default=default, ignorable=ignorable))


def uuid(versions: str, *, tag: int | None = None, ignorable: bool = False) -> bytes:
    """16 bytes, all zero by default."""
    return cast(bytes, Field("uuid", versions, default=ZERO_UUID, tag=tag, ignorable=ignorable))


def string(
    versions: str,
    *,
    nullable: str = "none",
    default: str | None = "",
    tag: int | None = None,
    ignorable: bool = False,
    compact: bool = True,
) -> str:
    """Text. With `compact=False` flexible versions have a two-byte length, too."""
    field = Field(
        "string", versions, nullable=nullable, default=default, tag=tag, ignorable=ignorable, compact=compact
    )
    return cast(str, field)


def binary(
    versions: str, *, nullable: str = "none", default: bytes | None = b"", sensitive: bool = False
) -> bytes:
    """Bytes. Sensitive ones are never logged."""
    return cast(bytes, Field("bytes", versions, nullable=nullable, default=default, sensitive=sensitive))


def received_records(versions: str, *, nullable: str = "none") -> Buffer | None:
    """Record batches in a request: a view of the frame they came in."""
    return cast("Buffer | None", Field("records", versions, nullable=nullable))


def sent_records(versions: str, *, nullable: str = "none") -> RecordData | None:
    """Record batches in a response: bytes, or the part of a file that holds them."""
    return cast("RecordData | None", Field("records", versions, nullable=nullable))


def array(
    versions: str,
    of: str = "struct",
    *,
    nullable: str = "none",
    default: list[T] | None = [],  # noqa: B006  # only compared with None; every instance gets a list of its own
    tag: int | None = None,
    ignorable: bool = False,
) -> list[T]:
    """A list of `of`. The annotation names the class of structs."""
    field = Field(
        of,
        versions,
        array=True,
        nullable=nullable,
        default=default,
        tag=tag,
        ignorable=ignorable,
    )
    return cast("list[T]", field)


def struct(
    versions: str,
    *,
    nullable: str = "none",
    default: T | None = None,
    tag: int | None = None,
    ignorable: bool = False,
    json: str | None = None,
) -> T:
    """One struct of the class that the annotation names; None if it is optional and missing."""
    field = Field(
        "struct", versions, nullable=nullable, default=default, tag=tag, ignorable=ignorable, json=json
    )
    return cast(T, field)
