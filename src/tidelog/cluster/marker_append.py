"""Appends the markers of transactions that end in partitions of this broker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from tidelog.cluster.partition import Partition
from tidelog.cluster.replica_manager import ReplicaManager
from tidelog.errors import KafkaError, UnknownServerError
from tidelog.storage.marker import Marker

log = logging.getLogger("tidelog.cluster")

MarkerAppend = tuple[Partition, Marker, bytes]
"""The partition of a marker, what it says, and its batch."""


def append_markers(
    replicas: ReplicaManager,
    markers: Sequence[MarkerAppend],
    *,
    timestamp: int,
    timeout_ms: Callable[[], int],
    done: Callable[[int, KafkaError | None], None],
) -> None:
    """Append markers; all have this timestamp.

    `done` is called for each with its index, when it is committed, or with the error.
    """
    outcomes: dict[int, KafkaError | None] = {}
    advanced: dict[Partition, None] = {}
    remaining: dict[Partition, list[int]] = {}  # markers that wait, or begin a segment
    for slot, (partition, marker, batch) in enumerate(markers):
        try:
            # A copy for each partition: the append writes its offset into the header.
            if (
                partition in remaining
                or not partition.commits_now()
                or not partition.append_marker_now(marker, bytearray(batch), timestamp)
            ):
                remaining.setdefault(partition, []).append(slot)
                continue
        except KafkaError as error:
            outcomes[slot] = error
        except Exception:
            log.exception("appending a marker to %s failed unexpectedly", partition.name)
            outcomes[slot] = UnknownServerError()
        else:
            outcomes[slot] = None
        advanced[partition] = None
    for partition in advanced:
        partition.advance_high_watermark()
    for slot, outcome in outcomes.items():
        done(slot, outcome)
    for partition, slots in remaining.items():
        replicas.append_own_together(
            partition,
            [memoryview(bytearray(markers[slot][2])) for slot in slots],
            [markers[slot][1].transaction_version for slot in slots],
            timeout_ms=timeout_ms(),
            done=lambda at, error, slots=slots: done(slots[at], error),  # type: ignore[misc]
        )
