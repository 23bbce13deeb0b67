"""flush.messages: what a producer waits to have on disk is shown to nobody before, and flushes are shared."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.cluster.scripted_leader import Follower
from tests.cluster.world import FOLLOWER, SELF, FailingDisk, HeldWorker, Produced, World, want
from tests.storage.helpers import batch
from tidelog.cluster.follower_append import HEAVY_BYTES, FollowerAppend
from tidelog.errors import KafkaStorageError, NotLeaderOrFollower
from tidelog.metadata.state import PartitionState


def test_the_answer_comes_after_the_disk_has_it(tmp_path: Path) -> None:
    disk = FailingDisk()
    world = World(tmp_path, disk=disk)
    partition = world.partition(flush_messages=1)
    fetched = world.fetch([want()])
    produced = world.produce(partition)
    assert partition.log is not None
    assert not produced.answered
    assert partition.log.high_watermark == 0
    assert not fetched.answered
    world.advance()
    assert produced.offset == 0
    assert partition.log.high_watermark == partition.log.recovery_point == 1
    assert fetched.offsets() == [[0]]
    assert disk.syncs == 1


def test_appends_that_come_while_a_flush_runs_share_the_next(tmp_path: Path) -> None:
    disk = FailingDisk()
    world = World(tmp_path, disk=disk)
    partition = world.partition(flush_messages=1)
    produced = [world.produce(partition, acks=acks) for acks in (-1, 1, -1, 1, 0, -1)]
    world.advance()
    assert [answer.offset for answer in produced] == [0, 1, 2, 3, 4, 5]
    assert disk.syncs == 2
    assert partition.log is not None
    assert partition.log.high_watermark == 6


def test_each_flush_shows_just_what_it_covers(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition(flush_messages=1)
    assert partition.log is not None
    seen: list[tuple[int, int]] = []
    log = partition.log
    partition.on_high_watermark = lambda _: seen.append((log.high_watermark, log.recovery_point))
    for _ in range(4):
        world.produce(partition)
    world.advance()
    assert [high for high, _ in seen] == [1, 4]
    assert all(high <= recovery_point for high, recovery_point in seen)


def test_a_producer_that_goes_on_when_answered_does_not_begin_a_second_flush(tmp_path: Path) -> None:
    """An answer lets the connection send its next batch at once, still inside the end of the flush."""
    world = World(tmp_path, disk=FailingDisk())
    partition = world.partition(flush_messages=1)
    assert partition.log is not None
    log = partition.log
    running: list[int] = []
    later: list[Produced] = []
    violations: list[tuple[int, int]] = []

    def check(_: object) -> None:
        if log.high_watermark > log.recovery_point:
            violations.append((log.high_watermark, log.recovery_point))

    partition.on_high_watermark = check

    def answered(error: BaseException | None) -> None:
        later.append(world.produce(partition))
        running.append(len(partition.flushes.running or ()))

    for _ in range(3):
        now_ms = world.scheduler.clock.ms()
        checked = partition.check_now(memoryview(batch()), now_ms, True)
        result = partition.append_now(checked, now_ms)
        world.replicas.flush_then(partition, result.base_offset, answered)
    world.advance()
    assert [answer.offset for answer in later] == [3, 4, 5]
    assert violations == []
    assert log.high_watermark == log.recovery_point == 6


@pytest.mark.parametrize("acks", [1, -1])
def test_a_duplicate_of_an_unflushed_batch_waits_too(tmp_path: Path, acks: int) -> None:
    disk = FailingDisk()
    world = World(tmp_path, disk=disk)
    partition = world.partition(flush_messages=1)
    data = batch(producer=(9, 0, 0))
    original = world.produce(partition, data, acks=acks)
    duplicate = world.produce(partition, data, acks=acks)
    assert not original.answered
    assert not duplicate.answered
    world.advance()
    assert original.offset == duplicate.offset == 0
    syncs = disk.syncs
    assert world.produce(partition, data, acks=acks).offset == 0, "what is on the disk is answered at once"
    assert disk.syncs == syncs


def test_flush_messages_counts_records(tmp_path: Path) -> None:
    disk = FailingDisk()
    world = World(tmp_path, disk=disk)
    partition = world.partition(flush_messages=10)
    assert world.produce(partition, batch(9)).offset == 0
    tenth = world.produce(partition)
    assert not tenth.answered
    world.advance()
    assert tenth.offset == 9
    assert disk.syncs == 1


def test_a_flush_that_fails_is_told_to_those_it_covers(tmp_path: Path) -> None:
    disk = FailingDisk()
    world = World(tmp_path, disk=disk)
    partition = world.partition(flush_messages=1)
    disk.sync_errors.append(errno.EIO)
    first, second = world.produce(partition), world.produce(partition)
    world.advance()
    assert isinstance(first.error, KafkaStorageError)
    assert isinstance(second.error, KafkaStorageError), "the folder is offline"
    assert partition.offline


def test_heavy_appends_are_flushed_as_light_ones_are(tmp_path: Path) -> None:
    worker = HeldWorker()
    world = World(tmp_path, worker=worker)
    partition = world.partition(flush_messages=1)
    heavy = world.produce(partition, heavy=True)
    worker.run_all()
    assert not heavy.answered
    world.advance()
    assert heavy.offset == 0


def test_a_flush_that_outlives_its_topic_harms_nobody(tmp_path: Path) -> None:
    disk = FailingDisk()
    world = World(tmp_path, disk=disk)
    old = world.partition(flush_messages=1)
    produced = world.produce(old)
    world.replicas.delete_partition("t", 0)
    again = world.partition(flush_messages=1)
    disk.sync_errors.append(errno.ENOENT)  # its files have been renamed meanwhile
    world.advance()
    assert isinstance(produced.error, KafkaStorageError)
    assert not again.offline
    fresh = world.produce(again)
    world.advance()
    assert fresh.offset == 0


@pytest.mark.parametrize("heavy", [False, True])
def test_a_follower_has_on_disk_what_it_appended_when_its_leader_changes(tmp_path: Path, heavy: bool) -> None:
    """A fetch from the next leader says where its log ends: none of that may be lost by a crash."""
    worker = HeldWorker()
    follower = Follower(tmp_path, worker=worker)
    partition = follower.follow(flush_messages=1)
    log = partition.log_or_raise()
    data = batch(value=bytes(HEAVY_BYTES if heavy else 10))
    partition.appends.put(
        FollowerAppend(
            partition, memoryview(data), 0, 0, lambda *_: None, scheduler=follower.world.scheduler
        )
    )
    seen: list[tuple[int, int]] = []
    partition.appends.between(lambda: seen.append((log.log_end_offset, log.recovery_point)))
    worker.run_all()
    follower.world.advance()
    worker.run_all()
    follower.world.advance()
    assert seen == [(1, 1)]


@pytest.mark.parametrize("flush_has_ended", [True, False])
def test_a_leader_commits_what_it_wrote_before_its_epoch_when_that_is_on_disk(
    tmp_path: Path, flush_has_ended: bool
) -> None:
    """It lost the partition before a flush, and leads it again before it has fetched."""
    world = World(tmp_path)
    partition = world.partition(replicas=(SELF, FOLLOWER), flush_messages=1)
    log = partition.log_or_raise()
    produced = [world.produce(partition, acks=1) for _ in range(2)]
    away = PartitionState([SELF, FOLLOWER], FOLLOWER, 1, [SELF, FOLLOWER])
    world.replicas.become_follower("t", partition.topic_id, 0, away, log.config)
    if flush_has_ended:
        world.advance()
        assert isinstance(produced[1].error, NotLeaderOrFollower)
    world.partition(replicas=(SELF, FOLLOWER), leader_epoch=2, flush_messages=1)
    world.follower_has(partition, 2)
    assert log.high_watermark == log.recovery_point == int(flush_has_ended)
    world.advance()
    assert log.high_watermark == log.recovery_point == 2
