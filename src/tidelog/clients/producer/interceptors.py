"""Interceptors of a producer: they may change records before they are sent, and see the outcome.

An exception of an interceptor is logged and otherwise ignored: the record is sent.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic

from tidelog.clients.interceptors import Chain
from tidelog.clients.type_parameters import RecordKey, RecordValue
from tidelog.records.loops import RecordMetadata

log = logging.getLogger("tidelog.clients")


@dataclass(slots=True)
class ProducerRecord(Generic[RecordKey, RecordValue]):
    """A record as it was given to `send`."""

    topic: str
    value: RecordValue | None = None
    key: RecordKey | None = None
    headers: Sequence[tuple[str, bytes | None]] = field(default=())
    partition: int | None = None
    timestamp_ms: int | None = None


class ProducerInterceptor:
    """Base class of interceptors; override the methods that you need."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Return the record to send. Called in the sending thread, before serialization."""
        return record

    def on_acknowledgement(self, metadata: RecordMetadata, error: BaseException | None) -> None:
        """Called when a record is written or given up, on the producer's loop: it must not block."""

    def close(self) -> None:
        """Called when the producer is closed."""


class Interceptors(Chain[ProducerInterceptor]):
    """The interceptors of a producer, in the order given."""

    __slots__ = ()

    def __init__(self, given: Sequence[object]) -> None:
        super().__init__(ProducerInterceptor, given)

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        for interceptor in self._chain:
            try:
                record = _given(interceptor.on_send(record))
            except Exception:
                log.exception("on_send of %r failed; the record is sent as it was", interceptor)
        return record

    def on_acknowledgement(self, metadata: RecordMetadata, error: BaseException | None) -> None:
        for interceptor in self._chain:
            try:
                interceptor.on_acknowledgement(metadata, error)
            except Exception:
                log.exception("on_acknowledgement of %r failed", interceptor)


def _given(record: ProducerRecord | None) -> ProducerRecord:
    """The record that an interceptor returned. Raises TypeError for None, a forgotten return."""
    if record is None:
        raise TypeError("on_send returned None; expected a record")
    return record
