"""The syntax of CEL, the Common Expression Language: text in, a tree out. Nothing is evaluated here.

An expression is limited in length and depth, so that neither parsing nor evaluating it can exhaust the stack.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

MAX_LENGTH = 4000
MAX_DEPTH = 100

Constant: TypeAlias = bool | int | float | str | bytes | None


class CelError(ValueError):
    """The expression is wrong, or cannot be evaluated for a record; the message says why and where."""


@dataclass(slots=True, frozen=True)
class Literal:
    value: Constant


@dataclass(slots=True, frozen=True)
class Name:
    name: str
    position: int


@dataclass(slots=True, frozen=True)
class Select:
    operand: Node
    field: str
    position: int


@dataclass(slots=True, frozen=True)
class Index:
    operand: Node
    index: Node
    position: int


@dataclass(slots=True, frozen=True)
class Call:
    """A function with its arguments, or a method, whose target is not None."""

    name: str
    target: Node | None
    arguments: tuple[Node, ...]
    position: int


@dataclass(slots=True, frozen=True)
class Unary:
    operator: str
    operand: Node
    position: int


@dataclass(slots=True, frozen=True)
class Binary:
    operator: str
    left: Node
    right: Node
    position: int


@dataclass(slots=True, frozen=True)
class Logical:
    """`&&` or `||` of two or more operands."""

    operator: str
    operands: tuple[Node, ...]
    position: int


@dataclass(slots=True, frozen=True)
class Conditional:
    condition: Node
    then: Node
    otherwise: Node
    position: int


@dataclass(slots=True, frozen=True)
class ListOf:
    items: tuple[Node, ...]


@dataclass(slots=True, frozen=True)
class MapOf:
    entries: tuple[tuple[Node, Node], ...]


Node: TypeAlias = (
    Literal | Name | Select | Index | Call | Unary | Binary | Logical | Conditional | ListOf | MapOf
)

_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r\n]+|//[^\n]*)
    | (?P<float>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\.\d+(?:[eE][+-]?\d+)?)
    | (?P<int>0[xX][0-9a-fA-F]+[uU]?|\d+[uU]?)
    | (?P<string>[rRbB]{0,2}(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<operator>&&|\|\||==|!=|<=|>=|[-+*/%<>!?:.,()\[\]{}])
    """,
    re.VERBOSE,
)
_ESCAPES = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", "'": "'", '"': '"', "`": "`", "?": "?",
}  # fmt: skip
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.))", re.S)
_RELATIONS = ("==", "!=", "<", "<=", ">", ">=", "in")
_RESERVED = {"as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop"}
_RESERVED |= {"package", "namespace", "return", "var", "void", "while"}


@dataclass(slots=True, frozen=True)
class _Token:
    kind: str
    text: str
    position: int


