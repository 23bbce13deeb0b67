"""Schema files: Avro and Protobuf as JSON and back, with and without a registry's frame."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tidelog.cli.formats.schemas import load_schema, message_path
from tidelog.console.records.proto_file import find_compiler
from tidelog.console.records.protobuf_decoder import ProtobufDecoder

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "raw", "type": "bytes"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "string"}}},
    ],
}
ORDER = {
    "id": 7,
    "note": "ä",
    "raw": "\x00\xff",
    "at": "2026-01-31T12:00:00+00:00",
    "price": "12.50",
    "tags": {"a": ["b"]},
}


@pytest.fixture
def avsc(tmp_path: Path) -> str:
    pytest.importorskip("fastavro")
    (tmp_path / "order.avsc").write_text(json.dumps(AVRO))
    return str(tmp_path / "order.avsc")


@pytest.fixture
def desc(tmp_path: Path) -> str:
    """The descriptor set of a file with the messages shop.Other and shop.Order, of an id and a note."""
    pytest.importorskip("google.protobuf")
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.message_type.add(name="Other")
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=3, label=1)
    order.field.add(name="note", number=2, type=9, label=1)
    path = tmp_path / "order.desc"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    return str(path)


@pytest.mark.parametrize("framing", ["none", "confluent"])
def test_avro_comes_back(avsc: str, framing: str) -> None:
    schema = load_schema(avsc, framing=framing, schema_id=258)
    data = schema.encode(json.dumps(ORDER).encode())
    assert (data[:5] == b"\0\0\0\1\2") == (framing == "confluent")
    assert json.loads(schema.decode(data)) == ORDER


@pytest.mark.parametrize("framing", ["none", "confluent"])
def test_protobuf_comes_back(desc: str, framing: str) -> None:
    schema = load_schema(f"{desc}#shop.Order", framing=framing, schema_id=258)
    data = schema.encode(b'{"id": "9007199254740993", "note": "x"}')
    assert data.startswith(b"\0\0\0\1\2\2\2") == (framing == "confluent")  # the second message of its file
    assert json.loads(schema.decode(data)) == {"id": "9007199254740993", "note": "x"}


def test_what_does_not_fit_is_told_with_a_reason(avsc: str, desc: str, tmp_path: Path) -> None:
    avro, order = load_schema(avsc), load_schema(f"{desc}#shop.Order")
    for schema in (avro, order):
        with pytest.raises(ValueError, match=r"does not fit|is no shop\.Order"):
            schema.encode(b'{"nonsense": 1}')
        with pytest.raises(ValueError, match=r"does not fit|is no shop\.Order"):
            schema.decode(b"\xff\xff\xff")
    with pytest.raises(ValueError, match="is it framed"):
        load_schema(avsc, framing="confluent").decode(b"x")
    with pytest.raises(ValueError, match="several messages"):
        load_schema(desc)
    with pytest.raises(ValueError, match=r"no message shop\.Nothing"):
        load_schema(f"{desc}#shop.Nothing")
    with pytest.raises(ValueError, match="no schema file"):
        load_schema("x.txt")
    bad = tmp_path / "bad.avsc"
    bad.write_text('{"type": "nonsense"}')
    with pytest.raises(ValueError, match="is no Avro schema"):
        load_schema(str(bad))


def test_avro_is_read_without_a_package(avsc: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = load_schema(avsc).encode(json.dumps(ORDER).encode())
    monkeypatch.setitem(sys.modules, "fastavro", None)
    schema = load_schema(avsc)
    assert json.loads(schema.decode(data)) == ORDER
    with pytest.raises(ValueError, match=r"tidelog\[schemas\]"):
        schema.encode(b"{}")


def test_a_deeply_nested_record_is_refused(tmp_path: Path) -> None:
    """A compiled reader that recurses as deep as the data says ends the process."""
    nested = {"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]}
    (tmp_path / "n.avsc").write_text(json.dumps(nested))
    with pytest.raises(ValueError, match="nested deeper"):
        load_schema(str(tmp_path / "n.avsc")).decode(b"\x02" * 5000 + b"\0")


PROTO = """syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "item.proto";
message Order { int64 id = 1; google.protobuf.Timestamp at = 2; repeated Item items = 3; }
"""


@pytest.mark.skipif(find_compiler() is None, reason="protoc is not installed")
def test_a_proto_file_is_compiled(tmp_path: Path) -> None:
    """With a file beside it, and one of Protobuf's own, that it imports."""
    (tmp_path / "item.proto").write_text('syntax = "proto3"; package shop; message Item { string name = 1; }')
    (tmp_path / "order.proto").write_text(PROTO)
    schema = load_schema(str(tmp_path / "order.proto"))
    order = {"id": "7", "at": "2026-01-31T12:00:00Z", "items": [{"name": "ä"}]}
    data = schema.encode(json.dumps(order).encode())
    assert json.loads(schema.decode(data)) == order
    assert ProtobufDecoder.from_file(tmp_path / "order.proto").decode(data).value == order
    (tmp_path / "order.proto").write_text("message {")
    with pytest.raises(ValueError, match=r"protoc refuses order\.proto"):
        load_schema(str(tmp_path / "order.proto"))


def test_a_proto_file_without_a_compiler_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("google.protobuf")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "grpc_tools", None)
    (tmp_path / "order.proto").write_text(PROTO)
    with pytest.raises(ValueError, match=r"protoc is not installed.*--include_imports -o schema\.desc"):
        load_schema(str(tmp_path / "order.proto"))


def test_the_place_of_the_first_message_is_one_zero(desc: str) -> None:
    from google.protobuf import descriptor_pb2, descriptor_pool

    pool = descriptor_pool.DescriptorPool()
    pool.Add(descriptor_pb2.FileDescriptorSet.FromString(Path(desc).read_bytes()).file[0])
    assert message_path(pool.FindMessageTypeByName("shop.Other")) == b"\0"
