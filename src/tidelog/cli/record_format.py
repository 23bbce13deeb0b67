"""Formats records as kafka-console-consumer does, with its formatters and their settings, or as JSON."""

from __future__ import annotations

import base64
import json
import math
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.clients.serialization import Deserialize
    from tidelog.records.loops import ConsumerRecord

Format = Callable[["ConsumerRecord"], bytes]

TIMESTAMP_TYPES = {0: "CreateTime", 1: "LogAppendTime"}
NOT_PRESENT = "NOT_PRESENT"
# The formatters of internal topics, with the types of keys that each prints.
INTERNAL = {
    "OffsetsMessageFormatter": (0, 1),
    "GroupMetadataMessageFormatter": (2,),
    "TransactionLogMessageFormatter": (0,),
}
OFFERED = ("DefaultMessageFormatter", "LoggingMessageFormatter", "NoOpMessageFormatter", *INTERNAL)


def formatter(kind: str, properties: Mapping[str, str]) -> Format:
    """The formatter of a name: Kafka's class name, with or without its package."""
    name = kind.rpartition(".")[2]
    if name == "NoOpMessageFormatter":
        return lambda record: b""
    if name == "LoggingMessageFormatter":
        plain = DefaultFormat.of(properties)

        def line(record: ConsumerRecord) -> bytes:
            sys.stderr.write(logged(record))  # as Kafka's formatter, which writes to its log
            return plain.line(record)

        return line
    if name == "DefaultMessageFormatter":
        return DefaultFormat.of(properties).line
    if name in INTERNAL:
        return coordinator_record(name)
    raise ValueError(f"--formatter {kind}: expected one of {', '.join(OFFERED)}")


def coordinator_record(name: str) -> Format:
    """Formats records of the coordinators' topics as Kafka's JSON, one on each line; leaves out other types.

    The first two bytes of a key are its type, the first two bytes of a value are its version.
    """
    from tidelog.cli.dump_decoders import compact
    from tidelog.protocol.coordinator_records import types_of_topic
    from tidelog.protocol.json import Json, to_json

    log = name == "TransactionLogMessageFormatter"
    types = types_of_topic("__transaction_state" if log else "__consumer_offsets")

    def line(record: ConsumerRecord) -> bytes:
        kind = int.from_bytes((record.key or b"")[:2], signed=True)
        if not record.key or kind not in INTERNAL[name]:
            return b""
        key_class, value_class = types[kind]
        value: Json = None
        if record.value is not None:
            version = int.from_bytes(record.value[:2], signed=True)
            value = {
                "version": version,
                "data": to_json(value_class.decode(record.value[2:], version), version),
            }
        key: Json = {"type": kind, "data": to_json(key_class.decode(record.key[2:], 0), 0)}
        return compact({"key": key, "value": value}).encode() + b"\n"

    return line


