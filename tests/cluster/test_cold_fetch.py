"""Fetch of what is not in the page cache: nothing is read on the loop before it has come from the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.world import World, want
from tests.storage.helpers import batch, marker
from tests.support.cold_disk import ColdDisk
from tidelog.cluster.fetch import READ_COMMITTED
from tidelog.storage.append import AppendOrigin

SMALL = {"segment_bytes": 100_000, "index_interval_bytes": 1}


class LoopsDisk(ColdDisk):
    """Bringing in is allowed, as if beside the loop; reading cold pages in any other way is not."""

    def wait_for(self, path: str, size: int, position: int) -> None:
        if (path, size, position) not in self.brought_in[-1:]:
            assert not self.is_cold(path, size, position), f"{path} is read on the loop"
        super().wait_for(path, size, position)


@pytest.fixture
def disk() -> LoopsDisk:
    return LoopsDisk()


@pytest.fixture
def world(tmp_path: Path, disk: LoopsDisk) -> World:
    world = World(tmp_path, disk=disk)
    for index in range(3):
        partition = world.partition(index=index, **SMALL)
        for _ in range(12):
            world.produce(partition, batch(1, value=b"v" * 20_000))
    return world


def test_partitions_are_brought_in_together_and_then_given(world: World, disk: LoopsDisk) -> None:
    disk.evict()
    fetched = world.fetch([want(index=index, offset=1, max_bytes=1) for index in range(3)], max_wait_ms=0)
    assert not fetched.answered
    assert not disk.brought_in
    world.advance()
    disk.make_hot()
    assert fetched.offsets() == [[1], [], []]
    assert {Path(path).parent.name for path, _, _ in disk.brought_in} == {"t-0", "t-1", "t-2"}


def test_what_is_cached_is_given_at_once(world: World, disk: LoopsDisk) -> None:
    disk.evict()
    world.produce(world.replicas.partition("t", 0))
    assert world.fetch([want(offset=12)]).offsets() == [[12]]
    assert not disk.brought_in


@pytest.mark.parametrize("woken", [True, False], ids=["woken by an append", "time is over"])
def test_a_fetch_that_waited_reads_cold_data_in_the_end(world: World, disk: LoopsDisk, woken: bool) -> None:
    partition = world.replicas.partition("t", 0)
    start = partition.leader_log().active_segment.base_offset
    fetched = world.fetch([want(offset=start)], min_bytes=1 << 19, max_wait_ms=500)
    disk.evict()
    if woken:
        world.produce(partition)
        world.advance()
    else:
        world.advance(0.5)
    disk.make_hot()
    assert fetched.offsets() == [list(range(start, 13 if woken else 12))]
    assert disk.brought_in


def test_the_aborted_transactions_of_old_segments(world: World, disk: LoopsDisk) -> None:
    partition = world.replicas.partition("t", 0)
    world.produce(partition, batch(producer=(7, 0, 0), transactional=True))
    world.produce(partition, marker(7, commit=False), origin=AppendOrigin.COORDINATOR)
    for _ in range(8):
        world.produce(partition, batch(1, value=b"v" * 20_000))
    world.advance()  # what the rolls left to write is flushed
    for segment in partition.leader_log().segments:
        segment.release_files()
    disk.evict()
    fetched = world.fetch([want(offset=12, max_bytes=1)], isolation_level=READ_COMMITTED)
    world.advance()
    assert fetched.only.aborted == [(7, 12)]
    assert any(path.endswith(".txnindex") for path, _, _ in disk.brought_in)
