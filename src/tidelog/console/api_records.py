"""The endpoints of records: pages, one record, timeline, dry run of a filter, produce, replay, import."""

from __future__ import annotations

import asyncio
import binascii
from base64 import b64decode
from collections import Counter
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from tidelog.console.api import Call, Endpoint
from tidelog.console.errors import ApiError, not_found
from tidelog.console.formats import they_are
from tidelog.console.record_items import DecodedItem, RecordItem, record_item
from tidelog.console.record_queries import (
    PAGE_LIMITS,
    RecordsQuery,
    bad,
    browser_of,
    filter_of,
    parse_offset,
    reader_of,
    rules_of,
    where_of,
)
from tidelog.console.records.browser import RecordPage
from tidelog.console.records.cursors import CursorError
from tidelog.console.records.exports import ExportFormat
from tidelog.console.records.imports import ImportFailed, NewRecord, parse_file, produce
from tidelog.console.records.log_record import ShownRecord
from tidelog.console.records.replay import ReplayRefused, replay
from tidelog.console.records.timeline import Timeline, read_timeline

MAX_VALUE = 3_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
Encoding = Literal["text", "base64", "hex"]
Partition = Annotated[int, Meta(ge=0, le=1_000_000)]
TopicName = Annotated[str, Meta(min_length=1, max_length=249)]


class PartitionOffsets(Struct):
    partition: int
    start: int
    end: int


class RecordsAnswer(Struct):
    """A page of records. `older` and `newer` are cursors of the pages around it, or null.

    If `is_complete` is false, the limits of one request ended the search; `following` continues it.
    `progress` is the part of the topic that lies behind, from 0 to 1.
    """

    records: list[RecordItem]
    older: str | None
    newer: str | None
    following: str | None
    is_complete: bool
    progress: float
    scanned: int
    bytes: int
    filter_errors: int
    filter_error: str
    partitions: list[PartitionOffsets]


async def list_records(call: Call[RecordsQuery, None]) -> RecordsAnswer:
    """Records of a topic from a start point or a cursor on, decoded, masked and filtered."""
    return records_answer(await read_page(call, call.query))


async def read_page(call: Call[RecordsQuery, None], query: RecordsQuery) -> RecordPage:
    """The page of a query. Searches of the same records in the same way share one."""
    topic = call.path["topic"]
    browser = browser_of(call.request, call.cluster, topic, query)
    where, wanted = where_of(query), filter_of(query)

    async def page() -> RecordPage:
        return await browser.page(where, query.count, wanted=wanted, limits=PAGE_LIMITS, ranges=ranges)

    try:
        ranges = await browser.ranges()
        if wanted.is_empty or browser.seen is None:
            return await page()
        shape = query.partitions, query.count, query.key, query.value, query.text, query.filter, query.control
        return await call.cluster.searches.get((topic, browser.seen, str(where), shape), page)
    except CursorError as error:
        raise bad(error) from None


def records_answer(page: RecordPage) -> RecordsAnswer:
    return RecordsAnswer(
        [record_item(shown) for shown in page.records],
        _text(page.older),
        _text(page.newer),
        _text(page.following),
        page.is_complete,
        round(page.progress, 4),
        page.scanned,
        page.bytes,
        page.filter_errors,
        page.filter_error,
        [PartitionOffsets(index, found.start, found.end) for index, found in sorted(page.ranges.items())],
    )


def _text(cursor: object) -> str | None:
    return None if cursor is None else str(cursor)


class DecoderQuery(Struct):
    """The decoders of key and value; by default those of the topic."""

    key: Annotated[str, Meta(max_length=40)] = ""
    value: Annotated[str, Meta(max_length=40)] = ""


async def get_record(call: Call[DecoderQuery, None]) -> RecordItem:
    """One record with its whole key and value."""
    query = RecordsQuery(key=call.query.key, value=call.query.value, control=True)
    return record_item(await find_record(call, query), limit=None)


async def find_record(call: Call[DecoderQuery, None], query: RecordsQuery) -> ShownRecord:
    """The record of the path. Raises ApiError 404."""
    topic = call.path["topic"]
    partition, offset = place(call.path["partition"], call.path["offset"])
    shown = await browser_of(call.request, call.cluster, topic, query).record(partition, offset)
    if shown is None:
        raise not_found(f"The record {topic}-{partition} at offset {offset}")
    return shown


def place(partition: str, offset: str) -> tuple[int, int]:
    """A partition and an offset from a path. Raises ApiError 400."""
    try:
        index, at = parse_offset(partition), parse_offset(offset)
    except CursorError as error:
        raise bad(error) from None
    if index >= 1 << 31 or at >= 1 << 63:
        raise bad(CursorError("the partition or the offset is too large"))
    return index, at


class TimelineQuery(Struct):
    """How many buckets to make at most."""

    buckets: Annotated[int, Meta(ge=1, le=120)] = 48


