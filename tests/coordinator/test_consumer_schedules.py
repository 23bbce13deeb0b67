"""Whatever happens to a consumer group, no two members have a partition and everything is read in the end."""

from __future__ import annotations

import pytest

from tests.coordinator.consumer_schedules import Life, MixedLife, Violation
from tests.support.scale import scale
from tidelog.coordinator.group import consumer_decisions
from tidelog.coordinator.group.assignors import Members, Topics
from tidelog.coordinator.group.consumer import ConsumerGroup
from tidelog.coordinator.group.consumer_decisions import Draft
from tidelog.coordinator.group.consumer_events import CurrentEvent, Event, Owned, Target
from tidelog.coordinator.group.reconcile import Reconciler

STEPS = 120
SEEDS = scale(120, 2000)
BLOCK = 40


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_no_partition_has_two_readers_and_in_the_end_each_has_one(first: int) -> None:
    for seed in range(first, min(first + BLOCK, SEEDS)):
        Life(seed).run(STEPS)


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_the_same_holds_for_members_of_both_protocols_in_one_group(first: int) -> None:
    for seed in range(first, min(first + BLOCK, SEEDS)):
        MixedLife(seed).run(STEPS)


def is_found(text: str, attempts: int = 40) -> bool:
    """Whether the checker says this of a machine that was broken on purpose."""
    for seed in range(attempts):
        try:
            Life(seed).run(STEPS)
        except Violation as violation:
            if text in str(violation):
                return True
    return False


def test_the_checker_finds_partitions_that_are_handed_on_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Reconciler.__init__

    def blind(self: Reconciler, *args: object) -> None:
        original(self, *args)  # type: ignore[arg-type]
        self._owners = {}

    monkeypatch.setattr(Reconciler, "__init__", blind)
    assert is_found("still has")


def test_the_checker_finds_revocations_that_are_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    def trusting(self: Reconciler, revoking: Owned) -> bool:
        return False

    monkeypatch.setattr(Reconciler, "_still_has", trusting)
    assert is_found("still has")


def test_the_checker_finds_topics_that_grow_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_decisions, "metadata_hash", lambda topics, cluster: 1)
    assert is_found("nobody reads")


def test_the_checker_finds_changes_that_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    original = ConsumerGroup.apply

    def forgetful(self: ConsumerGroup, event: Event) -> None:
        """Remember more than the records say: who reads them again knows less."""
        original(self, event)
        if isinstance(event, CurrentEvent) and event.current is None:
            self.owners[b"\0" * 16, 0] = event.member_id

    monkeypatch.setattr(ConsumerGroup, "apply", forgetful)
    assert is_found("the records tell of another group")


def test_the_checker_finds_epochs_that_go_back(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Draft.bump_if_changed

    def forgetting(self: Draft, *, force: bool) -> None:
        if self.group.group_epoch > 5:
            self.group = self.group.copy()
            self.group.group_epoch = 2
        original(self, force=force)

    monkeypatch.setattr(Draft, "bump_if_changed", forgetting)
    assert is_found("epoch")


def test_the_checker_finds_uneven_assignments(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(members: Members, topics: Topics) -> dict[str, Target]:
        """Whoever comes first gets everything that it wants."""
        taken: set[bytes] = set()
        targets: dict[str, Target] = {}
        for member_id, member in sorted(members.items()):
            mine = member.topics - taken
            taken |= mine
            targets[member_id] = {topic_id: frozenset(range(topics[topic_id])) for topic_id in mine}
        return targets

    monkeypatch.setattr(consumer_decisions, "ASSIGNORS", {"uniform": greedy})
    assert is_found("partitions and")
