"""Which range of which log is cleaned, and which segments become one."""

from __future__ import annotations

from tests.storage.cleaner.helpers import World, settings
from tidelog.storage.cleaner.policy import (
    CleanableRange,
    SegmentSizes,
    dirtiest,
    first_dirty_offset,
    group_segments,
)


def one(
    base: int, size: int = 100, index: int = 8, times: int = 12, *, next_base: int | None = None
) -> SegmentSizes:
    return SegmentSizes(base, base + 10 if next_base is None else next_base, size, index, times)


def test_the_dirty_part_begins_at_the_checkpoint_if_that_can_be_right() -> None:
    assert first_dirty_offset(None, 5, 20) == (5, False)
    assert first_dirty_offset(7, 5, 20) == (7, False)
    assert first_dirty_offset(20, 5, 20) == (20, False)
    assert first_dirty_offset(4, 5, 20) == (5, True)
    assert first_dirty_offset(21, 5, 20) == (5, True)


def test_the_ratio_has_to_be_above_the_setting() -> None:
    half = CleanableRange(0, 10, 100, 100, 0)
    assert half.dirty_ratio == 0.5
    assert not half.is_due(settings(min_cleanable_dirty_ratio=0.5))
    assert half.is_due(settings(min_cleanable_dirty_ratio=0.49))


def test_what_waits_for_too_long_is_due_at_any_ratio() -> None:
    assert CleanableRange(0, 10, 1000, 1, 5).is_due(settings(min_cleanable_dirty_ratio=1.0))
    assert not CleanableRange(0, 10, 1000, 0, 5).is_due(settings(min_cleanable_dirty_ratio=0.0))


def test_the_dirtiest_is_first() -> None:
    found = {"a": CleanableRange(0, 1, 50, 50, 0), "b": CleanableRange(0, 1, 10, 90, 0)}
    assert dirtiest(found.items()) == "b"
    assert dirtiest([]) is None


def test_small_segments_are_grouped_up_to_a_segments_size() -> None:
    segments = [one(base) for base in range(0, 70, 10)]
    assert group_segments(segments, 300, 1000) == [range(3), range(3, 6), range(6, 7)]
    assert group_segments(segments, 99, 1000) == [range(at, at + 1) for at in range(7)]
    assert group_segments([], 300, 1000) == []


def test_groups_keep_to_the_size_of_an_index() -> None:
    segments = [one(base) for base in range(0, 40, 10)]
    assert group_segments(segments, 10_000, 24) == [range(2), range(2, 4)]
    offsets_only = [one(base, times=0) for base in range(0, 40, 10)]
    assert group_segments(offsets_only, 10_000, 24) == [range(3), range(3, 4)]


def test_groups_keep_to_relative_offsets_of_32_bits() -> None:
    far = 1 << 31
    assert group_segments([one(0), one(10, next_base=far)], 10_000, 1000) == [range(2)]
    assert group_segments([one(0), one(10, next_base=far + 1)], 10_000, 1000) == [range(1), range(1, 2)]
    assert group_segments([one(0), one(10, 0, next_base=far + 1)], 10_000, 1000) == [range(2)]


def test_groups_are_small_enough_to_be_swapped_in_one_turn() -> None:
    assert group_segments([one(base) for base in range(0, 50, 10)], 10_000, 1000, 2) == [
        range(2),
        range(2, 4),
        range(4, 5),
    ]


def two_segments(world: World) -> None:
    """Segments 0..1, 2..3, and an active one with 4."""
    for _ in range(2):
        world.append((b"a", b"1"), (b"b", b"1"))
        world.roll()
    world.append((b"a", b"1"))


def test_the_active_segment_is_left_alone() -> None:
    world = World()
    two_segments(world)
    found = world.cleaner.range_of(world.log)
    assert (found.first_dirty_offset, found.end, found.clean_bytes) == (0, 4, 0)
    assert found.dirty_bytes == world.log.size - world.log.active_segment.size


def test_an_open_transaction_holds_its_segment_and_the_later_ones() -> None:
    world = World()
    world.append((b"a", b"1"))
    world.roll()
    world.append((b"a", b"2"))
    world.append((b"a", b"3"), producer=(1, 0, 0), transactional=True)
    world.roll()
    world.append((b"a", b"4"))
    world.roll()
    assert world.cleaner.range_of(world.log).end == 1
    world.end_transaction(1, commit=True)
    assert world.cleaner.range_of(world.log).end == 4


def test_what_is_above_the_high_watermark_is_left_alone() -> None:
    world = World()
    two_segments(world)
    world.log.update_high_watermark(3)
    assert world.cleaner.range_of(world.log).end == 2


def test_young_records_are_left_alone_for_the_least_lag() -> None:
    world = World(settings(min_compaction_lag_ms=10_000))
    two_segments(world)
    assert world.cleaner.range_of(world.log).end == 0
    world.scheduler.advance(10)
    assert world.cleaner.range_of(world.log).end == 0
    world.scheduler.advance(0.01)
    assert world.cleaner.range_of(world.log).end == 4


def test_old_records_are_overdue_after_the_greatest_lag() -> None:
    world = World(settings(max_compaction_lag_ms=10_000, min_cleanable_dirty_ratio=1.0))
    world.cleaner.close()
    two_segments(world)
    assert world.cleaner.range_of(world.log).overdue_ms == 0
    world.scheduler.advance(12)
    assert 1_900 <= world.cleaner.range_of(world.log).overdue_ms <= 2_000
    world.restart()
    assert 1_900 <= world.cleaner.range_of(world.log).overdue_ms <= 2_000


def test_a_compacted_segment_is_rolled_in_time_for_the_greatest_lag() -> None:
    assert settings(max_compaction_lag_ms=5, segment_ms=10).max_segment_ms == 5
    assert settings(max_compaction_lag_ms=5, segment_ms=3).max_segment_ms == 3
    assert (
        settings(max_compaction_lag_ms=5, segment_ms=10, cleanup_policy=frozenset({"delete"})).max_segment_ms
        == 10
    )
