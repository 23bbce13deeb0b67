"""The event time that a flow has reached in all of its partitions.

Topics, and partitions of a topic, may begin at different times, and a micro-batch may have records of hours
from one and of minutes from another. So each partition has its own newest event, and the slowest one decides.
A silent partition must not hold the others back for ever: it counts as long as it has unread records, or its
newest record is hardly older than the newest of all partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Newest(NamedTuple):
    """The newest good event of a partition and the newest record of one, in milliseconds since 1970."""

    event: int
    """Negative if no event of the partition was good. `record` is that of the newest bad event then."""
    record: int

    def with_later(self, other: Newest) -> Newest:
        """The newest of both. Bad events change nothing once there is a good one.

        A partition that gets bad events alone would otherwise never be silent.
        """
        if (self.event < 0) != (other.event < 0):
            return max(self, other)
        return Newest(max(self.event, other.event), max(self.record, other.record))


@dataclass(slots=True)
class EventClock:
    """Advances with each micro-batch and never goes back. The same micro-batches give the same times."""

    lateness_ms: int
    silent_ms: int
    newest: dict[tuple[str, int], Newest] = field(default_factory=dict)
    """By topic and partition. A partition without any record is not in it and holds nothing back."""
    watermark: int = 0
    """Events before this time are late: everything before it is decided."""

    def advance(self, batch: Mapping[tuple[str, int], Newest], unread: Collection[tuple[str, int]]) -> int:
        """Take the newest events of a micro-batch; returns the new watermark.

        The partitions `unread` have more records than the micro-batch took. One that had only bad events so
        far counts by the time of its records: the good ones are still to come.
        """
        for partition, found in batch.items():
            known = self.newest.get(partition, found)
            self.newest[partition] = known.with_later(found)
        begin = max((newest.record for newest in self.newest.values()), default=0) - self.silent_ms
        times = [
            newest.event if newest.event >= 0 else newest.record
            for partition, newest in self.newest.items()
            if partition in unread or (newest.event >= 0 and newest.record >= begin)
        ]
        if times:
            self.watermark = max(self.watermark, min(times) - self.lateness_ms)
        return self.watermark
