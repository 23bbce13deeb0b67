"""Generates the reader of one version of a message: one function from bytes to values.

Neighbouring fields of fixed size, and the length that follows them, are unpacked together. A length or count
is compared with the bytes that are left before memory is allocated for it.
"""

from __future__ import annotations

import struct

from tidelog.protocol.schema import FIXED, FIXED_SIZE, Field, Struct
from tidelog.protocol.source import Layout, Source
from tidelog.protocol.wire import ProtocolError, read_string_length, read_uvarint

MAX_ELEMENTS = 100_000
"""A large request may have so many elements in its arrays: more than any broker has partitions.

An element takes up to a hundred times the memory of its bytes, and up to 20 us to handle.
"""


class ReaderErrors:
    """The errors of one reader. They name the message and the field."""

    def __init__(self, title: str) -> None:
        self.title = title

    def null(self, field: str) -> ProtocolError:
        return ProtocolError(f"{self.title}: {field} is null, which it may not be")

    def length(self, field: str, length: int, left: int) -> ProtocolError:
        return ProtocolError(
            f"{self.title}: {field} claims {length} bytes or elements where {left} bytes are left"
        )

    def cut(self, size: int) -> ProtocolError:
        return ProtocolError(f"{self.title}: the bytes end within the message, after {size}")

    def too_many(self, field: str, count: int) -> ProtocolError:
        return ProtocolError(
            f"{self.title}: with {count} {field} its arrays have more than {MAX_ELEMENTS} elements together"
        )

    def tag(self, field: str) -> ProtocolError:
        return ProtocolError(f"{self.title}: tagged field {field} does not fill the size it claims")


