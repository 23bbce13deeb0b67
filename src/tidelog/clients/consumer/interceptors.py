"""What others may do with records that were read: change or drop them, and see what is committed.

An interceptor that fails is logged and passed over.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from tidelog.clients.interceptors import Chain
from tidelog.partitions import TopicPartition
from tidelog.records.loops import Record

log = logging.getLogger("tidelog.clients")


class ConsumerInterceptor:
    """Base class: override what is needed."""

    def on_consume(self, records: list[Record]) -> list[Record]:
        """The records to hand out instead; called by whoever polls."""
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Offsets that were committed; called on the consumer's loop, which should not be held up."""

    def close(self) -> None:
        """The consumer is closed."""


class Interceptors(Chain[ConsumerInterceptor]):
    """The interceptors of a consumer, in the order given."""

    __slots__ = ()

    def __init__(self, given: Sequence[object]) -> None:
        super().__init__(ConsumerInterceptor, given)

    def on_consume(self, records: list[Record]) -> list[Record]:
        for interceptor in self._chain:
            try:
                records = _given(interceptor.on_consume(records))
            except Exception:
                log.exception("on_consume of %r failed; the records stay as they were", interceptor)
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        for interceptor in self._chain:
            try:
                interceptor.on_commit(offsets)
            except Exception:
                log.exception("on_commit of %r failed", interceptor)


def _given(records: list[Record] | None) -> list[Record]:
    """What an interceptor gave; one that forgets to would drop every record without a word."""
    if records is None:
        raise TypeError("on_consume gave None; a list of records is right, an empty one to drop them")
    return records
