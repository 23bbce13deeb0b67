"""AuditTopic: the events of the audit as records of a topic, one JSON object each.

No request waits for the topic: events are queued in memory, and written a few times per second. If they come
too fast, or if this broker leads no partition of the topic, events are dropped and counted.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator

from tidelog.clock import TimerHandle
from tidelog.cluster.partition import Partition
from tidelog.cluster.replica_manager import ReplicaManager
from tidelog.controller.interface import NewTopic
from tidelog.errors import KafkaError
from tidelog.metrics.registry import Family
from tidelog.records.batch import Record, build_batch
from tidelog.server.audit import AuditEvent
from tidelog.server.internal_topics import InternalTopics
from tidelog.storage.append import AppendResult

log = logging.getLogger("tidelog.server.audit")

MAX_WAITING = 10_000
"""How many events wait to be written, at most: a few megabytes."""

MAX_BATCH = 500
WRITE_SECONDS = 0.2
RETRY_SECONDS = 2.0
APPEND_TIMEOUT_MS = 10_000


class AuditTopic:
    """`record` takes events from the start on; `close` writes those that wait."""

    def __init__(
        self, name: str, broker_id: int, replicas: ReplicaManager, internal_topics: InternalTopics
    ) -> None:
        self.name = name
        self.written = 0
        self.dropped = 0
        self._broker_id = broker_id
        self._replicas = replicas
        self._scheduler = replicas.scheduler
        self._internal_topics = internal_topics
        self._waiting: list[Record] = []
        self._timer: TimerHandle | None = None
        self._is_writing = False
        self._is_closed = False
        self._creation: asyncio.Task[None] | None = None

    def record(self, event: AuditEvent) -> None:
        """Queue an event. Events about the topic itself are ignored: each would cause the next one."""
        if event.get("resource") == f"Topic:{self.name}" or self._is_closed:
            return
        if len(self._waiting) >= MAX_WAITING:
            self.dropped += 1
            return
        now_ms = self._scheduler.clock.ms()
        value = json.dumps({"time": now_ms, "broker": self._broker_id, **event}, ensure_ascii=False)
        key = str(event.get("principal", "")).encode()
        self._waiting.append(Record(0, now_ms, key, value.encode()))
        self._write_in(WRITE_SECONDS)

    def families(self) -> Iterator[Family]:
        yield Family("tidelog_audit_events_written", "counter", [((), self.written)], "Events in the topic.")
        yield Family("tidelog_audit_events_dropped", "counter", [((), self.dropped)], "Events that are lost.")

    def close(self) -> None:
        """Write the queued events, up to the size of one batch."""
        if not self._is_closed:
            self._write()
            self._is_closed = True
            if self._timer is not None:
                self._timer.cancel()
            if self._creation is not None:
                self._creation.cancel()

    def _write_in(self, seconds: float) -> None:
        if self._timer is None and not self._is_writing and not self._is_closed:
            self._timer = self._scheduler.schedule(seconds, self._write)

    def _write(self) -> None:
        self._timer = None
        if not self._waiting or self._is_writing or self._is_closed:
            return
        partition = self._partition()
        if partition is None:
            self._create()
            self._write_in(RETRY_SECONDS)
            return
        records, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
        batch = build_batch([record._replace(offset=at) for at, record in enumerate(records)])
        self._is_writing = True

        def done(error: KafkaError | None) -> None:
            self._is_writing = False
            if error is None:
                self.written += len(records)
            else:
                self.dropped += len(records)
                log.warning("%d events of the audit could not be written: %s", len(records), error)
            if self._waiting:
                self._write_in(WRITE_SECONDS)

        self._replicas.append_own(
            partition,
            memoryview(bytearray(batch)),
            timeout_ms=APPEND_TIMEOUT_MS,
            written=_nothing,
            done=done,
        )

    def _partition(self) -> Partition | None:
        """A partition of the topic that this broker leads."""
        hosted = self._replicas.topics.get(self.name)
        if hosted is None:
            return None
        return next((found for found in hosted.partitions.values() if found.is_leader), None)

    def _create(self) -> None:
        if self._creation is None or self._creation.done():
            self._creation = asyncio.get_running_loop().create_task(self._ensure())

    async def _ensure(self) -> None:
        try:
            await self._internal_topics.ensure(NewTopic(self.name))
        except KafkaError as error:
            log.warning("the topic of the audit cannot be created: %s", error)


def _nothing(_result: AppendResult) -> None:
    pass
