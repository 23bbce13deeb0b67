"""Parses records by a format string, as rpk does: `%k %v{json}\\n`, `%K{big16}%k%V{big32}%v`.

A text without a size reaches to the literal behind it. A size stands before what it sizes. The last
delimiter may be missing at the end of the input.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from tidelog.cli.formats.envelope import NewRecord, compact_json
from tidelog.cli.formats.layout import Literal, Token, Verb, parse_layout
from tidelog.cli.formats.numbers import DIGITS, FIXED, HEX_DIGITS, known_forms
from tidelog.cli.formats.source import ByteSource, UnexpectedEnd

SIZES = {"T": "t", "K": "k", "V": "v", "H": "h"}
# What a record is written with, and numbers that brokers decide: these are read and left out.
NUMBERS = "pdoexy"
TEXTS = "tkv"


@dataclass(slots=True)
class _Parsing:
    """What was parsed of one record so far."""

    source: ByteSource
    sizes: dict[str, int] = field(default_factory=dict)
    texts: dict[str, bytes] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)


Step = Callable[[_Parsing], None]


class RecordParser:
    """`next(source)` returns records one after the other, and None at the end of the input."""

    def __init__(self, layout: str) -> None:
        tokens = parse_layout(layout)
        if not any(isinstance(token, Verb) for token in tokens):
            raise ValueError("a format to parse needs a verb such as %v")
        self._steps, self._reads = _steps(tokens, at_end=True)
        if not self._reads:
            raise ValueError("the format reads nothing: its numbers are fixed")
        letters = {token.letter for token in tokens if isinstance(token, Verb)}
        self.has_topic, self.has_key = "t" in letters, "k" in letters

    def next(self, source: ByteSource) -> NewRecord | None:
        if source.at_end():
            return None
        parsing = _Parsing(source)
        for step in self._steps:
            step(parsing)
        texts, numbers = parsing.texts, parsing.numbers
        topic = texts.get("t")
        return NewRecord(
            None if topic is None else topic.decode(),
            numbers.get("p"),
            numbers.get("d"),
            texts.get("k"),
            texts.get("v"),
            tuple(parsing.headers),
        )


def _steps(tokens: list[Token], *, at_end: bool) -> tuple[list[Step], bool]:
    """The steps of a format, and whether they read anything."""
    steps: list[Step] = []
    seen: set[str] = set()
    reads = False
    at = 0
    while at < len(tokens):
        token = tokens[at]
        at += 1
        if isinstance(token, Literal):
            steps.append(_exact(token.data, optional=at_end and at == len(tokens)))
            reads = True
            continue
        if token.letter in seen:
            raise ValueError(f"{token} is there twice")
        seen.add(token.letter)
        if token.letter in SIZES:
            if SIZES[token.letter] in seen:
                raise ValueError(f"%{token.letter} must stand before %{SIZES[token.letter]}")
            steps.append(_number(token, _into_sizes(token.letter)))
            reads = reads or not _is_fixed(token)
        elif token.letter in NUMBERS:
            steps.append(_number(token, _into_numbers(token.letter)))
            reads = reads or not _is_fixed(token)
        elif token.letter in TEXTS:
            delimiter: bytes | None = None
            following = tokens[at] if at < len(tokens) else None
            if _is_open(token, seen) and isinstance(following, Literal):
                delimiter = following.data
                at += 1
            elif _is_open(token, seen) and following is not None:
                raise ValueError(f"{token} has no end: put a delimiter, its size or a pattern")
            steps.append(_text(token, seen, delimiter, or_end=at_end and at == len(tokens)))
            reads = True
        elif token.letter == "h":
            if "H" not in seen:
                raise ValueError("%h needs the number of headers before it: %H")
            steps.append(_headers(token))
            reads = True
        else:
            known = [*TEXTS, *SIZES, *NUMBERS, "h"]
            raise ValueError(f"{token} cannot be parsed: the verbs are %{' %'.join(known)}")
    return steps, reads


def _is_open(verb: Verb, seen: set[str]) -> bool:
    """Whether neither a size nor a modifier says where the text ends."""
    return verb.letter.upper() not in seen and verb.modifier not in ("json", "re")


def _is_fixed(verb: Verb) -> bool:
    return verb.modifier is not None and verb.modifier.isdigit()


def _into_sizes(letter: str) -> Callable[[_Parsing, int], None]:
    return lambda parsing, number: parsing.sizes.__setitem__(letter, number)


def _into_numbers(letter: str) -> Callable[[_Parsing, int], None]:
    return lambda parsing, number: parsing.numbers.__setitem__(letter, number)


def _exact(data: bytes, *, optional: bool) -> Step:
    def step(parsing: _Parsing) -> None:
        if optional and parsing.source.at_end():
            return
        found = parsing.source.take(len(data))
        if found != data:
            raise ValueError(f"expected {data!r}, and found {found!r}")

    return step


def _number(verb: Verb, put: Callable[[_Parsing, int], None]) -> Step:
    read = number_reader(verb.modifier)
    return lambda parsing: put(parsing, read(parsing.source))


def number_reader(name: str | None) -> Callable[[ByteSource], int]:
    """Reads numbers in a form; `{3}` reads nothing and is 3."""
    if name is None or name in DIGITS:
        return _digits
    if name.isdigit() and int(name) > 0:
        fixed = int(name)
        return lambda source: fixed
    if name == "bool":
        return _bool
    if name in HEX_DIGITS:
        count = HEX_DIGITS[name]
        return lambda source: _hex(source.take(count))
    if name in FIXED:
        size, order = FIXED[name]
        if order == "little":
            return lambda source: int.from_bytes(source.take(size), "little")
        return lambda source: int.from_bytes(source.take(size), "big")
    forms = [form for form in known_forms() if form != "hex"]
    raise ValueError(f"{name!r} is no form of a number: expected {', '.join(forms)} or a number")


def _digits(source: ByteSource) -> int:
    found = source.while_digits()
    if not found:
        raise ValueError("expected a number")
    return int(found)


def _hex(data: bytes) -> int:
    if not re.fullmatch(rb"[0-9a-fA-F]+", data):
        raise ValueError(f"{data!r} is no hexadecimal number")
    return int(data, 16)


def _bool(source: ByteSource) -> int:
    found = source.take(4)
    if found == b"true":
        return 1
    if found == b"fals" and source.take(1) == b"e":
        return 0
    raise ValueError(f"expected true or false, and found {found!r}")


def _text(verb: Verb, seen: set[str], delimiter: bytes | None, *, or_end: bool) -> Step:
    letter, size_letter = verb.letter, verb.letter.upper()
    decode = text_decoder(verb)
    read: Callable[[_Parsing], bytes]
    if size_letter in seen:
        if verb.modifier in ("json", "re"):
            raise ValueError(f"{verb} has a size already: %{size_letter}")
        read = lambda parsing: parsing.source.take(parsing.sizes[size_letter])  # noqa: E731
    elif verb.modifier == "json":
        read = lambda parsing: parsing.source.json_value()  # noqa: E731
    elif verb.modifier == "re":
        try:
            pattern = re.compile((verb.argument or "").encode())
        except re.error as error:
            raise ValueError(f"{verb.argument!r} is no regular expression: {error}") from None
        read = lambda parsing: parsing.source.matching(pattern)  # noqa: E731
    elif delimiter is not None:
        end = delimiter
        read = lambda parsing: parsing.source.until(end, or_end=or_end)  # noqa: E731
    else:
        read = lambda parsing: parsing.source.rest()  # noqa: E731

    def step(parsing: _Parsing) -> None:
        parsing.texts[letter] = decode(read(parsing))

    return step


def text_decoder(verb: Verb) -> Callable[[bytes], bytes]:
    """Turns what stands in the input into the bytes of a record."""
    if verb.modifier in (None, "", "re"):
        return lambda data: data
    if verb.modifier == "hex":
        return _from_hex
    if verb.modifier in ("base64", "base64raw"):
        return _from_base64
    if verb.modifier == "json":
        return _compact
    raise ValueError(f"{verb} cannot be parsed: expected hex, base64, base64raw, json or re[...]")


def _from_hex(data: bytes) -> bytes:
    try:
        return bytes.fromhex(data.decode())
    except ValueError:
        raise ValueError(f"{data[:40]!r} is not hexadecimal") from None


def _from_base64(data: bytes) -> bytes:
    try:
        return base64.b64decode(data + b"=" * (-len(data) % 4), validate=True)
    except ValueError:
        raise ValueError(f"{data[:40]!r} is no base64") from None


def _compact(data: bytes) -> bytes:
    try:
        return compact_json(data).encode()
    except ValueError as error:
        raise ValueError(f"{data[:40]!r} is no JSON: {error}") from None


def _headers(verb: Verb) -> Step:
    if verb.modifier is None:
        raise ValueError("%h needs a format for each header: %h{%k=%v,}")
    tokens = parse_layout(verb.modifier)
    if any(isinstance(token, Verb) and token.letter not in "kvKV" for token in tokens):
        raise ValueError("%h{...} takes %k, %v, %K and %V")
    steps, reads = _steps(tokens, at_end=False)
    if not reads:
        raise ValueError("%h{...} reads nothing")

    def step(parsing: _Parsing) -> None:
        for _ in range(parsing.sizes["H"]):
            if parsing.source.at_end():
                raise UnexpectedEnd("the input ends before the last header")
            inner = _Parsing(parsing.source)
            for each in steps:
                each(inner)
            name = inner.texts.get("k", b"").decode("utf-8", "surrogateescape")
            parsing.headers.append((name, inner.texts.get("v")))

    return step
