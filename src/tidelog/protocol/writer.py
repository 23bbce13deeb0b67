"""Generates the writer of one version of a message: one function from values to bytes.

A field that the version does not have is left out if it is ignorable or holds its default; otherwise the
message is refused. Tagged fields that hold their default are left out.
"""

from __future__ import annotations

import struct

from tidelog.protocol.check import first_misfit
from tidelog.protocol.schema import FIXED, Field, Struct
from tidelog.protocol.source import Layout, Source
from tidelog.protocol.wire import ProtocolError, write_string_length, write_tags, write_uvarint


class WriterErrors:
    """The errors of one writer. They name the message and the field."""

    def __init__(self, title: str, layout: Layout) -> None:
        self.title = title
        self.layout = layout

    def unsupported(self, field: str, value: object) -> ProtocolError:
        return ProtocolError(f"{self.title} has no {field}, which is set to {value!r}")

    def misfit(self, message: Struct, error: Exception) -> ProtocolError:
        return ProtocolError(f"{self.title}: {first_misfit(message, self.layout) or error}")


class WriterSource(Source):
    """Generates `write(message, prefix) -> bytes`, or with `parts` a list that keeps file parts.

    With `sliced` it is a generator that returns the same.
    """

    def __init__(self, cls: type[Struct], layout: Layout, parts: bool, sliced: bool = False) -> None:
        super().__init__(sliced)
        self.layout = layout
        self.parts = parts
        self.pending: list[tuple[str, str]] = []
        self.sink = "w"
        title = f"{cls.__qualname__} v{layout.version}"
        self.names.update(
            uvarint=write_uvarint,
            string_length=write_string_length,
            write_tags=write_tags,
            pack=struct.pack,
            errors=(struct.error, AttributeError, TypeError),
            refuse=WriterErrors(title, layout),
            buffers=(bytes, bytearray, memoryview),
            join=b"".join,
        )
        self.depth = 2
        self.struct(cls, "m")
        if parts:
            self.line("if out: parts.append(join(out))")
            self.line("return parts")
        else:
            self.line("return join(out)")
        self.depth = 1
        self.line("except errors as error:")
        self.line("    raise refuse.misfit(m, error) from error")
        head = "def write(m, prefix=b''):\n" + self.begin + "    out = [prefix]; w = out.append\n"
        if parts:
            head += "    parts = []\n"
        self.compile(head + "    try:", f"writer of {title}")

    # -- runs of fixed size

    def packed(self, run: list[tuple[str, str]]) -> str:
        layout = "".join(code for code, _ in run)
        if layout == "x":
            return r"b'\0'"
        return f"{self.packer('pack', layout)}({', '.join(value for _, value in run if value)})"

    def flush(self) -> None:
        if self.pending:
            self.line(f"{self.sink}({self.packed(self.pending)})")
            self.pending = []

    def flush_length(self, field: Field, n: str) -> None:
        """Write the pending fields, then a length or count. `n` is one more in the compact encoding."""
        short = field.kind == "string" and not field.array
        if not self.layout.compact(field):
            self.pending.append(("h" if short else "i", n))
            self.flush()
            return
        long = f"{'string_length' if short else 'uvarint'}({n})"
        if self.pending:
            long = f"{self.packed(self.pending)} + {long}"
        together = self.packed([*self.pending, ("B", n)])
        self.pending = []
        self.line(f"{self.sink}({together} if {n} < 128 else {long})")

    # -- structs

    def struct(self, cls: type[Struct], source: str) -> None:
        for field in self.layout.absent(cls):
            if not field.ignorable:
                value = f"{source}.{field.name}"
                self.line(
                    f"if {self.differs(field, cls, value)}: raise refuse.unsupported({field.name!r}, {value})"
                )
        for field in self.layout.plain(cls):
            self.field(field, cls, f"{source}.{field.name}")
        if self.layout.flexible:
            self.tags(cls, source)
        else:
            self.flush()

    def differs(self, field: Field, owner: type[Struct], value: str) -> str:
        """An expression: the value differs from the default that a reader sets for a missing field."""
        if field.array or field.default == "" or field.default is False:
            return value if field.default is not None else f"{value} is not None"
        if field.kind == "struct" and not field.is_optional_struct:
            return f"{value} != {self.constant('C', field.struct_type(owner))}()"
        if field.default is None:
            return f"{value} is not None"
        return f"{value} != {field.default!r}"

    def tags(self, cls: type[Struct], source: str) -> None:
        tagged = self.layout.tagged(cls)
        conditions = [self.differs(field, cls, f"{source}.{field.name}") for field in tagged]
        due = list(self.pending)
        self.line(f"if {' or '.join([f'{source}.unknown_tags', *conditions])}:")
        self.depth += 1
        self.flush()
        t = self.fresh("t")
        self.line(f"{t} = dict({source}.unknown_tags or ())")
        for field, condition in zip(tagged, conditions, strict=True):
            self.line(f"if {condition}:")
            self.depth += 1
            self.tag(field, cls, f"{source}.{field.name}", t)
            self.depth -= 1
        self.line(f"{self.sink}(write_tags({t}))")
        self.depth -= 1
        self.line(f"else: {self.sink}({self.packed([*due, ('x', '')])})")

    def tag(self, field: Field, owner: type[Struct], value: str, tags: str) -> None:
        """Write a tagged value to a list of its own, because its size precedes it."""
        outer, chunks = self.sink, self.fresh("out")
        self.sink = f"{chunks}.append"
        self.line(f"{chunks} = []")
        self.field(field, owner, value)
        self.flush()
        self.line(f"{tags}[{field.tag}] = join({chunks})")
        self.sink = outer

    # -- fields

    def field(self, field: Field, owner: type[Struct], value: str) -> None:
        if field.array:
            self.array(field, owner, value)
        elif field.kind in FIXED:
            self.pending.append((FIXED[field.kind], value))
        elif field.kind == "struct":
            self.nested(field, owner, value)
        else:
            self.variable(field, value, field.nullable(self.layout.version))

    def nested(self, field: Field, owner: type[Struct], value: str) -> None:
        inner = self.fresh("o")
        if not field.nullable(self.layout.version):
            self.line(f"{inner} = {value}")
            self.struct(field.struct_type(owner), inner)
            return
        self.flush()
        self.line(f"{inner} = {value}")
        self.line(f"if {inner} is None: {self.sink}(b'\\xff')")
        self.line("else:")
        self.depth += 1
        self.pending.append(("b", "1"))
        self.struct(field.struct_type(owner), inner)
        self.depth -= 1

    def variable(self, field: Field, value: str, nullable: bool) -> None:
        """A string, bytes or records: a length and that many bytes."""
        n, data = self.fresh("n"), self.fresh("d")
        more = " + 1" if self.layout.compact(field) else ""
        null = "0" if self.layout.compact(field) else "-1"
        self.line(f"{data} = {value}" + (".encode()" if field.kind == "string" and not nullable else ""))
        size = f"len({data}){more}"
        if field.kind == "records":
            size = f"(len({data}) if isinstance({data}, buffers) else {data}.size){more}"
        if nullable:
            self.line(f"if {data} is None: {n} = {null}; {data} = b''")
            encode = f"{data} = {data}.encode(); " if field.kind == "string" else ""
            self.line(f"else: {encode}{n} = {size}")
        else:
            self.line(f"{n} = {size}")
        self.flush_length(field, n)
        if field.kind == "records" and self.parts:
            self.line(f"if isinstance({data}, buffers): w({data})")
            self.line(f"elif {data}.size: parts.append(join(out)); parts.append({data}); out.clear()")
        else:
            self.line(f"{self.sink}({data})")

    def array(self, field: Field, owner: type[Struct], value: str) -> None:
        items, n = self.fresh("l"), self.fresh("n")
        compact = self.layout.compact(field)
        self.line(f"{items} = {value}")
        size = f"len({items}) + 1" if compact else f"len({items})"
        if field.nullable(self.layout.version):
            self.line(f"if {items} is None: {n} = {'0' if compact else '-1'}; {items} = ()")
            self.line(f"else: {n} = {size}")
        else:
            self.line(f"{n} = {size}")
        self.flush_length(field, n)
        if field.kind in FIXED:
            code = FIXED[field.kind]
            self.line(f"{n} = len({items})")
            self.line(f"{self.sink}({self.many('pack', code, n, f'*{items}')})")
            return
        item = self.fresh("o")
        self.line(f"for {item} in {items}:")
        self.depth += 1
        self.pause()
        if field.kind == "struct":
            self.struct(field.struct_type(owner), item)
        else:
            self.variable(Field(field.kind, "0+").named(field.name), item, nullable=False)
        self.depth -= 1
