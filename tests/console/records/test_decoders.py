"""Decoders return what another implementation reads, and for any bytes a reason instead of an error."""

from __future__ import annotations

import io
import json
import struct
import sys
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import fastavro
import msgpack
import pytest
from google.protobuf import descriptor_pb2, struct_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.console.records.avro_decoder import AvroContainerDecoder
from tidelog.console.records.decoders import (
    AvroDecoder,
    DecodeError,
    Decoders,
    ProtobufDecoder,
    RecordDecoder,
    schema_decoder,
)
from tidelog.console.records.proto_file import compile_proto
from tidelog.protocol.messages.group_records import OffsetCommitKey, OffsetCommitValue

DECODERS = Decoders()
AUTO = DECODERS.get("auto")

RIDE = {
    "type": "record",
    "name": "Ride",
    "namespace": "city",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "city", "type": ["null", "string"]},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {"name": "stops", "type": {"type": "array", "items": "double"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["open", "done"]}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "next", "type": ["null", "Ride"]},
    ],
}
STOP = {
    "id": 2, "city": None, "tags": {}, "stops": [], "state": "done", "price": Decimal("-0.05"),
    "at": datetime(2026, 1, 2, tzinfo=UTC), "next": None,
}  # fmt: skip
START = {
    **STOP, "id": 1, "city": "Köln", "tags": {"a": 1}, "stops": [0.5, 2.0], "state": "open", "next": STOP,
    "price": Decimal("12.34"),
}  # fmt: skip


def avro_bytes(schema: object, value: object) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)  # type: ignore[arg-type]
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("text", "grüße".encode(), "grüße"),
        ("json", b'{"a": 1.50}', '{"a": 1.50}'),
        ("int32", struct.pack(">i", -7), "-7"),
        ("int64", struct.pack(">q", 1 << 40), str(1 << 40)),
        ("uint32", b"\xff\xff\xff\xff", "4294967295"),
        ("uint64", b"\xff" * 8, str((1 << 64) - 1)),
        ("float", struct.pack(">f", 0.5), "0.5"),
        ("double", struct.pack(">d", float("nan")), "nan"),
        ("uuid", uuid.UUID(int=5).bytes, str(uuid.UUID(int=5))),
        ("base64", b"\x00\xff", "AP8="),
        ("hex", b"\x00\xff", "00 ff"),
        ("msgpack", msgpack.packb({"a": [1, b"\x01"], 2: None}), '{"a": [1, "0x01"], "2": null}'),
        ("protobuf-raw", b"\x08\x96\x01\x12\x02hi\x12\x02ho", '{"1": 150, "2": ["hi", "ho"]}'),
    ],
)
def test_a_decoder_reads_its_bytes(name: str, data: bytes, text: str) -> None:
    found = DECODERS.get(name).decode(data)
    assert (found.text, found.kind, found.reason) == (text, name, "")


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("text", b"ab\xff", "byte 0xff at position 2 is not UTF-8"),
        ("json", b"{", "not JSON"),
        ("json", b"[" * 5000 + b"]" * 5000, "too deeply nested"),
        ("json", b"[" * 501 + b"]" * 501, "too deeply nested"),
        ("json", b"NaN", "NaN is not JSON"),
        ("int32", b"abc", "3 bytes; int32 has 4"),
        ("msgpack", b"\x01\x02", "1 bytes follow the value"),
        ("msgpack", b"\x91" * 5000, "too deeply nested"),
        ("protobuf-raw", b"\x08", "the data ends in a number"),
        ("avro-container", b"\0\0\0\0\x07rest", "Confluent's wire format and schema id 7"),
    ],
)
def test_a_decoder_says_why_it_fails_and_shows_the_bytes(name: str, data: bytes, reason: str) -> None:
    found = DECODERS.get(name).decode(data)
    assert reason in found.reason
    assert found.kind in ("text", "hex")
    assert found.text


