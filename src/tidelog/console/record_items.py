"""Records as the API and the pages show them: texts of bounded length, and the fields of their batch."""

from __future__ import annotations

import json

from msgspec import Struct

from tidelog.console.records.decoder import Decoded
from tidelog.console.records.log_record import ShownRecord

PREVIEW = 5000
"""Characters of a key or value in a list of records; one record alone is whole."""
MAX_HEADERS = 200
# Marks that turn the direction of text: a value must not rearrange the page around it.
TURNING = {
    code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F)
}
CONTROLS = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n\r"} | {127: "\u2421"}


class AttemptItem(Struct):
    """A decoder that failed, and why."""

    kind: str
    reason: str


class DecodedItem(Struct):
    """A key, value or header. `text` is null for null; `is_cut` if it is only the beginning."""

    text: str | None
    kind: str
    reason: str = ""
    note: str = ""
    tried: list[AttemptItem] = []
    is_cut: bool = False


class HeaderItem(Struct):
    name: str
    value: DecodedItem


class RecordItem(Struct):
    """A record. Sizes are -1 for null, producer id and sequence are -1 if the batch has none.

    `transaction` is none, committed, aborted, open or undecided; `control` names the marker of a control
    record.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: str
    key: DecodedItem
    value: DecodedItem
    headers: list[HeaderItem]
    key_size: int
    value_size: int
    codec: str
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    sequence: int
    transaction: str
    control: str | None
    is_masked: bool


def record_item(shown: ShownRecord, limit: int | None = PREVIEW) -> RecordItem:
    """A record for the API. `limit` cuts long texts."""
    record = shown.record
    return RecordItem(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        timestamp_ms=record.timestamp,
        timestamp_type="LogAppendTime" if record.log_append_time else "CreateTime",
        key=_item(shown.key, limit),
        value=_item(shown.value, limit),
        headers=[HeaderItem(name, _item(header, limit)) for name, header in shown.headers[:MAX_HEADERS]],
        key_size=record.key_size,
        value_size=record.value_size,
        codec=record.codec,
        leader_epoch=record.leader_epoch,
        producer_id=record.producer_id,
        producer_epoch=record.producer_epoch,
        sequence=record.sequence,
        transaction=str(record.transaction),
        control=record.control,
        is_masked=shown.masked,
    )


def _item(decoded: Decoded, limit: int | None) -> DecodedItem:
    text = decoded.text
    is_cut = text is not None and limit is not None and len(text) > limit
    return DecodedItem(
        text[:limit] if text is not None else None,
        decoded.kind,
        decoded.reason,
        decoded.note,
        [AttemptItem(attempt.kind, attempt.reason) for attempt in decoded.tried],
        is_cut,
    )


def visible(text: str | None) -> str:
    """The text with control characters as symbols and turning marks as escapes; templates escape HTML."""
    if text is None:
        return ""
    return text if text.isprintable() else text.translate(CONTROLS | TURNING)


def pretty(item: DecodedItem) -> str:
    """The text with JSON indented, as far as it is whole."""
    text = item.text
    if text is None or item.is_cut or text[:1] not in ("{", "["):
        return visible(text)
    try:
        return visible(json.dumps(json.loads(text), indent=2, ensure_ascii=False))
    except (ValueError, RecursionError):
        return visible(text)
