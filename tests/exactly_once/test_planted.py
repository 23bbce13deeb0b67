"""The checker finds what is wrong with a broker: each fault of `planted`, on a real run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.exactly_once import test_traps as traps
from tests.exactly_once.brokers import ON_KAFKA, running_broker
from tests.exactly_once.by_hand import Refused
from tests.exactly_once.planted import FAULTS
from tests.exactly_once.story import Cast, Story
from tests.support.wait import eventually
from tidelog.simulation.checks.transaction_checker import Problem, report
from tidelog.simulation.checks.transaction_history import COMMITTED

pytestmark = pytest.mark.skipif(ON_KAFKA, reason="the faults are planted in our broker")

FEW = Cast(
    flavours=("confluent-kafka", "by-hand"),
    readers=(("confluent-kafka", COMMITTED),),
    last_readers=("confluent-kafka",),
    patience=2.0,
    abort_share=0.5,
)


def plain(story: Story) -> None:
    """Nothing happens but transactions that commit and abort."""
    story.go_on(20)


def killed_writers(story: Story) -> None:
    for _ in range(3):
        story.go_on(3)
        story.kill_writer()


def paused_broker(story: Story) -> None:
    for _ in range(3):
        story.go_on(3)
        story.pause_broker()
    story.go_on(3)


# What happens, and the rules of which one is then broken.
RUNS: dict[str, tuple[Callable[[Story], None], set[str]]] = {
    "markers_dropped": (plain, {"stable"}),
    "aborted_left_out": (plain, {"G1a"}),
    "every_marker_commits": (plain, {"G1a"}),
    "fence_without_abort": (killed_writers, {"stable", "atomic", "G1a"}),
    "offsets_at_once": (plain, {"offsets"}),
    "replay_commits": (plain, {"replay", "offsets"}),
    "no_duplicates_known": (paused_broker, {"duplicate"}),
}


def read_too_early(story: traps.Trap) -> None:
    """A transaction is open until a reader of committed records has it, and aborts."""
    producer = story.producer("open")
    producer.init()
    producer.begin()
    producer.write(story.a)
    reader = story.readers[0]
    eventually(lambda: story.a in reader.positions, f"{reader.name} reads what is open", 5)
    producer.abort()


SCHEDULES: dict[str, tuple[Callable[[traps.Trap], object], set[str]]] = {
    "everything_is_stable": (read_too_early, {"G1a"}),
    "old_epochs_write": (lambda story: traps.replace_a_producer(story, bumps=True, kill=False), {"fenced"}),
    "duplicates_forgotten": (
        lambda story: traps.write_again(story, bumps=False, restart="kill"),
        {"duplicate"},
    ),
    "any_end_counts": (
        lambda story: traps.delayed_end_reaches_the_next_transaction(story, bumps=True, commit=True),
        {"G1a"},
    ),
}


def assert_found(problems: list[Problem], rules: set[str], fault: str) -> None:
    found = {problem.rule for problem in problems}
    assert found & rules, f"{fault} should break one of {rules}: {report(problems, fault)}"
    print(report(problems, fault))


def test_every_fault_has_a_run() -> None:
    assert {*RUNS, *SCHEDULES} == set(FAULTS)


@pytest.mark.parametrize("fault", RUNS)
def test_a_fault_is_found_among_random_transactions(tmp_path: Path, fault: str) -> None:
    """Chance has to meet it: it gets three tries."""
    play, rules = RUNS[fault]
    problems: list[Problem] = []
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        with (
            running_broker(folder, planted=fault) as broker,
            Story(broker, folder / "story", f"{fault}-{attempt}", FEW) as story,
        ):
            play(story)
            problems = story.problems()
        if rules & {problem.rule for problem in problems}:
            break
    assert_found(problems, rules, fault)


@pytest.mark.parametrize("fault", SCHEDULES)
def test_a_fault_is_found_by_the_schedule_that_meets_it(tmp_path: Path, fault: str) -> None:
    """The schedule's own demands on the answers fail first, or its history is wrong."""
    play, rules = SCHEDULES[fault]
    with (
        running_broker(tmp_path, planted=fault) as broker,
        traps.Trap(broker, tmp_path / "s", fault) as story,
    ):
        try:
            play(story)
        except (AssertionError, Refused) as error:
            print(f"answered differently: {str(error).splitlines()[0]}")
        problems = story.problems()
    assert_found(problems, rules, fault)
