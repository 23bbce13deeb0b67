"""The option `filter`: a condition on columns, as in SQL's WHERE. It is parsed and never run as code.

    condition  = condition OR condition | condition AND condition | NOT condition | ( condition ) | test
    test       = column = | == | <> | != | < | <= | > | >= literal      (or the literal first)
               | column [NOT] IN ( literal, ... ) | column [NOT] BETWEEN literal AND literal
               | column [NOT] LIKE 'text with % and _' | column IS [NOT] NULL | column
    literal    = 12 | -1.5 | 'text' | TRUE | FALSE | TIMESTAMP '2026-01-31T12:00:00Z' | DATE '2026-01-31'

A boolean column may stand alone; `a.b` is a field of a struct, and backquotes allow any name. As in SQL, a
comparison with null is neither true nor false, and a row passes only if the condition is true.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

MAX_DEPTH = 100
_TOKEN = re.compile(
    r"\s*(?:(?P<quoted>`[^`]+`(?:\.`[^`]+`)*)|(?P<word>[A-Za-z_][\w.]*)|(?P<number>-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<text>'(?:[^']|'')*')|(?P<sign><=|>=|<>|!=|==|[=<>(),]))"
)
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
_FUNCTIONS = {
    "=": "equal",
    "<>": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}


class FilterError(ValueError):
    """A condition that cannot be parsed. The message shows the position."""

    def __init__(self, text: str, place: int, reason: str) -> None:
        shown = text.replace("\n", " ").replace("\t", " ")
        super().__init__(f"{reason}, at position {place + 1}:\n  {shown}\n  {' ' * place}^")


@dataclass(frozen=True, slots=True)
class Compare:
    column: str
    sign: str
    value: object


@dataclass(frozen=True, slots=True)
class In:
    column: str
    values: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Like:
    column: str
    pattern: str


@dataclass(frozen=True, slots=True)
class IsNull:
    column: str


@dataclass(frozen=True, slots=True)
class IsTrue:
    column: str


@dataclass(frozen=True, slots=True)
class Not:
    inner: Condition


@dataclass(frozen=True, slots=True)
class Both:
    left: Condition
    right: Condition


@dataclass(frozen=True, slots=True)
class Either:
    left: Condition
    right: Condition


Condition = Compare | In | Like | IsNull | IsTrue | Not | Both | Either


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    place: int

    @property
    def upper(self) -> str:
        return self.text.upper() if self.kind == "word" else self.text


def parse_filter(text: str, types: Mapping[str, pa.DataType]) -> Condition:
    """Parse a condition on columns of these Arrow types. Literals get the type of their column."""
    parser = _Parser(text, types)
    found = parser.condition()
    if parser.token.kind != "end":
        raise parser.error("expected AND, OR or the end")
    return found


def columns_of(condition: Condition) -> frozenset[str]:
    """The names of the columns in a condition, without the part after a dot."""
    if isinstance(condition, Not):
        return columns_of(condition.inner)
    if isinstance(condition, Both | Either):
        return columns_of(condition.left) | columns_of(condition.right)
    return frozenset((condition.column.split("\0")[0],))


class _Parser:
    def __init__(self, text: str, types: Mapping[str, pa.DataType]) -> None:
        self.text = text
        self.types = types
        self.tokens = list(_tokens(text))
        self.at = 0
        self.depth = 0

    @property
    def token(self) -> _Token:
        return self.tokens[self.at]

    def error(self, reason: str, token: _Token | None = None) -> FilterError:
        return FilterError(self.text, (token or self.token).place, reason)

    def accept(self, *words: str) -> str | None:
        """Consume the next token if it is one of these words, and return it."""
        found = self.token
        if found.kind in ("word", "sign") and found.upper in words:
            self.at += 1
            return found.upper
        return None

    def expect(self, word: str) -> None:
        if self.accept(word) is None:
            raise self.error(f"expected {word}")

    def condition(self) -> Condition:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"nested deeper than {MAX_DEPTH} levels")
        found = self.all_of()
        while self.accept("OR"):
            found = Either(found, self.all_of())
        self.depth -= 1
        return found

    def all_of(self) -> Condition:
        found = self.negated()
        while self.accept("AND"):
            found = Both(found, self.negated())
        return found

    def negated(self) -> Condition:
        negative = False
        while self.accept("NOT"):
            negative = not negative
        found = self.test()
        return Not(found) if negative else found

    def test(self) -> Condition:
        if self.accept("("):
            inner = self.condition()
            self.expect(")")
            return inner
        token = self.token
        if not self.is_column():
            value_at = self.at
            self.literal_text()
            sign = self.sign()
            if not self.is_column():
                raise self.error("expected a column")
            name, kind = self.column()
            after, self.at = self.at, value_at
            value = self.literal(kind)
            self.at = after
            return Compare(name, _FLIPPED.get(sign, sign), value)
        name, kind = self.column()
        return self.column_test(name, kind, token)

    def column_test(self, name: str, kind: pa.DataType, token: _Token) -> Condition:
        import pyarrow as pa

        if self.accept("IS"):
            negative = self.accept("NOT") is not None
            self.expect("NULL")
            return Not(IsNull(name)) if negative else IsNull(name)
        negative = self.accept("NOT") is not None
        found: Condition
        if self.accept("IN"):
            found = In(name, self.literals(kind))
        elif self.accept("BETWEEN"):
            low = self.literal(kind)
            self.expect("AND")
            found = Both(Compare(name, ">=", low), Compare(name, "<=", self.literal(kind)))
        elif self.accept("LIKE"):
            if not pa.types.is_string(kind):
                raise self.error(f"LIKE needs a column of strings, and {token.text} is {kind}", token)
            found = Like(name, str(self.literal(kind)))
        elif negative:
            raise self.error("expected IN, BETWEEN or LIKE")
        elif self.token.kind == "sign" and self.token.text not in (")", ",", "("):
            sign = self.sign()
            return Compare(name, sign, self.literal(kind))
        elif pa.types.is_boolean(kind):
            return IsTrue(name)
        else:
            raise self.error("expected a comparison, IN, BETWEEN, LIKE or IS NULL")
        return Not(found) if negative else found

    def sign(self) -> str:
        found = self.accept("=", "==", "<>", "!=", "<", "<=", ">", ">=")
        if found is None:
            raise self.error("expected a comparison: =, <>, <, <=, > or >=")
        return {"==": "=", "!=": "<>"}.get(found, found)

    def is_column(self) -> bool:
        reserved = ("TRUE", "FALSE", "NULL", "DATE", "TIMESTAMP")
        if self.token.kind == "word" and self.token.upper in reserved:
            # A column may have such a name: then no literal follows.
            return self.token.upper in ("DATE", "TIMESTAMP") and self.tokens[self.at + 1].kind != "text"
        return self.token.kind in ("word", "quoted")

    def column(self) -> tuple[str, pa.DataType]:
        """The path of a column, its parts joined by NUL, and its type."""
        import pyarrow as pa

        token = self.token
        self.at += 1
        if token.kind == "quoted":
            parts = token.text[1:-1].split("`.`")
        else:
            parts = token.text.split(".")
        names = {name.lower(): name for name in self.types}
        first = parts[0] if parts[0] in self.types else names.get(parts[0].lower())
        if first is None:
            known = ", ".join(sorted(self.types))
            raise self.error(f"column {parts[0]} cannot be used; expected one of {known}", token)
        kind = self.types[first]
        for part in parts[1:]:
            index = kind.get_field_index(part) if pa.types.is_struct(kind) else -1
            if index < 0:
                raise self.error(f"{token.text}: there is no field {part}", token)
            kind = kind.field(index).type
        if pa.types.is_nested(kind) and not (self.token.kind == "word" and self.token.upper == "IS"):
            raise self.error(f"{token.text} is {kind}, which only IS NULL can test", token)
        return "\0".join([first, *parts[1:]]), kind

    def literals(self, kind: pa.DataType) -> tuple[object, ...]:
        self.expect("(")
        found = [self.literal(kind)]
        while self.accept(","):
            found.append(self.literal(kind))
        self.expect(")")
        return tuple(found)

    def literal_text(self) -> tuple[str, str, _Token]:
        """The kind of the next literal, its text, and its token."""
        token = self.token
        if token.kind in ("text", "number"):
            self.at += 1
            text = token.text[1:-1].replace("''", "'") if token.kind == "text" else token.text
            return token.kind, text, token
        if self.accept("TRUE", "FALSE"):
            return "boolean", token.upper, token
        if self.accept("NULL"):
            raise self.error("a comparison with NULL is never true: use IS NULL", token)
        if (
            token.kind == "word"
            and token.upper in ("DATE", "TIMESTAMP")
            and self.tokens[self.at + 1].kind == "text"
        ):
            self.at += 1
            text = self.token.text[1:-1]
            self.at += 1
            return token.upper.lower(), text, token
        raise self.error("expected a literal: a number, 'text', TRUE or FALSE")

    def literal(self, kind: pa.DataType) -> object:
        """The next literal as a value of the column's type."""
        import pyarrow as pa

        written, text, token = self.literal_text()
        allowed: tuple[str, ...] = ("number",)
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            allowed = ("text",)
        elif pa.types.is_boolean(kind):
            allowed = ("boolean",)
        elif pa.types.is_timestamp(kind):
            allowed = ("timestamp", "date", "text")
        elif pa.types.is_date(kind):
            allowed = ("date", "text")
        if written not in allowed:
            raise self.error(f"a column of type {kind} cannot be compared with {token.text}", token)
        try:
            return _converted(text, kind)
        except (ValueError, ArithmeticError) as error:
            raise self.error(f"{token.text} is not a value of type {kind}: {error}", token) from None


