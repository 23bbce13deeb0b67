"""Seconds of lag, from log end offsets under a simulated clock."""

from __future__ import annotations

import random
from bisect import bisect_left

import pytest

from tidelog.clock import ManualClock
from tidelog.metrics.lag_clock import MAX_POINTS, LagClock

KEY = ("orders", 0)


def test_a_group_that_has_caught_up_is_not_behind() -> None:
    clock = LagClock[tuple[str, int]]()
    clock.observe(KEY, 100, 10.0)
    assert clock.seconds(KEY, 100, 500.0) == 0.0
    assert clock.seconds(KEY, 101, 500.0) == 0.0  # a commit may be newer than the last observation


def test_an_unknown_partition_and_an_offset_before_the_history_have_no_answer() -> None:
    clock = LagClock[tuple[str, int]]()
    assert clock.seconds(KEY, 0, 1.0) is None
    clock.observe(KEY, 100, 10.0)
    assert clock.seconds(KEY, 99, 11.0) is None


def test_times_between_observations_are_interpolated() -> None:
    clock = LagClock[tuple[str, int]]()
    clock.observe(KEY, 100, 10.0)
    clock.observe(KEY, 200, 20.0)
    assert clock.seconds(KEY, 150, 30.0) == 15.0
    assert clock.seconds(KEY, 100, 30.0) == 20.0
    assert clock.seconds(KEY, 199, 30.0) == pytest.approx(10.1)


def test_a_pause_of_the_producers_is_no_lag() -> None:
    """Records that come after a quiet hour make the group late from then on."""
    clock = LagClock[tuple[str, int]]()
    for second in range(0, 3600, 5):
        clock.observe(KEY, 100, float(second))
    clock.observe(KEY, 110, 3600.0)
    assert clock.seconds(KEY, 100, 3601.0) == pytest.approx(6.0)


def test_a_pause_is_still_known_when_the_history_was_thinned() -> None:
    clock = LagClock[tuple[str, int]]()
    for second in range(0, 3600, 5):
        clock.observe(KEY, 100, float(second))
    for step in range(500):
        clock.observe(KEY, 110 + step * 7, 3600.0 + 5 * step)
    assert clock.seconds(KEY, 100, 3600.0 + 5 * 499) == pytest.approx(5 * 500, rel=0.05)


def test_a_truncated_log_takes_its_history_along() -> None:
    clock = LagClock[tuple[str, int]]()
    for second in range(10):
        clock.observe(KEY, second * 10, float(second))
    clock.observe(KEY, 35, 10.0)
    assert clock.seconds(KEY, 35, 11.0) == 0.0
    assert clock.seconds(KEY, 30, 11.0) == 8.0
    clock.observe(KEY, 0, 12.0)  # the topic was made anew
    clock.observe(KEY, 5, 13.0)
    assert clock.seconds(KEY, 0, 14.0) == 2.0


def test_a_clock_that_goes_backwards_gives_no_negative_lag() -> None:
    clock = LagClock[tuple[str, int]]()
    clock.observe(KEY, 0, 100.0)
    clock.observe(KEY, 10, 50.0)
    assert clock.seconds(KEY, 5, 60.0) == 0.0


def test_only_kept_partitions_stay() -> None:
    clock = LagClock[int]()
    for partition in range(5):
        clock.observe(partition, 1, 0.0)
    clock.keep({1, 2})
    clock.forget(2)
    assert len(clock) == 1
    assert clock.seconds(0, 0, 1.0) is None


@pytest.mark.parametrize("seed", range(10))
def test_any_traffic_is_answered_within_a_tenth(seed: int) -> None:
    """Bursts and pauses by seed for hours: memory is bounded, and each answer is near the true one."""
    rng = random.Random(seed)
    time = ManualClock()
    clock = LagClock[str]()
    appended: list[float] = []  # the time at which each record was appended
    while time.monotonic() < 4 * 3600:
        busy = rng.random() < 0.7
        for _ in range(rng.randrange(1, 60)):
            time.advance(5.0)
            records = rng.randrange(1, 20) if busy else 0
            appended += [time.monotonic()] * records
            clock.observe("t", len(appended), time.monotonic())
    now = time.monotonic()
    history = clock._histories["t"]
    assert len(history.times) <= MAX_POINTS
    for _ in range(200):
        committed = bisect_left(appended, now - rng.random() ** 3 * 3 * 3600)
        if committed < appended.count(appended[0]) or committed >= len(appended):
            continue
        true = now - appended[committed]  # the oldest record that the group has not seen
        told = clock.seconds("t", committed, now)
        assert told is not None
        assert abs(told - true) <= 10.0 + 0.1 * true
