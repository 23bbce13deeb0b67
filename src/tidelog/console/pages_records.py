"""The pages of records: messages of a topic with live tail, timeline, export; one record; the analysis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from msgspec import Meta, Struct
from starlette.responses import Response, StreamingResponse

from tidelog.console.api import Call, parse_query
from tidelog.console.api_analysis import AnalysisAnswer, analysis_answer
from tidelog.console.api_records import (
    FilterTest,
    filter_verdict,
    find_record,
    read_page,
    records_answer,
)
from tidelog.console.api_topics import find_topic, topic_item
from tidelog.console.errors import ApiError
from tidelog.console.pages import LivePart, Page, TopicTab, View, server_sent
from tidelog.console.record_items import pretty, record_item, visible
from tidelog.console.record_queries import (
    RecordsQuery,
    analyses_of,
    bad,
    browser_of,
    filter_of,
    reader_of,
    rules_of,
    where_of,
)
from tidelog.console.records.cursors import Cursor, CursorError, Direction, Order
from tidelog.console.records.exports import MAX_RECORDS, ExportError, ExportFormat, ExportOptions, export
from tidelog.console.records.filters import EXAMPLES
from tidelog.console.records.log_record import ShownRecord
from tidelog.console.records.timeline import Timeline, read_timeline
from tidelog.console.records.topic_reader import OffsetRange
from tidelog.errors import KafkaError

PICTURE_HEIGHT = 48
PICTURE_WIDTH = 960


def call_of(view: View) -> Call[Any, None]:
    """The request of a page as one of the API."""
    return Call(view.request, view.cluster, view.principal, view.access, view.path, None, None)


class LiveQuery(Struct):
    live: bool = False


async def messages_page(view: View) -> Response:
    """The messages of a topic, or only the rows if the filter changes."""
    call = call_of(view)
    query: RecordsQuery = parse_query(RecordsQuery, view.request)
    is_live = parse_query(LiveQuery, view.request).live
    topic = await find_topic(call)
    context: dict[str, Any] = {"query": query, "is_live": is_live, "error": None, "found": None}
    context |= {"visible": visible, "pretty": pretty}
    try:
        if is_live:
            browser_of(view.request, view.cluster, topic.name, query)
            filter_of(query)
        else:
            context["found"] = records_answer(await read_page(call, query))
    except ApiError as error:
        context["error"] = error.message  # the form stays as it was filled in
    except KafkaError as error:
        context["error"] = str(error)
    keys, values = rules_of(view.request).choices(topic.name)
    return view.render(
        "records/messages.html",
        status=200 if context["error"] is None else 400,
        topic=topic_item(topic),
        tab="messages",
        keys=[decoder.name for decoder in keys],
        values=[decoder.name for decoder in values],
        is_masked=bool(rules_of(view.request).masks.of_topic(topic.name)),
        examples=EXAMPLES,
        **context,
    )


async def record_page(view: View) -> Response:
    """One record, whole: the target of a permalink. It leads to the records before and after it."""
    call = call_of(view)
    query: RecordsQuery = parse_query(RecordsQuery, view.request)
    topic = await find_topic(call)
    query.control = True
    shown = await find_record(call, query)
    query.partitions = str(shown.record.partition)
    browser = browser_of(view.request, view.cluster, topic.name, query)
    partition, offset = shown.record.partition, shown.record.offset
    # A compacted log has gaps: the next record is not always at the next offset.
    around = (
        Cursor(Direction.OLDER, Order.DESCENDING, {partition: offset}),
        Cursor(Direction.NEWER, Order.ASCENDING, {partition: offset + 1}),
    )
    before, after = [(await browser.page(cursor, 1)).records for cursor in around]
    keys, values = rules_of(view.request).choices(topic.name)
    return view.render(
        "records/record.html",
        topic=topic_item(topic),
        tab="messages",
        record=record_item(shown, limit=None),
        before=before[0].record.offset if before else None,
        after=after[0].record.offset if after else None,
        query=query,
        keys=[decoder.name for decoder in keys],
        values=[decoder.name for decoder in values],
        visible=visible,
        pretty=pretty,
    )


async def live_page(view: View) -> Response:
    """New records as server-sent events with the rows of the page."""
    query: RecordsQuery = parse_query(RecordsQuery, view.request)
    topic = view.path["topic"]
    browser = browser_of(view.request, view.cluster, topic, query)
    wanted = filter_of(query)
    await browser.ranges()

    def rows(records: list[ShownRecord]) -> bytes:
        items = [record_item(shown) for shown in reversed(records)]
        text = view.fragment(
            "records/rows.html", records=items, query=query, visible=visible, pretty=pretty, is_live=True
        )
        return server_sent("records", text)

    async def events() -> AsyncIterator[LivePart]:
        read = matched = skipped = 0
        key = topic, query.partitions, query.key, query.value, query.text, query.filter, query.control
        async for event in view.cluster.tails.follow(key, lambda: browser.tail(wanted)):
            found = event.found
            read, skipped = read + found.read, skipped + found.skipped
            matched += len(found.records)
            if found.records:
                yield event.rendered(rows)
            note = f"{read:,} records read, {matched:,} shown"
            yield "progress", note + (f", {skipped:,} skipped" if skipped else "")

    return view.live(events())


async def inside_page(view: View) -> Response:
    """What an opened row of a live list shows. Most rows are never opened: events have only their heads."""
    query: RecordsQuery = parse_query(RecordsQuery, view.request)
    query.control = True
    record, error = None, ""
    try:
        record = record_item(await find_record(call_of(view), query))
    except (ApiError, KafkaError) as failed:
        error = str(failed)
    return view.render(
        "records/inside.html", record=record, error=error, query=query, visible=visible, pretty=pretty
    )


async def dry_run_page(view: View) -> Response:
    """A sentence: whether the newest record matches the filter of the form."""
    query: RecordsQuery = parse_query(RecordsQuery, view.request)
    test = FilterTest(query.filter, query.text, query.key, query.value)
    try:
        verdict = await filter_verdict(call_of(view), test)
        return view.render("records/verdict.html", verdict=verdict, error="")
    except ApiError as error:
        return view.render("records/verdict.html", verdict=None, error=error.message)


async def timeline_page(view: View) -> Response:
    """The picture of the timeline."""
    query: RecordsQuery = parse_query(RecordsQuery, view.request)
    browser = browser_of(view.request, view.cluster, view.path["topic"], query)
    found = await read_timeline(reader_of(view.cluster, view.path["topic"]), await browser.ranges())
    return view.render(
        "records/timeline.html", timeline=found, bars=bars(found), query=query,
        width=PICTURE_WIDTH, height=PICTURE_HEIGHT, topic_name=view.path["topic"],
    )  # fmt: skip


class Bar(Struct):
    """A bar of the picture: position and size, and the time and count that it stands for."""

    x: float
    y: float
    width: float
    height: float
    start_ms: int
    count: int


def bars(timeline: Timeline) -> list[Bar]:
    highest = max(timeline.highest, 1)
    step = PICTURE_WIDTH / max(len(timeline.buckets), 1)
    found = []
    for number, bucket in enumerate(timeline.buckets):
        height = 0.0 if not bucket.count else max(2.0, bucket.count / highest * PICTURE_HEIGHT)
        found.append(
            Bar(
                round(number * step, 2), round(PICTURE_HEIGHT - height, 2), round(step * 0.86, 2),
                round(height, 2), bucket.start_ms, bucket.count,
            )
        )  # fmt: skip
    return found


class ExportQuery(Struct):
    """The format of the file, how many records at most, and whether to export decoded texts."""

    format: ExportFormat = ExportFormat.JSON
    records: Annotated[int, Meta(ge=1, le=MAX_RECORDS)] = 10_000
    decoded: bool = False


async def export_page(view: View) -> Response:
    """A file with the records that a search selects, in the order of partitions.

    A search that goes back in time (from `newest`, or by a cursor) selects the newest of its records.
    """
    topic = view.path["topic"]
    if not view.access.may(view.principal, "records.export", f"topic:{topic}", view.cluster.name):
        raise ApiError(403, "FORBIDDEN", f"You may not export records of topic {topic}.")
    query: RecordsQuery = parse_query(RecordsQuery, view.request)
    query.control = False
    options: ExportQuery = parse_query(ExportQuery, view.request)
    browser = browser_of(view.request, view.cluster, topic, query)
    where, wanted = where_of(query), filter_of(query)
    ranges = await browser.ranges()
    cursor = where if isinstance(where, Cursor) else await browser.start(where, ranges)
    begin = cursor.positions
    if cursor.direction is Direction.NEWER:
        ranges = {
            index: OffsetRange(max(found.start, begin.get(index, found.start)), found.end)
            for index, found in ranges.items()
        }
    else:
        older = {
            index: OffsetRange(found.start, min(found.end, begin.get(index, found.end)))
            for index, found in ranges.items()
        }
        ranges = await browser.newest(older, options.records, wanted)
    pieces = export(
        reader_of(view.cluster, topic),
        rules_of(view.request).view(topic, query.key, query.value),
        ranges,
        ExportOptions(options.format, options.records, options.decoded),
        wanted,
    )
    try:
        first = await anext(pieces)
    except (ExportError, CursorError) as error:
        raise bad(error) from None

    async def content() -> AsyncIterator[bytes]:
        yield first
        async for piece in pieces:
            yield piece

    name = "".join(char if char.isalnum() or char in "._-" else "_" for char in topic)
    disposition = f'attachment; filename="{name}.{options.format}"'
    return StreamingResponse(
        content(),
        media_type=options.format.media_type,
        headers={"Content-Disposition": disposition, "Cache-Control": "no-store"},
    )


async def analysis_page(view: View) -> Response:
    """The analysis of a topic; while it runs, the page asks for this fragment again."""
    topic = await find_topic(call_of(view))
    found = analyses_of(view.request, view.cluster).get(topic.name)
    answer: AnalysisAnswer | None = None if found is None else analysis_answer(found)
    is_fragment = view.request.headers.get("hx-target") == "analysis"
    highest = max((hour.records for hour in answer.hours), default=1) if answer else 1
    return view.render(
        "records/analysis_figures.html" if is_fragment else "records/analysis.html",
        topic=topic_item(topic),
        tab="analysis",
        analysis=answer,
        highest=max(highest, 1),
        width=PICTURE_WIDTH,
        height=PICTURE_HEIGHT,
    )


TOPIC_TABS = (
    TopicTab("messages", "Messages", "/messages"),
    TopicTab("analysis", "Analysis", "/analysis"),
)
PAGES = (
    Page("/topics/{topic}/messages", messages_page, action="records.view"),
    Page("/topics/{topic}/messages/live", live_page, action="records.view"),
    Page("/topics/{topic}/messages/dry-run", dry_run_page, action="records.view"),
    Page("/topics/{topic}/messages/timeline", timeline_page, action="records.view"),
    Page(
        "/topics/{topic}/messages/export",
        export_page,
        action="records.export",
        media_types=tuple(format.media_type.partition(";")[0] for format in ExportFormat),
        queries=(RecordsQuery, ExportQuery),
    ),
    Page("/topics/{topic}/messages/{partition}/{offset}", record_page, action="records.view"),
    Page("/topics/{topic}/messages/{partition}/{offset}/inside", inside_page, action="records.view"),
    Page("/topics/{topic}/analysis", analysis_page, action="analysis.view"),
)
