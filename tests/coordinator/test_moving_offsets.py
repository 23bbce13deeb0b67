"""Offsets while the group coordinator moves: nothing acknowledged is lost, nothing read is undone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.coordinator.moving_offsets import OffsetsSchedule, Violation
from tests.support.scale import scale
from tidelog.coordinator.group.offsets import Offsets
from tidelog.coordinator.group.shard import GroupShard
from tidelog.coordinator.runtime import CoordinatorRuntime
from tidelog.coordinator.shard import HostedShard


def play(folder: Path, seed: int) -> OffsetsSchedule:
    schedule = OffsetsSchedule(folder / str(seed), seed)
    try:
        schedule.run()
    except Violation as violation:
        raise Violation(f"seed {seed}: {violation}") from violation
    finally:
        schedule.close()
    return schedule


@pytest.mark.parametrize("group", range(2))
def test_offsets_survive_the_moves_of_their_coordinator(tmp_path: Path, group: int) -> None:
    acknowledged = 0
    for number in range(scale(5, 150)):
        schedule = play(tmp_path, group * 1000 + number)
        acknowledged += sum(reader.acknowledged for reader in schedule.readers)
    assert acknowledged > 0


# -- the checker finds what is wrong


def uncommitted_offsets_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Offsets, "committed_view", lambda self, group_id: self)


def commits_acknowledged_when_written(monkeypatch: pytest.MonkeyPatch) -> None:
    replay = CoordinatorRuntime._replay

    def early(
        self: CoordinatorRuntime[GroupShard], hosted: HostedShard[GroupShard], result: object, apply: object
    ) -> None:
        replay(self, hosted, result, apply)  # type: ignore[arg-type]

        def acknowledge() -> None:
            in_flight, hosted.in_flight = hosted.in_flight, {}
            for done in in_flight.values():
                done(None)

        self._scheduler.schedule(0.0, acknowledge)

    monkeypatch.setattr(CoordinatorRuntime, "_replay", early)


def nothing_failed_when_resigning(monkeypatch: pytest.MonkeyPatch) -> None:
    resigned = CoordinatorRuntime.resigned

    def silent(self: CoordinatorRuntime[GroupShard], partition: int) -> None:
        hosted = self._hosted.get(partition)
        if hosted is not None:
            hosted.in_flight.clear()
        resigned(self, partition)

    monkeypatch.setattr(CoordinatorRuntime, "resigned", silent)


def old_shard_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that is elected again goes on with what it knew before."""
    kept: dict[tuple[object, int], HostedShard[GroupShard]] = {}
    elected, resigned = CoordinatorRuntime.elected, CoordinatorRuntime.resigned

    def stays(self: CoordinatorRuntime[GroupShard], partition: int) -> None:
        hosted = self._hosted.get(partition)
        if hosted is not None and hosted.is_loaded:
            kept[self, partition] = hosted
            monkeypatch.setattr(hosted.shard.offsets.__class__, "unload", lambda _: None)
        resigned(self, partition)

    def reuse(self: CoordinatorRuntime[GroupShard], partition: object) -> None:
        hosted = kept.get((self, partition.index))  # type: ignore[attr-defined]
        if hosted is None:
            elected(self, partition)  # type: ignore[arg-type]
            return
        hosted.leader_epoch = partition.leader_epoch  # type: ignore[attr-defined]
        self._hosted[partition.index] = hosted  # type: ignore[attr-defined]

    monkeypatch.setattr(CoordinatorRuntime, "resigned", stays)
    monkeypatch.setattr(CoordinatorRuntime, "elected", reuse)


@pytest.mark.parametrize(
    "plant",
    [
        uncommitted_offsets_read,
        commits_acknowledged_when_written,
        nothing_failed_when_resigning,
        old_shard_kept,
    ],
    ids=lambda plant: plant.__name__,
)
def test_a_planted_fault_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    with pytest.raises(Violation, match="seed"):
        for seed in range(40):
            play(tmp_path, seed)
