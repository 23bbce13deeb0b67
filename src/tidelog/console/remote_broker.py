"""RemoteBroker: the broker that started this console, asked over the link. Fulfils `LocalBroker`.

It keeps a row for each topic, log and group. The broker sends the changed rows, and a snapshot is made of all
rows. It counts and reads records itself: the segment files are on this host.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from tidelog.console.broker_link import (
    Answer,
    Ask,
    ClusterRow,
    ConnectionsPart,
    FiguresAnswer,
    GroupGoneRow,
    GroupRow,
    LogGoneRow,
    LogRow,
    Message,
    OffsetsGoneRow,
    OffsetsRow,
    Question,
    QuestionFailed,
    RatesRow,
    Row,
    SnapshotPart,
    TopicGoneRow,
    TopicRow,
)
from tidelog.console.local_broker import BrokerFigures, ConnectionFigures
from tidelog.console.record_counts import LogExtent, RecordCounts
from tidelog.console.records.log_files import LeaderLog, LogFiles, TopicLogs
from tidelog.console.snapshot import (
    ClusterSnapshot,
    GroupSnapshot,
    PartitionSnapshot,
    TopicSnapshot,
)
from tidelog.errors import UnknownServerError
from tidelog.partitions import PartitionKey

T = TypeVar("T")

COUNT_SECONDS: Final = 0.05
"""The time for counting records in a snapshot; the next snapshot goes on."""

TOPICS_PER_TURN: Final = 250
GROUPS_PER_TURN: Final = 500
"""About two milliseconds of work: a page that is asked for meanwhile does not wait for the whole snapshot."""


@dataclass(slots=True)
class _Topic:
    """The rows of a topic, and the extents of the logs that the broker leads."""

    row: TopicRow
    rates: RatesRow | None = None
    logs: dict[int, LogRow] = field(default_factory=dict)
    asked_at: float = -math.inf


@dataclass(slots=True)
class _Group:
    row: GroupRow
    offsets: dict[PartitionKey, int] = field(default_factory=dict)


class ClusterRows:
    """The rows of the cluster so far."""

    def __init__(self) -> None:
        self.cluster = ClusterRow("", None, [], 0)
        self.topics: dict[str, _Topic] = {}
        self.groups: dict[str, _Group] = {}
        self.extents: dict[PartitionKey, LogExtent] = {}
        self._names: list[str] | None = None

    @property
    def names(self) -> list[str]:
        """The names of the topics, sorted once."""
        if self._names is None:
            self._names = sorted(self.topics)
        return self._names

    def take(self, row: Row) -> None:
        """Take a row that changed."""
        match row:
            case LogRow():
                self.topics[row.topic].logs[row.partition] = row
                self.extents[row.topic, row.partition] = LogExtent(
                    row.directory, row.generation, row.start, row.end, tuple(row.segments)
                )
            case RatesRow():
                self.topics[row.topic].rates = row
            case OffsetsRow():
                offsets = self.groups[row.group_id].offsets
                offsets.update(((topic, partition), offset) for topic, partition, offset in row.offsets)
            case TopicRow():
                self._take_topic(row)
            case GroupRow():
                group = self.groups.get(row.group_id)
                if group is None:
                    self.groups[row.group_id] = _Group(row)
                else:
                    group.row = row
            case ClusterRow():
                self.cluster = row
            case LogGoneRow():
                self.topics[row.topic].logs.pop(row.partition, None)
                self.extents.pop((row.topic, row.partition), None)
            case TopicGoneRow():
                gone = self.topics.pop(row.name)
                self._names = None
                for partition in gone.logs:
                    self.extents.pop((row.name, partition), None)
            case OffsetsGoneRow():
                for key in row.partitions:
                    self.groups[row.group_id].offsets.pop(key, None)
            case GroupGoneRow():
                del self.groups[row.group_id]

    def _take_topic(self, row: TopicRow) -> None:
        topic = self.topics.get(row.name)
        if topic is None:
            self.topics[row.name] = _Topic(row)
            self._names = None
        else:
            topic.row = row

    def topic(self, name: str) -> TopicSnapshot:
        found = self.topics[name]
        row, rates, logs = found.row, found.rates, found.logs
        partitions = []
        for index, leader, replicas, isr, offline, adding, removing in row.partitions:
            partition = PartitionSnapshot(
                index,
                leader,
                tuple(replicas),
                tuple(isr),
                tuple(offline),
                tuple(adding),
                tuple(removing),
            )
            if (log := logs.get(index)) is not None:
                partition.start, partition.end, partition.size = log.start, log.end, log.size
            partitions.append(partition)
        topic = TopicSnapshot(name, row.topic_id, row.is_internal, partitions, row.cleanup_policy)
        if rates is not None:
            topic.records_per_s = rates.records_per_s
            topic.bytes_in_per_s = rates.bytes_in_per_s
            topic.bytes_out_per_s = rates.bytes_out_per_s
        return topic

    def group(self, group_id: str, coordinator: int) -> GroupSnapshot:
        found = self.groups[group_id]
        row = found.row
        return GroupSnapshot(group_id, row.protocol, row.state, row.members, coordinator, dict(found.offsets))

    def topic_logs(self, name: str) -> TopicLogs | None:
        """The logs of a topic that can be read from files; None if there is no such topic."""
        found = self.topics.get(name)
        if found is None:
            return None
        logs = {
            index: LeaderLog(
                row.directory,
                row.generation,
                row.start,
                row.end,
                row.last_stable_offset,
                tuple(row.segments),
                tuple(row.aborted),
                tuple(row.index),
            )
            for index, row in found.logs.items()
            if row.aborted is not None
        }
        return TopicLogs(tuple(shape[0] for shape in found.row.partitions), logs, found.row.topic_id)


class RemoteBroker:
    """`send` writes a message to the broker; `take` gets each answer."""

    def __init__(self, broker_id: int, send: Callable[[Message], None], *, reads_files: bool = False) -> None:
        self._broker_id = broker_id
        self._send = send
        self._reads_files = reads_files
        self._figures: tuple[float, BrokerFigures | None] = (0.0, None)
        self._files = LogFiles()
        self._looking: dict[str, asyncio.Task[None]] = {}
        self._number = 0
        self._asked: dict[int, asyncio.Queue[Answer]] = {}
        self._rows = ClusterRows()
        self._counts = RecordCounts()
        self._snapshots = asyncio.Lock()

    @property
    def broker_id(self) -> int:
        return self._broker_id

    @property
    def reads_files(self) -> bool:
        return self._reads_files

    def take(self, answer: Answer) -> None:
        """An answer of the broker, or a part of one."""
        if isinstance(answer, SnapshotPart):
            # At once, in the order in which the broker sent them, also if nobody waits any more: the next
            # answer has only what changed after it.
            for row in answer.rows:
                self._rows.take(row)
        waiting = self._asked.get(answer.number)
        if waiting is not None:
            waiting.put_nowait(answer)

    async def snapshot(self) -> ClusterSnapshot:
        async with self._snapshots:
            await self._look("snapshot")
            snapshot = await self._made()
            counts = await asyncio.to_thread(self._counts.count, dict(self._rows.extents), COUNT_SECONDS)
            for (topic, index), records in counts.items():
                found = snapshot.topics.get(topic)
                if found is None or index >= len(found.partitions):
                    continue
                partition = found.partitions[index]
                partition.records = records
                if partition.offset_range:
                    partition.last_ms = self._counts.newest_ms((topic, index))
            return snapshot

    async def logs(self, topic: str, max_age: float = 0.0) -> TopicLogs | None:
        known = self._rows.topics.get(topic)
        if known is None or time.monotonic() - known.asked_at >= max_age:
            looking = self._looking.get(topic) if max_age else None
            if looking is None:
                self._looking[topic] = looking = asyncio.create_task(self._look_at(topic))
            await asyncio.shield(looking)
        return self._rows.topic_logs(topic)

    async def read(self, log: LeaderLog, offset: int, limit: int, max_bytes: int) -> bytes:
        return await asyncio.to_thread(self._files.read, log, offset, limit, max_bytes)

    async def _look_at(self, topic: str) -> None:
        """Ask for the rows of a topic that changed. Pages that may be a moment late share a question."""
        asked_at = time.monotonic()
        try:
            await self._look("topic", topic)
        finally:
            if self._looking.get(topic) is asyncio.current_task():
                del self._looking[topic]
        if (known := self._rows.topics.get(topic)) is not None:
            known.asked_at = asked_at

    async def _look(self, question: Question, topic: str = "") -> None:
        """Ask, and wait until all rows of the answer are taken."""
        number = self._ask(question, topic)
        try:
            while not (await self._part(number, SnapshotPart)).is_last:
                pass
        finally:
            self._forget(number)

    async def figures(self, max_age: float = 0.0) -> BrokerFigures:
        asked_at, known = self._figures
        if known is not None and time.monotonic() - asked_at < max_age:
            return known
        asked_at, question = time.monotonic(), self._ask("figures")
        try:
            known = (await self._part(question, FiguresAnswer)).figures
        finally:
            self._forget(question)
        self._figures = asked_at, known
        return known

    async def connections(self) -> list[ConnectionFigures]:
        question = self._ask("connections")
        found: list[ConnectionFigures] = []
        try:
            while True:
                part = await self._part(question, ConnectionsPart)
                found += part.connections
                if part.is_last:
                    return found
        finally:
            self._forget(question)

    def _ask(self, question: Question, topic: str = "") -> int:
        self._number += 1
        self._asked[self._number] = asyncio.Queue()
        self._send(Ask(self._number, question, topic))
        return self._number

    def _forget(self, number: int) -> None:
        """The question is answered, or nobody waits for its answer."""
        del self._asked[number]

    async def _part(self, number: int, kind: type[T]) -> T:
        answer = await self._asked[number].get()
        if isinstance(answer, QuestionFailed):
            raise UnknownServerError(answer.reason)
        assert isinstance(answer, kind)
        return answer

    async def _made(self) -> ClusterSnapshot:
        """A snapshot of all rows. Other tasks run meanwhile, and rows of topics may change."""
        rows = self._rows
        topics: dict[str, TopicSnapshot] = {}
        for at, name in enumerate(rows.names):
            if name in rows.topics:
                topics[name] = rows.topic(name)
            if at % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
                await asyncio.sleep(0)
        groups: dict[str, GroupSnapshot] = {}
        for at, group_id in enumerate(list(rows.groups)):
            if group_id in rows.groups:
                groups[group_id] = rows.group(group_id, self._broker_id)
            if at % GROUPS_PER_TURN == GROUPS_PER_TURN - 1:
                await asyncio.sleep(0)
        cluster = rows.cluster
        return ClusterSnapshot(
            cluster.cluster_id, cluster.controller, cluster.brokers, topics, groups, cluster.taken_ms
        )
