"""GroupLag: the lag of this coordinator's groups in records and in seconds.

A timer notes the high watermarks of the partitions that groups have committed offsets for; the high
watermarks of other brokers' partitions come from their leaders. Where an offset is older than these notes,
as after a start, the timestamp of
its batch tells the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tidelog.clock import TimerHandle
from tidelog.cluster.replica_manager import ReplicaManager
from tidelog.coordinator.group.coordinator import GroupCoordinator
from tidelog.errors import CorruptMessage
from tidelog.metrics.lag_clock import LagClock
from tidelog.partitions import PartitionKey
from tidelog.storage.log import Log
from tidelog.storage.reads import CACHED, CachedReads, NotCached, bring_in

if TYPE_CHECKING:
    from tidelog.server.leader_offsets import LeaderOffsets

OBSERVE_SECONDS: Final = 5.0
PARTITIONS_PER_STEP: Final = 500

MAX_TIMES: Final = 10_000
"""How many times of batches are remembered. A group that reads on needs a new one for each commit."""


class GroupLag:
    """`start` begins the observations, `close` ends them. All methods run on the loop of the broker."""

    def __init__(
        self, groups: GroupCoordinator, replicas: ReplicaManager, leaders: LeaderOffsets | None = None
    ) -> None:
        """`leaders` knows the partitions without a replica here; None for a broker alone."""
        self._groups = groups
        self._leaders = leaders
        self._replicas = replicas
        self._scheduler = replicas.scheduler
        self._clock = LagClock[PartitionKey]()
        self._times: dict[tuple[PartitionKey, int], float | None] = {}
        self._timer: TimerHandle | None = None

    def start(self) -> None:
        if self._timer is None:
            self._timer = self._scheduler.schedule(OBSERVE_SECONDS, self._begin)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._leaders is not None:
            self._leaders.close()

    def end_offset(self, partition: PartitionKey) -> int | None:
        """The high watermark of a partition; None if it is not known yet."""
        log = self._log_of(partition)
        if log is not None:
            return log.high_watermark
        return None if self._leaders is None else self._leaders.known.get(partition)

    def seconds(self, partition: PartitionKey, committed: int) -> float | None:
        """The age of the oldest record that a group has not read, in seconds; 0 if it has read all records.

        None while the end of the partition or the time of an old batch is not known yet. Also None for older
        offsets than the start of this broker in partitions of other brokers.
        """
        end_offset = self.end_offset(partition)
        if end_offset is None:
            return None
        now = self._scheduler.clock.monotonic()
        self._clock.observe(partition, end_offset, now)
        known = self._clock.seconds(partition, committed, now)
        log = self._log_of(partition)
        if known is not None or log is None:
            return known
        appended = self._time_of(partition, log, committed)
        return None if appended is None else max(now - appended, 0.0)

    def _log_of(self, partition: PartitionKey) -> Log | None:
        found = self._replicas.find_partition(*partition)
        return None if found is None or found.offline else found.log

    # -- observations

    def _begin(self) -> None:
        self._go_on(self._observe())

    def _go_on(self, work: Iterator[None]) -> None:
        try:
            next(work)
        except StopIteration:
            self._timer = self._scheduler.schedule(OBSERVE_SECONDS, self._begin)
        else:
            self._timer = self._scheduler.schedule(0.0, lambda: self._go_on(work))

    def _observe(self) -> Iterator[None]:
        seen: set[PartitionKey] = set()
        elsewhere: set[PartitionKey] = set()
        looked_at = 0
        for shard in list(self._groups.runtime.shards()):
            for group_id in list(shard.offsets.group_ids):
                for partition in list(shard.offsets.of_group(group_id)):
                    looked_at += 1
                    if looked_at % PARTITIONS_PER_STEP == 0:
                        yield
                    if partition in seen:
                        continue
                    seen.add(partition)
                    if self._log_of(partition) is None:
                        elsewhere.add(partition)
                    end_offset = self.end_offset(partition)
                    if end_offset is not None:
                        self._clock.observe(partition, end_offset, self._scheduler.clock.monotonic())
        self._clock.keep(seen)
        if self._leaders is not None:
            self._leaders.refresh(elsewhere)

    # -- times of old batches

    def _time_of(self, partition: PartitionKey, log: Log, offset: int) -> float | None:
        """The timestamp of the batch of a record; None if it has none, or is not in the page cache."""
        key = (partition, offset)
        if key not in self._times:
            self._read_time(key, log, CACHED)
        return self._times.get(key)

    def _read_time(self, key: tuple[PartitionKey, int], log: Log, reads: CachedReads) -> None:
        if len(self._times) >= MAX_TIMES:
            self._times.clear()
        self._times[key] = None
        try:
            timestamp = _batch_timestamp(log, key[1], reads)
        except NotCached as cold:
            bring_in(self._scheduler, cold, reads, lambda brought: self._read_time(key, log, brought))
            return
        except (OSError, CorruptMessage):
            return  # a fetch of these records fails, too, and says why
        clock = self._scheduler.clock
        if timestamp >= 0:
            self._times[key] = clock.monotonic() - max(clock.ms() - timestamp, 0) / 1000


def _batch_timestamp(log: Log, offset: int, reads: CachedReads) -> int:
    """The first timestamp of the batch with `offset`, or of the batch after it; -1 if it has none."""
    for segment in log.segments.starting_from(max(offset, log.log_start_offset)):
        found = segment.position_of(offset, reads)
        if found is not None:
            header = segment.header_at(found[0], reads)
            return header.max_timestamp if header.is_log_append_time else header.base_timestamp
    return -1
