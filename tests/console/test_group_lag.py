"""Lag in records and time: clock, trend, time to catch up, bounded history."""

from __future__ import annotations

import pytest

from tidelog.console.group_lag import GROWING, POINTS, SHRINKING, STEADY, GroupLags
from tidelog.console.snapshot import ClusterSnapshot, GroupSnapshot, PartitionSnapshot, TopicSnapshot

KEY = ("orders", 0)


def snapshot(end: int | None, **committed: int) -> ClusterSnapshot:
    partition = PartitionSnapshot(0, 0, (0,), (0,), start=0, end=end)
    found = ClusterSnapshot(
        "id",
        0,
        [],
        {"orders": TopicSnapshot("orders", "", False, [partition])},
        {name: GroupSnapshot(name, "classic", "Stable", 1, 0, {KEY: at}) for name, at in committed.items()},
        0,
    )
    found.add_lags()
    return found


def lags_after(
    ends: list[int], committed: list[int], seconds: float = 10.0
) -> tuple[GroupLags, GroupSnapshot]:
    lags = GroupLags()
    for at, (end, offset) in enumerate(zip(ends, committed, strict=True)):
        taken = snapshot(end, billing=offset)
        lags.take(taken, 1000.0 + at * seconds)
    return lags, taken.groups["billing"]


def test_the_lag_in_time_is_the_age_of_the_offset_as_log_end() -> None:
    lags, group = lags_after([0, 100, 200, 300], [0, 0, 0, 150])
    found = lags.reading(group)
    assert (found.lag, found.at_least) == (150, False)
    assert found.seconds == pytest.approx(15.0, abs=0.5)


def test_an_offset_older_than_the_observation_has_a_least_lag() -> None:
    lags, group = lags_after([1000, 1010, 1020], [500, 500, 500])
    found = lags.reading(group)
    assert (found.seconds, found.at_least) == (20.0, True)


def test_a_group_that_has_caught_up_has_no_lag() -> None:
    lags, group = lags_after([10, 20, 30], [10, 20, 30])
    found = lags.reading(group)
    assert (found.lag, found.seconds, found.trend, found.catch_up_seconds) == (0, 0.0, STEADY, None)


def test_a_shrinking_lag_has_a_time_to_catch_up() -> None:
    # 100 records come in 10 s, and 200 are read.
    lags, group = lags_after([1000 + 100 * n for n in range(6)], [200 * n for n in range(6)])
    found = lags.reading(group)
    assert found.trend == SHRINKING
    assert found.per_second == pytest.approx(-10.0)
    assert found.catch_up_seconds == pytest.approx(500 / 10)


def test_a_growing_lag_never_catches_up() -> None:
    lags, group = lags_after([100 * n for n in range(6)], [0] * 6)
    found = lags.reading(group)
    assert (found.trend, found.catch_up_seconds) == (GROWING, None)
    assert found.per_second == pytest.approx(10.0)


def test_small_changes_are_steady() -> None:
    lags, group = lags_after([100_000 + n % 2 for n in range(8)], [0] * 8)
    assert lags.reading(group).trend == STEADY


def test_two_samples_are_no_trend() -> None:
    lags, group = lags_after([0, 100], [0, 0])
    assert lags.reading(group).trend is None


def test_only_the_last_minutes_make_the_trend() -> None:
    ends = [100 * n for n in range(50)]
    committed = [0] * 40 + [min(1000 * n, ends[40 + n]) for n in range(10)]
    lags, group = lags_after(ends, committed, seconds=60.0)
    assert lags.reading(group).trend == SHRINKING


def test_the_history_is_bounded_and_in_order() -> None:
    count = POINTS * 2
    lags, _ = lags_after(list(range(count)), [0] * count)
    history = lags.history("billing")
    assert POINTS <= len(history) <= POINTS + POINTS // 8
    assert [each.time for each in history] == sorted(each.time for each in history)
    assert history[-1].lag == count - 1


def test_a_deleted_group_and_its_partitions_are_forgotten() -> None:
    lags = GroupLags()
    lags.take(snapshot(10, billing=5, search=5), 1.0)
    lags.take(snapshot(10, search=5), 2.0)
    assert (lags.history("billing"), len(lags.history("search"))) == ([], 2)
    lags.take(snapshot(10), 3.0)
    assert lags.partition_seconds(KEY, 5) == (None, False)


def test_a_group_without_offsets_has_no_lag() -> None:
    lags = GroupLags()
    taken = snapshot(10)
    taken.groups["new"] = GroupSnapshot("new", "classic", "Stable", 1, 0)
    for at in range(4):
        lags.take(taken, float(at))
    found = lags.reading(taken.groups["new"])
    assert (found.lag, found.seconds, found.trend) == (None, None, None)


def test_an_unknown_end_offset_is_an_unknown_lag() -> None:
    lags = GroupLags()
    taken = snapshot(None, billing=5)
    for at in range(4):
        lags.take(taken, float(at))
    found = lags.reading(taken.groups["billing"])
    assert (found.lag, found.seconds, found.trend) == (None, None, None)
    assert lags.history("billing")[0].lag is None
