"""Exports, imports and replays: what was exported comes back byte by byte; what is masked does not leave."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.console.records.conftest import WithReader
from tidelog.console.records.browser import RecordBrowser
from tidelog.console.records.exports import ExportError, ExportFormat, ExportOptions, export
from tidelog.console.records.filters import RecordFilter
from tidelog.console.records.imports import ImportFailed, NewRecord, Produced, parse_file, produce
from tidelog.console.records.replay import ReplayRefused, replay
from tidelog.console.records.rules import RecordRules
from tidelog.console.records.topic_reader import TopicReader
from tidelog.testing import Broker

RECORDS = [
    NewRecord(b"k1", b'{"a": "x, \\"y\\""}', (("h", b"\xff"), ("h", None)), 0, 1000),
    NewRecord(None, b"\x00\xff", (), 1, 2000),
    NewRecord(b"", None, (), 0, 3000),
    NewRecord("ключ".encode(), b"line\r\nbreak;=1+1", (("n", b"v"),), 1, 4000),
]
MASKED = RecordRules.parse({"masks": [{"topic": "filed", "pattern": "x", "action": "replace"}]}, Path())


@pytest.fixture(scope="module")
def topic(broker: Broker) -> str:
    import asyncio

    broker.create_topic("filed", partitions=2)
    asyncio.run(produce({"bootstrap.servers": broker.bootstrap_servers}, "filed", RECORDS))
    return "filed"


async def exported(
    reader: TopicReader, options: ExportOptions, rules: RecordRules | None = None, wanted: str = ""
) -> bytes:
    view = (rules or RecordRules()).view(reader.topic)
    pieces = export(reader, view, await reader.ranges(), options, RecordFilter(wanted))
    return b"".join([piece async for piece in pieces])


@pytest.mark.parametrize("format", list(ExportFormat))
def test_an_export_can_be_imported_again(
    topic: str, with_reader: WithReader[bytes], format: ExportFormat
) -> None:
    data = with_reader(topic, lambda reader: exported(reader, ExportOptions(format)))
    found = parse_file(format, data, keep_partitions=True)
    assert sorted(found, key=lambda record: record.timestamp_ms or 0) == RECORDS
    assert {record.partition for record in parse_file(format, data, keep_times=False)} == {None}


def test_the_files_are_what_other_readers_expect(topic: str, with_reader: WithReader[bytes]) -> None:
    lines = with_reader(topic, lambda reader: exported(reader, ExportOptions(ExportFormat.CSV))).decode()
    rows = list(csv.DictReader(io.StringIO(lines, newline="")))
    assert [row["timestampMs"] for row in rows] == ["1000", "3000", "2000", "4000"]
    assert json.loads(rows[0]["headers"]) == [["h", "/w==", "base64"], ["h", None, "null"]]
    data = with_reader(topic, lambda reader: exported(reader, ExportOptions(ExportFormat.PARQUET)))
    table = pq.read_table(io.BytesIO(data))
    assert table.column("valueEncoding").to_pylist() == ["text", "null", "base64", "text"]


def test_an_export_can_be_filtered_counted_and_decoded(topic: str, with_reader: WithReader[bytes]) -> None:
    data = with_reader(
        topic, lambda reader: exported(reader, ExportOptions(count=1, decoded=True), wanted="break")
    )
    (row,) = map(json.loads, data.splitlines())
    assert (row["keyEncoding"], row["valueEncoding"], row["offset"]) == ("text", "text", 1)
    with pytest.raises(ExportError, match="expected 1 to"):
        with_reader(topic, lambda reader: exported(reader, ExportOptions(count=0)))


def test_what_is_masked_leaves_masked_and_is_not_imported(topic: str, with_reader: WithReader[bytes]) -> None:
    data = with_reader(topic, lambda reader: exported(reader, ExportOptions(), MASKED))
    assert b"x, " not in data
    with pytest.raises(ImportFailed, match="record 1: key is masked"):
        parse_file(ExportFormat.JSON, data)


@pytest.mark.parametrize(
    ("format", "data", "reason"),
    [
        (
            ExportFormat.JSON,
            b'{"value": "a"}\n{bad',
            "line 2 is not JSON: Expecting property name enclosed in double quotes at character 2",
        ),
        (ExportFormat.JSON, b"[1]", "line 1 is not a JSON object"),
        (ExportFormat.JSON, b'{"value": "a"}\n{"valu": "a"}', "record 2: valu is unknown"),
        (ExportFormat.JSON, b'{"key": "a"}', "record 1: value is missing"),
        (ExportFormat.JSON, b'{"value": "?", "valueEncoding": "base64"}', "value is not base64"),
        (ExportFormat.JSON, '{"value": "é", "valueEncoding": "base64"}'.encode(), "value is not base64"),
        (ExportFormat.JSON, b'{"value": "{}", "valueEncoding": "avro"}', "was decoded as avro"),
        (ExportFormat.JSON, b'{"value": "a", "headers": [1]}', "a header is a list"),
        (ExportFormat.JSON, b'{"value": "a", "timestampMs": "soon"}', "timestampMs 'soon' is not a number"),
        (ExportFormat.JSON, b"\xff", "not UTF-8 at byte 0"),
        (ExportFormat.CSV, b"value\n1,2\n", "line 2 has other columns"),
        (ExportFormat.CSV, b'value\n"a', "is not CSV"),
        (ExportFormat.PARQUET, b"PAR1", "not Parquet"),
    ],
)
def test_a_wrong_file_is_refused_with_its_row(format: ExportFormat, data: bytes, reason: str) -> None:
    with pytest.raises(ImportFailed) as caught:
        parse_file(format, data)
    assert reason in str(caught.value)


def test_json_values_need_no_quotes() -> None:
    (found,) = parse_file(ExportFormat.JSON, b'{"value": {"a": [1]}, "headers": {"h": "v"}}\n\n')
    assert (found.key, found.value, found.headers) == (None, b'{"a": [1]}', (("h", b"v"),))


def test_a_record_is_produced_again_byte_by_byte(
    broker: Broker, topic: str, with_reader: WithReader[Produced]
) -> None:
    broker.create_topic("copies")
    settings = {"bootstrap.servers": broker.bootstrap_servers}

    async def copy(reader: TopicReader) -> Produced:
        found = await RecordBrowser(reader, RecordRules().view(topic)).raw_record(0, 0)
        assert found is not None
        with pytest.raises(ReplayRefused, match="topic filed is masked"):
            await replay(settings, found, "copies", MASKED.masks)
        return await replay(settings, found, "copies", RecordRules().masks, keep_time=True)

    assert with_reader(topic, copy) == Produced(0, 0)
    (record,) = broker.records("copies")
    assert (record.key, record.value, record.timestamp) == (RECORDS[0].key, RECORDS[0].value, 1000)
    assert tuple(record.headers) == RECORDS[0].headers


@pytest.mark.parametrize("is_dictionary", [True, False])
def test_a_small_file_of_many_bytes_is_refused(is_dictionary: bool) -> None:
    """A dictionary or compression makes some hundred bytes of what would fill the memory."""
    file = io.BytesIO()
    values = pa.array(["x" * 1_000_000] * 100)
    pq.write_table(pa.table({"value": values}), file, compression="zstd", use_dictionary=is_dictionary)
    assert file.tell() < 100_000
    with pytest.raises(ImportFailed, match="more than 64 MB"):
        parse_file(ExportFormat.PARQUET, file.getvalue())