class BucketItem(Struct):
    start_ms: int
    count: int


class TimelineAnswer(Struct):
    """How many offsets the topic wrote in each span of `step_ms`."""

    step_ms: int
    buckets: list[BucketItem]


async def get_timeline(call: Call[TimelineQuery, None]) -> TimelineAnswer:
    """How many records came when: spans of time with their counts."""
    reader = reader_of(call.cluster, call.path["topic"])
    found: Timeline = await read_timeline(reader, await reader.ranges(), buckets=call.query.buckets)
    return TimelineAnswer(
        found.step_ms, [BucketItem(bucket.start_ms, bucket.count) for bucket in found.buckets]
    )


class DecoderItem(Struct):
    name: str
    about: str


class DecodersAnswer(Struct):
    """The decoders that can be chosen for keys and values; `key` and `value` name those of the topic."""

    key: str
    value: str
    keys: list[DecoderItem]
    values: list[DecoderItem]


async def list_decoders(call: Call[None, None]) -> DecodersAnswer:
    """The decoders of a topic."""
    rules, topic = rules_of(call.request), call.path["topic"]
    rule = rules.of_topic(topic)
    keys, values = rules.choices(topic)
    return DecodersAnswer(
        rule.key,
        rule.value,
        [DecoderItem(decoder.name, decoder.about) for decoder in keys],
        [DecoderItem(decoder.name, decoder.about) for decoder in values],
    )


class FilterTest(Struct):
    """A filter to try on one record, by default on the newest record of the topic."""

    filter: Annotated[str, Meta(max_length=4000)] = ""
    text: Annotated[str, Meta(max_length=1000)] = ""
    key: Annotated[str, Meta(max_length=40)] = ""
    value: Annotated[str, Meta(max_length=40)] = ""
    partition: Partition | None = None
    offset: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] | None = None


class FilterVerdict(Struct):
    """Whether the record matches, or why the filter cannot be evaluated for it."""

    matches: bool
    error: str
    record: RecordItem | None


async def test_filter(call: Call[None, FilterTest]) -> FilterVerdict:
    """Try a filter on one record: true, false or the error."""
    return await filter_verdict(call, call.body)


async def filter_verdict(call: Call[Any, Any], test: FilterTest) -> FilterVerdict:
    query = RecordsQuery(key=test.key, value=test.value, filter=test.filter, text=test.text, count=1)
    wanted = filter_of(query)
    browser = browser_of(call.request, call.cluster, call.path["topic"], query)
    shown: ShownRecord | None
    if test.partition is not None and test.offset is not None:
        shown = await browser.record(test.partition, test.offset)
    else:
        shown = next(iter((await browser.page(where_of(query), 1)).records), None)
    if shown is None:
        return FilterVerdict(False, "There is no record to try the filter on.", None)
    verdict = wanted.test(shown)
    return FilterVerdict(verdict.matches, verdict.error, record_item(shown))


class NewRecordBody(Struct):
    """A record to produce. A missing key is null; `is_tombstone` makes the value null.

    `headers` has a line `name: value` for each header.
    """

    key: Annotated[str, Meta(max_length=MAX_VALUE)] | None = None
    key_encoding: Encoding = "text"
    value: Annotated[str, Meta(max_length=MAX_VALUE)] = ""
    value_encoding: Encoding = "text"
    is_tombstone: bool = False
    headers: Annotated[str, Meta(max_length=100_000)] = ""
    partition: Partition | None = None
    timestamp_ms: Annotated[int, Meta(ge=0, le=(1 << 62))] | None = None
    codec: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none"


class ProducedAnswer(Struct):
    """Where the record was written."""

    topic: str
    partition: int
    offset: int

    @property
    def message(self) -> str:
        return f"The record is in {self.topic}-{self.partition} at offset {self.offset}."


async def produce_record(call: Call[None, NewRecordBody]) -> ProducedAnswer:
    """Produce a record."""
    body, topic = call.body, call.path["topic"]
    await check_target(call, topic, body.partition)
    record = NewRecord(
        None if body.key is None else _bytes(body.key, body.key_encoding, "key"),
        None if body.is_tombstone else _bytes(body.value, body.value_encoding, "value"),
        tuple(_headers(body.headers)),
        body.partition,
        body.timestamp_ms,
    )
    (written,) = await produce(call.cluster.client_settings, topic, [record], codec=body.codec)
    return ProducedAnswer(topic, written.partition, written.offset)


async def check_target(call: Call[Any, Any], topic: str, partition: int | None) -> None:
    """Raise if a topic or a partition does not exist: a producer would make the topic, or wait."""
    known = await reader_of(call.cluster, topic).partitions()
    if partition is not None and partition not in known:
        raise bad(ValueError(f"topic {topic} has no partition {partition}; it has {len(known)}"))


