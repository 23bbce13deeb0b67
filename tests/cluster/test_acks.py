"""acks=all: answered when the replicas in sync have it, or with the reason why they will not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.world import FOLLOWER, SELF, Produced, World
from tests.storage.helpers import batch
from tidelog.errors import (
    KafkaStorageError,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    RequestTimedOut,
)
from tidelog.storage.append import AppendOrigin

BOTH = (SELF, FOLLOWER)


def test_one_replica_is_all_replicas(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition()
    assert world.produce(partition, acks=-1).offset == 0
    assert world.replicas.produce_purgatory.delayed == 0


def test_the_answer_waits_for_the_follower_in_sync(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition(replicas=BOTH)
    produced = world.produce(partition, batch(3))
    assert not produced.answered
    assert partition.log is not None
    assert (partition.log.log_end_offset, partition.log.high_watermark) == (3, 0)
    world.follower_has(partition, 2)
    assert not produced.answered
    world.follower_has(partition, 3)
    assert produced.offset == 0
    assert partition.log.high_watermark == 3
    assert world.replicas.produce_purgatory.watched == 0


@pytest.mark.parametrize("acks", [0, 1])
def test_fewer_acks_do_not_wait_but_nobody_sees_it_yet(tmp_path: Path, acks: int) -> None:
    world = World(tmp_path)
    partition = world.partition(replicas=BOTH)
    assert world.produce(partition, acks=acks).offset == 0
    assert partition.log is not None
    assert partition.log.high_watermark == 0


def test_a_follower_out_of_sync_is_not_waited_for(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition(replicas=BOTH, isr=[SELF])
    assert world.produce(partition).offset == 0


def test_a_wait_that_is_too_long_is_a_time_out(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition(replicas=BOTH)
    produced = world.produce(partition, timeout_ms=700)
    world.advance(0.699)
    assert not produced.answered
    world.advance(0.002)
    assert isinstance(produced.error, RequestTimedOut)
    world.follower_has(partition, 1)
    world.advance(10)
    assert isinstance(produced.error, RequestTimedOut), "answered once"


@pytest.mark.parametrize(
    ("replicas", "isr", "min_isr", "enough"),
    [
        ((0, 1, 2), (0,), 1, True),
        ((0, 1, 2), (0,), 2, False),
        ((0, 1, 2), (0, 1), 2, True),
        ((0, 1, 2), (0, 1), 3, False),
        ((0, 1), (0, 1), 3, True),  # never more than there are replicas
        ((0,), (0,), 2, True),
    ],
)
def test_too_few_replicas_in_sync_refuse_the_batch_before_it_is_written(
    tmp_path: Path, replicas: tuple[int, ...], isr: tuple[int, ...], min_isr: int, enough: bool
) -> None:
    world = World(tmp_path)
    partition = world.partition(replicas=replicas, isr=isr, min_insync_replicas=min_isr)
    produced = world.produce(partition)
    assert partition.log is not None
    if enough:
        assert partition.log.log_end_offset == 1
        assert not produced.answered or produced.error is None
    else:
        assert isinstance(produced.error, NotEnoughReplicas)
        assert partition.log.log_end_offset == 0
        assert world.produce(partition, acks=1).offset == 0, "only acks=all asks for them"


def test_replicas_that_fall_out_of_sync_meanwhile_are_told(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition(replicas=BOTH, min_insync_replicas=2)
    produced = world.produce(partition)
    partition.leader_log().update_high_watermark(1)
    partition.followers.commit_isr([SELF])
    world.replicas.isr_changed(partition)
    assert isinstance(produced.error, NotEnoughReplicasAfterAppend)


def test_nothing_is_committed_while_too_few_replicas_are_in_sync(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition(replicas=BOTH, min_insync_replicas=2)
    produced = world.produce(partition, timeout_ms=100_000)
    partition.followers.commit_isr([SELF])
    world.advance(60)  # nobody waits for the follower any more
    world.replicas.isr_changed(partition)
    world.produce(partition, acks=1)
    assert partition.leader_log().high_watermark == 0
    assert not produced.answered
    partition.followers.commit_isr(BOTH)
    world.follower_has(partition, 2)
    assert produced.offset == 0


def test_a_wait_for_a_partition_that_is_deleted_ends_without_success(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition(replicas=BOTH)
    produced = world.produce(partition)
    world.replicas.delete_partition("t", 0)
    assert isinstance(produced.error, NotLeaderOrFollower)


def test_a_wait_for_a_partition_whose_folder_fails_ends_without_success(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition(replicas=BOTH)
    produced = world.produce(partition)
    world.replicas.partitions_offline([("t", 0)])
    assert isinstance(produced.error, KafkaStorageError)


def test_a_wait_that_the_stop_ends_is_no_success(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition(replicas=BOTH)
    produced = world.produce(partition)
    world.replicas.end_waits()
    assert not produced.answered, "what producers wait for may still come while connections are closed"
    world.replicas.shutdown()
    assert isinstance(produced.error, NotLeaderOrFollower)
    late = world.produce(partition)
    assert isinstance(late.error, NotLeaderOrFollower)


def test_one_partition_lost_leaves_the_others_of_the_request_to_their_wait(tmp_path: Path) -> None:
    world = World(tmp_path)
    lost, kept = world.partition("lost", replicas=BOTH), world.partition("kept", replicas=BOTH)
    produced = Produced()
    world.replicas.append(
        [(lost, memoryview(batch())), (kept, memoryview(batch()))],
        acks=-1,
        timeout_ms=1000,
        heavy=False,
        allow_zstd=True,
        origin=AppendOrigin.CLIENT,
        done=produced,
    )
    world.replicas.delete_partition("lost", 0)
    assert not produced.answered
    world.follower_has(kept, 1)
    assert produced.outcomes is not None
    of_lost, of_kept = produced.outcomes
    assert isinstance(of_lost.error, NotLeaderOrFollower)
    assert of_kept.error is None
    assert of_kept.result is not None


def test_a_request_waits_for_the_slowest_of_its_partitions(tmp_path: Path) -> None:
    world = World(tmp_path)
    partitions = [world.partition(index=index, replicas=BOTH) for index in range(3)]
    produced = Produced()
    world.replicas.append(
        [(partition, memoryview(batch())) for partition in partitions],
        acks=-1,
        timeout_ms=1000,
        heavy=False,
        allow_zstd=True,
        origin=AppendOrigin.CLIENT,
        done=produced,
    )
    for partition in partitions[:2]:
        world.follower_has(partition, 1)
    assert not produced.answered
    world.advance(1.5)
    assert produced.outcomes is not None
    assert [type(outcome.error) for outcome in produced.outcomes] == [type(None), type(None), RequestTimedOut]


def test_a_duplicate_waits_for_the_replicas_as_its_original_does(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition(replicas=BOTH)
    data = batch(producer=(9, 0, 0))
    original, duplicate = world.produce(partition, data), world.produce(partition, data)
    assert not original.answered
    assert not duplicate.answered
    world.follower_has(partition, 1)
    assert original.offset == duplicate.offset == 0
    assert partition.log is not None
    assert partition.log.log_end_offset == 1


def test_the_high_watermark_never_falls(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition(replicas=BOTH)
    world.produce(partition, batch(5))
    world.follower_has(partition, 4)
    world.follower_has(partition, 2)
    assert partition.log is not None
    assert partition.log.high_watermark == 4