class ReaderSource(Source):
    """Generates `read(buf, pos) -> (message, end)`.

    With `sliced` it is a generator that returns the same, and that refuses more than MAX_ELEMENTS in all
    arrays together before it allocates them.
    """

    def __init__(self, cls: type[Struct], layout: Layout, sliced: bool = False) -> None:
        super().__init__(sliced)
        self.layout = layout
        self.pending: list[tuple[str, str]] = []
        self.has_records = False
        self.title = f"{cls.__qualname__} v{layout.version}"
        self.names.update(
            new=object.__new__,
            uvarint=read_uvarint,
            string_length=read_string_length,
            unpack_from=struct.unpack_from,
            struct_error=struct.error,
            refuse=ReaderErrors(self.title),
        )
        self.depth = 2
        self.struct(cls, "m")
        self.depth = 1
        self.line("except (struct_error, IndexError):")
        self.line("    raise refuse.cut(end) from None")
        self.line("return m, pos")
        head = "def read(buf, pos=0):\n" + self.begin
        if sliced:
            head += f"    left = {MAX_ELEMENTS}\n"
        if self.has_records:  # records are views of the input
            self.names["view"] = memoryview
            head += "    if type(buf) is not view: buf = view(buf)\n"
        self.compile(head + "    end = len(buf)\n    try:", f"reader of {self.title}")

    # -- runs of fixed size

    def flush(self, extra: str = "", target: str = "") -> None:
        """Unpack the pending fields, and one more value behind them."""
        run = [*self.pending, (extra, target)] if extra else self.pending
        self.pending = []
        if not run:
            return
        if run == [("B", target)]:
            self.line(f"{target} = buf[pos]; pos += 1")
            return
        layout = "".join(code for code, _ in run)
        targets = ", ".join(name for _, name in run) + ("," if len(run) == 1 else "")
        unpack, size = self.packer("unpack_from", layout), struct.calcsize(">" + layout)
        self.line(f"{targets} = {unpack}(buf, pos); pos += {size}")

    def length(self, field: Field) -> str:
        """Read a length or count. Returns the name of its variable, whose value is below zero for null."""
        n = self.fresh("n")
        short = field.kind == "string" and not field.array
        if not self.layout.compact(field):
            self.flush("h" if short else "i", n)
            return n
        self.flush("B", n)
        self.line(f"if {n} > 127: {n}, pos = {'string_length' if short else 'uvarint'}(buf, pos - 1)")
        self.line(f"{n} -= 1")
        return n

    # -- structs

    def struct(self, cls: type[Struct], target: str) -> None:
        self.line(f"{target} = new({self.constant('C', cls)})")
        tagged = self.layout.tagged(cls)
        for field in [*self.layout.absent(cls), *tagged]:
            self.default(field, cls, f"{target}.{field.name}")
        self.line(f"{target}.unknown_tags = None")
        for field in self.layout.plain(cls):
            self.field(field, cls, f"{target}.{field.name}")
        if self.layout.flexible:
            self.tags(cls, target, tagged)
        else:
            self.flush()

    def default(self, field: Field, owner: type[Struct], target: str) -> None:
        if field.array:
            self.line(f"{target} = {'None' if field.default is None else '[]'}")
        elif field.kind == "struct" and not field.is_optional_struct:
            self.line(f"{target} = {self.constant('C', field.struct_type(owner))}()")
        else:
            self.line(f"{target} = {field.default!r}")

    def tags(self, cls: type[Struct], target: str, tagged: list[Field]) -> None:
        count, tag, stop = self.fresh("k"), self.fresh("t"), self.fresh("e")
        self.flush("B", count)
        self.line(f"if {count}:")
        self.depth += 1
        self.line(f"if {count} > 127: {count}, pos = uvarint(buf, pos - 1)")
        self.spend(count, "tagged fields")
        self.line(f"for _ in range({count}):")
        self.depth += 1
        self.pause()
        self.line(f"{tag}, pos = uvarint(buf, pos)")
        self.line(f"{stop}, pos = uvarint(buf, pos)")
        self.line(f"if {stop} > end - pos: raise refuse.length('a tagged field', {stop}, end - pos)")
        self.line(f"{stop} += pos")
        for field in tagged:
            self.line(f"if {tag} == {field.tag}:")
            self.depth += 1
            self.field(field, cls, f"{target}.{field.name}")
            self.flush()
            self.line(f"if pos != {stop}: raise refuse.tag({field.name!r})")
            self.line("continue")
            self.depth -= 1
        self.line(f"if {target}.unknown_tags is None: {target}.unknown_tags = {{}}")
        self.line(f"{target}.unknown_tags[{tag}] = bytes(buf[pos:{stop}]); pos = {stop}")
        self.depth -= 2

    # -- fields

    def field(self, field: Field, owner: type[Struct], target: str) -> None:
        if field.array:
            self.array(field, owner, target)
        elif field.kind in FIXED:
            self.pending.append((FIXED[field.kind], target))
        elif field.kind == "struct":
            self.nested(field, owner, target)
        else:
            self.variable(field, target, field.nullable(self.layout.version))

    def nested(self, field: Field, owner: type[Struct], target: str) -> None:
        inner = self.fresh("o")
        nullable = field.nullable(self.layout.version)
        if nullable:
            marker = self.fresh("n")
            self.flush("b", marker)
            # Kafka marks a null struct with 0 in a tagged field, and with -1 elsewhere.
            self.line(f"if {marker} {'<=' if field.tag is not None else '<'} 0: {target} = None")
            self.line("else:")
            self.depth += 1
        self.flush()
        self.struct(field.struct_type(owner), inner)
        self.line(f"{target} = {inner}")
        self.depth -= nullable

    def null(self, field: Field, target: str, n: str, nullable: bool) -> None:
        refused = f"raise refuse.null({field.name!r})"
        self.line(f"if {n} < 0: {f'{target} = None' if nullable else refused}")

    def variable(self, field: Field, target: str, nullable: bool) -> None:
        """A string, bytes or records: a length and that many bytes."""
        n = self.length(field)
        self.has_records |= field.kind == "records"
        self.line(f"e = pos + {n}")
        self.line(
            f"if {n} < 0: " + (f"{target} = None" if nullable else f"raise refuse.null({field.name!r})")
        )
        self.line(f"elif e > end: raise refuse.length({field.name!r}, {n}, end - pos)")
        value = {
            # Bytes that are not UTF-8 are replaced, as Kafka does: a client id may have another encoding.
            "string": "str(buf[pos:e], 'utf-8', 'replace')",
            "bytes": "bytes(buf[pos:e])",
            "records": "buf[pos:e]",
        }[field.kind]
        self.line(f"else: {target} = {value}; pos = e")

    def array(self, field: Field, owner: type[Struct], target: str) -> None:
        n = self.length(field)
        least = self.layout.least_element_size(field, owner)
        if least < 1:
            raise TypeError(
                f"{self.title}: elements of {field.name} take no bytes, so their count has no bound"
            )
        nullable = field.nullable(self.layout.version)
        self.line(
            f"if {n} < 0: " + (f"{target} = None" if nullable else f"raise refuse.null({field.name!r})")
        )
        too_many = f"{n} * {least} > end - pos" if least > 1 else f"{n} > end - pos"
        self.line(f"elif {too_many}: raise refuse.length({field.name!r}, {n}, end - pos)")
        self.line("else:")
        self.depth += 1
        self.spend(n, field.name)
        self.elements(field, owner, target, n)
        self.depth -= 1

    def spend(self, count: str, field: str) -> None:
        """Subtract a count from the elements that the message may still have."""
        if self.sliced:
            self.line(f"left -= {count}")
            self.line(f"if left < 0: raise refuse.too_many({field!r}, {count})")

    def elements(self, field: Field, owner: type[Struct], target: str, n: str) -> None:
        if field.kind in FIXED:
            size, code = FIXED_SIZE[field.kind], FIXED[field.kind]
            values = self.many("unpack_from", code, n, "buf, pos")
            self.line(f"{target} = list({values}); pos += {n} * {size}")
            return
        items, item = self.fresh("l"), self.fresh("o")
        self.line(f"{target} = {items} = []")
        self.line(f"for _ in range({n}):")
        self.depth += 1
        self.pause()
        if field.kind == "struct":
            self.struct(field.struct_type(owner), item)
        else:
            self.variable(Field(field.kind, "0+").named(field.name), item, nullable=False)
        self.line(f"{items}.append({item})")
        self.depth -= 1