def _converted(text: str, kind: pa.DataType) -> object:
    import datetime
    import decimal

    import pyarrow as pa

    if pa.types.is_boolean(kind):
        return text == "TRUE"
    if pa.types.is_integer(kind):
        # Compare a fraction exactly: 1.5 is neither 1 nor 2.
        return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
    if pa.types.is_floating(kind):
        return float(text)
    if pa.types.is_decimal(kind):
        return decimal.Decimal(text)
    if pa.types.is_timestamp(kind):
        found = datetime.datetime.fromisoformat(text)
        if kind.tz is None:
            if found.tzinfo is not None:
                raise ValueError("it has a zone")
            return found
        return found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)
    if pa.types.is_date(kind):
        return datetime.date.fromisoformat(text)
    if pa.types.is_binary(kind):
        return text.encode()
    return text


def _tokens(text: str) -> Sequence[_Token]:
    found: list[_Token] = []
    at = 0
    end = len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            place = at + len(text[at:]) - len(text[at:].lstrip())
            raise FilterError(text, place, f"unexpected {text[place]!r}")
        found.append(_Token(match.lastgroup, match[match.lastgroup], match.start(match.lastgroup)))
        at = match.end()
    found.append(_Token("end", "", end))
    return found


def mask_of(condition: Condition, column: Callable[[str], pa.Array]) -> pa.Array:
    """For each row whether the condition holds: true, false, or null for unknown."""
    import pyarrow.compute as pc

    if isinstance(condition, Both):
        return pc.and_kleene(mask_of(condition.left, column), mask_of(condition.right, column))
    if isinstance(condition, Either):
        return pc.or_kleene(mask_of(condition.left, column), mask_of(condition.right, column))
    if isinstance(condition, Not):
        return pc.invert(mask_of(condition.inner, column))
    cells = _cells(condition.column, column)
    if isinstance(condition, IsNull):
        return pc.is_null(cells)
    if isinstance(condition, IsTrue):
        return cells
    if isinstance(condition, Like):
        return pc.match_like(cells, condition.pattern)
    if isinstance(condition, In):
        found = [_compared(cells, "=", value) for value in condition.values]
        mask = found[0]
        for other in found[1:]:
            mask = pc.or_kleene(mask, other)
        return mask
    return _compared(cells, condition.sign, condition.value)


def _compared(cells: pa.Array, sign: str, value: object) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    scalar = (
        pa.scalar(value)
        if isinstance(value, int | float)
        else pa.scalar(value, _literal_type(cells.type, value))
    )
    return pc.call_function(_FUNCTIONS[sign], [cells, scalar])


def _literal_type(kind: pa.DataType, value: object) -> pa.DataType | None:
    import pyarrow as pa

    return None if pa.types.is_decimal(kind) or isinstance(value, bool) else kind


def _cells(path: str, column: Callable[[str], pa.Array]) -> pa.Array:
    import pyarrow.compute as pc

    first, *rest = path.split("\0")
    cells = column(first)
    for name in rest:
        cells = pc.struct_field(cells, name)
    return cells
