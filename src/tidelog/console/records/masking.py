"""Masking rules: fields and patterns of keys, values and headers that the console must not show.

A rule names topics by a pattern. It removes, masks or replaces fields by their path, or what a regular
expression finds. If a decoder gives no fields to mask, or shows bytes, the whole key or value is hidden:
another choice of decoder must not go around a rule. So the decoder of the topic itself decides whether a
rule hides something; another decoder then shows nothing of the key or value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

import re2

from tidelog.console.records.decoder import TEXT, Decoded, to_text
from tidelog.protocol.json import Json

if TYPE_CHECKING:
    from tidelog.console.records.cel_values import Pattern

HIDDEN = "[hidden]"
ANY = "*"
MAX_DEPTH = 200
RAW = "protobuf-raw"
# These show the text of the record, in which a pattern can be found. Others show bytes in another form.
TEXTUAL = (TEXT, "json", "avro", "avro-container", "protobuf", "msgpack", "kafka")

Change: TypeAlias = Callable[[Json], Json]


class MaskAction(StrEnum):
    REMOVE = "remove"
    MASK = "mask"
    REPLACE = "replace"


class MaskTarget(StrEnum):
    KEY = "key"
    VALUE = "value"
    HEADERS = "headers"


class MaskError(ValueError):
    """A rule is not valid; the message says what is wrong."""


@dataclass(slots=True, frozen=True)
class MaskRule:
    """One rule. `fields` are paths such as user.email or *.card, headers by name; `pattern` is a regex.

    Without fields and pattern the rule applies to the whole key, value or headers.
    """

    topic: str
    action: MaskAction = MaskAction.MASK
    target: MaskTarget = MaskTarget.VALUE
    fields: tuple[str, ...] = ()
    pattern: str = ""
    replacement: str = HIDDEN


class Mask:
    """A compiled rule."""

    def __init__(self, rule: MaskRule) -> None:
        self.rule = rule
        self._topic = _compiled(rule.topic, "topic")
        self._pattern = _compiled(rule.pattern, "pattern") if rule.pattern else None
        self._paths = tuple(tuple(path.split(".")) for path in rule.fields)
        if any(not part for path in self._paths for part in path):
            raise MaskError(f"fields {', '.join(rule.fields)}: a path has an empty name")
        # Protobuf without a schema has numbers for names, and may take an inner message for a text.
        self._has_numbers = all(
            len(path) == 1 and (path[0].isdecimal() or path[0] == ANY) for path in self._paths
        )

    def applies_to(self, topic: str) -> bool:
        return self._topic.fullmatch(topic) is not None

    def apply(self, decoded: Decoded) -> Decoded:
        """The key or value without what the rule hides."""
        if decoded.text is None:
            return decoded
        if self._paths:
            if not decoded.is_container or (decoded.kind == RAW and not self._has_numbers):
                return _hidden(decoded, self.rule, "fields cannot be masked in this form")
            value = decoded.value
            for path in self._paths:
                value = _at(value, path, self._changed, self.rule.action is MaskAction.REMOVE, 0)
        elif self._pattern is not None:
            if decoded.kind not in TEXTUAL:
                return _hidden(decoded, self.rule, "a pattern cannot be masked in this form")
            value = self._substituted(decoded.value, 0)
        else:
            return _hidden(decoded, self.rule, "")
        if value == decoded.value:
            return replace(decoded, text=to_text(value)) if decoded.is_container else decoded
        text = value if isinstance(value, str) else to_text(value)
        return replace(decoded, value=value, text=text, note=_note(decoded))

    def hides_in(self, decoded: Decoded) -> bool:
        """Whether the rule hides something of a key or value."""
        return self.apply(decoded).value != decoded.value

    def hidden(self, decoded: Decoded) -> Decoded:
        return _hidden(decoded, self.rule, f"{decoded.kind} is not the decoder of the topic")

    def apply_to_header(self, name: str, decoded: Decoded) -> Decoded | None:
        """A header without what the rule hides; None if the rule removes it."""
        if self.rule.fields and name not in self.rule.fields and ANY not in self.rule.fields:
            return decoded
        if self.rule.action is MaskAction.REMOVE and self._pattern is None:
            return None
        if self._pattern is None or decoded.text is None:
            return _hidden(decoded, self.rule, "")
        if decoded.kind not in TEXTUAL:
            return _hidden(decoded, self.rule, "a pattern cannot be masked in this form")
        value = self._substituted(decoded.value, 0)
        text = value if isinstance(value, str) else to_text(value)
        return replace(decoded, value=value, text=text)

    def _changed(self, value: Json) -> Json:
        if self._pattern is not None:
            return self._substituted(value, 0)
        return _replacement(self.rule, value)

    def _substituted(self, value: Json, depth: int) -> Json:
        """The value with every match of the pattern changed, in texts, names and numbers."""
        if depth > MAX_DEPTH:
            return HIDDEN
        if isinstance(value, dict):
            return {
                str(self._substituted(name, depth + 1)): self._substituted(item, depth + 1)
                for name, item in value.items()
            }
        if isinstance(value, list):
            return [self._substituted(item, depth + 1) for item in value]
        if value is None or isinstance(value, bool):
            return value
        assert self._pattern is not None
        text = value if isinstance(value, str) else to_text(value)
        changed = self._replaced(text)
        return value if changed == text else changed

    def _replaced(self, text: str) -> str:
        assert self._pattern is not None
        if self.rule.action is MaskAction.REPLACE:
            return str(self._pattern.sub(lambda match: self.rule.replacement, text))
        if self.rule.action is MaskAction.REMOVE:
            return str(self._pattern.sub(lambda match: "", text))
        return str(self._pattern.sub(lambda match: masked(match.group()), text))


def masked(text: str) -> str:
    """The text with X for capitals, x for small letters and n for digits: its form stays readable."""
    return "".join(
        "n" if char.isdigit() else ("X" if char.isupper() else "x") if char.isalpha() else char
        for char in text
    )


def _replacement(rule: MaskRule, value: Json) -> Json:
    if rule.action is MaskAction.REPLACE:
        return rule.replacement
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, dict | list):
        return HIDDEN
    return None if value is None else masked(to_text(value))


def _at(value: Json, path: tuple[str, ...], change: Change, remove: bool, depth: int) -> Json:
    """The value with the fields at a path changed. Lists are entered; `*` stands for any one name."""
    if depth > MAX_DEPTH:
        return HIDDEN
    if isinstance(value, list):
        return [_at(item, path, change, remove, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    first, rest = path[0], path[1:]
    found: dict[str, Json] = {}
    for name, item in value.items():
        if first not in (ANY, name):
            found[name] = item
        elif rest:
            found[name] = _at(item, rest, change, remove, depth + 1)
        elif not remove:
            found[name] = change(item)
    return found


def _hidden(decoded: Decoded, rule: MaskRule, why: str) -> Decoded:
    text = rule.replacement if rule.action is MaskAction.REPLACE else HIDDEN
    return Decoded(text, decoded.kind, "", text, (), f"masked: {why}" if why else "masked")


def _note(decoded: Decoded) -> str:
    if decoded.note.endswith("masked"):
        return decoded.note
    return f"{decoded.note}; masked" if decoded.note else "masked"


def _compiled(pattern: str, what: str) -> Pattern:
    options = re2.Options()
    options.log_errors = False
    try:
        made: Pattern = re2.compile(pattern, options)
    except re2.error as error:
        raise MaskError(f"{what} {pattern!r} is not a regular expression: {error}") from None
    return made


class TopicMasks:
    """The rules of one topic."""

    def __init__(self, masks: Iterable[Mask]) -> None:
        self._by_target: dict[MaskTarget, list[Mask]] = {target: [] for target in MaskTarget}
        for mask in masks:
            self._by_target[mask.rule.target].append(mask)

    def __bool__(self) -> bool:
        return any(self._by_target.values())

    def key(self, decoded: Decoded, own: Decoded) -> Decoded:
        """The key without what the rules hide. `own` is the key as the decoder of the topic reads it."""
        return self._all(MaskTarget.KEY, decoded, own)

    def value(self, decoded: Decoded, own: Decoded) -> Decoded:
        return self._all(MaskTarget.VALUE, decoded, own)

    def _all(self, target: MaskTarget, decoded: Decoded, own: Decoded) -> Decoded:
        is_other = decoded.kind != own.kind
        for mask in self._by_target[target]:
            # A text that a pattern finds in a field is not always found where the field is a part of a text.
            decoded = mask.hidden(decoded) if is_other and mask.hides_in(own) else mask.apply(decoded)
        # Reasons quote bytes of the record.
        return replace(decoded, reason="", tried=()) if self._by_target[target] else decoded

    def headers(self, headers: tuple[tuple[str, Decoded], ...]) -> tuple[tuple[str, Decoded], ...]:
        for mask in self._by_target[MaskTarget.HEADERS]:
            headers = tuple(
                (name, shown)
                for name, decoded in headers
                if (shown := mask.apply_to_header(name, decoded)) is not None
            )
        return headers


class Masks:
    """All masking rules. `of_topic` returns the rules of a topic; the result is false if there are none."""

    def __init__(self, rules: Iterable[MaskRule] = ()) -> None:
        self._masks = tuple(Mask(rule) for rule in rules)

    def of_topic(self, topic: str) -> TopicMasks:
        return TopicMasks(mask for mask in self._masks if mask.applies_to(topic))