def _bytes(text: str, encoding: Encoding, what: str) -> bytes:
    try:
        if encoding == "base64":
            return b64decode(text, validate=True)
        if encoding == "hex":
            return bytes.fromhex(text)
        return text.replace("\r\n", "\n").encode()
    except (binascii.Error, ValueError):
        raise bad(ValueError(f"the {what} is not {encoding}")) from None


def _headers(lines: str) -> list[tuple[str, bytes | None]]:
    found: list[tuple[str, bytes | None]] = []
    for line in filter(str.strip, lines.splitlines()):
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise bad(ValueError(f"header {line[:80]!r}: expected name: value"))
        found.append((name.strip(), value.strip().encode()))
    return found


class ReplayBody(Struct):
    """Where to produce the record again; without a topic in its own."""

    target: TopicName | None = None
    partition: Partition | None = None
    keep_time: bool = False


async def replay_record(call: Call[None, ReplayBody]) -> ProducedAnswer:
    """Produce a record again, byte by byte, to its topic or to another."""
    topic, body = call.path["topic"], call.body
    partition, offset = place(call.path["partition"], call.path["offset"])
    found = await browser_of(call.request, call.cluster, topic, RecordsQuery(control=True)).raw_record(
        partition, offset
    )
    if found is None:
        raise not_found(f"The record {topic}-{partition} at offset {offset}")
    target = body.target or topic
    if target != topic and not call.access.may(
        call.principal, "records.produce", f"topic:{target}", call.cluster.name
    ):
        raise ApiError(403, "FORBIDDEN", f"You may not produce to topic {target}.")
    await check_target(call, target, body.partition)
    try:
        written = await replay(
            call.cluster.client_settings,
            found,
            target,
            rules_of(call.request).masks,
            partition=body.partition,
            keep_time=body.keep_time,
        )
    except ReplayRefused as error:
        raise bad(error) from None
    return ProducedAnswer(target, written.partition, written.offset)


class ImportBody(Struct):
    """A file of records: `data` is its text, for Parquet base64."""

    format: Literal["jsonl", "csv", "parquet"]
    data: Annotated[str, Meta(max_length=4_000_000)] = ""
    keep_partitions: bool = False
    keep_times: bool = False


class ImportAnswer(Struct):
    """How many records were produced, in all and to each partition."""

    count: int
    partitions: list[PartitionCount]

    @property
    def message(self) -> str:
        return f"{they_are(self.count, 'record')} produced."


class PartitionCount(Struct):
    partition: int
    count: int


async def import_records(call: Call[None, ImportBody]) -> ImportAnswer:
    """Produce the records of a file. Nothing is produced if a row is wrong."""
    body, topic = call.body, call.path["topic"]
    format = ExportFormat(body.format)
    try:
        data = body.data.encode()
        if format is ExportFormat.PARQUET:
            data = b64decode(data, validate=True)
        records = await asyncio.to_thread(
            parse_file, format, data, keep_partitions=body.keep_partitions, keep_times=body.keep_times
        )
    except binascii.Error:
        raise bad(ValueError("the Parquet file is not base64")) from None
    except (ImportFailed, UnicodeEncodeError) as error:
        raise bad(error) from None
    if not records:
        raise bad(ValueError("the file has no records"))
    await check_target(call, topic, max((record.partition or 0 for record in records), default=0))
    written = await produce(call.cluster.client_settings, topic, records, codec="lz4")
    counts = Counter(found.partition for found in written)
    return ImportAnswer(
        len(written), [PartitionCount(index, count) for index, count in sorted(counts.items())]
    )


__all__ = ["ENDPOINTS", "DecodedItem"]

ENDPOINTS = (
    Endpoint(
        "GET", "/topics/{topic}/records", list_records,
        query=RecordsQuery, answer=RecordsAnswer, action="records.view",
    ),
    Endpoint(
        "POST", "/topics/{topic}/records", produce_record,
        body=NewRecordBody, answer=ProducedAnswer, action="records.produce", changes=True,
    ),
    Endpoint(
        "GET", "/topics/{topic}/records/{partition}/{offset}", get_record,
        query=DecoderQuery, answer=RecordItem, action="records.view",
    ),
    Endpoint(
        "POST", "/topics/{topic}/records/{partition}/{offset}/replay", replay_record,
        body=ReplayBody, answer=ProducedAnswer, action="records.replay", changes=True,
    ),
    Endpoint(
        "POST", "/topics/{topic}/records/import", import_records,
        body=ImportBody, answer=ImportAnswer, action="records.import", changes=True,
    ),
    Endpoint(
        "POST", "/topics/{topic}/records/test-filter", test_filter,
        body=FilterTest, answer=FilterVerdict, action="records.view",
    ),
    Endpoint(
        "GET", "/topics/{topic}/timeline", get_timeline,
        query=TimelineQuery, answer=TimelineAnswer, action="records.view",
    ),
    Endpoint("GET", "/topics/{topic}/decoders", list_decoders, answer=DecodersAnswer, action="records.view"),
)  # fmt: skip
