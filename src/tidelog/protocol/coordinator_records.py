"""Records of the coordinators' topics as JSON: `__consumer_offsets`, `__transaction_state` and the like.

A key begins with its type, a value with its version, both of two bytes.
"""

from __future__ import annotations

from base64 import b64decode
from importlib import import_module
from typing import TypeAlias

from tidelog.protocol.json import Json, to_json
from tidelog.protocol.message import Message
from tidelog.protocol.wire import ProtocolError

RecordTypes: TypeAlias = dict[int, tuple[type[Message], type[Message]]]

TOPICS = {
    "__consumer_offsets": "group_records",
    "__transaction_state": "transaction_records",
    "__share_group_state": "share_state_records",
}
"""The topics of the coordinators, and the modules with their messages."""


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


def types_of_topic(topic: str) -> RecordTypes:
    """The record types of an internal topic. KeyError if the topic is not one of `TOPICS`."""
    module = import_module(f"tidelog.protocol.messages.{TOPICS[topic]}")
    return record_types(vars(module))


def record_type(key: bytes) -> int:
    return int.from_bytes(key[:2], signed=True)


def decode_key(types: RecordTypes, key: bytes) -> dict[str, Json]:
    """The fields of a key. Raises ProtocolError if the type is unknown or the bytes do not match it."""
    kind = record_type(key)
    if len(key) < 2 or kind not in types:
        raise ProtocolError(f"record type {kind} is unknown; expected one of {sorted(types)}")
    return to_json(types[kind][0].decode(key[2:], 0), 0)


def decode_value(value_class: type[Message], data: bytes) -> tuple[int, dict[str, Json]]:
    """The version and the fields of a value, with members of consumer groups decoded, too."""
    version = int.from_bytes(data[:2], signed=True)
    value = to_json(value_class.decode(data[2:], version), version)
    if value.get("protocolType") == "consumer":
        _show_members(value)
    return version, value


def _show_members(group: dict[str, Json]) -> None:
    """Decode the subscriptions and assignments of the members of a group."""
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
