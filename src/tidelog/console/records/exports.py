"""Exports of records as CSV, JSON lines or Parquet, written while the topic is read.

A row has the text of key and value and its encoding: `text` and `base64` can be imported again, `null` is
null, any other name is that of the decoder. Masked records leave masked.
"""

from __future__ import annotations

import csv
import io
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from tidelog.console.records.decoder import Decoded
from tidelog.console.records.filters import RecordFilter
from tidelog.console.records.log_record import ShownRecord
from tidelog.console.records.pace import Pace
from tidelog.console.records.rules import RecordView
from tidelog.console.records.scan import scan
from tidelog.console.records.topic_reader import OffsetRange, TopicReader

if TYPE_CHECKING:
    import pyarrow as pa

MAX_RECORDS = 1_000_000
ROWS = 1000
"""Rows that are encoded together, and a row group of Parquet."""
TEXT, BASE64, NULL, MASKED = "text", "base64", "null", "masked"
COLUMNS = (
    "partition", "offset", "timestampMs", "key", "keyEncoding", "value", "valueEncoding", "headers",
    "transaction", "producerId",
)  # fmt: skip

Row: TypeAlias = dict[str, object]


class ExportFormat(StrEnum):
    CSV = "csv"
    JSON = "jsonl"
    PARQUET = "parquet"

    @property
    def media_type(self) -> str:
        return {
            "csv": "text/csv; charset=utf-8",
            "jsonl": "application/x-ndjson",
            "parquet": "application/vnd.apache.parquet",
        }[self.value]


@dataclass(slots=True, frozen=True)
class ExportOptions:
    """`decoded` exports the text of the decoders instead of the bytes."""

    format: ExportFormat = ExportFormat.JSON
    count: int = 10_000
    decoded: bool = False


class ExportError(ValueError):
    """The export is not possible; the message says why."""


async def export(
    reader: TopicReader,
    view: RecordView,
    ranges: Mapping[int, OffsetRange],
    options: ExportOptions,
    wanted: RecordFilter | None = None,
) -> AsyncIterator[bytes]:
    """The bytes of the file, piece by piece. Raises ExportError before the first piece."""
    if not 1 <= options.count <= MAX_RECORDS:
        raise ExportError(f"{options.count} records: expected 1 to {MAX_RECORDS}")
    writer = WRITERS[options.format]()
    yield writer.begin()
    wanted = wanted or RecordFilter()
    rows: list[Row] = []
    left = options.count
    pace = Pace()
    async for chunk, end in scan(reader, ranges):
        for record in chunk.records(end):
            await pace.step()
            shown = view.show(record)
            if not wanted.matches(shown):
                continue
            rows.append(row(shown, decoded=options.decoded))
            left -= 1
            if len(rows) >= ROWS:
                yield writer.rows(rows)
                rows = []
            if not left:
                break
        if not left:
            break
    if rows:
        yield writer.rows(rows)
    yield writer.end()


def row(shown: ShownRecord, *, decoded: bool = False) -> Row:
    """A record as a row of an export."""
    record = shown.record
    key, key_encoding = _cell(record.key, shown.key, shown.masked, decoded)
    value, value_encoding = _cell(record.value, shown.value, shown.masked, decoded)
    headers: list[list[str | None]] = []
    for (name, header), (_, data) in zip(shown.headers, record.headers, strict=False):
        if shown.masked:
            headers.append([name, header.text, MASKED])
        else:
            headers.append([name, *_raw(data)])
    return {
        "partition": record.partition,
        "offset": record.offset,
        "timestampMs": record.timestamp,
        "key": key,
        "keyEncoding": key_encoding,
        "value": value,
        "valueEncoding": value_encoding,
        "headers": headers,
        "transaction": str(record.transaction),
        "producerId": record.producer_id,
    }


def _cell(data: bytes | None, shown: Decoded, masked: bool, decoded: bool) -> tuple[str | None, str]:
    if masked:
        return shown.text, MASKED if shown.text is not None else NULL
    if decoded and data is not None:
        return shown.text, shown.kind
    return _raw(data)


def _raw(data: bytes | None) -> tuple[str | None, str]:
    if data is None:
        return None, NULL
    try:
        return data.decode(), TEXT
    except UnicodeDecodeError:
        return b64encode(data).decode(), BASE64


class CsvWriter:
    """All texts in quotes. The headers are JSON in one column."""

    def begin(self) -> bytes:
        return self._lines([list(COLUMNS)])

    def rows(self, rows: Iterable[Row]) -> bytes:
        return self._lines([self._cells(found) for found in rows])

    def end(self) -> bytes:
        return b""

    def _cells(self, found: Row) -> list[object]:
        headers = json.dumps(found["headers"], ensure_ascii=False)
        return [headers if name == "headers" else found[name] for name in COLUMNS]

    def _lines(self, lines: Iterable[list[object]] | list[list[str]]) -> bytes:
        out = io.StringIO()
        csv.writer(out, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\r\n").writerows(lines)
        return out.getvalue().encode("utf-8", "surrogatepass")


class JsonWriter:
    def begin(self) -> bytes:
        return b""

    def rows(self, rows: Iterable[Row]) -> bytes:
        return "".join(json.dumps(found, ensure_ascii=False) + "\n" for found in rows).encode()

    def end(self) -> bytes:
        return b""


class ParquetWriter:
    """A row group for every thousand rows. Needs pyarrow, the extra `arrow`."""

    def __init__(self) -> None:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError:
            raise ExportError('Parquet needs a package: pip install "tidelog[arrow]"') from None
        text, number = pa.string(), pa.int64()
        kinds = {"partition": number, "offset": number, "timestampMs": number, "producerId": number}
        self._schema: pa.Schema = pa.schema([(name, kinds.get(name, text)) for name in COLUMNS])
        self._table: Callable[..., pa.Table] = pa.Table.from_pylist
        self._sink = _Sink()
        self._writer = pq.ParquetWriter(pa.PythonFile(self._sink, mode="w"), self._schema)

    def begin(self) -> bytes:
        return self._sink.take()

    def rows(self, rows: Iterable[Row]) -> bytes:
        flat = [{**found, "headers": json.dumps(found["headers"], ensure_ascii=False)} for found in rows]
        self._writer.write_table(self._table(flat, schema=self._schema))
        return self._sink.take()

    def end(self) -> bytes:
        self._writer.close()
        return self._sink.take()


class _Sink(io.RawIOBase):
    """A file whose content is taken away piece by piece."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[bytes] = []
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        piece = bytes(data)  # type: ignore[call-overload]
        self._pieces.append(piece)
        self._position += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self._position

    def take(self) -> bytes:
        found = b"".join(self._pieces)
        self._pieces = []
        return found


WRITERS: dict[ExportFormat, Callable[[], CsvWriter | JsonWriter | ParquetWriter]] = {
    ExportFormat.CSV: CsvWriter,
    ExportFormat.JSON: JsonWriter,
    ExportFormat.PARQUET: ParquetWriter,
}