@dataclass(slots=True, frozen=True)
class DefaultFormat:
    """Columns in Kafka's order: time, partition, offset, delivery, epoch, headers, key, value."""

    shown: frozenset[str]
    key_separator: bytes
    line_separator: bytes
    headers_separator: bytes
    null_literal: bytes
    key: Deserialize | None
    value: Deserialize | None
    headers: Deserialize | None

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> DefaultFormat:
        def text(name: str, default: str) -> bytes:
            return properties.get(name, default).encode()

        columns = ("timestamp", "partition", "offset", "delivery", "epoch", "headers", "key", "value")
        chosen = {
            column
            for column in columns
            if properties.get(f"print.{column}", "true" if column == "value" else "").strip().lower()
            == "true"
        }
        return cls(
            frozenset(chosen),
            text("key.separator", "\t"),
            text("line.separator", "\n"),
            text("headers.separator", ","),
            text("null.literal", "null"),
            *(
                shown_by(name, properties.get(name))
                for name in ("key.deserializer", "value.deserializer", "headers.deserializer")
            ),
        )

    def line(self, record: ConsumerRecord) -> bytes:
        shown = self.shown
        columns: list[bytes] = []
        if "timestamp" in shown:
            kind = TIMESTAMP_TYPES.get(record.timestamp_type)
            columns.append(b"NO_TIMESTAMP" if kind is None else f"{kind}:{record.timestamp}".encode())
        if "partition" in shown:
            columns.append(b"Partition:%d" % record.partition)
        if "offset" in shown:
            columns.append(b"Offset:%d" % record.offset)
        if "delivery" in shown:
            columns.append(f"Delivery:{NOT_PRESENT}".encode())  # only share groups count deliveries
        if "epoch" in shown:
            epoch = NOT_PRESENT if record.leader_epoch < 0 else record.leader_epoch
            columns.append(f"Epoch:{epoch}".encode())
        if "headers" in shown:
            columns.append(self._headers(record))
        if "key" in shown:
            columns.append(self._text(record, record.key, self.key))
        if "value" in shown:
            columns.append(self._text(record, record.value, self.value))
        return self.key_separator.join(columns) + self.line_separator if columns else b""

    def _headers(self, record: ConsumerRecord) -> bytes:
        if not record.headers:
            return b"NO_HEADERS"
        return self.headers_separator.join(
            name.encode() + b":" + self._text(record, value, self.headers) for name, value in record.headers
        )

    def _text(self, record: ConsumerRecord, data: bytes | None, deserialize: Deserialize | None) -> bytes:
        if data is None:
            return self.null_literal
        if deserialize is None:
            return data
        return str(deserialize(record.topic, record.headers, data)).encode()


def shown_by(name: str, given: str | None) -> Deserialize | None:
    """The deserializer of a setting, whose results are printed as Java prints them."""
    from tidelog.clients.serialization import deserializer

    found = deserializer(name, given)
    kind = (given or "").rpartition(".")[2].removesuffix("Deserializer")
    if kind == "String":
        return lambda topic, headers, data: bytes(data or b"").decode(errors="replace")
    if kind == "Bytes":
        return lambda topic, headers, data: escaped(bytes(data or b""))
    if found is not None and kind in ("Float", "Double", "Boolean"):
        return lambda topic, headers, data: java_text(found(topic, headers, data), kind == "Float")
    return found


def escaped(data: bytes) -> str:
    return "".join(chr(c) if 32 <= c < 127 and c != 92 else f"\\x{c:02X}" for c in data)


def java_text(value: object, single: bool) -> str:
    """A boolean or a number as Java's toString: the shortest exact digits, and E for large numbers."""
    if not isinstance(value, float):
        return str(value).lower()
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    text = repr(value)
    if single:
        tries = (f"{value:.{places}g}" for places in range(1, 10))
        text = next(found for found in tries if struct.pack(">f", float(found)) == struct.pack(">f", value))
    number = Decimal(text)
    if number == 0 or -3 <= number.adjusted() < 7:
        plain = f"{number:f}"
        return plain if "." in plain else plain + ".0"
    digits = "".join(map(str, number.as_tuple().digits)).rstrip("0")
    sign = "-" if value < 0 else ""
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{number.adjusted()}"


def logged(record: ConsumerRecord) -> str:
    kind = TIMESTAMP_TYPES.get(record.timestamp_type)
    when = "" if kind is None else f"{kind}:{record.timestamp}, "
    key = "null" if record.key is None else record.key.decode(errors="replace")
    value = "null" if record.value is None else record.value.decode(errors="replace")
    return f"{when}key:{key}, value:{value}\n"


def as_json(record: ConsumerRecord) -> bytes:
    """A record as a line of JSON; bytes that are not UTF-8 are in base64."""
    shown = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": TIMESTAMP_TYPES.get(record.timestamp_type),
        "headers": [[name, readable(value)] for name, value in record.headers],
        "key": readable(record.key),
        "value": readable(record.value),
    }
    return json.dumps(shown, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def readable(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return bytes(data).decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
