"""What others may do with records on their way: change them before they are sent, see how they fared.

An interceptor that fails is logged and passed over; it never keeps a record from being sent.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from tidelog.config import ConfigError
from tidelog.records._pure_client import RecordMetadata

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


class Interceptors:
    """The interceptors of a producer, in the order given."""

    __slots__ = ("_chain",)

    def __init__(self, given: Sequence[object]) -> None:
        self._chain: list[ProducerInterceptor] = []
        for entry in given:
            made: object = entry() if isinstance(entry, type) else entry
            if not isinstance(made, ProducerInterceptor):
                raise ConfigError(
                    "interceptor.classes",
                    repr(entry),
                    "expected subclasses of ProducerInterceptor or objects of one",
                )
            self._chain.append(made)

    def __bool__(self) -> bool:
        return bool(self._chain)

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        for interceptor in self._chain:
            try:
                record = interceptor.on_send(record)
            except Exception:
                log.exception("on_send of %r failed; the record is sent as it was", interceptor)
        return record

    def on_acknowledgement(self, metadata: RecordMetadata, error: BaseException | None) -> None:
        for interceptor in self._chain:
            try:
                interceptor.on_acknowledgement(metadata, error)
            except Exception:
                log.exception("on_acknowledgement of %r failed", interceptor)

    def close(self) -> None:
        for interceptor in self._chain:
            try:
                interceptor.close()
            except Exception:
                log.exception("close of %r failed", interceptor)