def test_null_is_not_an_empty_text() -> None:
    assert AUTO.decode(None).text is None
    assert AUTO.decode(b"").text == ""


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b'{"a": 1}', "json"),
        (b"42", "text"),
        (b"plain", "text"),
        (struct.pack(">q", 42), "int64"),
        (struct.pack(">i", 42), "int32"),
        (uuid.UUID("12345678123456781234567812345678").bytes[:15] + b"\x81", "uuid"),
        (msgpack.packb({"a": 1, "b": b"\xff"}), "msgpack"),
        (b"\x08\x96\x01\x12\x04\x01\x02\x03\xff", "protobuf-raw"),
        (b"\xff\xfe\xfd", "hex"),
        (b"\x1b]0;title\x07", "hex"),
    ],
)
def test_the_automatic_choice_names_the_decoder_and_why_others_fail(data: bytes, kind: str) -> None:
    found = AUTO.decode(data)
    assert (found.kind, found.reason) == (kind, "")
    assert all(attempt.reason for attempt in found.tried)
    assert kind in ("json", "text") or found.tried


def test_avro_is_read_as_fastavro_writes_it() -> None:
    found = AvroDecoder(json.dumps(RIDE)).decode(avro_bytes(RIDE, START))
    assert found.reason == ""
    assert found.value == {
        "id": 1, "city": "Köln", "tags": {"a": 1}, "stops": [0.5, 2.0], "state": "open", "price": "12.34",
        "at": "2026-01-02T00:00:00+00:00",
        "next": {
            "id": 2, "city": None, "tags": {}, "stops": [], "state": "done", "price": "-0.05",
            "at": "2026-01-02T00:00:00+00:00", "next": None,
        },
    }  # fmt: skip


def test_the_wire_format_of_confluent_is_noted() -> None:
    decoder = AvroDecoder('{"type": "record", "name": "A", "fields": [{"name": "a", "type": "string"}]}')
    found = decoder.decode(b"\0\0\0\x01\x02" + b"\x04hi")
    assert found.value == {"a": "hi"}
    assert found.note == "Confluent wire format, schema id 258"


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_an_avro_container_brings_its_schema(codec: str) -> None:
    out = io.BytesIO()
    fastavro.writer(out, fastavro.parse_schema(RIDE), [STOP, STOP], codec=codec)
    found = AUTO.decode(out.getvalue())
    assert found.kind == "avro-container"
    assert isinstance(found.value, list)
    assert len(found.value) == 2


NESTED = '{"type": "record", "name": "L", "fields": [{"name": "n", "type": ["null", "L"]}]}'
ENDLESS = '{"type": "record", "name": "L", "fields": [{"name": "n", "type": "L"}]}'
NULLS = '{"type": "array", "items": "null"}'


@pytest.mark.parametrize(
    ("schema", "data"),
    [(NESTED, b"\x02" * 1_000_000), (ENDLESS, b"\x02"), (NULLS, b"\xfe\xff\xff\xff\xff\xff\x01")],
    ids=["nested", "endless", "nulls"],
)
def test_hostile_avro_ends_with_a_reason(schema: str, data: bytes) -> None:
    assert "more than" in (found := AvroDecoder(schema).decode(data)).reason or "deeper" in found.reason


def test_a_container_that_inflates_without_end_is_refused() -> None:
    out = io.BytesIO()
    fastavro.writer(out, {"type": "bytes"}, [b"\0" * (8 << 20)], codec="deflate")
    assert "inflates to more than" in AvroContainerDecoder().decode(out.getvalue()).reason


@pytest.mark.parametrize(
    "schema", ["", "[", '{"type": "array"}', '"Unknown"', '{"type": "fixed", "name": "f"}', "[" * 3000]
)
def test_a_bad_schema_is_refused_with_a_reason(schema: str) -> None:
    with pytest.raises(DecodeError, match="schema"):
        AvroDecoder(schema)


@pytest.fixture
def descriptor_set() -> bytes:
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="ride.proto", package="city", syntax="proto3")
    message = file.message_type.add(name="Ride")
    message.field.add(name="id", number=1, type=3, label=1)
    message.field.add(name="city", number=2, type=9, label=1)
    return files.SerializeToString()


def test_protobuf_is_read_with_a_descriptor_set(tmp_path: Path, descriptor_set: bytes) -> None:
    path = tmp_path / "ride.desc"
    path.write_bytes(descriptor_set)
    decoder = schema_decoder("protobuf", path)
    data = b"\x08\x07\x12\x04Oslo"
    assert decoder.decode(data).value == {"id": "7", "city": "Oslo"}
    found = decoder.decode(b"\0\0\0\0\x09\0" + data)
    assert (found.value, found.note) == ({"id": "7", "city": "Oslo"}, "Confluent wire format, schema id 9")
    assert "not a message city.Ride" in decoder.decode(b"\x12\xff").reason
    with pytest.raises(DecodeError, match=r"city\.Car"):
        ProtobufDecoder(descriptor_set, "city.Car")
    with pytest.raises(DecodeError, match="not a descriptor set"):
        ProtobufDecoder(b"\xff")


