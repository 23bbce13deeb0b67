"""Markers of transactions, each with its own outcome."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.cluster.world import FOLLOWER, SELF, FailingDisk, World
from tests.storage.helpers import NOW, batch, headers, marker
from tidelog.cluster.marker_append import append_markers
from tidelog.cluster.partition import Partition
from tidelog.errors import InvalidProducerEpoch, KafkaError, KafkaStorageError
from tidelog.storage.marker import Marker

Told = dict[int, KafkaError | None]


@pytest.fixture
def disk() -> FailingDisk:
    return FailingDisk()


@pytest.fixture
def world(tmp_path: Path, disk: FailingDisk) -> World:
    return World(tmp_path, disk=disk)


def begin(world: World, partition: Partition, *producers: int) -> None:
    for producer_id in producers:
        world.produce(partition, batch(producer=(producer_id, 1, 0), transactional=True), acks=1)


def end(world: World, partition: Partition, *producers: int) -> Told:
    """Commit the transactions of these producers."""
    return end_all(world, *((partition, each) for each in producers))


def end_all(world: World, *ends: tuple[Partition, int]) -> Told:
    """Commit the transaction of a producer in a partition, for each of them."""
    told: Told = {}
    markers = [
        (partition, Marker(each, 1, 0, True), bytes(marker(each, commit=True, epoch=1)))
        for partition, each in ends
    ]
    append_markers(world.replicas, markers, timestamp=NOW, timeout_ms=lambda: 1000, done=told.__setitem__)
    return told


def unverified(world: World, **settings: object) -> Partition:
    return world.partition(transaction_verification_enable=False, **settings)


def test_markers_are_committed_with_their_write(world: World) -> None:
    partition = unverified(world)
    begin(world, partition, 7, 8)
    assert end(world, partition, 7, 8) == {0: None, 1: None}
    log = partition.leader_log()
    assert (log.high_watermark, log.last_stable_offset) == (4, 4)


def test_a_refused_marker_leaves_the_others(world: World) -> None:
    partition = unverified(world)
    begin(world, partition, 7)
    world.produce(partition, batch(producer=(8, 2, 0), transactional=True), acks=1)
    told = end(world, partition, 7, 8, 9)
    assert (told[0], type(told[1]), told[2]) == (None, InvalidProducerEpoch, None)
    assert partition.leader_log().last_stable_offset == 1


def test_markers_that_begin_a_segment_go_on_from_there(world: World) -> None:
    partition = unverified(world, segment_bytes=300)
    begin(world, partition, 7, 8)
    assert end(world, partition, *range(7, 13)) == dict.fromkeys(range(6))
    log = partition.leader_log()
    assert [header.base_offset for header in headers(log)] == list(range(8))
    assert len(log.segments) > 2
    assert log.high_watermark == 8


def test_markers_wait_for_the_replicas(world: World) -> None:
    partition = unverified(world, replicas=(SELF, FOLLOWER))
    begin(world, partition, 7)
    told = end(world, partition, 7)
    assert told == {}
    assert partition.leader_log().log_end_offset == 2


def test_a_partition_that_waits_holds_up_no_other(world: World) -> None:
    alone = unverified(world)
    replicated = unverified(world, index=1, replicas=(SELF, FOLLOWER))
    for partition in (alone, replicated):
        begin(world, partition, 7, 8)
    told = end_all(world, (replicated, 7), (alone, 7), (replicated, 8), (alone, 8))
    assert told == {1: None, 3: None}
    assert alone.leader_log().last_stable_offset == 4
    world.follower_has(replicated, 4)
    assert told == dict.fromkeys(range(4))
    assert replicated.leader_log().last_stable_offset == 4


def test_markers_wait_for_the_flush(world: World) -> None:
    partition = unverified(world, flush_messages=1)
    begin(world, partition, 7)
    world.scheduler.run_pending()
    told = end(world, partition, 7)
    assert told == {}
    world.scheduler.run_pending()
    assert told == {0: None}


def test_every_marker_fails_with_the_disk(world: World, disk: FailingDisk) -> None:
    partition = unverified(world)
    begin(world, partition, 7, 8)
    disk.write_errors.append(errno.EIO)
    told = end(world, partition, 7, 8)
    assert {slot: type(error) for slot, error in told.items()} == {0: KafkaStorageError, 1: KafkaStorageError}
