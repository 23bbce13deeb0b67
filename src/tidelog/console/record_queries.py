"""Which records a request asks for: start point, partitions, decoders, filters, cursor."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Annotated, Literal

from msgspec import Meta, Struct
from starlette.requests import Request

from tidelog.console.clusters import Cluster
from tidelog.console.errors import ApiError
from tidelog.console.records.analysis import Analyses
from tidelog.console.records.browser import Limits, RecordBrowser
from tidelog.console.records.cursors import Cursor, CursorError, Start, StartKind
from tidelog.console.records.decoder import DecodeError
from tidelog.console.records.filters import FilterError, RecordFilter
from tidelog.console.records.rules import RecordRules
from tidelog.console.records.topic_reader import TopicReader

PAGE_LIMITS = Limits(seconds=1.5, least=100)
"""A page of a busy machine has records, too, not only a link to the next page."""

MAX_PARTITIONS = 10_000
UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
PARTITION = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")
RELATIVE = re.compile(r"-(\d{1,9})(ms|s|m|h|d)")

DecoderName = Annotated[str, Meta(max_length=40)]


class RecordsQuery(Struct):
    """Which records to show.

    `at` is an offset, or a time: milliseconds, a date such as 2026-11-18T03:05:00Z, or -15m for 15 minutes
    ago. `partitions` are numbers such as 0,3-5. `filter` is a CEL expression. `cursor` continues a page.
    """

    start: Literal["newest", "oldest", "offset", "time"] = "newest"
    at: Annotated[str, Meta(max_length=40)] = ""
    partitions: Annotated[str, Meta(max_length=2000)] = ""
    count: Annotated[int, Meta(ge=1, le=500)] = 50
    key: DecoderName = ""
    value: DecoderName = ""
    text: Annotated[str, Meta(max_length=1000)] = ""
    filter: Annotated[str, Meta(max_length=4000)] = ""
    cursor: Annotated[str, Meta(max_length=32000)] = ""
    control: bool = False


def bad(error: Exception) -> ApiError:
    """A fault of the request as an answer."""
    text = str(error)
    sentence = text[:1].upper() + text[1:]
    return ApiError(400, "BAD_REQUEST", sentence if sentence.endswith(".") else f"{sentence}.")


def rules_of(request: Request) -> RecordRules:
    """The decoders and masks of this console."""
    rules = getattr(request.app.state, "rules", None)
    return rules if isinstance(rules, RecordRules) else RecordRules()


def analyses_of(request: Request, cluster: Cluster) -> Analyses:
    """The analyses of a cluster, kept by the application."""
    state = request.app.state
    if not hasattr(state, "analyses"):
        state.analyses = {}
    found: dict[str, Analyses] = state.analyses
    return found.setdefault(cluster.name, Analyses())


def reader_of(cluster: Cluster, topic: str) -> TopicReader:
    return TopicReader(cluster.admin, topic, cluster.local_logs)


def browser_of(request: Request, cluster: Cluster, topic: str, query: RecordsQuery) -> RecordBrowser:
    """The browser of a topic with the decoders and partitions of a query. Raises ApiError 400."""
    try:
        view = rules_of(request).view(topic, query.key, query.value)
        return RecordBrowser(
            reader_of(cluster, topic),
            view,
            partitions=parse_partitions(query.partitions),
            control=query.control,
        )
    except (DecodeError, CursorError) as error:
        raise bad(error) from None


def filter_of(query: RecordsQuery) -> RecordFilter:
    """Raises ApiError 400 for a filter that is not valid."""
    try:
        return RecordFilter(query.text, query.filter)
    except FilterError as error:
        raise bad(error) from None


def where_of(query: RecordsQuery) -> Start | Cursor:
    """Where the page begins. Raises ApiError 400."""
    try:
        if query.cursor:
            return Cursor.parse(query.cursor)
        kind = StartKind(query.start)
        if kind is StartKind.OFFSET:
            return Start(kind, parse_offset(query.at))
        if kind is StartKind.TIME:
            return Start(kind, parse_time(query.at))
        return Start(kind)
    except CursorError as error:
        raise bad(error) from None


def parse_partitions(text: str) -> tuple[int, ...]:
    """The partitions of a text such as 0,3-5; none for all. Raises CursorError."""
    found: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = PARTITION.fullmatch(part)
        if match is None:
            raise CursorError(f"partitions {text[:80]!r}: expected numbers such as 0,3-5")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first > MAX_PARTITIONS:
            raise CursorError(f"partitions {part}: expected a range of at most {MAX_PARTITIONS}")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def parse_offset(text: str) -> int:
    if not text.strip().isdecimal() or len(text) > 19:
        raise CursorError(f"offset {text!r}: expected a number from 0 on")
    return int(text)


def parse_time(text: str, now_ms: int | None = None) -> int:
    """Milliseconds since 1970 of a number, a date, or a time before now such as -15m. Raises CursorError."""
    text = text.strip()
    if text.isdecimal() and len(text) <= 15:
        return int(text)
    relative = RELATIVE.fullmatch(text)
    if relative is not None:
        now = int(time.time() * 1000) if now_ms is None else now_ms
        return max(0, now - int(relative[1]) * UNITS[relative[2]])
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise CursorError(
            f"time {text!r}: expected milliseconds, a date such as 2026-11-18T03:05:00Z, or -15m"
        ) from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return max(0, int(moment.timestamp() * 1000))