def parse(text: str) -> Node:
    """The tree of an expression. Raises CelError with the position of the fault."""
    if len(text) > MAX_LENGTH:
        raise CelError(f"the expression has {len(text)} characters; {MAX_LENGTH} are allowed")
    parser = _Parser(_tokens(text))
    found = parser.expression()
    parser.expect_end()
    return found


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise CelError(f"{text[position]!r} at character {position + 1} is not understood")
        kind = str(match.lastgroup)
        if kind != "space":
            found.append(_Token(kind, match.group(), position + 1))
        position = match.end()
    found.append(_Token("end", "the end", len(text) + 1))
    return found


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self, *texts: str) -> _Token | None:
        token = self._next
        if token.text in texts and token.kind in ("operator", "name"):
            self._at += 1
            return token
        return None

    def _expect(self, text: str) -> _Token:
        token = self._take(text)
        if token is None:
            raise self._unexpected(f"expected {text!r}")
        return token

    def _unexpected(self, wanted: str) -> CelError:
        return CelError(f"{self._next.text!r} at character {self._next.position}: {wanted}")

    def expect_end(self) -> None:
        if self._next.kind != "end":
            raise self._unexpected("expected an operator or the end")

    def _enter(self, levels: int = 1) -> None:
        self._depth += levels
        if self._depth > MAX_DEPTH:
            raise CelError(f"the expression is nested deeper than {MAX_DEPTH}")

    def expression(self) -> Node:
        before = self._depth
        self._enter()
        condition = self._logical("||")
        mark = self._take("?")
        if mark is not None:
            then = self._logical("||")
            self._expect(":")
            condition = Conditional(condition, then, self.expression(), mark.position)
        self._depth = before
        return condition

    def _logical(self, operator: str) -> Node:
        part = self._relation if operator == "&&" else lambda: self._logical("&&")
        operands = [part()]
        position = self._next.position
        while self._take(operator):
            operands.append(part())
        return operands[0] if len(operands) == 1 else Logical(operator, tuple(operands), position)

    def _relation(self) -> Node:
        left = self._sum()
        before = self._depth
        while (token := self._take(*_RELATIONS)) is not None:
            self._enter()
            left = Binary(token.text, left, self._sum(), token.position)
        self._depth = before
        return left

    def _sum(self) -> Node:
        left = self._product()
        before = self._depth
        while (token := self._take("+", "-")) is not None:
            self._enter()
            left = Binary(token.text, left, self._product(), token.position)
        self._depth = before
        return left

    def _product(self) -> Node:
        left = self._unary()
        before = self._depth
        while (token := self._take("*", "/", "%")) is not None:
            self._enter()
            left = Binary(token.text, left, self._unary(), token.position)
        self._depth = before
        return left

    def _unary(self) -> Node:
        before = self._depth
        signs: list[_Token] = []
        while (token := self._take("!", "-")) is not None:
            self._enter()
            signs.append(token)
        if signs and signs[-1].text == "-" and self._next.kind in ("int", "float"):
            signs.pop()
            found = self._number(negative=True)
            found = self._members(found)
        else:
            found = self._members(self._primary())
        for sign in reversed(signs):
            found = Unary(sign.text, found, sign.position)
        self._depth = before
        return found

    def _members(self, found: Node) -> Node:
        before = self._depth
        while (token := self._take(".", "[")) is not None:
            self._enter()
            if token.text == "[":
                found = Index(found, self.expression(), token.position)
                self._expect("]")
                continue
            name = self._next
            if name.kind != "name":
                raise self._unexpected("expected the name of a field after the dot")
            self._at += 1
            if self._take("("):
                found = Call(name.text, found, self._arguments(")"), name.position)
            else:
                found = Select(found, name.text, name.position)
        self._depth = before
        return found

    def _arguments(self, closing: str) -> tuple[Node, ...]:
        found: list[Node] = []
        while not self._take(closing):
            if found:
                self._expect(",")
                if self._take(closing):
                    break
            found.append(self.expression())
        return tuple(found)

    def _primary(self) -> Node:
        token = self._next
        if token.kind in ("int", "float"):
            return self._number()
        if token.kind == "string":
            self._at += 1
            return Literal(_string(token))
        if token.kind == "name":
            self._at += 1
            return self._name(token)
        if self._take("("):
            found = self.expression()
            self._expect(")")
            return found
        if self._take("["):
            return ListOf(self._arguments("]"))
        if self._take("{"):
            return self._map()
        raise self._unexpected("expected a value")

    def _name(self, token: _Token) -> Node:
        if token.text in ("true", "false", "null"):
            return Literal({"true": True, "false": False}.get(token.text))
        if token.text in _RESERVED or token.text == "in":
            raise CelError(f"{token.text!r} at character {token.position} is a reserved word")
        if self._take("("):
            return Call(token.text, None, self._arguments(")"), token.position)
        return Name(token.text, token.position)

    def _map(self) -> Node:
        entries: list[tuple[Node, Node]] = []
        while not self._take("}"):
            if entries:
                self._expect(",")
                if self._take("}"):
                    break
            key = self.expression()
            self._expect(":")
            entries.append((key, self.expression()))
        return MapOf(tuple(entries))

    def _number(self, *, negative: bool = False) -> Node:
        token = self._next
        self._at += 1
        if token.kind == "float":
            return Literal(-float(token.text) if negative else float(token.text))
        number = int(token.text.rstrip("uU"), 16 if token.text[:2] in ("0x", "0X") else 10)
        number = -number if negative else number
        if not -(1 << 63) <= number < 1 << 64:
            raise CelError(f"{token.text} at character {token.position} has more than 64 bits")
        return Literal(number)


def _string(token: _Token) -> str | bytes:
    quote = min(at for at in (token.text.find('"'), token.text.find("'")) if at >= 0)
    prefix, body = token.text[:quote].lower(), token.text[quote + 1 : -1]
    text = body if "r" in prefix else _ESCAPE.sub(lambda match: _unescaped(match, token), body)
    if "b" not in prefix:
        return text
    # Escapes of byte strings are bytes, other characters their UTF-8.
    return text.encode("latin-1") if all(ord(char) < 256 for char in text) else text.encode()


def _unescaped(match: re.Match[str], token: _Token) -> str:
    hexadecimal = match.group(1) or match.group(2) or match.group(3)
    if hexadecimal:
        code = int(hexadecimal, 16)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise CelError(f"{match.group()} at character {token.position} is not a character")
        return chr(code)
    if match.group(4):
        return chr(int(match.group(4), 8))
    found = _ESCAPES.get(match.group(5))
    if found is None:
        raise CelError(f"escape {match.group()!r} in the text at character {token.position} is unknown")
    return found
