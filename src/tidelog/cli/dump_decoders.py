"""Decoders of keys and values for `dump-log`: text, numbers, and records of internal topics."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeAlias

from tidelog.protocol.json import Json, to_json
from tidelog.protocol.message import Message
from tidelog.protocol.wire import ProtocolError
from tidelog.records.batch import Record

Shown: TypeAlias = tuple[str | None, str | None]
RecordDecoder: TypeAlias = Callable[[Record], Shown]
ValueDecoder: TypeAlias = Callable[[bytes], str]
RecordTypes: TypeAlias = dict[int, tuple[type[Message], type[Message]]]

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
        kind = int.from_bytes(record.key[:2], signed=True)
        if kind not in types:
            return compact({"type": str(kind), "data": "unknown"}), None
        key_class, value_class = types[kind]
        try:
            key = compact({"type": str(kind), "data": to_json(key_class.decode(record.key[2:], 0), 0)})
            return key, TOMBSTONE if record.value is None else decode_value(value_class, record.value)
        except ProtocolError as error:
            return compact({"type": str(kind), "data": f"unreadable: {error}"}), None

    return decode


def decode_value(value_class: type[Message], data: bytes) -> str:
    version = int.from_bytes(data[:2], signed=True)
    value = to_json(value_class.decode(data[2:], version), version)
    if value.get("protocolType") == "consumer":
        show_members(value)
    return compact({"version": str(version), "data": value})


def show_members(group: dict[str, Json]) -> None:
    """Decode the subscriptions and assignments of the members of a group."""
    from base64 import b64decode

    from tidelog.protocol.messages.consumer_protocol import (
        ConsumerProtocolAssignment,
        ConsumerProtocolSubscription,
    )

    members = group.get("members")
    for member in members if isinstance(members, list) else ():
        if not isinstance(member, dict):
            continue
        for name, kind in (
            ("subscription", ConsumerProtocolSubscription),
            ("assignment", ConsumerProtocolAssignment),
        ):
            data = b64decode(str(member[name]))
            if len(data) >= 2:
                version = min(int.from_bytes(data[:2], signed=True), kind.VERSIONS.high)
                member[name] = dict(to_json(kind.decode(data[2:], version), version))


def offsets_decoder() -> RecordDecoder:
    """For `__consumer_offsets`."""
    from tidelog.protocol.messages import group_records

    return coordinator_records(record_types(group_records.__dict__))


def transactions_decoder() -> RecordDecoder:
    """For `__transaction_state`."""
    from tidelog.protocol.messages import transaction_records

    return coordinator_records(record_types(transaction_records.__dict__))


def share_group_state_decoder() -> RecordDecoder:
    """For `__share_group_state`."""
    from tidelog.protocol.messages import share_state_records

    return coordinator_records(record_types(share_state_records.__dict__))


def record_types(names: dict[str, object]) -> RecordTypes:
    """The key and value classes of a module, by the type of the record."""
    keys: dict[int, type[Message]] = {}
    values: dict[int, type[Message]] = {}
    for name, found in names.items():
        if not (isinstance(found, type) and issubclass(found, Message)) or found is Message:
            continue
        if found.KEY is not None:
            (keys if name.endswith("Key") else values)[found.KEY] = found
    return {kind: (keys[kind], values[kind]) for kind in keys if kind in values}


def compact(value: Json) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
