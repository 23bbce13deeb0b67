"""Reads Java's properties format, as in `server.properties`: comments, escapes and continued lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tidelog.config.values import ConfigError

_SPACES = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_properties(path: str | Path) -> dict[str, str]:
    """The settings of a file; if a name occurs twice, the last value counts. Raises ConfigError."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise ConfigError(str(path), None, f"cannot be read: {error.strerror}") from None
    return parse_properties(text)


def parse_properties(text: str) -> dict[str, str]:
    return dict(_split(line) for line in _logical_lines(text))


def _logical_lines(text: str) -> Iterator[str]:
    """The lines without comments and blank lines; continued lines are joined."""
    pending = ""
    continued = False
    for natural in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        line = natural.lstrip(_SPACES)
        if not continued and (not line or line[0] in "#!"):
            continue
        # An odd number of backslashes at the end escapes the line's end.
        trailing = len(line) - len(line.rstrip("\\"))
        continued = trailing % 2 == 1
        pending += line[:-1] if continued else line
        if not continued:
            yield pending
            pending = ""
    if pending:
        yield pending


def _split(line: str) -> tuple[str, str]:
    """Name and value; the name ends at the first `=`, `:` or space that is not escaped."""
    end = 0
    while end < len(line) and line[end] not in _SPACES + "=:":
        end += 2 if line[end] == "\\" else 1
    rest = line[end:].lstrip(_SPACES)
    if rest and rest[0] in "=:":
        rest = rest[1:].lstrip(_SPACES)
    return _unescape(line[:end]), _unescape(rest)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if char != "\\" or position == len(text):
            out.append(char if char != "\\" else "")
            continue
        escaped = text[position]
        position += 1
        if escaped == "u":
            digits = text[position : position + 4]
            out.append(_unicode(digits, text))
            position += 4
        else:
            out.append(_ESCAPES.get(escaped, escaped))
    return "".join(out)


def _unicode(digits: str, text: str) -> str:
    if len(digits) == 4 and all(digit in "0123456789abcdefABCDEF" for digit in digits):
        return chr(int(digits, 16))
    raise ConfigError(text, None, "\\u has to be followed by four hexadecimal digits")
