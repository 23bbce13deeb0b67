"""The decoders by name, the automatic choice, and the decoding of a whole record.

`Decoders()` has those that need no schema. `Schemas` names the schema files of topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tidelog.console.records.avro_decoder import AvroContainerDecoder, AvroDecoder
from tidelog.console.records.decoder import (
    MAX_TEXT,
    NOTHING,
    TEXT,
    Attempt,
    Decoded,
    DecodeError,
    Decoder,
    fallback,
    printable,
)
from tidelog.console.records.internal_decoder import InternalDecoder, is_internal
from tidelog.console.records.msgpack_decoder import MessagePackDecoder
from tidelog.console.records.plain_decoders import plain_decoders
from tidelog.console.records.protobuf_decoder import ProtobufDecoder, RawProtobufDecoder

__all__ = [
    "AUTO",
    "AvroDecoder",
    "DecodeError",
    "Decoded",
    "Decoder",
    "Decoders",
    "ProtobufDecoder",
    "RecordDecoder",
    "schema_decoder",
]

AUTO = "auto"


class AutoDecoder(Decoder):
    """Takes the first decoder that reads the bytes. `tried` says why the ones before it do not."""

    name = AUTO
    about = "the first decoder that reads the bytes"

    def __init__(self, first: Iterable[Decoder], plain: Mapping[str, Decoder]) -> None:
        self._first = tuple(first)
        self._plain = plain
        self.keeps_text = not self._first

    def decode(self, data: bytes | None) -> Decoded:
        if data is None:
            return NOTHING
        tried: list[Attempt] = []
        text = printable(data)
        if self.keeps_text and text is not None and not _may_be_json(text) and len(text) <= MAX_TEXT:
            return Decoded(text, TEXT, value=text)
        for decoder in (*self._first, *self._candidates(data, text)):
            try:
                found = decoder.attempt(data)
            except DecodeError as error:
                tried.append(Attempt(decoder.name, str(error)))
                continue
            if decoder.name == "msgpack" and not found.is_container:
                tried.append(Attempt(decoder.name, "a single value, as most bytes are in MessagePack"))
                continue
            return replace(found, tried=tuple(tried)) if tried else found
        return fallback(data, "", tuple(tried))

    def _candidates(self, data: bytes, text: str | None) -> Iterable[Decoder]:
        """The decoders that are worth trying: text is never a number, and a number never text."""
        plain = self._plain
        if text is not None:
            if _may_be_json(text):
                yield plain["json"]
            yield plain[TEXT]
            return
        yield plain["avro-container"]
        yield plain["msgpack"]
        if len(data) == 4:
            yield plain["int32"]
        elif len(data) == 8:
            yield plain["int64"]
        elif len(data) == 16:
            yield plain["uuid"]
        yield plain["protobuf-raw"]


def _may_be_json(text: str) -> bool:
    return text.lstrip()[:1] in ("{", "[")


def schema_decoder(kind: str, path: str | Path, message: str | None = None) -> Decoder:
    """A decoder with a schema file: `avro` or `protobuf`. Raises DecodeError that names the file."""
    try:
        if kind == AvroDecoder.name:
            return AvroDecoder.from_file(path)
        if kind == ProtobufDecoder.name:
            return ProtobufDecoder.from_file(path, message)
    except (OSError, UnicodeDecodeError, DecodeError) as error:
        raise DecodeError(f"schema {path}: {error}") from None
    raise DecodeError(f"decoder {kind!r} takes no schema file; avro and protobuf do")


class Decoders:
    """Every decoder by its name. The automatic choice tries `schemas` first, which have a schema file."""

    def __init__(self, schemas: Iterable[Decoder] = ()) -> None:
        made = (*plain_decoders(), AvroContainerDecoder(), MessagePackDecoder(), RawProtobufDecoder())
        plain = {decoder.name: decoder for decoder in made}
        schemas = tuple(schemas)
        self._by_name: dict[str, Decoder] = {AUTO: AutoDecoder(schemas, plain), **plain}
        self._by_name |= {decoder.name: decoder for decoder in schemas}

    def __iter__(self) -> Iterator[Decoder]:
        return iter(self._by_name.values())

    def get(self, name: str) -> Decoder:
        """The decoder of a name. Raises DecodeError that lists the names."""
        found = self._by_name.get(name)
        if found is None:
            more = " (it needs a schema file for this topic)" if name in ("avro", "protobuf") else ""
            known = ", ".join(self._by_name)
            raise DecodeError(f"decoder {name!r} is unknown{more}; expected one of {known}")
        return found


@dataclass(slots=True, frozen=True)
class RecordDecoder:
    """Decodes the keys and values of one topic. The automatic choice knows Kafka's internal topics."""

    key: Decoder
    value: Decoder
    internal: InternalDecoder | None = None

    @classmethod
    def choose(
        cls,
        topic: str,
        keys: Decoders,
        values: Decoders,
        key: str = AUTO,
        value: str = AUTO,
    ) -> RecordDecoder:
        """The decoders of these names for a topic. `kafka` is for internal topics. Raises DecodeError."""
        internal = InternalDecoder(topic) if is_internal(topic) else None
        if InternalDecoder.name in (key, value) and internal is None:
            raise DecodeError(f"topic {topic!r} is not an internal topic of Kafka, as decoder kafka expects")
        automatic = (AUTO, InternalDecoder.name)
        return cls(
            internal if internal is not None and key in automatic else keys.get(key),
            values.get(AUTO if value == InternalDecoder.name else value),
            internal if value in automatic else None,
        )

    @property
    def keeps_text(self) -> bool:
        """Whether keys and values of printable UTF-8 are shown as they stand."""
        return self.internal is None and self.key.keeps_text and self.value.keeps_text

    def decode(self, key: bytes | None, value: bytes | None) -> tuple[Decoded, Decoded]:
        if self.internal is not None:
            return self.key.decode(key), self.internal.decode_value(key, value)
        return self.key.decode(key), self.value.decode(value)
