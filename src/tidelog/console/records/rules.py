"""The rules file of the console: decoders, schema files and masks by topic. JSON.

```json
{"decoders": [{"topic": "rides", "value": "avro", "schema": "ride.avsc"}],
 "masks": [{"topic": "users.*", "fields": ["email"], "action": "mask"}]}
```
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import re2

from tidelog.console.records.decoder import Decoded, DecodeError, Decoder
from tidelog.console.records.decoders import AUTO, Decoders, RecordDecoder, schema_decoder
from tidelog.console.records.log_record import LogRecord, ShownRecord
from tidelog.console.records.masking import (
    HIDDEN,
    MaskAction,
    MaskError,
    MaskRule,
    Masks,
    MaskTarget,
    TopicMasks,
)

T = TypeVar("T")
DECODER_FIELDS = {"topic", "key", "value", "keySchema", "valueSchema", "keyMessage", "valueMessage"}
MASK_FIELDS = {"topic", "action", "target", "fields", "pattern", "replacement"}


class RulesError(ValueError):
    """The rules file is not valid; the message names the entry and what is wrong."""


@dataclass(slots=True, frozen=True)
class TopicDecoders:
    """The decoders that a rule gives to the topics of a pattern: names, and decoders with schemas."""

    topic: str
    key: str = AUTO
    value: str = AUTO
    key_schema: Decoder | None = None
    value_schema: Decoder | None = None

    def applies_to(self, topic: str) -> bool:
        return re2.fullmatch(self.topic, topic) is not None


NO_RULE = TopicDecoders(".*")


class RecordView:
    """How records of a topic are shown: decoded, then masked. `own` is the decoder of the topic's rule."""

    def __init__(self, decoder: RecordDecoder, masks: TopicMasks, own: RecordDecoder | None = None) -> None:
        self._decoder = decoder
        self._own = own
        self._masks = masks
        self._headers = Decoders().get(AUTO)
        self.is_masked = bool(masks)
        self.keeps_text = decoder.keeps_text and not masks
        """Whether printable UTF-8 is shown as it stands in keys, values and headers."""

    def show(self, record: LogRecord) -> ShownRecord:
        key, value = self._decoder.decode(record.key, record.value)
        headers = tuple((name, self._headers.decode(data)) for name, data in record.headers)
        masks = self._masks
        if not masks:
            return ShownRecord(record, key, value, headers)
        own = (key, value) if self._own is None else self._own.decode(record.key, record.value)
        key, value = masks.key(key, own[0]), masks.value(value, own[1])
        return ShownRecord(record, key, value, masks.headers(headers), True)


@dataclass(slots=True, frozen=True)
class RecordRules:
    """The decoders and masks of all topics."""

    decoders: tuple[TopicDecoders, ...] = ()
    masks: Masks = field(default_factory=Masks)

    @classmethod
    def load(cls, path: str | Path) -> RecordRules:
        """Read the file, and the schemas that it names relative to itself. Raises RulesError."""
        path = Path(path)
        try:
            found = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise RulesError(f"{path}: {error}") from None
        return cls.parse(found, path.parent)

    @classmethod
    def parse(cls, found: object, folder: Path) -> RecordRules:
        if not isinstance(found, dict) or not found.keys() <= {"decoders", "masks"}:
            raise RulesError('expected an object with "decoders" and "masks"')
        entries = [_entry(entry, DECODER_FIELDS, "decoders") for entry in _list(found.get("decoders", []))]
        masks = [_entry(entry, MASK_FIELDS, "masks") for entry in _list(found.get("masks", []))]
        try:
            return cls(
                tuple(_decoders(entry, folder) for entry in entries), Masks(_mask(entry) for entry in masks)
            )
        except (DecodeError, MaskError) as error:
            raise RulesError(str(error)) from None

    def of_topic(self, topic: str) -> TopicDecoders:
        """The first rule whose pattern matches the whole name of the topic."""
        return next((rule for rule in self.decoders if rule.applies_to(topic)), NO_RULE)

    def choices(self, topic: str) -> tuple[Decoders, Decoders]:
        """The decoders of keys and of values that can be chosen for a topic."""
        rule = self.of_topic(topic)
        return (
            Decoders(() if rule.key_schema is None else (rule.key_schema,)),
            Decoders(() if rule.value_schema is None else (rule.value_schema,)),
        )

    def view(self, topic: str, key: str = "", value: str = "") -> RecordView:
        """How to show records of a topic; an empty name is the topic's own decoder. Raises DecodeError."""
        rule = self.of_topic(topic)
        keys, values = self.choices(topic)
        decoder = RecordDecoder.choose(topic, keys, values, key or rule.key, value or rule.value)
        own = RecordDecoder.choose(topic, keys, values, rule.key, rule.value) if key or value else None
        return RecordView(decoder, self.masks.of_topic(topic), own)


def _list(found: object) -> list[object]:
    if not isinstance(found, list):
        raise RulesError('"decoders" and "masks" are lists')
    return found


def _entry(entry: object, known: set[str], where: str) -> Mapping[str, object]:
    if not isinstance(entry, dict) or "topic" not in entry:
        raise RulesError(f"an entry of {where} has no topic")
    unknown = entry.keys() - known
    if unknown:
        names = ", ".join(sorted(known))
        raise RulesError(f"{', '.join(sorted(unknown))} in {where} is unknown; expected {names}")
    return entry


def _text(entry: Mapping[str, object], name: str, default: str) -> str:
    found = entry.get(name, default)
    if not isinstance(found, str):
        raise RulesError(f"{name} of topic {entry['topic']!r} is not a text")
    return found


def _decoders(entry: Mapping[str, object], folder: Path) -> TopicDecoders:
    topic = _text(entry, "topic", "")
    try:
        re2.compile(topic)
    except re2.error as error:
        raise RulesError(f"topic {topic!r} is not a regular expression: {error}") from None
    schemas: list[Decoder | None] = []
    for part in ("key", "value"):
        path = _text(entry, f"{part}Schema", "")
        kind = _text(entry, part, AUTO)
        message = _text(entry, f"{part}Message", "") or None
        schemas.append(schema_decoder(kind, folder / path, message) if path else None)
        if not path:
            Decoders().get(kind)
    return TopicDecoders(topic, _text(entry, "key", AUTO), _text(entry, "value", AUTO), *schemas)


def _mask(entry: Mapping[str, object]) -> MaskRule:
    fields = entry.get("fields", [])
    if not isinstance(fields, list) or not all(isinstance(path, str) for path in fields):
        raise RulesError(f"fields of topic {entry['topic']!r} are a list of paths")
    try:
        return MaskRule(
            _text(entry, "topic", ""),
            MaskAction(_text(entry, "action", "mask")),
            MaskTarget(_text(entry, "target", "value")),
            tuple(fields),
            _text(entry, "pattern", ""),
            _text(entry, "replacement", HIDDEN),
        )
    except ValueError as error:
        raise RulesError(f"mask of topic {entry['topic']!r}: {error}") from None


__all__ = ["Decoded", "RecordRules", "RecordView", "RulesError", "TopicDecoders"]
