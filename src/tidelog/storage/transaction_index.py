"""The transaction index of a segment (`.txnindex`), in Kafka's format: its aborted transactions."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

ENTRY_SIZE = 34
VERSION = 0
_ENTRY = struct.Struct(">hqqqq")


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def encode(self) -> bytes:
        return _ENTRY.pack(VERSION, *self)


def encode_transaction_index(entries: Iterable[AbortedTransaction]) -> bytes:
    return b"".join(entry.encode() for entry in entries)


class CorruptTransactionIndex(ValueError):
    """A transaction index that is torn or malformed; recovery rebuilds it from the log."""


def decode_transaction_index(data: bytes | bytearray, base_offset: int) -> list[AbortedTransaction]:
    if len(data) % ENTRY_SIZE:
        raise CorruptTransactionIndex(f"{len(data)} bytes are not whole entries of {ENTRY_SIZE}")
    entries = []
    for version, *fields in _ENTRY.iter_unpack(data):
        entry = AbortedTransaction(*fields)
        if version > VERSION or version < 0:
            raise CorruptTransactionIndex(f"an entry has version {version}, only {VERSION} is known")
        if entry.last_offset < base_offset:
            raise CorruptTransactionIndex(f"offset {entry.last_offset} is below the segment's {base_offset}")
        entries.append(entry)
    return entries
