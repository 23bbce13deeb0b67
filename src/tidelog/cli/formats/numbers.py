"""How numbers stand in a format: digits, hexadecimal digits, or bytes in either order."""

from __future__ import annotations

import struct
from collections.abc import Callable

WriteNumber = Callable[[int], bytes]

MASK = (1 << 64) - 1
HEX_DIGITS = {"hex64": 16, "hex32": 8, "hex16": 4, "hex8": 2, "hex4": 1}
WIDTHS = {"64": 8, "32": 4, "16": 2, "8": 1}
FIXED: dict[str, tuple[int, str]] = {"byte": (1, "big")} | {
    f"{order}{bits}": (size, order) for order in ("big", "little") for bits, size in WIDTHS.items()
}
"""The size and the byte order of numbers that are bytes."""
DIGITS = ("ascii", "number")


def number_writer(name: str | None) -> WriteNumber:
    """Writes numbers in a form; larger numbers lose their upper bits. Raises ValueError for other names."""
    if name is None or name in DIGITS:
        return lambda number: b"%d" % number
    if name == "hex":
        return lambda number: b"%x" % (number & MASK)
    if name == "bool":
        return lambda number: b"true" if number else b"false"
    if name in HEX_DIGITS:
        digits = HEX_DIGITS[name]
        mask = (1 << 4 * digits) - 1
        return lambda number: f"{number & mask:0{digits}x}".encode()
    if name in FIXED:
        size, order = FIXED[name]
        cut = (1 << 8 * size) - 1
        if order == "little":
            return lambda number: (number & cut).to_bytes(size, "little")
        return lambda number: (number & cut).to_bytes(size, "big")
    raise ValueError(f"{name!r} is no form of a number: expected {', '.join(known_forms())}")


def known_forms() -> list[str]:
    return [*DIGITS, "hex", *HEX_DIGITS, *FIXED, "bool"]


UNPACKED = {
    "b": struct.Struct("b"), "B": struct.Struct("B"), "h": struct.Struct("h"), "H": struct.Struct("H"),
    "i": struct.Struct("i"), "I": struct.Struct("I"), "q": struct.Struct("q"), "Q": struct.Struct("Q"),
}  # fmt: skip


def unpacker(layout: str) -> Callable[[bytes], bytes]:
    """Writes bytes as the numbers of a layout: `<` and `>` set the byte order of what follows.

    b, B, h, H, i, I, q and Q are numbers as in Python's struct, c and . are a character, s is the rest, x is
    nothing, $ is the end. Missing and surplus bytes show as a note in the output.
    """
    order = "<"
    steps: list[tuple[str, struct.Struct | None]] = []
    for char in layout:
        if steps and steps[-1][0] in "s$":
            raise ValueError(f"unpack: nothing can follow {steps[-1][0]!r}")
        if char in "<>":
            order = char
        elif char in UNPACKED:
            steps.append((char, struct.Struct(order + char)))
        elif char in "c.s$":
            steps.append((char, None))
        elif char != "x":
            raise ValueError(f"unpack: {char!r} is unknown; expected one of xbBhHiIqQc.s$<>")

    def unpack(data: bytes) -> bytes:
        out = bytearray()
        at = 0
        for char, number in steps:
            left = len(data) - at
            if number is not None:
                if left < number.size:
                    out += b"%%!(have %d bytes, need %d)" % (left, number.size)
                    at = len(data)
                else:
                    out += b"%d" % number.unpack_from(data, at)[0]
                    at += number.size
            elif char == "s":
                out += data[at:]
                at = len(data)
            elif char == "$":
                out += b"%!$(not end-of-input)" if left else b""
            elif left:
                out += data[at : at + 1]
                at += 1
            else:
                out += b"%!c(no bytes available)"
        return bytes(out)

    return unpack
