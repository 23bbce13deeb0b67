"""The endpoints of topic analyses: begin, watch, cancel."""

from __future__ import annotations

from msgspec import Struct

from tidelog.console.api import Call, Done, Endpoint
from tidelog.console.api_topics import find_topic
from tidelog.console.errors import ApiError, not_found
from tidelog.console.record_queries import analyses_of, reader_of
from tidelog.console.records.analysis import Analysis, AnalysisRefused, PartStatistics
from tidelog.console.records.statistics import SizeHistogram

MAX_HOURS = 24 * 31


class SizesItem(Struct):
    """Sizes in bytes. The percentiles are exact up to 1,024 bytes, and within 0.2 % above."""

    total: int
    low: int | None
    high: int | None
    average: float
    p50: int
    p75: int
    p95: int
    p99: int
    p999: int


class HourItem(Struct):
    start_ms: int
    records: int


class PartItem(Struct):
    """The statistics of a partition (-1 for the topic). Different keys and values are counted within 3 %."""

    partition: int
    records: int
    null_keys: int
    null_values: int
    different_keys: int
    different_values: int
    first_ms: int | None
    last_ms: int | None
    first_offset: int | None
    last_offset: int | None
    key_sizes: SizesItem
    value_sizes: SizesItem


class AnalysisAnswer(Struct):
    """An analysis: running, done, cancelled or failed. `hours` has the newest month at most."""

    topic: str
    state: str
    error: str
    progress: float
    started_ms: int
    finished_ms: int | None
    bytes_read: int
    total: PartItem
    partitions: list[PartItem]
    hours: list[HourItem]


def analysis_answer(found: Analysis) -> AnalysisAnswer:
    hours = sorted(found.total.hours.items())[-MAX_HOURS:]
    return AnalysisAnswer(
        found.topic,
        str(found.state),
        found.error,
        round(found.progress, 4),
        found.started_ms,
        found.finished_ms,
        found.bytes_read,
        _part(-1, found.total),
        [_part(index, part) for index, part in sorted(found.partitions.items())],
        [HourItem(start, count) for start, count in hours],
    )


def _part(index: int, part: PartStatistics) -> PartItem:
    return PartItem(
        index,
        part.records,
        part.null_keys,
        part.null_values,
        part.keys.count(),
        part.values.count(),
        part.first_ms,
        part.last_ms,
        part.first_offset,
        part.last_offset,
        _sizes(part.key_sizes),
        _sizes(part.value_sizes),
    )


def _sizes(found: SizeHistogram) -> SizesItem:
    percentiles = found.percentiles()
    return SizesItem(
        found.total,
        found.low,
        found.high,
        round(found.average, 1),
        percentiles["p50"],
        percentiles["p75"],
        percentiles["p95"],
        percentiles["p99"],
        percentiles["p99.9"],
    )


async def get_analysis(call: Call[None, None]) -> AnalysisAnswer:
    """The last analysis of a topic, with the results so far."""
    topic = await find_topic(call)
    found = analyses_of(call.request, call.cluster).get(topic.name)
    if found is None:
        raise not_found(f"An analysis of topic {topic.name}")
    return analysis_answer(found)


async def start_analysis(call: Call[None, None]) -> AnalysisAnswer:
    """Begin to analyse a topic in the background."""
    topic = await find_topic(call)
    try:
        found = analyses_of(call.request, call.cluster).start(reader_of(call.cluster, topic.name))
    except AnalysisRefused as error:
        text = str(error)
        raise ApiError(409, "ANALYSIS_RUNNING", f"{text[:1].upper()}{text[1:]}.") from None
    return analysis_answer(found)


async def cancel_analysis(call: Call[None, None]) -> Done:
    """Cancel the analysis of a topic; what it counted so far stays."""
    topic = await find_topic(call)
    if not await analyses_of(call.request, call.cluster).cancel(topic.name):
        raise not_found(f"A running analysis of topic {topic.name}")
    return Done(f"The analysis of topic {topic.name} is cancelled.")


RUN = "analysis.run"
ENDPOINTS = (
    Endpoint("GET", "/topics/{topic}/analysis", get_analysis, answer=AnalysisAnswer, action="analysis.view"),
    Endpoint(
        "POST",
        "/topics/{topic}/analysis",
        start_analysis,
        answer=AnalysisAnswer,
        action=RUN,
        changes=True,
    ),
    Endpoint("DELETE", "/topics/{topic}/analysis", cancel_analysis, action=RUN, changes=True),
)
