"""A broker with a fault in it: `python planted.py FAULT start ...` changes its code and starts it as usual.

Each fault is one that a careless broker might have; the checker has to find every one of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tidelog.coordinator import loading
from tidelog.coordinator.group.offsets import Offsets
from tidelog.coordinator.transaction import completion
from tidelog.coordinator.transaction.markers import LocalMarkers, Marker, MarkerDone
from tidelog.coordinator.transaction.state import NO_EPOCH, State, Transaction, Transition
from tidelog.partitions import PartitionKey
from tidelog.records.batch import EndTransactionMarker, Record, read_control_record
from tidelog.storage import recovery
from tidelog.storage.log import Log
from tidelog.storage.producer_state_manager import ProducerStateManager


class Change(NamedTuple):
    """A name in a module or class, and what stands there instead."""

    owner: object
    name: str
    value: object


def markers_dropped() -> list[Change]:
    """One partition of a transaction never gets its marker."""
    write = LocalMarkers.write

    def dropping(
        self: LocalMarkers, marker: Marker, partitions: Iterable[PartitionKey], done: MarkerDone
    ) -> None:
        for key in partitions:
            if key == ("orders", 0):
                done(key, None)
            else:
                write(self, marker, [key], done)

    return [Change(LocalMarkers, "write", dropping)]


def everything_is_stable() -> list[Change]:
    """Readers of committed records are not held back by open transactions."""
    return [Change(ProducerStateManager, "_transactions_changed", lambda _: None)]


def aborted_left_out() -> list[Change]:
    """Fetch does not tell which transactions were aborted."""
    return [Change(Log, "aborted_transactions", lambda *_: [])]


def every_marker_commits() -> list[Change]:
    """The markers say commit although an abort was asked for."""

    def committing(producer_id: int, epoch: int, coordinator_epoch: int, _: bool, version: int) -> Marker:
        return Marker(producer_id, epoch, coordinator_epoch, True, version)

    return [Change(completion, "Marker", committing)]


def old_epochs_write() -> list[Change]:
    """A producer that was fenced may write to partitions that it has written to before."""
    check = ProducerStateManager.check

    def any_epoch(
        self: ProducerStateManager, producer_id: int, epoch: int, sequence: int, origin: object
    ) -> None:
        entry = self.entries.get(producer_id)
        if entry is None or epoch >= entry.epoch:
            check(self, producer_id, epoch, sequence, origin)  # type: ignore[arg-type]

    return [
        Change(ProducerStateManager, "check", any_epoch),
        Change(ProducerStateManager, "check_epoch", lambda *_: None),
        Change(ProducerStateManager, "check_verified", lambda *_: None),
        Change(ProducerStateManager, "start_verification", lambda *_: None),
    ]


def fence_without_abort() -> list[Change]:
    """A new producer gets its epoch, and the transaction of the one before it is forgotten."""
    initialize = Transaction.initialize

    def forgetting(
        self: Transaction, timeout_ms: int, expected: None, now_ms: int, **rest: object
    ) -> Transition | None:
        known = self.metadata
        if known.state is State.ONGOING and not known.is_two_phase:
            epoch = known.producer_epoch + 1
            return Transition(
                known._replace(
                    state=State.ONGOING, producer_epoch=epoch, partitions=frozenset(), last_update_ms=now_ms
                ),
                NO_EPOCH,
            )
        return initialize(self, timeout_ms, expected, now_ms, **rest)  # type: ignore[arg-type]

    from tidelog.coordinator.transaction import state

    return [
        Change(Transaction, "initialize", forgetting),
        Change(state, "check_transition", lambda *_: None),
    ]


def offsets_at_once() -> list[Change]:
    """Offsets of a transaction hold before its end, and whatever its end."""
    replay = Offsets.replay

    def at_once(self: Offsets, record_type: int, key: bytes, value: bytes | None, **rest: int) -> None:
        replay(self, record_type, key, value, **{**rest, "producer_id": -1})

    return [Change(Offsets, "replay", at_once)]


def replay_commits() -> list[Change]:
    """After a restart the offsets of aborted transactions hold."""

    def committed(record: Record) -> EndTransactionMarker | None:
        marker = read_control_record(record)
        return None if marker is None else marker._replace(commit=True)

    return [Change(loading, "read_control_record", committed)]


def no_duplicates_known() -> list[Change]:
    """A batch that comes again is written again."""
    from tidelog.storage import producer_state_manager

    return [
        Change(ProducerStateManager, "find_duplicate", lambda *_: None),
        Change(producer_state_manager, "_in_sequence", lambda *_: True),
    ]


def duplicates_forgotten() -> list[Change]:
    """After a restart a batch that comes again is written again."""
    reload, recover = recovery.reload_producers, recovery.recover_segment

    def forget(producers: ProducerStateManager) -> None:
        for producer_id, entry in list(producers.entries.items()):
            entry.take_epoch(-1)
            if entry.transaction_start is None:
                del producers.entries[producer_id]

    def reloaded(
        segments: object, snapshots: object, producers: ProducerStateManager, *rest: int, **more: bool
    ) -> None:
        reload(segments, snapshots, producers, *rest, **more)  # type: ignore[arg-type]
        forget(producers)

    def recovered(*given: object) -> object:
        result = recover(*given)  # type: ignore[arg-type]
        producers = given[-1]
        assert isinstance(producers, ProducerStateManager)
        forget(producers)
        return result

    return [
        Change(recovery, "reload_producers", reloaded),
        Change(recovery, "recover_segment", recovered),
        Change(ProducerStateManager, "has_ongoing", lambda *_: True),
    ]


def any_end_counts() -> list[Change]:
    """A delayed EndTxn of the transaction before ends the present one."""
    end = Transaction._end_and_bump

    def any_epoch(
        self: Transaction, producer_id: int, epoch: int, commit: bool, now_ms: int, new_producer_id: int
    ) -> Transition | None:
        if self.metadata.state is State.ONGOING and self.pending is None:
            epoch = self.metadata.producer_epoch
        return end(self, producer_id, epoch, commit, now_ms, new_producer_id)

    return [Change(Transaction, "_end_and_bump", any_epoch)]


FAULTS: dict[str, Callable[[], list[Change]]] = {
    fault.__name__: fault
    for fault in (
        markers_dropped,
        everything_is_stable,
        aborted_left_out,
        every_marker_commits,
        old_epochs_write,
        fence_without_abort,
        offsets_at_once,
        replay_commits,
        no_duplicates_known,
        duplicates_forgotten,
        any_end_counts,
    )
}


def main() -> None:
    for change in FAULTS[sys.argv[1]]():
        assert hasattr(change.owner, change.name), f"{change.owner} has no {change.name} to change"
        setattr(change.owner, change.name, change.value)
    from tidelog.cli.main import main as run

    sys.argv = ["tidelog", *sys.argv[2:]]
    run()


if __name__ == "__main__":
    main()
