"""Imports of CSV, JSON lines and Parquet into a topic: the columns of an export, or only `value`.

A file is read and checked as a whole before its first record is produced.
"""

from __future__ import annotations

import csv
import io
import json
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tidelog.clients.producer.producer import AsyncProducer
from tidelog.console.records.exports import BASE64, MASKED, NULL, TEXT, ExportFormat

MAX_RECORDS = 100_000
MAX_BYTES = 64 << 20
"""The bytes of all columns of a Parquet file. Compression and dictionaries make a small file of many."""

BATCH_BYTES = 256 << 20
"""The most that the rows may take that are decoded at a time, if each has the largest value of the file."""

MAX_BATCH = 1000
TOO_LARGE = f"the file has more than {MAX_BYTES >> 20} MB of data; import it in parts"
KNOWN = {
    "partition", "offset", "timestampMs", "key", "keyEncoding", "value", "valueEncoding", "headers",
    "transaction", "producerId",
}  # fmt: skip


PRODUCER_SETTINGS: dict[str, object] = {
    "acks": "all",
    "client.id": "tidelog-console",
    "max.block.ms": 10_000,
    "request.timeout.ms": 10_000,
    "delivery.timeout.ms": 20_000,
}


class ImportFailed(ValueError):
    """The file cannot be imported; the message names the row."""


@dataclass(slots=True, frozen=True)
class NewRecord:
    """A record to produce. Without a partition the key decides, without a timestamp it is now."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


def parse_file(
    format: ExportFormat, data: bytes, *, keep_partitions: bool = False, keep_times: bool = True
) -> list[NewRecord]:
    """The records of a file. Raises ImportFailed that names the first wrong row."""
    found: list[NewRecord] = []
    for number, row in enumerate(_rows(format, data), 1):
        if number > MAX_RECORDS:
            raise ImportFailed(f"the file has more than {MAX_RECORDS} records; import it in parts")
        try:
            found.append(_record(row, keep_partitions, keep_times))
        except ImportFailed as error:
            raise ImportFailed(f"record {number}: {error}") from None
    return found


def _rows(format: ExportFormat, data: bytes) -> Iterator[Mapping[str, object]]:
    if format is ExportFormat.PARQUET:
        yield from _parquet(data)
        return
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ImportFailed(f"the file is not UTF-8 at byte {error.start}") from None
    if format is ExportFormat.CSV:
        yield from _csv(text)
        return
    for number, line in enumerate(text.splitlines() if "\r" in text else text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except json.JSONDecodeError as error:
            raise ImportFailed(
                f"line {number} is not JSON: {error.msg} at character {error.pos + 1}"
            ) from None
        except (ValueError, RecursionError) as error:
            raise ImportFailed(f"line {number} is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise ImportFailed(f"line {number} is not a JSON object")
        yield found


def _csv(text: str) -> Iterator[Mapping[str, object]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            if None in row or None in row.values():
                raise ImportFailed(f"line {reader.line_num} has other columns than the first line")
            yield {name: value for name, value in row.items() if value != "" or name in ("value", "key")}
    except csv.Error as error:
        raise ImportFailed(f"line {reader.line_num} is not CSV: {error}") from None


def _parquet(data: bytes) -> Iterator[Mapping[str, object]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ImportFailed('Parquet needs a package: pip install "tidelog[arrow]"') from None
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        if file.metadata.num_rows > MAX_RECORDS:
            raise ImportFailed(f"the file has {file.metadata.num_rows} records; {MAX_RECORDS} are allowed")
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        columns = [
            group.column(at).total_uncompressed_size for group in groups for at in range(group.num_columns)
        ]
        left = MAX_BYTES
        if sum(columns) > left:
            raise ImportFailed(TOO_LARGE)
        for batch in file.iter_batches(_batch_rows(columns)):
            left -= batch.nbytes
            if left < 0:
                raise ImportFailed(TOO_LARGE)
            yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise ImportFailed(f"the file is not Parquet: {error}") from None


def _batch_rows(columns: Iterable[int]) -> int:
    """How many rows may be decoded at a time: no value is larger than the pages of its column."""
    return max(1, min(MAX_BATCH, BATCH_BYTES // max(columns, default=1)))


def _record(row: Mapping[str, object], keep_partitions: bool, keep_times: bool) -> NewRecord:
    unknown = row.keys() - KNOWN
    if unknown or "value" not in row:
        wrong = f"{', '.join(map(str, sorted(unknown)))} is unknown" if unknown else "value is missing"
        raise ImportFailed(f"{wrong}; the columns are {', '.join(sorted(KNOWN))}")
    headers = row.get("headers") or []
    if isinstance(headers, str):
        try:
            headers = json.loads(headers)
        except (ValueError, RecursionError):
            raise ImportFailed("headers is not a JSON list") from None
    return NewRecord(
        _bytes(row.get("key"), row.get("keyEncoding"), "key"),
        _bytes(row["value"], row.get("valueEncoding"), "value"),
        tuple(_headers(headers)),
        _number(row, "partition") if keep_partitions else None,
        _number(row, "timestampMs") if keep_times else None,
    )


def _headers(found: object) -> Iterable[tuple[str, bytes | None]]:
    entries = list(found.items()) if isinstance(found, dict) else found
    if not isinstance(entries, list):
        raise ImportFailed("headers is not a list or an object")
    for entry in entries:
        if not isinstance(entry, list | tuple) or len(entry) not in (2, 3) or not isinstance(entry[0], str):
            raise ImportFailed("a header is a list of name, value and encoding")
        yield entry[0], _bytes(entry[1], entry[2] if len(entry) == 3 else None, f"header {entry[0]}")


def _bytes(value: object, encoding: object, what: str) -> bytes | None:
    if value is None or encoding == NULL:
        return None
    if encoding is None and isinstance(value, dict | list | int | float):
        return json.dumps(value, ensure_ascii=False).encode()
    if not isinstance(value, str):
        raise ImportFailed(f"{what} is not a text")
    if encoding == BASE64:
        try:
            return b64decode(value, validate=True)
        except ValueError:  # also for characters that are not ASCII
            raise ImportFailed(f"{what} is not base64") from None
    if encoding == MASKED:
        raise ImportFailed(f"{what} is masked: the export does not have its bytes")
    if encoding in (None, TEXT, "json"):
        return value.encode("utf-8", "surrogatepass")
    raise ImportFailed(f"{what} was decoded as {encoding}; export it without decoding to import it again")


def _number(row: Mapping[str, object], name: str) -> int | None:
    value = row.get(name)
    if value is None or value == "":
        return None
    try:
        number = int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise ImportFailed(f"{name} {str(value)[:40]!r} is not a number") from None
    return int(number) if number >= 0 else None


@dataclass(slots=True, frozen=True)
class Produced:
    """Where a record was written."""

    partition: int
    offset: int


async def produce(
    settings: Mapping[str, object], topic: str, records: Iterable[NewRecord], *, codec: str = "none"
) -> list[Produced]:
    """Write records in order, and wait until all are written. Raises the error of the first that is not."""
    given = {**PRODUCER_SETTINGS, **settings, "compression.type": codec}
    async with AsyncProducer[bytes, bytes](given) as producer:
        futures = [
            await producer.send(
                topic, record.value, record.key, list(record.headers), record.partition, record.timestamp_ms
            )
            for record in records
        ]
        await producer.flush()
        written = [await future for future in futures]
    return [Produced(found.partition, found.offset) for found in written]