def test_a_proto_file_without_a_compiler_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "grpc_tools", None)
    with pytest.raises(DecodeError, match="protoc is not installed"):
        schema_decoder("protobuf", tmp_path / "ride.proto")


def test_a_compiler_gets_protobufs_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A protoc may come without them, as Debian's does."""
    program = tmp_path / "protoc.py"
    program.write_text(
        "import shutil, sys\n"
        "given = {word.partition('=')[0]: word.partition('=')[2] for word in sys.argv}\n"
        "made = next(word for word in sys.argv if word.startswith('-o'))[2:]\n"
        "shutil.copy(given['--descriptor_set_in'], made)\n"
    )
    monkeypatch.setattr("tidelog.console.records.proto_file.find_compiler", lambda: [sys.executable, program])
    (tmp_path / "ride.proto").write_text('syntax = "proto3";')
    files = descriptor_pb2.FileDescriptorSet.FromString(compile_proto(tmp_path / "ride.proto")).file
    names = [file.name for file in files]
    assert {"google/protobuf/timestamp.proto", "google/protobuf/struct.proto"} <= {*names}
    for at, file in enumerate(files):
        assert {*file.dependency} <= {*names[:at]}


def test_the_message_of_a_file_is_chosen_among_its_own_not_those_that_it_imports() -> None:
    imported = descriptor_pb2.FileDescriptorProto(name="place.proto", package="city", syntax="proto3")
    imported.message_type.add(name="Place")
    file = descriptor_pb2.FileDescriptorProto(
        name="ride.proto", package="city", syntax="proto3", dependency=["place.proto"]
    )
    file.message_type.add(name="Ride").field.add(
        name="to", number=1, type=11, label=1, type_name=".city.Place"
    )
    both = descriptor_pb2.FileDescriptorSet(file=[imported, file]).SerializeToString()
    assert ProtobufDecoder(both).decode(b"\x0a\x00").value == {"to": {}}


def test_protobufs_own_nesting_is_read_without_a_schema() -> None:
    value = struct_pb2.Struct()
    value.update({"a": "\x07"})
    found = DECODERS.get("protobuf-raw").decode(value.SerializeToString())
    assert found.value == {"1": {"1": "a", "2": {"3": "0x07"}}}


def test_internal_records_are_read_by_the_type_of_the_key() -> None:
    decoder = RecordDecoder.choose("__consumer_offsets", DECODERS, DECODERS)
    key = b"\0\x01" + bytes(OffsetCommitKey(group="g", topic="t", partition=3).encode(0))
    commit = OffsetCommitValue(offset=42, metadata="", commit_timestamp=5)
    shown_key, shown_value = decoder.decode(key, b"\0\x01" + bytes(commit.encode(1)))
    assert shown_key.value == {"type": 1, "data": {"group": "g", "topic": "t", "partition": 3}}
    assert isinstance(shown_value.value, dict)
    assert isinstance(data := shown_value.value["data"], dict)
    assert data["offset"] == 42
    assert decoder.decode(b"\0\x63", b"x")[1].reason == "the key has record type 99, which is unknown"
    assert decoder.decode(key, None)[1].text is None
    with pytest.raises(DecodeError, match="not an internal topic"):
        RecordDecoder.choose("orders", DECODERS, DECODERS, key="kafka")


def test_an_unknown_decoder_lists_the_known_ones() -> None:
    with pytest.raises(DecodeError, match="needs a schema file for this topic"):
        DECODERS.get("avro")
    with pytest.raises(DecodeError, match="expected one of auto, text, json"):
        DECODERS.get("xml")


@settings(max_examples=60)
@given(st.binary(max_size=200), st.sampled_from([decoder.name for decoder in DECODERS]))
def test_no_bytes_raise(data: bytes, name: str) -> None:
    found = DECODERS.get(name).decode(data)
    assert found.text is not None
    json.dumps(found.value, allow_nan=False)
