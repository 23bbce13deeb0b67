"""Details of fetched records for tools that show records to people."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from tidelog.clients.consumer.partitions import name_of
from tidelog.partitions import PartitionKey
from tidelog.records.detailed_reader import ControlRecordReader, DetailedReader

if TYPE_CHECKING:
    from tidelog.clients.consumer.blocking import Consumer
    from tidelog.records.loops import RecordReader


class Watermarks(NamedTuple):
    """Offsets of a partition in the last fetch; -1 before the first fetch."""

    log_start: int
    last_stable: int
    high: int


def read_details(consumer: Consumer, *, control_records: bool = False) -> None:
    """Let `poll` return `DetailedRecord`s. Call this before `subscribe` or `assign`."""
    reader = ControlRecordReader if control_records else DetailedReader
    consumer._core.fetcher.reader_class = cast("type[RecordReader]", reader)  # the same methods


def watermarks(consumer: Consumer, partition: PartitionKey) -> Watermarks:
    """The offsets of an assigned partition."""
    state = consumer._core.subscriptions.states.get(name_of(partition))
    if state is None:
        return Watermarks(-1, -1, -1)
    return Watermarks(state.log_start_offset, state.last_stable_offset, state.high_watermark)
