"""Removes the offsets of deleted topics, and expired offsets.

A group without members is removed with its last offset. Tombstones are written in turns of a few
milliseconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from tidelog.clock import TimerHandle
from tidelog.coordinator.group.group import Group
from tidelog.coordinator.group.offsets import Offsets, tombstone
from tidelog.coordinator.group.records import NO_TIMESTAMP, CommittedOffset, read_offset_value
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.runtime import CoordinatorRuntime, NewRecord
from tidelog.errors import KafkaError

if TYPE_CHECKING:
    from tidelog.coordinator.group.offsets_service import OffsetsShard

log = logging.getLogger("tidelog.coordinator.group")

S = TypeVar("S", bound="OffsetsShard")

SECONDS_A_TURN = 0.003


class OffsetsUpkeep(Generic[S]):
    def __init__(self, runtime: CoordinatorRuntime[S], settings: GroupSettings) -> None:
        self._runtime = runtime
        self._settings = settings
        self._scheduler = runtime.scheduler
        self._timer: TimerHandle | None = None
        self._is_closed = False
        # Since the start, for the metrics.
        self.expirations = 0

    def start(self) -> None:
        """Remove expired offsets every `offsets.retention.check.interval.ms`."""
        if not self._is_closed:
            seconds = self._settings.offsets_retention_check_interval_ms / 1000
            self._timer = self._scheduler.schedule(seconds, lambda: self.expire(self.start))

    def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    # -- expiry --------------------------------------------------------------------------------------

    def expire(self, done: Callable[[], None] = lambda: None) -> None:
        """Check all groups once."""
        self._go_on(self._expiry(), done)

    def _expiry(self) -> Iterator[None]:
        for shard in list(self._runtime.shards()):
            for group_id in list(shard.groups):
                self._runtime.run(shard.partition, partial(self._expire, group_id), _left)
                yield

    def _expire(self, group_id: str, shard: S) -> None:
        group = shard.groups.get(group_id)
        if group is None:
            return
        now = self._scheduler.clock.ms()
        records = expired(shard.offsets, group, now, self._settings.offsets_retention_ms)
        self.expirations += len(records)
        is_all = len(records) == len(shard.offsets.of_group(group_id))
        if is_all and group.is_empty and not shard.offsets.has_open_transactions(group_id):
            records += group.tombstones()
        self._runtime.append_parts(shard.partition, records, _tell)

    # -- deleted topics --------------------------------------------------------------------------------

    def topics_deleted(self, topics: Sequence[tuple[str, bytes]]) -> None:
        """Remove the offsets of deleted topics, by name and id."""
        self._go_on(self._deletion(topics), lambda: None)

    def _deletion(self, topics: Sequence[tuple[str, bytes]]) -> Iterator[None]:
        for shard in list(self._runtime.shards()):
            for name, topic_id in topics:
                for records in shard.offsets.tombstones_of_topic(name, topic_id):
                    self._runtime.append_parts(shard.partition, records, _tell)
                    yield

    # -- turns ---------------------------------------------------------------------------------------

    def _go_on(self, steps: Iterator[None], done: Callable[[], None]) -> None:
        clock = self._scheduler.clock
        until = clock.monotonic() + SECONDS_A_TURN
        for _ in steps:
            if self._is_closed:
                return
            if clock.monotonic() >= until:
                self._scheduler.schedule(0.0, lambda: self._go_on(steps, done))
                return
        done()


def expired(offsets: Offsets, group: Group, now: int, retention_ms: int) -> list[NewRecord]:
    """The tombstones of a group's expired offsets."""
    found: list[NewRecord] = []
    has_transactions = offsets.has_open_transactions(group.group_id)
    subscribed: dict[str, bool] = {}
    for name, value in offsets.of_group(group.group_id).items():
        topic = name[0]
        if topic not in subscribed:
            subscribed[topic] = group.is_subscribed_to(topic)
        if subscribed[topic] or not _is_expired(read_offset_value(value), group, now, retention_ms):
            continue
        if not (has_transactions and offsets.is_pending(group.group_id, name)):
            found.append(tombstone(group.group_id, name))
    return found


def _is_expired(committed: CommittedOffset, group: Group, now: int, retention_ms: int) -> bool:
    base = group.offset_expiry_base(committed.commit_timestamp)
    if base is None:
        return False
    if committed.expire_timestamp != NO_TIMESTAMP:
        return now >= committed.expire_timestamp
    return now - base >= retention_ms


def _left(_: KafkaError) -> None:
    """Nothing to do: another broker leads the partition now."""


def _tell(error: KafkaError | None) -> None:
    if error is not None:
        log.warning("offsets that expired or whose topics are gone could not be deleted: %s", error)
