"""Interceptors of a consumer: they may change or drop records, and see commits.

An exception of an interceptor is logged and otherwise ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from tidelog.clients.interceptors import Chain
from tidelog.partitions import TopicPartition
from tidelog.records.loops import ConsumerRecord

log = logging.getLogger("tidelog.clients")


class ConsumerInterceptor:
    """Base class of interceptors; override the methods that you need."""

    def on_consume(self, records: list[ConsumerRecord[Any, Any]]) -> list[ConsumerRecord[Any, Any]]:
        """Return the records that `poll` returns. Called in the polling thread."""
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Called with committed offsets, on the consumer's loop: it must not block."""

    def close(self) -> None:
        """Called when the consumer is closed."""


class Interceptors(Chain[ConsumerInterceptor]):
    """The interceptors of a consumer, in the order given."""

    __slots__ = ()

    def __init__(self, given: Sequence[object]) -> None:
        super().__init__(ConsumerInterceptor, given)

    def on_consume(self, records: list[ConsumerRecord[Any, Any]]) -> list[ConsumerRecord[Any, Any]]:
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


def _given(records: list[ConsumerRecord[Any, Any]] | None) -> list[ConsumerRecord[Any, Any]]:
    """The records that an interceptor returned. Raises TypeError for None, a forgotten return."""
    if records is None:
        raise TypeError("on_consume returned None; expected a list of records, an empty one to drop them")
    return records
