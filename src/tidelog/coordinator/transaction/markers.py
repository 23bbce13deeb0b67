"""Transaction markers: the control records that end a transaction in each of its partitions.

`MarkerChannel` writes markers to partitions of any broker. `LocalMarkers` writes to partitions of this
broker, all markers of one turn of the loop together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from tidelog.clock import Scheduler
from tidelog.cluster.marker_append import MarkerAppend, append_markers
from tidelog.cluster.partition import Partition
from tidelog.cluster.replica_manager import ReplicaManager
from tidelog.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    KafkaError,
    NotCoordinator,
    NotLeaderOrFollower,
)
from tidelog.partitions import PartitionKey
from tidelog.records.batch import build_end_transaction_marker
from tidelog.storage.marker import Marker as Marker

MarkerDone = Callable[[PartitionKey, KafkaError | None], None]

GROUP_TOPIC = "__consumer_offsets"


class MarkerChannel(Protocol):
    def write(self, marker: Marker, partitions: Iterable[PartitionKey], done: MarkerDone) -> None:
        """Write a marker to each partition; calls `done` once for each of them, with its error or None."""

    def cancel(self, done: MarkerDone) -> None:
        """Drop the remaining markers of `done`. It is not called any more, if possible."""


class GroupMarkers(Protocol):
    """The part of runtime.CoordinatorRuntime for markers in `__consumer_offsets`: they commit offsets."""

    def append_marker(
        self,
        partition: int,
        done: Callable[[KafkaError | None], None],
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        transaction_version: int = 0,
    ) -> None: ...


_Waiting = tuple[Partition, Marker, PartitionKey, MarkerDone]


class LocalMarkers:
    """Implements MarkerChannel for the partitions that this broker leads."""

    def __init__(
        self,
        replicas: ReplicaManager,
        scheduler: Scheduler,
        groups: Callable[[], GroupMarkers | None],
        timeout_ms: Callable[[], int],
    ) -> None:
        self._replicas = replicas
        self._scheduler = scheduler
        self._groups = groups
        self._timeout_ms = timeout_ms
        self._waiting: list[_Waiting] = []  # the end of this turn writes them

    def write(self, marker: Marker, partitions: Iterable[PartitionKey], done: MarkerDone) -> None:
        for key in partitions:
            try:
                partition = self._replicas.partition(*key)
            except KafkaError as error:
                done(key, error)
                continue
            groups = self._groups() if key[0] == GROUP_TOPIC else None
            if groups is not None:
                self._write_to_group(groups, marker, key, done)
                continue
            if not self._waiting:
                self._scheduler.call_soon_in_turn(self._flush)
            self._waiting.append((partition, marker, key, done))

    def cancel(self, done: MarkerDone) -> None:
        """Do nothing: local markers are written in the same turn of the loop."""

    def _write_to_group(
        self, groups: GroupMarkers, marker: Marker, key: PartitionKey, done: MarkerDone
    ) -> None:
        def written(error: KafkaError | None) -> None:
            if isinstance(error, CoordinatorNotAvailable | CoordinatorLoadInProgress | NotCoordinator):
                error = NotLeaderOrFollower(f"the group coordinator of {key[0]}-{key[1]} is not ready")
            done(key, error)

        groups.append_marker(
            key[1],
            written,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            commit=marker.commit,
            transaction_version=marker.transaction_version,
        )

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        now_ms = self._scheduler.clock.ms()
        encoded: dict[Marker, bytes] = {}
        markers: list[MarkerAppend] = []
        for partition, marker, _, _ in waiting:
            batch = encoded.get(marker)
            if batch is None:
                batch = encoded[marker] = _encode(marker, now_ms)
            markers.append((partition, marker, batch))

        def written(slot: int, error: KafkaError | None) -> None:
            _, _, key, done = waiting[slot]
            done(key, error)

        append_markers(self._replicas, markers, timestamp=now_ms, timeout_ms=self._timeout_ms, done=written)


def _encode(marker: Marker, now_ms: int) -> bytes:
    return build_end_transaction_marker(
        commit=marker.commit,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        coordinator_epoch=marker.coordinator_epoch,
        timestamp=now_ms,
    )
