"""What others may do with records on their way: change them before they are sent, see how they fared.

An interceptor that fails is logged and passed over; it never keeps a record from being sent.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from tidelog.clients.interceptors import Chain
from tidelog.records.loops import RecordMetadata

log = logging.getLogger("tidelog.clients")


@dataclass(slots=True)
class ProducerRecord:
    """A record as it was given to `send`."""

    topic: str
    value: object = None
    key: object = None
    headers: Sequence[tuple[str, bytes | None]] = field(default=())
    partition: int | None = None
    timestamp_ms: int | None = None


class ProducerInterceptor:
    """Base class: override what is needed."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """The record to send instead; called by the thread that sends, before serializing."""
        return record

    def on_acknowledgement(self, metadata: RecordMetadata, error: BaseException | None) -> None:
        """How a record fared; called on the producer's loop, which should not be held up."""

    def close(self) -> None:
        """The producer is closed."""


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
    """What an interceptor gave, which may forget to."""
    if record is None:
        raise TypeError("on_send gave None; a record is right")
    return record
