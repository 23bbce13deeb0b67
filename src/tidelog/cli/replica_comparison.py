"""ReplicaBuffer: the batches that the replicas of a partition returned, compared up to the high watermark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.partitions import PartitionKey
from tidelog.records.batch import Buffer, iter_batches


class BatchSum(NamedTuple):
    """The end of a batch and the checksum of its content."""

    last_offset: int
    crc: int


@dataclass(slots=True, frozen=True)
class FetchedReplica:
    """The answer of one replica; without records and with high watermark -1 if it did not answer."""

    high_watermark: int
    batches: Sequence[BatchSum]


NOTHING_FETCHED = FetchedReplica(-1, ())


def batch_sums(records: Buffer, offset: int) -> list[BatchSum]:
    """The batches from an offset on. An answer may begin with a batch that has the offset inside."""
    return [
        BatchSum(header.last_offset, header.crc)
        for _, header in iter_batches(records)
        if header.last_offset >= offset
    ]


@dataclass(slots=True)
class ReplicaBuffer:
    """The offset up to which the replicas of a partition are the same."""

    partition: PartitionKey
    replicas: Sequence[int]
    offset: int
    lag: int = 0
    """Offsets between `offset` and the largest high watermark of the replicas."""

    differences: list[str] = field(default_factory=list)
    """What differs, since the last call of `take_differences`."""

    broken: bool = False
    """Whether the batches of the replicas end at different offsets, so that nothing after can be compared."""

    def compare(self, fetched: Mapping[int, FetchedReplica]) -> bool:
        """Compare the batches that all replicas have, and move `offset` behind them. Whether it moved."""
        before = self.offset
        answers = [(replica, fetched.get(replica, NOTHING_FETCHED)) for replica in self.replicas]
        for place in range(min((len(answer.batches) for _, answer in answers), default=0)):
            first_replica, first_answer = answers[0]
            first = first_answer.batches[place]
            if self.broken or any(
                answer.batches[place].last_offset >= answer.high_watermark for _, answer in answers
            ):
                break
            for replica, answer in answers[1:]:
                self._compare_batch(first_replica, first, replica, answer.batches[place])
            if not self.broken:
                self.offset = first.last_offset + 1
        high_watermark = max((answer.high_watermark for _, answer in answers), default=-1)
        self.lag = max(0, high_watermark - self.offset)
        return self.offset > before

    def _compare_batch(self, first_replica: int, first: BatchSum, replica: int, other: BatchSum) -> None:
        topic, index = self.partition
        if first.last_offset != other.last_offset:
            self.broken = True
            self.differences.append(
                f"partition {topic}-{index}: replica {first_replica}'s offset {first.last_offset} "
                f"doesn't match replica {replica}'s offset {other.last_offset}"
            )
        elif first.crc != other.crc:
            self.differences.append(
                f"partition {topic}-{index} has unmatched checksum at offset {other.last_offset}; "
                f"replica {first_replica}'s checksum {first.crc}; replica {replica}'s checksum {other.crc}"
            )

    def take_differences(self) -> list[str]:
        found, self.differences = self.differences, []
        return found


def lag_words(buffers: Iterable[ReplicaBuffer]) -> str:
    """The largest lag of all partitions."""
    listed = list(buffers)
    worst = max(listed, key=lambda buffer: buffer.lag)
    topic, index = worst.partition
    return (
        f"max lag is {worst.lag} for partition {topic}-{index} at offset {worst.offset} "
        f"among {len(listed)} partitions"
    )
