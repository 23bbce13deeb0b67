"""The syntax of format strings, which writing and parsing records share: literals, and verbs with modifiers.

%v{base64}                  a verb with a modifier
%d{strftime[%F %T]}         a modifier with an argument, between any run of #, [ or {
%h{ %k=%v }                 a format of its own for every header
\\t \\n \\r \\\\ \\xNN %% %{ %}   characters
"""

from __future__ import annotations

from dataclasses import dataclass

ESCAPES = {"t": b"\t", "n": b"\n", "r": b"\r", "\\": b"\\"}
CLOSING = {"#": "#", "[": "]", "{": "}"}
WITH_ARGUMENT = ("unpack", "strftime", "go", "re")


@dataclass(slots=True, frozen=True)
class Literal:
    data: bytes


@dataclass(slots=True, frozen=True)
class Verb:
    """`%` and a letter, with the modifier in braces behind it."""

    letter: str
    modifier: str | None = None
    argument: str | None = None

    def __str__(self) -> str:
        return f"%{self.letter}" + (f"{{{self.modifier}}}" if self.modifier is not None else "")


Token = Literal | Verb


def parse_layout(text: str) -> list[Token]:
    """The parts of a format string; neighbouring characters are one literal. Raises ValueError."""
    tokens: list[Token] = []
    literal = bytearray()
    at = 0
    while at < len(text):
        char = text[at]
        if char == "\\":
            data, at = _escape(text, at + 1)
            literal += data
        elif char != "%":
            literal += char.encode("utf-8", "surrogateescape")
            at += 1
        elif at + 1 == len(text):
            raise ValueError("the format ends with a single %; write %% for a percent sign")
        elif text[at + 1] in "%{}":
            literal += text[at + 1].encode()
            at += 2
        else:
            if literal:
                tokens.append(Literal(bytes(literal)))
                literal.clear()
            verb, at = _verb(text, at + 1)
            tokens.append(verb)
    if literal:
        tokens.append(Literal(bytes(literal)))
    return tokens


def _escape(text: str, at: int) -> tuple[bytes, int]:
    char = text[at : at + 1]
    if char in ESCAPES and char:
        return ESCAPES[char], at + 1
    if char == "x":
        digits = text[at + 1 : at + 3]
        if len(digits) == 2 and all(digit in "0123456789abcdefABCDEF" for digit in digits):
            return bytes([int(digits, 16)]), at + 3
        raise ValueError(f"\\x needs two hexadecimal digits, not {digits!r}")
    raise ValueError(f"\\{char} is unknown: expected \\t, \\n, \\r, \\\\ or \\xNN")


def _verb(text: str, at: int) -> tuple[Verb, int]:
    letter = text[at]
    at += 1
    if text[at : at + 1] != "{":
        return Verb(letter), at
    at += 1
    if letter == "h":
        end = _matching_brace(text, at)
        return Verb(letter, text[at:end]), end + 1
    for name in WITH_ARGUMENT:
        if text.startswith(name, at) and text[at + len(name) : at + len(name) + 1] in tuple(CLOSING):
            argument, end = enclosed(text, at + len(name))
            if text[end : end + 1] != "}":
                raise ValueError(f"%{letter}{{{name}...: the closing }} is missing")
            return Verb(letter, name, argument), end + 1
    end = text.find("}", at)
    if end < 0:
        raise ValueError(f"%{letter}{{: the closing }} is missing")
    return Verb(letter, text[at:end]), end + 1


def _matching_brace(text: str, at: int) -> int:
    depth = 1
    while at < len(text):
        if text[at] == "%" and text[at + 1 : at + 2] in ("{", "}", "%"):
            at += 1
        elif text[at] == "{":
            depth += 1
        elif text[at] == "}":
            depth -= 1
            if depth == 0:
                return at
        at += 1
    raise ValueError("%h{: the closing } is missing")


def enclosed(text: str, at: int) -> tuple[str, int]:
    """The text between a run of #, [ or { and as many closing characters, and the place behind it."""
    opening = text[at]
    run = 1
    while text[at + run : at + run + 1] == opening:
        run += 1
    start, close = at + run, CLOSING[opening] * run
    end = text.find(close, start)
    if end < 0:
        raise ValueError(f"the closing {close} is missing in {text[at:]!r}")
    return text[start:end], end + run
