"""Shard: the state of one partition of an internal topic, and HostedShard: a shard on this broker."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from tidelog.cluster.partition import Partition
from tidelog.coordinator.journal import Journal
from tidelog.errors import KafkaError

Done = Callable[[KafkaError | None], None]


class Shard(Protocol):
    """The state of one partition of a coordinator's topic."""

    @property
    def journal(self) -> Journal:
        """The changes that are not committed: `replay` and `end_transaction` note them."""

    def replay(
        self,
        key: bytes,
        value: bytes | None,
        *,
        offset: int,
        timestamp: int,
        producer_id: int,
        producer_epoch: int,
    ) -> None:
        """Apply a record. `producer_id` is -1 unless the record is part of a transaction."""

    def end_transaction(self, producer_id: int, producer_epoch: int, *, commit: bool) -> None:
        """Apply a marker: the records of the producer's transaction are committed or aborted."""

    def loaded(self) -> None:
        """Start timers after all records are replayed. Requests follow."""

    def unload(self) -> None:
        """Stop timers and answer all waiting requests: this broker does not lead the partition any more."""


S = TypeVar("S", bound=Shard)


class HostedShard(Generic[S]):
    """A partition that this broker leads: its shard, and the operations that wait for its appends."""

    __slots__ = (
        "in_flight",
        "is_loaded",
        "leader_epoch",
        "loads_up_to",
        "partition",
        "shard",
        "unreplayed",
        "waiting",
    )

    def __init__(self, partition: Partition, shard: S) -> None:
        self.partition = partition
        self.shard = shard
        self.leader_epoch = partition.leader_epoch
        self.is_loaded = False
        # The log end offset when the load began. A load has to replay all records below it.
        self.loads_up_to = sys.maxsize
        # Appends that are not replayed yet: operations on the shard wait for them.
        self.unreplayed = 0
        self.waiting: deque[tuple[Callable[[S], None], Callable[[KafkaError], None]]] = deque()
        # The callbacks of appends that are not committed yet, in the order of the appends.
        self.in_flight: dict[int, Done] = {}
        shard.journal.high_watermark = self._high_watermark

    def _high_watermark(self) -> int:
        log = self.partition.log
        return 0 if log is None else log.high_watermark
