"""How ranges of offsets become tasks, and how a limit is shared among partitions."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from tidelog.spark.offsets import from_json, in_time_order, lag, rate_limited, to_json
from tidelog.spark.planner import split
from tidelog.spark.reader import OffsetRange


def cuts(ranges: list[OffsetRange]) -> list[tuple[int, int, int]]:
    return [(each.partition, each.start, each.end) for each in ranges]


def ranges(*sizes: int) -> list[OffsetRange]:
    return [OffsetRange("t", index, 10, 10 + size) for index, size in enumerate(sizes)]


def test_a_partition_is_a_task_and_an_empty_one_is_none() -> None:
    assert cuts(split(ranges(5, 0, 3), None, None)) == [(0, 10, 15), (2, 10, 13)]
    assert cuts(split([OffsetRange("t", 0, 9, 4)], None, None)) == []


def test_enough_partitions_are_left_as_they_are() -> None:
    assert cuts(split(ranges(5, 3), 2, None)) == [(0, 10, 15), (1, 10, 13)]


def test_more_tasks_cut_large_ranges_in_proportion() -> None:
    assert cuts(split(ranges(100), 3, None)) == [(0, 10, 43), (0, 43, 76), (0, 76, 110)]
    # The small one stays whole and does not count when the large one is cut.
    assert cuts(split(ranges(1, 99), 4, None)) == [(0, 10, 11), (1, 10, 43), (1, 43, 76), (1, 76, 109)]


def test_no_task_has_more_records_than_allowed() -> None:
    assert cuts(split(ranges(10), None, 4)) == [(0, 10, 13), (0, 13, 16), (0, 16, 20)]
    assert cuts(split(ranges(10), 2, 4)) == [(0, 10, 13), (0, 13, 16), (0, 16, 20)]


def test_both_together_cut_again_where_there_are_too_few() -> None:
    found = split(ranges(12), 6, 6)
    assert len(found) == 6
    assert all(each.end - each.start == 2 for each in found)


@given(
    sizes=st.lists(st.integers(0, 1000), min_size=1, max_size=8),
    least=st.none() | st.integers(1, 40),
    most=st.none() | st.integers(1, 500),
)
def test_every_offset_is_in_one_task(sizes: list[int], least: int | None, most: int | None) -> None:
    found = split(ranges(*sizes), least, most)
    by_partition: dict[int, list[OffsetRange]] = {}
    for each in found:
        assert each.end > each.start
        assert most is None or each.end - each.start <= most
        by_partition.setdefault(each.partition, []).append(each)
    for index, size in enumerate(sizes):
        parts = by_partition.get(index, [])
        assert sum(each.end - each.start for each in parts) == size
        position = 10
        for each in parts:
            assert each.start == position
            position = each.end


def test_a_limit_is_shared_in_proportion_to_what_there_is() -> None:
    start = {("t", 0): 0, ("t", 1): 0, ("t", 2): 50}
    until = {("t", 0): 300, ("t", 1): 100, ("t", 2): 50}
    assert rate_limited(100, start, until) == {("t", 0): 75, ("t", 1): 25, ("t", 2): 50}


def test_a_small_partition_is_not_starved() -> None:
    found = rate_limited(10, {("t", 0): 0, ("t", 1): 0}, {("t", 0): 1_000_000, ("t", 1): 1})
    assert found == {("t", 0): 9, ("t", 1): 1}


def test_nothing_beyond_the_end_is_promised() -> None:
    assert rate_limited(2**63 - 1, {("t", 0): 5}, {("t", 0): 9}) == {("t", 0): 9}
    assert rate_limited(5, {("t", 0): 9}, {("t", 0): 9}) == {("t", 0): 9}


@given(
    st.lists(st.lists(st.integers(0, 50), max_size=40), min_size=1, max_size=4),
    st.integers(1, 30),
    st.integers(0, 5),
)
def test_in_time_order_no_record_comes_before_older_ones_of_other_partitions(
    times: list[list[int]], limit: int, first: int
) -> None:
    """Times of the records of each partition, in order. Partitions may begin at different times."""
    log = {("t", index): sorted(found) for index, found in enumerate(times)}
    until = {key: len(found) for key, found in log.items()}

    def at(moment: int) -> dict[tuple[str, int], int]:
        offsets = {key: bisect_left(found, moment) for key, found in log.items()}
        return {key: -1 if offset == until[key] else offset for key, offset in offsets.items()}

    done = {key: min(first, end) for key, end in until.items()}
    before = 0
    while done != until:
        ends, before = in_time_order(limit, done, until, at, range(before, 1_000))
        taken = {key: log[key][done[key] : end] for key, end in ends.items()}
        assert 0 < sum(map(len, taken.values())) <= limit + len(log), "each partition may round up"
        left = [moment for key, end in ends.items() for moment in log[key][end:]]
        ahead = max((moment for found in taken.values() for moment in found), default=-1)
        assert all(moment >= ahead for moment in left)
        done = ends


def test_in_time_order_records_of_one_moment_are_shared() -> None:
    log = {("t", 0): 100, ("t", 1): 50}

    def at(moment: int) -> dict[tuple[str, int], int]:
        return dict.fromkeys(log, 0 if moment <= 7 else -1)

    start = dict.fromkeys(log, 0)
    assert in_time_order(30, start, log, at, range(100)) == ({("t", 0): 20, ("t", 1): 10}, 0)


@given(st.dictionaries(st.tuples(st.text(), st.integers(0, 20)), st.integers(0, 2**62)))
def test_a_position_is_the_same_text_however_it_came_about(offsets: dict[tuple[str, int], int]) -> None:
    position = to_json(offsets)
    assert from_json(position) == offsets
    backwards = dict(reversed(offsets.items()))
    assert str(to_json(backwards)) == str(position)


def test_lag_is_what_is_left_to_read() -> None:
    assert lag({"t": {"0": 3}}, {"t": {"0": 10, "1": 4}}) == {("t", 0): 7, ("t", 1): 4}
