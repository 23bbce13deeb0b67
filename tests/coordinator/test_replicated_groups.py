"""Consumer groups on a replicated partition: nobody acts on what can still be lost."""

from __future__ import annotations

import pytest

from tests.coordinator.consumer_schedules import Violation
from tests.coordinator.consumer_world import MemoryRuntime
from tests.coordinator.replicated_groups import ReplicatedLife, ReplicatedMixedLife
from tests.support.scale import scale
from tidelog.coordinator.runtime import Done

STEPS = 120
SEEDS = scale(80, 1500)
BLOCK = 40


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_no_partition_has_two_readers_when_uncommitted_records_are_lost(first: int) -> None:
    for seed in range(first, min(first + BLOCK, SEEDS)):
        ReplicatedLife(seed).run(STEPS)


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_the_same_holds_for_members_of_both_protocols(first: int) -> None:
    for seed in range(first, min(first + BLOCK, SEEDS)):
        ReplicatedMixedLife(seed).run(STEPS)


def is_found(kind: type[ReplicatedLife], attempts: int = 60) -> bool:
    for seed in range(attempts):
        try:
            kind(seed).run(STEPS)
        except Violation:
            return True
    return False


@pytest.mark.parametrize("kind", [ReplicatedLife, ReplicatedMixedLife])
def test_the_checker_finds_answers_that_do_not_wait_for_the_commit(
    monkeypatch: pytest.MonkeyPatch, kind: type[ReplicatedLife]
) -> None:
    """A heartbeat that changes nothing is answered with an assignment that is only written."""

    def at_once(self: MemoryRuntime, partition: int, done: Done) -> None:
        done(None)

    monkeypatch.setattr(MemoryRuntime, "when_committed", at_once)
    assert is_found(kind)
