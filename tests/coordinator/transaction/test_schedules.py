"""Many random lives of producers and coordinators: no schedule makes a reader see what it must not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.coordinator.transaction.schedules import Schedule
from tests.support.scale import scale
from tidelog.coordinator.transaction import completion
from tidelog.coordinator.transaction.coordinator import TransactionCoordinator
from tidelog.coordinator.transaction.markers import Marker
from tidelog.coordinator.transaction.state import CLASSIC, State, Transaction, Transition
from tidelog.storage import producer_state_manager
from tidelog.storage.producer_state_manager import ProducerStateManager

GROUPS = 8


def play(folder: Path, seed: int) -> Schedule:
    schedule = Schedule(folder / str(seed), seed)
    try:
        schedule.run()
        schedule.check()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    finally:
        schedule.stage.close()
    return schedule


@pytest.mark.parametrize("group", range(GROUPS))
def test_every_transaction_is_whole_or_gone_as_its_producer_was_told(tmp_path: Path, group: int) -> None:
    committed = 0
    for number in range(scale(3, 150)):
        schedule = play(tmp_path, group * 1000 + number)
        committed += sum(intent.outcome is True for intent in schedule.intents)
    assert committed > 0


# -- the checker finds what is wrong


def no_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    """Late batches open transactions that nobody ends."""
    monkeypatch.setattr(Transaction, "verify_partitions", lambda *_: {})
    monkeypatch.setattr(ProducerStateManager, "check_verified", lambda *_: None)


def nothing_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was prepared before a restart stays so."""
    monkeypatch.setattr(TransactionCoordinator, "_resume", lambda *_: None)


def fence_without_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """An aborted producer goes on as if nothing had been."""
    fence = Transaction.fence

    def without_epoch(self: Transaction, now_ms: int, version: int) -> Transition:
        prepared = fence(self, now_ms, version)
        epoch = self.metadata.producer_epoch
        return prepared._replace(
            metadata=prepared.metadata._replace(producer_epoch=epoch, client_version=CLASSIC)
        )

    monkeypatch.setattr(Transaction, "fence", without_epoch)


def any_end_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A delayed end reaches the next transaction."""
    end = Transaction._end_and_bump

    def any_epoch(
        self: Transaction, producer_id: int, epoch: int, commit: bool, now_ms: int, new_producer_id: int
    ) -> Transition | None:
        if self.metadata.state is State.ONGOING and self.pending is None:
            epoch = self.metadata.producer_epoch
        return end(self, producer_id, epoch, commit, now_ms, new_producer_id)

    monkeypatch.setattr(Transaction, "_end_and_bump", any_epoch)


def no_deduplication(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that arrives twice is written twice."""
    monkeypatch.setattr(ProducerStateManager, "find_duplicate", lambda *_: None)
    monkeypatch.setattr(producer_state_manager, "_in_sequence", lambda *_: True)


def every_marker_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Aborted records are read committed."""
    monkeypatch.setattr(
        completion,
        "Marker",
        lambda producer_id, epoch, coordinator_epoch, _, version: Marker(
            producer_id, epoch, coordinator_epoch, True, version
        ),
    )


@pytest.mark.parametrize(
    "plant",
    [
        no_verification,
        nothing_resumed,
        fence_without_epoch,
        any_end_counts,
        no_deduplication,
        every_marker_commits,
    ],
    ids=lambda plant: plant.__name__,
)
def test_a_planted_fault_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match="seed"):
        for seed in range(40):
            play(tmp_path, seed)
