"""Coordinators and leaders move between two brokers: transactions stay whole, and nothing told is undone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.coordinator.transaction.moving_schedules import MovingSchedule
from tests.support.scale import scale
from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.coordinator.runtime import CoordinatorRuntime, Done
from tidelog.coordinator.transaction.completion import Completion
from tidelog.coordinator.transaction.remote_markers import RemoteMarkers
from tidelog.coordinator.transaction.shard import TransactionShard

GROUPS = 4


def play(folder: Path, seed: int) -> MovingSchedule:
    schedule = MovingSchedule(folder / str(seed), seed)
    try:
        schedule.run()
        schedule.check()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    finally:
        schedule.stage.close()
    return schedule


@pytest.mark.parametrize("group", range(GROUPS))
def test_transactions_are_whole_or_gone_while_coordinators_move(tmp_path: Path, group: int) -> None:
    committed = 0
    for number in range(scale(3, 100)):
        schedule = play(tmp_path, group * 1000 + number)
        committed += sum(intent.outcome is True for intent in schedule.intents)
    assert committed > 0


# -- the checker finds what is wrong


def markers_before_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a time-out or a load, markers go out for what is only written."""
    monkeypatch.setattr(Completion, "_await_commit", Completion._send)


def uncommitted_states_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransactionShard, "committed", TransactionShard._written)


def answers_on_uncommitted_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that changes nothing is answered although the state before it can still be lost."""

    def at_once(self: CoordinatorRuntime[TransactionShard], partition: int, done: Done) -> None:
        done(None)

    monkeypatch.setattr(CoordinatorRuntime, "when_committed", at_once)


def nothing_failed_when_resigning(monkeypatch: pytest.MonkeyPatch) -> None:
    resigned = CoordinatorRuntime.resigned

    def silent(self: CoordinatorRuntime[TransactionShard], partition: int) -> None:
        hosted = self._hosted.get(partition)
        if hosted is not None:
            hosted.in_flight.clear()
        resigned(self, partition)

    monkeypatch.setattr(CoordinatorRuntime, "resigned", silent)


def missing_topics_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator takes all topics for deleted before the first metadata arrived."""
    monkeypatch.setattr(
        MetadataCache, "is_initialized", property(lambda _: True, lambda _, value: None), raising=False
    )


def leaders_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A marker that a leader refuses is given up."""
    monkeypatch.setattr(RemoteMarkers, "_park", lambda self, entry, reason: self._finish(entry, None))


@pytest.mark.parametrize(
    ("plant", "first"),
    [
        (markers_before_the_commit, 12),
        (uncommitted_states_described, 0),
        (answers_on_uncommitted_states, 3),
        (nothing_failed_when_resigning, 0),
        (missing_topics_believed, 0),
        (leaders_looked_up_once, 0),
    ],
    ids=lambda plant: getattr(plant, "__name__", None),
)
def test_a_planted_fault_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], first: int
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match="seed"):
        for seed in range(first, first + 60):
            play(tmp_path, seed)
