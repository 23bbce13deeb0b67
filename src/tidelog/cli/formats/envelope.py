"""Records as JSON: the envelope of kcat's -J, which `produce -J` reads again, and the objects of rpk.

Bytes that are not UTF-8 are `{"base64": "..."}`, so that every line is JSON and nothing is lost.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.records.loops import ConsumerRecord

JsonText = str | dict[str, str] | None
Headers = tuple[tuple[str, bytes | None], ...]

SPACE_OR_STRING = re.compile(r'("(?:[^"\\]|\\.)*")|[ \t\n\r]+')
TIMESTAMP_TYPES = {0: "create", 1: "logappend"}


@dataclass(slots=True)
class NewRecord:
    """A record to write; `topic` and `partition` are None where the input does not name them."""

    topic: str | None = None
    partition: int | None = None
    timestamp: int | None = None
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()


def json_text(data: bytes | None) -> JsonText:
    if data is None:
        return None
    try:
        return bytes(data).decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def bytes_of(value: object, where: str) -> bytes | None:
    """The bytes of a `json_text`; any other JSON is written as JSON. Raises ValueError for bad base64."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, dict) and value.keys() == {"base64"}:
        try:
            return base64.b64decode(str(value["base64"]), validate=True)
        except ValueError as error:
            raise ValueError(f"{where} is no base64: {error}") from None
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def compact_json(data: bytes) -> str:
    """JSON without the space between its parts; numbers stay as they are written. Raises ValueError."""
    _loaded(data)
    return SPACE_OR_STRING.sub(lambda found: found[1] or "", data.decode())


def _loaded(data: bytes) -> object:
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def header_name(name: str) -> str:
    """A name for JSON: bytes that are not UTF-8 become replacement characters."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def envelope(record: ConsumerRecord[bytes, bytes], broker: int = -1) -> dict[str, object]:
    """A record as kcat's -J shows it: headers are names and values in turn."""
    found: dict[str, object] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
    }
    if record.timestamp >= 0:
        found["tstype"] = TIMESTAMP_TYPES.get(record.timestamp_type, "unknown")
        found["ts"] = record.timestamp
    found["broker"] = broker
    if record.headers:
        found["headers"] = [
            each for name, value in record.headers for each in (header_name(name), json_text(value))
        ]
    found["key"] = json_text(record.key)
    found["payload"] = json_text(record.value)
    return found


def from_envelope(line: bytes) -> NewRecord:
    """The record of a line that `envelope` made. Raises ValueError if the line is none."""
    try:
        found = _loaded(line)
    except ValueError as error:
        raise ValueError(f"a line is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"a line is no JSON object: {line[:80]!r}")
    record = NewRecord(key=bytes_of(found.get("key"), "key"), value=bytes_of(found.get("payload"), "payload"))
    topic = found.get("topic")
    if topic is not None:
        record.topic = str(topic)
    record.partition = _whole(found, "partition")
    record.timestamp = _whole(found, "ts")
    headers = found.get("headers") or []
    if isinstance(headers, dict):
        record.headers = tuple((name, bytes_of(value, "a header")) for name, value in headers.items())
    elif isinstance(headers, list) and len(headers) % 2 == 0:
        pairs = zip(headers[::2], headers[1::2], strict=True)
        record.headers = tuple((str(name), bytes_of(value, "a header")) for name, value in pairs)
    else:
        raise ValueError("headers are not a list of names and values in turn")
    return record


def _whole(found: dict[str, object], name: str) -> int | None:
    value = found.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} is {value!r}, which is no whole number")
    return value if value >= 0 else None


def rpk_object(record: ConsumerRecord[bytes, bytes], *, meta_only: bool = False) -> dict[str, object]:
    """A record as rpk's default format shows it."""
    found: dict[str, object] = {"topic": record.topic, "key": json_text(record.key)}
    if meta_only:
        found["value_size"] = len(record.value or b"")
    else:
        found["value"] = json_text(record.value)
    found["headers"] = [
        {"key": header_name(name), "value": json_text(value)} for name, value in record.headers
    ]
    found |= {"timestamp": record.timestamp, "partition": record.partition, "offset": record.offset}
    return found
