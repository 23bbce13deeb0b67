"""Schemas as text: Spark's DDL (`a INT NOT NULL, b ARRAY<STRING>`) or the JSON of a StructType.

Spark's own parser lives in the JVM. The processes that plan and read a source have no JVM.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

_TOKEN = re.compile(
    r"\s*(?:(`(?:[^`]|``)+`)|([A-Za-z_]\w*)|(\d+)|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(.))", re.S
)
_EXAMPLE = "such as: user_id STRING NOT NULL, amount BIGINT, tags ARRAY<STRING>"


class SchemaError(ValueError):
    """A schema that cannot be parsed. The message has the position and what was expected."""


def parse_schema(text: str) -> StructType:
    """The StructType that a text describes."""
    from pyspark.sql.types import StructType

    if text.lstrip().startswith("{"):
        try:
            return StructType.fromJson(json.loads(text))
        except (ValueError, KeyError, TypeError) as error:
            raise SchemaError(f"not the JSON of a StructType: {error}") from None
    parser = _Parser(text)
    if parser.peek().lower() == "struct" and parser.peek(1) == "<":
        found = parser.data_type()
        assert isinstance(found, StructType)
    else:
        found = StructType(parser.fields(""))
    if parser.peek():
        raise parser.error("the end")
    return found


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, int]] = []
        at = 0
        end = len(text.rstrip())
        while at < end:
            match = _TOKEN.match(text, at)
            assert match is not None
            self.tokens.append((match[match.lastindex or 0], match.start(match.lastindex or 0)))
            at = match.end()
        self.at = 0

    def peek(self, ahead: int = 0) -> str:
        place = self.at + ahead
        return self.tokens[place][0] if place < len(self.tokens) else ""

    def next(self) -> str:
        found = self.peek()
        self.at += 1
        return found

    def error(self, expected: str) -> SchemaError:
        place = self.tokens[self.at][1] if self.at < len(self.tokens) else len(self.text)
        found = repr(self.peek()) if self.peek() else "the end"
        return SchemaError(f"expected {expected} at position {place + 1}, found {found}; {_EXAMPLE}")

    def take(self, token: str) -> None:
        if self.peek() != token:
            raise self.error(repr(token))
        self.at += 1

    def fields(self, close: str) -> list[StructField]:
        """The fields up to a closing bracket, which stays unread."""
        found: list[StructField] = []
        while True:
            found.append(self.field())
            if self.peek() != ",":
                break
            self.at += 1
        names = [field.name for field in found]
        for name in names:
            if names.count(name) > 1:
                raise SchemaError(f"field {name} is declared twice")
        if self.peek() != close:
            raise self.error(f"',' or {close!r}" if close else "',' or the end")
        return found

    def field(self) -> StructField:
        from pyspark.sql.types import StructField

        name = self.next()
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        elif not re.match(r"[A-Za-z_]", name):
            self.at -= 1
            raise self.error("the name of a field")
        if self.peek() == ":":
            self.at += 1
        kind = self.data_type()
        nullable, metadata = True, {}
        if self.peek().upper() == "NOT":
            self.at += 1
            if self.next().upper() != "NULL":
                self.at -= 1
                raise self.error("NULL")
            nullable = False
        if self.peek().upper() == "COMMENT":
            self.at += 1
            comment = self.next()
            if comment[:1] not in ("'", '"'):
                self.at -= 1
                raise self.error("a text in quotes")
            metadata = {"comment": comment[1:-1]}
        return StructField(name, kind, nullable, metadata)

    def data_type(self) -> DataType:
        from pyspark.sql.types import ArrayType, DecimalType, MapType, StructType

        word = self.next().lower()
        if word in ("decimal", "dec", "numeric"):
            return DecimalType(*self.numbers((10, 0)))
        if word == "array":
            self.take("<")
            element = self.data_type()
            self.take(">")
            return ArrayType(element)
        if word == "map":
            self.take("<")
            key = self.data_type()
            self.take(",")
            value = self.data_type()
            self.take(">")
            return MapType(key, value)
        if word == "struct":
            self.take("<")
            inner = StructType(self.fields(">"))
            self.take(">")
            return inner
        found = _simple_types().get(word)
        if found is None:
            self.at -= 1
            raise self.error("a type")
        return found

    def numbers(self, default: tuple[int, int]) -> tuple[int, int]:
        if self.peek() != "(":
            return default
        self.at += 1
        found = [self.number()]
        if self.peek() == ",":
            self.at += 1
            found.append(self.number())
        self.take(")")
        precision, scale = found[0], found[1] if len(found) > 1 else 0
        if not 1 <= precision <= 38 or scale > precision:
            wanted = "expected a precision of 1 to 38 and a scale that is not larger"
            raise SchemaError(f"decimal({precision},{scale}): {wanted}")
        return precision, scale

    def number(self) -> int:
        if not self.peek().isdigit():
            raise self.error("a number")
        return int(self.next())


def _simple_types() -> dict[str, DataType]:
    from pyspark.sql import types as t

    return {
        "boolean": t.BooleanType(),
        "tinyint": t.ByteType(),
        "byte": t.ByteType(),
        "smallint": t.ShortType(),
        "short": t.ShortType(),
        "int": t.IntegerType(),
        "integer": t.IntegerType(),
        "bigint": t.LongType(),
        "long": t.LongType(),
        "float": t.FloatType(),
        "real": t.FloatType(),
        "double": t.DoubleType(),
        "string": t.StringType(),
        "binary": t.BinaryType(),
        "date": t.DateType(),
        "timestamp": t.TimestampType(),
        "timestamp_ltz": t.TimestampType(),
        "timestamp_ntz": t.TimestampNTZType(),
    }
