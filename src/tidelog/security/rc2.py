"""RC2 (RFC 2268), decryption only: key stores that Java wrote before 2021 have their certificates in it.

Its key of 40 bits protects nothing, and no library offers it any more.
"""

from __future__ import annotations

import struct

BLOCK_SIZE = 8

_PI = bytes.fromhex(
    "d978f9c419ddb5ed28e9fd794aa0d89dc67e37832b76538e624c6488448bfba2"
    "179a59f587b34f1361456d8d09817d32bd8f40eb86b77b0bf09521225c6b4e82"
    "54d66593ce60b21c7356c014a78cf1dc1275ca1f3bbee4d1423dd430a33cb626"
    "6fbf0eda4669075727f21d9bbc944303f811c7f690ef3ee706c3d52fc8661ed7"
    "08e8eade8052eef784aa72ac354d6a2a961ad2715a1549744b9fd05e0418a4ec"
    "c2e0416e0f51cbcc2491af50a1f47039997c3a8523b8b47afc02365b25559731"
    "2d5dfa98e38a92ae05df2910676cbac9d300e6cfe19ea82c6316013f58e289a9"
    "0d38341bab33ffb0bb480c5fb9b1cd2ec5f3db47e5a59c770aa62068fe7fc1ad"
)
_SHIFTS = (1, 2, 3, 5)
_BLOCK = struct.Struct("<4H")


def decrypt_cbc(key: bytes, iv: bytes, data: bytes) -> bytes:
    """The plain text, with its padding. All bits of the key count."""
    words, plain, before = _expanded(key), bytearray(), iv
    for start in range(0, len(data), BLOCK_SIZE):
        block = data[start : start + BLOCK_SIZE]
        plain += bytes(a ^ b for a, b in zip(_block(words, block), before, strict=True))
        before = block
    return bytes(plain)


def _expanded(key: bytes) -> tuple[int, ...]:
    size, table = len(key), bytearray(key.ljust(128, b"\0"))
    for at in range(size, 128):
        table[at] = _PI[(table[at - 1] + table[at - size]) & 0xFF]
    table[128 - size] = _PI[table[128 - size]]
    for at in range(127 - size, -1, -1):
        table[at] = _PI[table[at + 1] ^ table[at + size]]
    return struct.unpack("<64H", table)


def _block(words: tuple[int, ...], block: bytes) -> bytes:
    r, at = list(_BLOCK.unpack(block)), 63
    for rounds in (5, 6, 5):
        for _ in range(rounds):
            for i in (3, 2, 1, 0):
                shift = _SHIFTS[i]
                rotated = (r[i] >> shift | r[i] << 16 - shift) & 0xFFFF
                mixed = (r[i - 1] & r[i - 2]) + (~r[i - 1] & r[i - 3])
                r[i] = (rotated - words[at] - mixed) & 0xFFFF
                at -= 1
        if at > 0:
            for i in (3, 2, 1, 0):
                r[i] = (r[i] - words[r[i - 1] & 63]) & 0xFFFF
    return _BLOCK.pack(*r)
