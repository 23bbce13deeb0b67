"""Decoders of keys and values for `dump-log`: text, numbers, and records of internal topics."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeAlias

from tidelog.protocol.coordinator_records import (
    RecordTypes,
    decode_key,
    decode_value,
    record_type,
    types_of_topic,
)
from tidelog.protocol.json import Json
from tidelog.protocol.wire import ProtocolError
from tidelog.records.batch import Record

Shown: TypeAlias = tuple[str | None, str | None]
RecordDecoder: TypeAlias = Callable[[Record], Shown]
ValueDecoder: TypeAlias = Callable[[bytes], str]

TOMBSTONE = "<DELETE>"


def text(data: bytes) -> str:
    return data.decode(errors="replace")


def number(size: int, name: str) -> ValueDecoder:
    def decode(data: bytes) -> str:
        if len(data) != size:
            return f"({len(data)} bytes are no {name})"
        return str(int.from_bytes(data, signed=True))

    return decode


# By the names of Kafka's classes without their packages.
VALUE_DECODERS: dict[str, ValueDecoder] = {
    "StringDecoder": text,
    "IntegerDecoder": number(4, "integer"),
    "LongDecoder": number(8, "long"),
}


def value_decoder(class_name: str | None) -> ValueDecoder:
    name = (class_name or "StringDecoder").rpartition(".")[2]
    if name not in VALUE_DECODERS:
        raise ValueError(f"decoder {class_name!r} is unknown; expected one of {', '.join(VALUE_DECODERS)}")
    return VALUE_DECODERS[name]


def plain(key: ValueDecoder, value: ValueDecoder) -> RecordDecoder:
    def decode(record: Record) -> Shown:
        return (
            None if record.key is None else key(record.key),
            None if record.value is None else value(record.value),
        )

    return decode


def coordinator_records(types: RecordTypes) -> RecordDecoder:
    """A decoder of records whose keys begin with a type, and values with a version, of two bytes."""

    def decode(record: Record) -> Shown:
        if record.key is None or len(record.key) < 2:
            return "(no key)", None
        kind = record_type(record.key)
        if kind not in types:
            return compact({"type": str(kind), "data": "unknown"}), None
        try:
            key = compact({"type": str(kind), "data": decode_key(types, record.key)})
            if record.value is None:
                return key, TOMBSTONE
            version, value = decode_value(types[kind][1], record.value)
            return key, compact({"version": str(version), "data": value})
        except ProtocolError as error:
            return compact({"type": str(kind), "data": f"unreadable: {error}"}), None

    return decode


def offsets_decoder() -> RecordDecoder:
    """For `__consumer_offsets`."""
    return coordinator_records(types_of_topic("__consumer_offsets"))


def transactions_decoder() -> RecordDecoder:
    """For `__transaction_state`."""
    return coordinator_records(types_of_topic("__transaction_state"))


def share_group_state_decoder() -> RecordDecoder:
    """For `__share_group_state`."""
    return coordinator_records(types_of_topic("__share_group_state"))


def compact(value: Json) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
