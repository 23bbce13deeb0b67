"""Appends the markers of transactions that end in a partition of this broker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from tidelog.cluster.partition import Partition
from tidelog.cluster.replica_manager import ReplicaManager
from tidelog.errors import KafkaError, UnknownServerError
from tidelog.storage.marker import Marker

log = logging.getLogger("tidelog.cluster")


def append_markers(
    replicas: ReplicaManager,
    partition: Partition,
    markers: Sequence[tuple[Marker, bytes]],
    *,
    timestamp: int,
    timeout_ms: Callable[[], int],
    done: Callable[[int, KafkaError | None], None],
) -> None:
    """Append markers, each with its batch; all have this timestamp.

    `done` is called for each with its index, when it is committed, or with the error.
    """
    outcomes: list[KafkaError | None] = []
    for marker, batch in markers:
        try:
            # A copy for each partition: the append writes its offset into the header.
            if not partition.commits_now() or not partition.append_marker_now(
                marker, bytearray(batch), timestamp
            ):
                break
        except KafkaError as error:
            outcomes.append(error)
        except Exception:
            log.exception("appending a marker to %s failed unexpectedly", partition.name)
            outcomes.append(UnknownServerError())
        else:
            outcomes.append(None)
    if outcomes:
        partition.advance_high_watermark()
    for slot, outcome in enumerate(outcomes):
        done(slot, outcome)
    first = len(outcomes)
    if first < len(markers):
        left = markers[first:]
        replicas.append_own_together(
            partition,
            [memoryview(bytearray(batch)) for _, batch in left],
            [marker.transaction_version for marker, _ in left],
            timeout_ms=timeout_ms(),
            done=lambda slot, error: done(first + slot, error),
        )
