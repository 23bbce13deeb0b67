"""RemoteBroker: the broker that started this console, asked over the link. Fulfils `LocalBroker`.

It keeps a row for each topic, log and group. The broker sends the changed rows, and a snapshot is made of all
rows. It counts records itself: the segment files are on this host.
"""

from __future__ import annotations

import asyncio
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


class RemoteBroker:
    """`send` writes a message to the broker; `take` gets each answer."""

    def __init__(self, broker_id: int, send: Callable[[Message], None]) -> None:
        self._broker_id = broker_id
        self._send = send
        self._number = 0
        self._asked: dict[int, asyncio.Queue[Answer]] = {}
        self._rows = ClusterRows()
        self._counts = RecordCounts()
        self._snapshots = asyncio.Lock()

    @property
    def broker_id(self) -> int:
        return self._broker_id

    def take(self, answer: Answer) -> None:
        """An answer of the broker, or a part of one."""
        waiting = self._asked.get(answer.number)
        if waiting is not None:
            waiting.put_nowait(answer)
        elif isinstance(answer, SnapshotPart):
            self._take_rows(answer)  # the page went away: the next snapshot has only what changed after it

    async def snapshot(self) -> ClusterSnapshot:
        async with self._snapshots:
            question = self._ask("snapshot")
            try:
                while True:
                    part = await self._part(question, SnapshotPart)
                    self._take_rows(part)
                    if part.is_last:
                        break
            finally:
                self._forget(question)
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

    async def figures(self) -> BrokerFigures:
        question = self._ask("figures")
        try:
            return (await self._part(question, FiguresAnswer)).figures
        finally:
            self._forget(question)

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

    def _ask(self, question: Question) -> int:
        self._number += 1
        self._asked[self._number] = asyncio.Queue()
        self._send(Ask(self._number, question))
        return self._number

    def _forget(self, number: int) -> None:
        """The question is answered, or nobody waits for its answer. Rows that came already are kept."""
        left = self._asked.pop(number)
        while not left.empty():
            part = left.get_nowait()
            if isinstance(part, SnapshotPart):
                self._take_rows(part)

    async def _part(self, number: int, kind: type[T]) -> T:
        answer = await self._asked[number].get()
        if isinstance(answer, QuestionFailed):
            raise UnknownServerError(answer.reason)
        assert isinstance(answer, kind)
        return answer

    def _take_rows(self, part: SnapshotPart) -> None:
        for row in part.rows:
            self._rows.take(row)

    async def _made(self) -> ClusterSnapshot:
        """A snapshot of all rows; other tasks run meanwhile, but no other snapshot changes the rows."""
        rows = self._rows
        topics: dict[str, TopicSnapshot] = {}
        for at, name in enumerate(rows.names):
            topics[name] = rows.topic(name)
            if at % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
                await asyncio.sleep(0)
        groups: dict[str, GroupSnapshot] = {}
        for at, group_id in enumerate(rows.groups):
            groups[group_id] = rows.group(group_id, self._broker_id)
            if at % GROUPS_PER_TURN == GROUPS_PER_TURN - 1:
                await asyncio.sleep(0)
        cluster = rows.cluster
        return ClusterSnapshot(
            cluster.cluster_id, cluster.controller, cluster.brokers, topics, groups, cluster.taken_ms
        )
