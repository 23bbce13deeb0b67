"""The base of the generators of readers and writers: Source, and the Layout of a version."""

from __future__ import annotations

import struct
from functools import cache

from tidelog.protocol.schema import FIXED_SIZE, Field, Struct

SMALL = 9

ELEMENTS_PER_SLICE = 50
"""A reader or writer in slices yields after so many elements of arrays."""


@cache
def small_packers(method: str, code: str) -> tuple[object, ...]:
    """Bound `pack` or `unpack_from` for 0 to 8 values of a type: most lists, such as replicas, are short."""
    return tuple(getattr(struct.Struct(">" + code * count), method) for count in range(SMALL))


class Source:
    """The source of a generated function, and the objects that it uses by name.

    With `sliced` the function is a generator, which yields now and then between the elements of arrays.
    """

    def __init__(self, sliced: bool = False) -> None:
        self.sliced = sliced
        self.lines: list[str] = []
        self.names: dict[str, object] = {}
        self.depth = 1
        self._count = 0
        self._structs: dict[tuple[str, str], str] = {}

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def pause(self) -> None:
        """Between two elements of an array: yield if this slice is used up."""
        if self.sliced:
            self.line("slice_left -= 1")
            self.line(f"if not slice_left: slice_left = {ELEMENTS_PER_SLICE}; yield")

    @property
    def begin(self) -> str:
        """The first lines of a function in slices. It is a generator even without arrays."""
        return f"    slice_left = {ELEMENTS_PER_SLICE}\n    if 0: yield\n" if self.sliced else ""

    def fresh(self, prefix: str) -> str:
        """A local name that nothing else uses."""
        self._count += 1
        return f"{prefix}{self._count}"

    def constant(self, prefix: str, value: object) -> str:
        """A name for an object of the generator in the generated code."""
        name = self.fresh(prefix)
        self.names[name] = value
        return name

    def packer(self, method: str, layout: str) -> str:
        """A name for the bound `pack` or `unpack_from` of a struct layout."""
        key = (method, layout)
        if key not in self._structs:
            self._structs[key] = self.constant(
                method[0].upper(), getattr(struct.Struct(">" + layout), method)
            )
        return self._structs[key]

    def many(self, method: str, code: str, count: str, arguments: str) -> str:
        """An expression that packs or unpacks `count` values of a type."""
        key = (method, f"0 to {SMALL - 1} of {code}")
        if key not in self._structs:
            self._structs[key] = self.constant("K", small_packers(method, code))
        layout = f"f'>{{{count}}}{code}'" if len(code) == 1 else f"'>' + {code!r} * {count}"
        small, any_size = f"{self._structs[key]}[{count}]({arguments})", f"{method}({layout}, {arguments})"
        return f"{small} if {count} < {SMALL} else {any_size}"

    def compile(self, head: str, title: str) -> None:
        """Define the function. `names` has it afterwards."""
        source = "\n".join([head, *self.lines])
        exec(compile(source, f"<{title}>", "exec"), self.names)


class Layout:
    """The layout of structs in one version of a message: their fields, and their least sizes."""

    __slots__ = ("flexible", "version")

    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible

    def plain(self, cls: type[Struct]) -> list[Field]:
        """The fields without a tag, in order."""
        return [field for field in cls.FIELDS if field.tag is None and field.present(self.version)]

    def tagged(self, cls: type[Struct]) -> list[Field]:
        """The tagged fields."""
        return [field for field in cls.FIELDS if field.tag is not None and field.present(self.version)]

    def absent(self, cls: type[Struct]) -> list[Field]:
        """The fields that this version does not have."""
        return [field for field in cls.FIELDS if not field.present(self.version)]

    def compact(self, field: Field) -> bool:
        return self.flexible and field.compact

    def least_size(self, cls: type[Struct]) -> int:
        """The least number of bytes of a struct."""
        return sum(self._least(field, cls) for field in self.plain(cls)) + self.flexible

    def least_element_size(self, field: Field, owner: type[Struct]) -> int:
        """The least number of bytes of an array element. Bounds the count of an array."""
        if field.kind in FIXED_SIZE:
            return FIXED_SIZE[field.kind]
        if field.kind == "struct":
            return self.least_size(field.struct_type(owner))
        return self._least_length(field)

    def _least(self, field: Field, owner: type[Struct]) -> int:
        if field.array:
            return 1 if self.compact(field) else 4
        if field.kind in FIXED_SIZE:
            return FIXED_SIZE[field.kind]
        if field.kind == "struct":
            return 1 if field.nullable(self.version) else self.least_size(field.struct_type(owner))
        return self._least_length(field)

    def _least_length(self, field: Field) -> int:
        if self.compact(field):
            return 1
        return 2 if field.kind == "string" else 4
