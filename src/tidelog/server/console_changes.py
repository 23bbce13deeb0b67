"""SnapshotChanges: the changes of topics, logs and groups since the console's previous snapshot.

Most topics of a large cluster are idle: the check of one costs about a microsecond, and it is not sent.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterator
from typing import TYPE_CHECKING, Final

from tidelog.console.broker_link import (
    ClusterRow,
    GroupGoneRow,
    GroupRow,
    LogGoneRow,
    LogRow,
    OffsetsGoneRow,
    OffsetsRow,
    RatesRow,
    Row,
    TopicGoneRow,
    TopicRow,
)
from tidelog.console.snapshot import BrokerSnapshot
from tidelog.coordinator.group.classic import ClassicGroup
from tidelog.coordinator.group.consumer import ConsumerGroup
from tidelog.coordinator.group.records import read_offset_value
from tidelog.errors import KafkaError
from tidelog.partitions import PartitionKey
from tidelog.protocol.wire import uuid_to_text
from tidelog.storage.reads import CACHED, NotCached

if TYPE_CHECKING:
    from tidelog.cluster.partition import Partition
    from tidelog.cluster.replica_manager import HostedTopic
    from tidelog.coordinator.group.group import Group
    from tidelog.metadata.state import ClusterState, TopicState
    from tidelog.server.services import Services
    from tidelog.storage.log import Log

NO_RATE: Final = 0.001
"""Events a second below which an idle topic counts as still."""

OFFSETS_PER_ROW: Final = 100

MOST_ABORTED: Final = 100
"""Aborted transactions of a log that are sent; the console fetches the records of a log with more of them."""

INDEX_ENTRIES: Final = 32
"""Entries of an offset index that are sent. The console walks the batches between two of them."""

LogSummary = tuple[int, int, int, int, int, str, bool]
"""Log start offset, high watermark, last stable offset, size, generation, folder, is uncertain."""


class _SentTopic:
    """The last values of a topic that were sent to the console."""

    __slots__ = ("counts", "is_still", "logs", "policy", "state")

    def __init__(self) -> None:
        self.state: TopicState | None = None
        self.policy = ""
        self.counts: tuple[int, int, int] | None = None
        self.is_still = False
        self.logs: dict[int, LogSummary] = {}


class _SentGroup:
    """The last values of a group that were sent to the console.

    `offsets` are encoded as in the coordinator.
    """

    __slots__ = ("head", "offsets")

    def __init__(self) -> None:
        self.head: tuple[str, str, int | None] | None = None
        self.offsets: dict[PartitionKey, bytes] = {}


class SnapshotChanges:
    """Remembers the values that one console has received. `rows` must not run twice at the same time."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._topics: dict[str, _SentTopic] = {}
        self._groups: dict[str, _SentGroup] = {}

    def rows(self) -> Iterator[Row | None]:
        """The rows that changed. The caller may pause after each item; None is only such a place."""
        state = self._services.metadata.snapshot
        yield from self._topic_rows(state)
        yield from self._group_rows()
        controller = None if state.controller_id < 0 else state.controller_id
        yield ClusterRow(state.cluster_id, controller, _brokers(state), round(time.time() * 1000))

    # -- topics ------------------------------------------------------------------------------------

    def rows_of_topic(self, name: str) -> Iterator[Row | None]:
        """The rows of one topic that changed. Must not be called while `rows` is running."""
        topic = self._services.metadata.snapshot.topics.get(name)
        if topic is not None:
            yield from self._rows_of(topic)
        elif self._topics.pop(name, None) is not None:
            yield TopicGoneRow(name)

    def _topic_rows(self, state: ClusterState) -> Iterator[Row | None]:
        known = self._topics
        for topic in list(state.topics.values()):
            yield from self._rows_of(topic)
            yield None
        if len(known) > len(state.topics):
            for name in [name for name in known if name not in state.topics]:
                del known[name]
                yield TopicGoneRow(name)

    def _rows_of(self, topic: TopicState) -> Iterator[Row | None]:
        name = topic.name
        sent = self._topics.get(name)
        if sent is not None and sent.state is not None and sent.state.topic_id != topic.topic_id:
            yield TopicGoneRow(name)
            sent = None
        if sent is None:
            sent = self._topics[name] = _SentTopic()
        policy = topic.configs.get("cleanup.policy") or self._usual_policy()
        # The state of a topic is never changed in place.
        if sent.state is not topic or sent.policy != policy:
            sent.state, sent.policy = topic, policy
            yield _topic_row(topic, policy)
        here = self._services.replicas.topics.get(name)
        if here is not None:
            if (rates := _rates(sent, here)) is not None:
                yield rates
            yield from _log_rows(sent, here)
        elif sent.logs:
            yield from _logs_gone(sent, name, ())

    def _usual_policy(self) -> str:
        policies = self._services.config.log_cleanup_policy
        return policies[0] if len(policies) == 1 else ",".join(policies)

    # -- groups ------------------------------------------------------------------------------------

    def _group_rows(self) -> Iterator[Row | None]:
        seen: set[str] = set()
        for shard in list(self._services.groups.runtime.shards()):
            for group_id, group in list(shard.groups.items()):
                seen.add(group_id)
                sent = self._groups.get(group_id)
                if sent is None:
                    sent = self._groups[group_id] = _SentGroup()
                head = _head(group)
                if sent.head != head:
                    sent.head = head
                    yield GroupRow(group_id, *head)
                offsets = shard.offsets.of_group(group_id)
                changed: list[tuple[str, int, int]] = []
                for key, value in list(offsets.items()):
                    if sent.offsets.get(key) is value:
                        continue
                    sent.offsets[key] = value
                    changed.append((*key, read_offset_value(value).offset))
                    if len(changed) == OFFSETS_PER_ROW:
                        yield OffsetsRow(group_id, changed)
                        changed = []
                if changed:
                    yield OffsetsRow(group_id, changed)
                if len(sent.offsets) > len(offsets):
                    gone = [key for key in sent.offsets if key not in offsets]
                    for key in gone:
                        del sent.offsets[key]
                    yield OffsetsGoneRow(group_id, gone)
                yield None
        if len(self._groups) > len(seen):
            for group_id in [group_id for group_id in self._groups if group_id not in seen]:
                del self._groups[group_id]
                yield GroupGoneRow(group_id)


