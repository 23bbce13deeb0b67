"""The loop watches for a peer that answers at once, and sleeps where nobody does."""

from __future__ import annotations

import itertools

import pytest

from tidelog.network import loop
from tidelog.network.loop import QUICK_ENOUGH, RARELY, DirectSelector


class Polls:
    """Stands for the kernel's poll: counts looks (a zero time-out) and sleeps, and answers as it is told."""

    def __init__(self, *, found_by_looking: bool) -> None:
        self.found_by_looking = found_by_looking
        self.looks = self.sleeps = 0

    def __call__(self, timeout: float | None, most: int) -> list[tuple[int, int]]:
        if timeout == 0.0:
            self.looks += 1
            return [(99, 1)] if self.found_by_looking else []
        self.sleeps += 1
        return [(99, 1)]


@pytest.fixture
def selector(monkeypatch: pytest.MonkeyPatch) -> DirectSelector:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    return DirectSelector()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the time is a microsecond later than the one before."""
    ticks = itertools.count(loop.CALM_NS * 2, 1000)
    monkeypatch.setattr(loop.time, "perf_counter_ns", lambda: next(ticks))


def test_a_peer_that_answers_at_once_is_watched_after_a_few_short_waits(
    selector: DirectSelector, clock: None
) -> None:
    polls = selector._poll = Polls(found_by_looking=True)  # type: ignore[assignment]
    for _ in range(100):
        selector.select(None)
    assert polls.sleeps == QUICK_ENOUGH
    assert polls.looks == 100 - QUICK_ENOUGH


def test_watching_in_vain_becomes_rare(selector: DirectSelector, clock: None) -> None:
    polls = selector._poll = Polls(found_by_looking=False)  # type: ignore[assignment]
    for _ in range(1000):
        selector.select(None)
    assert polls.sleeps == 1000
    watches = polls.looks / (loop.WATCH_NS / 1000)
    assert 1 <= watches <= 6
    assert selector._quick_enough <= RARELY


def test_a_loop_that_watches_gives_its_core_to_others(
    selector: DirectSelector, clock: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer, or a follower on this machine, may wait for the core."""
    yields: list[int] = []
    monkeypatch.setattr(loop.os, "sched_yield", lambda: yields.append(polls.looks))
    polls = selector._poll = Polls(found_by_looking=False)  # type: ignore[assignment]
    while not polls.looks:
        selector.select(None)
    assert yields == list(range(1, polls.looks)), "after each look that found nothing, but the last"


def test_a_loop_with_something_to_do_at_once_does_not_watch(selector: DirectSelector, clock: None) -> None:
    polls = selector._poll = Polls(found_by_looking=False)  # type: ignore[assignment]
    for _ in range(50):
        selector.select(0.0)
    assert polls.looks == 50


def test_large_frames_and_answers_are_not_watched_for(selector: DirectSelector, clock: None) -> None:
    polls = selector._poll = Polls(found_by_looking=True)  # type: ignore[assignment]
    for _ in range(50):
        selector.bulk_ns = selector.turn_ns
        selector.select(None)
    assert (polls.sleeps, polls.looks) == (50, 0)


def test_a_single_core_never_watches(monkeypatch: pytest.MonkeyPatch, clock: None) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    selector = DirectSelector()
    polls = selector._poll = Polls(found_by_looking=True)  # type: ignore[assignment]
    for _ in range(50):
        selector.select(None)
    assert (polls.sleeps, polls.looks) == (50, 0)
