"""Writes records by a format string, as rpk does: `%t %p %o %k %v{hex}\\n`."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tidelog.cli.formats.envelope import compact_json, json_text
from tidelog.cli.formats.go_times import go_time
from tidelog.cli.formats.layout import Literal, Verb, parse_layout
from tidelog.cli.formats.numbers import number_writer, unpacker
from tidelog.cli.terminal import visible_bytes, visible_json

if TYPE_CHECKING:
    from tidelog.clients.consumer.details import Watermarks
    from tidelog.records.batch import BatchHeader
    from tidelog.records.loops import ConsumerRecord


@dataclass(slots=True, frozen=True)
class Shown:
    """A record to write, with what is known about its partition and its batch."""

    record: ConsumerRecord[bytes, bytes]
    number: int = 1
    """How many records were written, with this one."""
    marks: Watermarks | None = None
    broker: int = -1
    """The leader of the partition, where the format shows it."""

    @property
    def batch(self) -> BatchHeader | None:
        return getattr(self.record, "batch", None)


Write = Callable[[Shown], bytes]
Text = Callable[[bytes], bytes]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

NUMBERS: dict[str, Callable[[Shown], int]] = {
    "T": lambda shown: len(shown.record.topic.encode()),
    "K": lambda shown: len(shown.record.key or b""),
    "V": lambda shown: len(shown.record.value or b""),
    "H": lambda shown: len(shown.record.headers),
    "p": lambda shown: shown.record.partition,
    "o": lambda shown: shown.record.offset,
    "e": lambda shown: shown.record.leader_epoch,
    "i": lambda shown: shown.number,
    "x": lambda shown: shown.batch.producer_id if shown.batch else -1,
    "y": lambda shown: shown.batch.producer_epoch if shown.batch else -1,
    "[": lambda shown: shown.marks.log_start if shown.marks else -1,
    "|": lambda shown: shown.marks.last_stable if shown.marks else -1,
    "]": lambda shown: shown.marks.high if shown.marks else -1,
}
TEXTS: dict[str, Callable[[Shown], bytes | None]] = {
    "t": lambda shown: shown.record.topic.encode(),
    "k": lambda shown: shown.record.key,
    "v": lambda shown: shown.record.value,
}
ATTRIBUTES: dict[str, Callable[[Shown], int]] = {
    "compression": lambda shown: shown.batch.attributes & 7 if shown.batch else 0,
    "timestamp-type": lambda shown: shown.record.timestamp_type,
    "transactional-bit": lambda shown: int(shown.batch.is_transactional) if shown.batch else 0,
    "control-bit": lambda shown: int(shown.batch.is_control) if shown.batch else 0,
}
OF_BATCH, OF_PARTITION = "xya", "[|]"


class RecordFormatter:
    """Writes records. `escape` keeps control characters of records away from a terminal.

    `needs_batch` and `needs_marks` say whether the format shows details of the batch or the partition.
    """

    def __init__(self, layout: str, *, escape: bool = False) -> None:
        tokens = parse_layout(layout)
        self._parts = [_writer(token, escape) for token in tokens]
        letters = {token.letter for token in tokens if isinstance(token, Verb)}
        self.needs_batch = bool(letters & set(OF_BATCH))
        self.needs_marks = bool(letters & set(OF_PARTITION))

    def write(self, shown: Shown) -> bytes:
        return b"".join([part(shown) for part in self._parts])


def _writer(token: Literal | Verb, escape: bool) -> Write:
    if isinstance(token, Literal):
        data = token.data
        return lambda shown: data
    if token.letter in NUMBERS:
        number, write = NUMBERS[token.letter], number_writer(token.modifier)
        return lambda shown: write(number(shown))
    if token.letter in TEXTS:
        field, text = TEXTS[token.letter], text_writer(token, escape)
        return lambda shown: text(field(shown))
    if token.letter == "d":
        time = time_writer(token)
        return lambda shown: time(shown.record.timestamp)
    if token.letter == "a":
        return attribute_writer(token)
    if token.letter == "h":
        return headers_writer(token, escape)
    raise ValueError(f"{token} is unknown: the verbs are %{' %'.join(known_verbs())}")


def known_verbs() -> list[str]:
    return [*TEXTS, *NUMBERS, "h", "d", "a"]


def text_writer(verb: Verb, escape: bool) -> Callable[[bytes | None], bytes]:
    """Writes a topic, key, value or header; without a value nothing, in JSON `null`."""
    if verb.modifier == "json":
        return lambda data: (visible_json(as_json(data)) if escape else as_json(data)).encode()
    plain: Text
    if verb.modifier in (None, ""):
        plain = visible_bytes if escape else bytes
    elif verb.modifier == "hex":
        plain = lambda data: data.hex().encode()  # noqa: E731
    elif verb.modifier == "base64":
        plain = base64.b64encode
    elif verb.modifier == "base64raw":
        plain = lambda data: base64.b64encode(data).rstrip(b"=")  # noqa: E731
    elif verb.modifier == "unpack" and verb.argument is not None:
        unpack = unpacker(verb.argument)
        plain = (lambda data: visible_bytes(unpack(data))) if escape else unpack
    else:
        raise ValueError(f"{verb} is unknown: expected hex, base64, base64raw, json or unpack[...]")
    return lambda data: b"" if data is None else plain(data)


def as_json(data: bytes | None) -> str:
    """JSON on one line; text that is no JSON as a string, and bytes that are no text in base64."""
    if data is None:
        return "null"
    try:
        return compact_json(data)
    except ValueError:
        return json.dumps(json_text(data), ensure_ascii=False, separators=(",", ":"))


def time_writer(verb: Verb) -> Callable[[int], bytes]:
    if verb.argument is None:
        return number_writer(verb.modifier)
    layout = verb.argument
    if verb.modifier == "strftime":
        return lambda ms: _of_moment(ms, lambda moment: moment.strftime(layout))
    if verb.modifier == "go":
        return lambda ms: _of_moment(ms, lambda moment: go_time(layout, moment))
    raise ValueError(f"{verb} is unknown: expected strftime[...], go[...] or a form of a number")


def _of_moment(ms: int, write: Callable[[datetime], str]) -> bytes:
    try:
        moment = EPOCH + timedelta(milliseconds=ms)
    except OverflowError:  # behind the year 9999, which no calendar of Python has
        return f"%!(timestamp {ms})".encode()
    return write(moment).encode()


def attribute_writer(verb: Verb) -> Write:
    name, _, form = (verb.modifier or "").partition(";")
    if name not in ATTRIBUTES:
        raise ValueError(f"%a needs one of {', '.join(ATTRIBUTES)}: %a{{compression}}")
    attribute, write = ATTRIBUTES[name], number_writer(form or None)
    if name == "compression" and not form:
        return lambda shown: CODECS[attribute(shown)].encode()
    return lambda shown: write(attribute(shown))


def headers_writer(verb: Verb, escape: bool) -> Write:
    if verb.modifier is None:
        raise ValueError("%h needs a format for each header: %h{%k=%v }")
    parts: list[Callable[[bytes, bytes | None], bytes]] = []
    for token in parse_layout(verb.modifier):
        parts.append(_header_part(token, escape))
    return lambda shown: b"".join(
        part(name.encode("utf-8", "surrogateescape"), value)
        for name, value in shown.record.headers
        for part in parts
    )


def _header_part(token: Literal | Verb, escape: bool) -> Callable[[bytes, bytes | None], bytes]:
    if isinstance(token, Literal):
        data = token.data
        return lambda name, value: data
    if token.letter in "kv":
        text = text_writer(token, escape)
        return (lambda name, value: text(name)) if token.letter == "k" else (lambda name, value: text(value))
    if token.letter in "KV":
        number = number_writer(token.modifier)
        if token.letter == "K":
            return lambda name, value: number(len(name))
        return lambda name, value: number(len(value or b""))
    raise ValueError(f"{token} does not go into %h{{...}}: expected %k, %v, %K and %V")