def _head(group: Group) -> tuple[str, str, int | None]:
    members = len(group.members) if isinstance(group, ClassicGroup | ConsumerGroup) else None
    return group.kind, group.state_name, members


def _topic_row(topic: TopicState, policy: str) -> TopicRow:
    partitions = [
        (
            index,
            found.leader,
            found.replicas,
            found.isr,
            found.offline_replicas,
            found.adding,
            found.removing,
        )
        for index, found in sorted(topic.partitions.items())
    ]
    return TopicRow(topic.name, uuid_to_text(topic.topic_id), topic.is_internal, policy, partitions)


def _rates(sent: _SentTopic, hosted: HostedTopic) -> RatesRow | None:
    """The rates of a topic; None if they have not changed. An idle topic needs no arithmetic."""
    metrics = hosted.metrics
    counts = (metrics.messages_in.count, metrics.bytes_in.count, metrics.bytes_out.count)
    if sent.is_still and counts == sent.counts:
        return None
    is_first, sent.counts = sent.counts is None, counts
    if is_first and counts == (0, 0, 0):
        sent.is_still = True
        return RatesRow(hosted.name, 0.0, 0.0, 0.0)
    meters = (metrics.messages_in, metrics.bytes_in, metrics.bytes_out)
    rates = [0.0 if (rate := meter.rates()[0]) < NO_RATE else rate for meter in meters]
    sent.is_still = not any(rates)
    return RatesRow(hosted.name, *rates)


def _log_rows(sent: _SentTopic, hosted: HostedTopic) -> Iterator[Row | None]:
    led = 0
    for index, partition in list(hosted.partitions.items()):
        log = partition.log
        if log is None or partition.offline or not partition.is_leader:
            if sent.logs.pop(index, None) is not None:
                yield LogGoneRow(hosted.name, index)
            continue
        led += 1
        values = (
            log.log_start_offset,
            log.high_watermark,
            log.last_stable_offset,
            log.size,
            log.generation,
            log.dir,
            partition.has_uncertain_offsets,
        )
        if sent.logs.get(index) != values:
            sent.logs[index] = values
            yield _log_row(partition, log)
    if len(sent.logs) > led:
        yield from _logs_gone(sent, hosted.name, hosted.partitions)


def _logs_gone(sent: _SentTopic, name: str, present: Container[int]) -> Iterator[Row]:
    for index in [index for index in sent.logs if index not in present]:
        del sent.logs[index]
        yield LogGoneRow(name, index)


def _log_row(partition: Partition, log: Log) -> LogRow:
    segments = [(segment.base_offset, segment.size) for segment in log.segments]
    return LogRow(
        log.topic,
        log.partition,
        log.log_start_offset,
        log.high_watermark,
        sum(size for _, size in segments),
        log.dir,
        log.generation,
        segments,
        log.last_stable_offset,
        None if partition.has_uncertain_offsets else _aborted(log),
        log.active_segment.some_positions(INDEX_ENTRIES),
    )


def _aborted(log: Log) -> list[tuple[int, int, int]] | None:
    """The aborted transactions of a log; None if they are many, or not in memory."""
    found: list[tuple[int, int, int]] = []
    for segment in log.segments:
        if not segment.has_aborted:
            continue
        try:
            found += [
                (entry.producer_id, entry.first_offset, entry.last_offset)
                for entry in segment.aborted(CACHED)
            ]
        except (NotCached, KafkaError, OSError):
            return None
        if len(found) > MOST_ABORTED:
            return None
    return found


def _brokers(state: ClusterState) -> list[BrokerSnapshot]:
    return [
        BrokerSnapshot(broker_id, found.endpoints[0].host, found.endpoints[0].port, found.rack)
        for broker_id, found in sorted(state.brokers.items())
        if found.endpoints
    ]
