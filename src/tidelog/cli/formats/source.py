"""ByteSource: the input of `produce`, read in pieces, so that a person at a terminal is heard at once."""

from __future__ import annotations

import re
from collections.abc import Callable

PIECE = 1 << 16
JSON_SPACE = b" \t\n\r"
IN_STRING = re.compile(rb'["\\]')
STRUCTURE = re.compile(rb'["{}\[\]]')
SCALAR_END = re.compile(rb'[\s,\]}"\[{:]')


class UnexpectedEnd(ValueError):
    """The input ends within a record."""


class ByteSource:
    """Reads what a format asks for: so many bytes, up to a delimiter, a number, a JSON value, a pattern."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._data = bytearray()
        self._at = 0
        self._ended = False

    def _more(self) -> bool:
        """Read another piece; False at the end of the input."""
        if self._ended:
            return False
        if self._at > PIECE:
            del self._data[: self._at]
            self._at = 0
        piece = self._read(PIECE)
        self._ended = not piece
        self._data += piece
        return not self._ended

    def at_end(self) -> bool:
        return self._at >= len(self._data) and not self._more()

    def _taken(self, end: int, behind: int | None = None) -> bytes:
        found = bytes(self._data[self._at : end])
        self._at = end if behind is None else behind
        return found

    def take(self, size: int) -> bytes:
        """So many bytes. Raises UnexpectedEnd if the input has fewer."""
        while len(self._data) - self._at < size:
            if not self._more():
                raise UnexpectedEnd(f"the input ends {size - len(self._data) + self._at} bytes too early")
        return self._taken(self._at + size)

    def until(self, delimiter: bytes, *, or_end: bool) -> bytes:
        """The bytes before a delimiter, which is skipped; with `or_end` the end of the input is one, too."""
        searched = 0
        while True:
            start = max(self._at, self._at + searched - len(delimiter) + 1)
            found = self._data.find(delimiter, start)
            if found >= 0:
                return self._taken(found, found + len(delimiter))
            searched = len(self._data) - self._at
            if not self._more():
                if or_end:
                    return self._taken(len(self._data))
                raise UnexpectedEnd(f"the input ends before {delimiter!r}")

    def rest(self) -> bytes:
        while self._more():
            pass
        return self._taken(len(self._data))

    def while_digits(self) -> bytes:
        end = self._at
        while True:
            while end < len(self._data) and 48 <= self._data[end] <= 57:
                end += 1
            if end < len(self._data):
                return self._taken(end)
            length = end - self._at
            if not self._more():
                return self._taken(len(self._data))
            end = self._at + length

    def matching(self, pattern: re.Pattern[bytes]) -> bytes:
        """The longest match here. A match that reaches the end of what was read may become longer."""
        while True:
            found = pattern.match(self._data, self._at)
            if found is not None and found.end() < len(self._data):
                end = found.end()
                found = None  # releases the buffer, which may be resized then
                return self._taken(end)
            end = -1 if found is None else found.end()
            found = None
            if not self._more():
                if end < 0:
                    shown = bytes(self._data[self._at : self._at + 40])
                    raise ValueError(f"{shown!r} does not match {pattern.pattern.decode()!r}")
                return self._taken(end)

    def json_value(self) -> bytes:
        """One JSON value, with the space before it."""
        while True:
            end = json_end(self._data, self._at, at_end=self._ended)
            if end is not None:
                return self._taken(end)
            if not self._more() and json_end(self._data, self._at, at_end=True) is None:
                raise UnexpectedEnd("the input ends within a JSON value")


def json_end(data: bytes | bytearray, at: int, *, at_end: bool) -> int | None:
    """The place behind the JSON value here; None if the data ends before. Its inside is not checked."""
    while at < len(data) and data[at] in JSON_SPACE:
        at += 1
    if at == len(data):
        return None
    if data[at] == 34:
        return _string_end(data, at + 1)
    if data[at] not in b"{[":
        found = SCALAR_END.search(data, at)
        if found is not None:
            return found.start() if found.start() > at else at + 1
        return len(data) if at_end else None
    depth = 0
    while True:
        mark = STRUCTURE.search(data, at)
        if mark is None:
            return None
        at = mark.end()
        if mark[0] == b'"':
            behind = _string_end(data, at)
            if behind is None:
                return None
            at = behind
        elif mark[0] in (b"{", b"["):
            depth += 1
        else:
            depth -= 1
            if depth == 0:
                return at


def _string_end(data: bytes | bytearray, at: int) -> int | None:
    while True:
        mark = IN_STRING.search(data, at)
        if mark is None:
            return None
        if mark[0] == b'"':
            return mark.end()
        at = mark.end() + 1
