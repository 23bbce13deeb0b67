"""Messages with seeded random values, made from their declarations."""

from __future__ import annotations

from random import Random

from tidelog.errors import ErrorCode
from tidelog.protocol import Message
from tidelog.protocol.schema import Field, Struct

SIGNED_BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
UNSIGNED_BITS = {"uint16": 16, "uint32": 32}
ALPHABET = "abc.-_ é中𐍈\0"


class Values:
    """Makes values; tame ones are such that no other implementation refuses them."""

    def __init__(self, seed: int, *, tame: bool = False) -> None:
        self.random = Random(seed)
        self.tame = tame

    def message(self, cls: type[Message], version: int) -> Message:
        message = self.struct(cls, version, cls.FLEXIBLE.has(version))
        assert isinstance(message, Message)
        return message

    def struct(self, cls: type[Struct], version: int, flexible: bool) -> Struct:
        struct = cls()
        for field in cls.FIELDS:
            if field.present(version) and not (field.tag is not None and self.random.random() < 0.4):
                setattr(struct, field.name, self.field(field, cls, version, flexible))
        if flexible and not self.tame and self.random.random() < 0.1:
            struct.unknown_tags = {self.random.randint(50, 40_000): self.bytes() for _ in range(2)}
        return struct

    def field(self, field: Field, owner: type[Struct], version: int, flexible: bool) -> object:
        if field.nullable(version) and self.random.random() < 0.3:
            return None
        if not field.array:
            return self.value(field, owner, version, flexible)
        count = self.random.choice((0, 1, 1, 2, 3, 12))
        if field.kind != "struct" and self.random.random() < 0.05:
            count = 200  # a count that takes two bytes in the compact encoding
        return [self.value(field, owner, version, flexible) for _ in range(count)]

    def value(self, field: Field, owner: type[Struct], version: int, flexible: bool) -> object:
        if field.kind == "struct":
            return self.struct(field.struct_type(owner), version, flexible)
        if field.kind == "string":
            return self.text()
        if field.kind in ("bytes", "records"):
            return self.bytes()
        if field.kind == "uuid":
            return self.random.randbytes(16)
        if field.kind == "bool":
            return self.random.random() < 0.5
        if field.kind == "float64":
            return self.random.uniform(-1e12, 1e12)
        return self.number(field)

    def number(self, field: Field) -> int:
        if self.tame and field.name.endswith("error_code"):
            return self.random.choice(list(ErrorCode))
        if self.tame:
            return self.random.randint(0, 100)
        if field.kind in UNSIGNED_BITS:
            return self.random.getrandbits(self.random.randint(0, UNSIGNED_BITS[field.kind]))
        number = self.random.getrandbits(self.random.randint(0, SIGNED_BITS[field.kind]))
        return -1 - number if self.random.random() < 0.3 else number

    def text(self) -> str:
        length = 150 if self.random.random() < 0.03 else self.random.randint(0, 12)
        return "".join(self.random.choices("abcdef" if self.tame else ALPHABET, k=length))

    def bytes(self) -> bytes:
        length = 20_000 if self.random.random() < 0.01 else self.random.randint(0, 20)
        return self.random.randbytes(length)
