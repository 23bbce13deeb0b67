"""Decoders and their results: text for a person, a value for filters and masks, and the reason for both.

A decoder never raises for the bytes of a record. If it cannot read them, it returns the bytes as text or
hex, and the reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from tidelog.protocol.json import Json

MAX_DEPTH = 64
"""Nested containers beyond this depth are refused: a record must not exhaust the stack."""
MAX_ITEMS = 200_000
"""Fields and items of one record. A few bytes can declare billions of empty items."""
MAX_TEXT = 4 << 20
"""Characters of one decoded record."""
NULL = "null"
HEX = "hex"
TEXT = "text"


class DecodeError(ValueError):
    """The bytes are not what the decoder reads; the message says what is wrong."""


@dataclass(slots=True, frozen=True)
class Attempt:
    """A decoder that could not read a record, and why."""

    kind: str
    reason: str


@dataclass(slots=True, frozen=True)
class Decoded:
    """A key or value as text. `kind` names the decoder that made the text.

    `reason` says why the requested decoder failed; it is empty if the decoder succeeded. `value` is the
    structure behind the text. `tried` has the decoders that failed before the automatic choice.
    """

    text: str | None
    kind: str
    reason: str = ""
    value: Json = None
    tried: tuple[Attempt, ...] = ()
    note: str = ""
    """A fact beside the text, such as the schema id of the wire format."""

    @property
    def is_container(self) -> bool:
        return isinstance(self.value, dict | list)


NOTHING = Decoded(None, NULL)


@dataclass(slots=True, frozen=True)
class Read:
    """What a decoder reads from bytes: a JSON value, its text unless that is the value's JSON, a note."""

    value: Json
    text: str | None = None
    note: str = ""


class Decoder:
    """Decodes keys or values. Subclasses implement `read`, and give `name` and `about`."""

    name: str = ""
    about: str = ""
    keeps_text: bool = False
    """Whether printable UTF-8 is shown as it stands, also if the decoder cannot read it."""

    def read(self, data: bytes) -> Read:
        """Read the bytes of a key or value. Raises DecodeError."""
        raise NotImplementedError

    def decode(self, data: bytes | None) -> Decoded:
        """The bytes as text. If the decoder fails, text or hex, and the reason."""
        if data is None:
            return NOTHING
        try:
            return self.attempt(data)
        except DecodeError as error:
            return fallback(data, str(error))

    def attempt(self, data: bytes) -> Decoded:
        """The bytes as this decoder reads them. Raises DecodeError."""
        try:
            found = self.read(data)
            text = to_text(found.value) if found.text is None else found.text
        except (RecursionError, OverflowError) as error:
            raise DecodeError(f"too deeply nested or too large a number ({type(error).__name__})") from None
        if len(text) > MAX_TEXT:
            raise DecodeError(f"decodes to {len(text)} characters; {MAX_TEXT} are shown at most")
        return Decoded(text, self.name, value=found.value, note=found.note)


class FunctionDecoder(Decoder):
    """A decoder made of one function."""

    def __init__(
        self, name: str, about: str, read: Callable[[bytes], Read], *, keeps_text: bool = False
    ) -> None:
        self.name = name
        self.about = about
        self.keeps_text = keeps_text
        self._read = read

    def read(self, data: bytes) -> Read:
        return self._read(data)


def to_text(value: Json) -> str:
    """JSON on one line."""
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))


def fallback(data: bytes, reason: str, tried: tuple[Attempt, ...] = ()) -> Decoded:
    """The bytes as text if they are printable UTF-8, otherwise as hex."""
    text = printable(data)
    if text is not None:
        return Decoded(text, TEXT, reason, text, tried)
    shown = data.hex(" ")
    return Decoded(shown, HEX, reason, shown, tried)


def printable(data: bytes) -> str | None:
    """The bytes as UTF-8 text; None if they are not, or have control characters beside white space."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    if text.isprintable():
        return text
    return None if any(is_control(char) for char in text) else text


def is_control(char: str) -> bool:
    code = ord(char)
    return (code < 32 and char not in "\t\n\r") or 127 <= code < 160
