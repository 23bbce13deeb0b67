"""Produces a record again, byte by byte, to its own topic or to another."""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.console.records.imports import NewRecord, Produced, produce
from tidelog.console.records.log_record import LogRecord
from tidelog.console.records.masking import Masks


class ReplayRefused(ValueError):
    """The record may not be produced again; the message says why."""


async def replay(
    settings: Mapping[str, object],
    record: LogRecord,
    target: str,
    masks: Masks,
    *,
    partition: int | None = None,
    keep_time: bool = False,
) -> Produced:
    """Write a record to a topic. Raises ReplayRefused, or the error of the producer.

    A record of a masked topic goes to its own topic only: another topic would show what is hidden.
    """
    if record.control is not None:
        raise ReplayRefused("a marker of a transaction cannot be produced")
    if target != record.topic and masks.of_topic(record.topic):
        raise ReplayRefused(
            f"topic {record.topic} is masked: its records can be produced to {record.topic} only"
        )
    copy = NewRecord(
        record.key,
        record.value,
        record.headers,
        partition,
        record.timestamp if keep_time and record.timestamp >= 0 else None,
    )
    return (await produce(settings, target, [copy]))[0]
