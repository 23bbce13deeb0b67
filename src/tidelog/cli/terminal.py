"""Text of others on a terminal: control characters could move the cursor or change what a person sees."""

from __future__ import annotations

import re

# Everything below a space but tab and newline, DEL, and the 8-bit controls.
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
LINE_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """A text for one line of a terminal: control characters as \\x1b."""
    return LINE_CONTROLS.sub(lambda found: _escaped(ord(found[0])), text)


def visible_bytes(data: bytes) -> bytes:
    """Bytes for a terminal, with tabs and newlines: other control characters as \\x1b, bad UTF-8 as \\xff."""
    text = data.decode("utf-8", "backslashreplace")
    return CONTROLS.sub(lambda found: _escaped(ord(found[0])), text).encode()


def visible_json(text: str) -> str:
    """JSON for a terminal: what JSON leaves as it is, escaped in JSON's way."""
    return CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escaped(code: int) -> str:
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
