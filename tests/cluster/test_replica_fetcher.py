"""A follower fetches from its leader: offsets, sessions, truncation, and the errors of single partitions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.scripted_leader import (
    LEADER,
    SESSION,
    Follower,
    PartitionData,
    batches,
    data,
    forgotten,
    wanted,
)
from tests.cluster.world import HeldWorker, World
from tests.support.wait import eventually_async
from tidelog.clock import ManualClock
from tidelog.cluster.follower_quota import FollowerQuota
from tidelog.cluster.log_changes import SETTLING_AT_ONCE
from tidelog.cluster.partition_fetch_state import PartitionFetchState
from tidelog.cluster.replication_quota import ReplicationQuota
from tidelog.errors import ErrorCode, KafkaStorageError, NotLeaderOrFollower
from tidelog.metadata.state import PartitionState
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.records.batch import Record, build_batch
from tidelog.storage.config import LONG_MAX, LogConfig
from tidelog.storage.log import Log
from tidelog.storage.truncation import Truncation


def log_of(follower: Follower, index: int = 0) -> Log:
    return follower.world.replicas.partition("t", index).log_or_raise()


def test_it_appends_what_the_leader_sends_and_asks_for_what_follows(tmp_path: Path) -> None:
    follower = Follower(tmp_path)

    async def test() -> None:
        follower.manager.add([follower.follow()])
        first = await follower.asked()
        assert wanted(first) == [(0, 0, -1)]
        assert (first.session_id, first.session_epoch) == (0, 0)
        assert first.replica_state == FetchRequest.ReplicaState(replica_id=0, replica_epoch=5)
        following = await follower.answered(data(batches((0, 3, 0), (3, 2, 0)), hw=3))
        assert wanted(following) == [(0, 5, 0)]
        assert (following.session_id, following.session_epoch) == (SESSION, 1)
        log = log_of(follower)
        assert (log.log_end_offset, log.high_watermark) == (5, 3)

    follower.run(test())


@pytest.mark.parametrize("size", [1, 100_000], ids=["small", "large"])
@pytest.mark.parametrize(("flush_messages", "flushed"), [(1, 2), (2, 2), (3, 0)])
def test_flush_messages_the_leader_is_told_of_records_that_are_on_disk(
    tmp_path: Path, flush_messages: int, flushed: int, size: int
) -> None:
    follower = Follower(tmp_path)
    records = [Record(offset, 0, None, bytes(size)) for offset in range(2)]

    async def test() -> None:
        follower.manager.add([follower.follow(flush_messages=flush_messages)])
        sent = build_batch(records, leader_epoch=0)
        assert wanted(await follower.answered(data(sent, hw=0))) == [(0, 2, 0)]
        assert log_of(follower).recovery_point == flushed

    follower.run(test())


def test_an_idle_partition_is_in_no_request(tmp_path: Path) -> None:
    follower = Follower(tmp_path)

    async def test() -> None:
        follower.manager.add([follower.follow(index) for index in range(3)])
        assert len(wanted(await follower.asked())) == 3
        following = await follower.answered(data(batches((0, 1, 0)), index=1))
        assert wanted(following) == [(1, 1, 0)]
        following = await follower.answered()
        assert wanted(following) == []
        following = await follower.answered(data(index=1, hw=1))
        assert wanted(following) == []
        assert log_of(follower, 1).high_watermark == 1

    follower.run(test())


def test_the_log_start_of_the_leader_is_taken_over_and_told(tmp_path: Path) -> None:
    follower = Follower(tmp_path)

    async def test() -> None:
        follower.manager.add([follower.follow()])
        await follower.answered(data(batches((0, 5, 0), (5, 5, 0)), hw=10))
        following = await follower.answered(data(hw=10, start=7))
        assert log_of(follower).log_start_offset == 7
        assert following.topics[0].partitions[0].log_start_offset == 7

    follower.run(test())


def test_a_high_watermark_of_a_new_leader_does_not_lower_its_own(tmp_path: Path) -> None:
    follower = Follower(tmp_path)

    async def test() -> None:
        follower.manager.add([follower.follow()])
        await follower.answered(data(batches((0, 5, 0)), hw=5))
        await follower.answered(data(hw=2))
        assert log_of(follower).high_watermark == 5

    follower.run(test())


def diverging(epoch: int, end: int) -> PartitionData:
    found = data()
    found.diverging_epoch = FetchResponse.EpochEndOffset(epoch=epoch, end_offset=end)
    return found


@pytest.mark.parametrize(
    ("epoch", "end", "expected"),
    [
        (1, 6, 6),  # both know the epoch, and the leader's is shorter
        (0, 3, 3),  # the leader has no epoch 1
        (0, 9, 4),  # the epoch is longer at the leader than here
    ],
)
def test_a_log_is_truncated_where_it_diverges(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, epoch: int, end: int, expected: int
) -> None:
    caplog.set_level(logging.INFO, "tidelog.cluster")
    follower = Follower(tmp_path)

    async def test() -> None:
        partition = follower.follow(epoch=2)
        partition.log_or_raise().append_as_follower(
            batches(*((offset, 1, 0 if offset < 4 else 1) for offset in range(8))), 0
        )
        follower.manager.add([partition])
        assert wanted(await follower.asked()) == [(0, 8, 1)]
        following = await follower.answered(diverging(epoch, end))
        assert wanted(following) == [(0, expected, 1 if expected > 4 else 0)]
        assert log_of(follower).log_end_offset == expected

    follower.run(test())
    assert f"is truncated to {expected}" in caplog.text


def test_an_epoch_without_records_is_forgotten_with_the_first_divergence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """This broker led the partition and appended nothing: no other broker knows its epoch."""
    caplog.set_level(logging.INFO, "tidelog.cluster")
    follower = Follower(tmp_path)

    async def test() -> None:
        partition = follower.follow(epoch=3)
        log = partition.log_or_raise()
        log.append_as_follower(batches((0, 4, 0)), 0)
        log.assign_epoch(2, 4)
        follower.manager.add([partition])
        assert wanted(await follower.asked()) == [(0, 4, 2)]
        following = await follower.answered(diverging(0, 9))
        assert wanted(following) == [(0, 4, 0)]

    follower.run(test())
    assert "truncated" not in caplog.text, "no record is cut off"


def test_a_log_without_epochs_is_truncated_to_its_high_watermark(tmp_path: Path) -> None:
    follower = Follower(tmp_path)

    async def test() -> None:
        partition = follower.follow()
        log = partition.log_or_raise()
        log.append_as_follower(batches((0, 2, -1), (2, 2, -1)), 0)
        log.update_high_watermark(2)
        follower.manager.add([partition])
        assert wanted(await follower.asked()) == [(0, 2, -1)]
        assert log.log_end_offset == 2

    follower.run(test())


@pytest.mark.parametrize("epoch", [0, -1])
def test_a_log_with_flush_messages_is_on_disk_before_its_first_fetch(tmp_path: Path, epoch: int) -> None:
    """This broker wrote the records as the leader, and lost the partition before they were flushed."""
    follower = Follower(tmp_path)

    async def test() -> None:
        partition = follower.follow(flush_messages=1)
        log = partition.log_or_raise()
        log.append_as_follower(batches((0, 3, epoch)), 0)
        log.update_high_watermark(2 if epoch < 0 else 0)
        assert log.recovery_point == 0
        follower.manager.add([partition])
        ((_, offset, _),) = wanted(await follower.asked())
        assert log.recovery_point == log.log_end_offset == offset

    follower.run(test())


def test_logs_with_flush_messages_are_synced_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = Follower(tmp_path)
    waiting: list[Callable[[], None]] = []

    def wait(work: Callable[[], object], done: Callable[[object, BaseException | None], None]) -> None:
        waiting.append(lambda: done(work(), None))

    async def test() -> None:
        partitions = [follower.follow(index, flush_messages=1) for index in range(SETTLING_AT_ONCE + 1)]
        for partition in partitions:
            partition.log_or_raise().append_as_follower(batches((0, 3, 0)), 0)
        monkeypatch.setattr(follower.world.scheduler, "run_blocking", wait)
        follower.manager.add(partitions)
        for count in (SETTLING_AT_ONCE, 1):
            for _ in range(20):
                await asyncio.sleep(0)
            begun = len(waiting)
            while waiting:  # also before a failure: the fetcher's close waits for all of them
                waiting.pop()()
            assert begun == count
        assert [offset for _, offset, _ in wanted(await follower.asked())] == [3] * len(partitions)
        assert all(partition.log_or_raise().recovery_point == 3 for partition in partitions)

    follower.run(test())


def test_a_truncation_that_failed_is_made_before_the_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = Follower(tmp_path)
    failures = [KafkaStorageError("the disk is full")]
    truncation = Log.truncation

    def failing_once(log: Log, offset: int, now_ms: int) -> Truncation:
        if failures:
            raise failures.pop()
        return truncation(log, offset, now_ms)

    monkeypatch.setattr(Log, "truncation", failing_once)

    async def test() -> None:
        partition = follower.follow(flush_messages=1)
        log = partition.log_or_raise()
        log.append_as_follower(batches((0, 2, -1), (2, 2, -1)), 0)
        log.update_high_watermark(2)
        follower.manager.add([partition])

        def is_asked() -> bool:
            follower.world.advance(0.005)
            return follower.leader.is_asked

        await eventually_async(is_asked, "it is asked after the delay, which is real time")
        assert wanted(follower.leader.fetches[-1]) == [(0, 2, -1)]
        assert log.recovery_point == log.log_end_offset == 2

    follower.run(test())


def test_a_log_that_cannot_be_flushed_is_not_fetched(tmp_path: Path) -> None:
    follower = Follower(tmp_path)

    async def test() -> None:
        broken = follower.follow(0, flush_messages=1)
        log = broken.log_or_raise()
        log.append_as_follower(batches((0, 3, 0)), 0)
        log.release()
        follower.manager.add([broken, follower.follow(1)])
        assert [index for index, _, _ in wanted(await follower.asked())] == [1]

    follower.run(test())


def test_a_log_with_a_gap_is_fetched_again_from_the_gap(tmp_path: Path) -> None:
    follower = Follower(tmp_path)

    async def test() -> None:
        partition = follower.follow()
        log = partition.log_or_raise()
        log.append_as_follower(batches((0, 2, 0)), 0)
        log.roll(0)
        log.append_as_follower(batches((4, 1, 0), (5, 1, 0)), 0)
        log.update_high_watermark(6)
        log.gap = 2  # as recovery found it
        follower.manager.add([partition])
        assert wanted(await follower.asked()) == [(0, 2, 0)]
        following = await follower.answered(data(batches((2, 2, 0), (4, 2, 0)), hw=6))
        assert wanted(following) == [(0, 6, 0)]
        assert (log.log_end_offset, log.gap) == (6, None)

    follower.run(test())


def test_a_leader_keeps_what_is_behind_a_gap(tmp_path: Path) -> None:
    world = World(tmp_path)
    log = world.partition().log_or_raise()
    log.gap = 0
    world.partition(leader_epoch=1)
    assert log.gap is None


@pytest.mark.parametrize(
    ("leader_start", "leader_end", "expected"),
    [
        (50, 60, (50, 50)),  # the leader deleted what this replica would need
        (0, 3, (0, 3)),  # an unclean election
        (0, 60, (0, 5)),  # the leader is right again
    ],
)
def test_an_offset_out_of_range_continues_where_the_leader_has_records(
    tmp_path: Path, leader_start: int, leader_end: int, expected: tuple[int, int]
) -> None:
    follower = Follower(tmp_path)

    async def test() -> None:
        partition = follower.follow()
        partition.log_or_raise().append_as_follower(batches(*((at, 1, 0) for at in range(5))), 0)
        follower.manager.add([partition])
        follower.leader.offsets = {-1: leader_end, -2: leader_start}
        following = await follower.answered(data(error=ErrorCode.OFFSET_OUT_OF_RANGE))
        log = log_of(follower)
        assert (log.log_start_offset, log.log_end_offset) == expected
        assert wanted(following)[0][:2] == (0, expected[1])

    follower.run(test())


def test_an_empty_log_begins_with_the_batch_that_has_the_leaders_log_start(tmp_path: Path) -> None:
    follower = Follower(tmp_path)

    async def test() -> None:
        partition = follower.follow()
        partition.log_or_raise().truncate_fully_and_start_at(7, 0)
        follower.manager.add([partition])
        following = await follower.answered(data(batches((5, 5, 0)), hw=10, start=7))
        log = log_of(follower)
        assert (log.log_start_offset, log.log_end_offset) == (7, 10)
        assert wanted(following) == [(0, 10, 0)]

    follower.run(test())


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ],
)
def test_a_partition_with_an_error_waits_and_the_others_go_on(tmp_path: Path, code: ErrorCode) -> None:
    follower = Follower(tmp_path)

    async def test() -> None:
        follower.manager.add([follower.follow(index) for index in range(2)])
        following = await follower.answered(data(index=0, error=code), data(batches((0, 1, 0)), index=1))
        assert wanted(following) == [(1, 1, 0)]
        assert forgotten(following) == [0]
        follower.world.advance(0.02)
        following = await follower.answered()
        assert wanted(following) == [(0, 0, -1)]

    follower.run(test())


def test_a_fenced_partition_is_not_fetched_until_the_controller_sends_a_new_state(tmp_path: Path) -> None:
    follower = Follower(tmp_path)

    async def test() -> None:
        follower.manager.add([follower.follow(index) for index in range(2)])
        fenced = data(index=0, error=ErrorCode.FENCED_LEADER_EPOCH)
        assert forgotten(await follower.answered(fenced)) == [0]
        assert list(follower.manager.failed) == [("t", 0)]
        follower.manager.add([follower.follow(0, epoch=1)])
        assert wanted(await follower.answered()) == [(0, 0, -1)]
        assert not follower.manager.failed

    follower.run(test())


def test_a_damaged_batch_is_fetched_again_and_harms_no_other_partition(tmp_path: Path) -> None:
    follower = Follower(tmp_path)
    good = batches((0, 1, 0))
    bad = bytearray(good)
    bad[-1] ^= 1

    async def test() -> None:
        follower.manager.add([follower.follow(index) for index in range(2)])
        following = await follower.answered(data(bytes(bad), index=0), data(good, index=1))
        assert wanted(following) == [(1, 1, 0)]
        follower.world.advance(0.02)
        assert wanted(await follower.answered()) == [(0, 0, -1)]
        await follower.answered(data(good, index=0))
        assert log_of(follower, 0).log_end_offset == 1

    follower.run(test())


@pytest.mark.parametrize("flush_messages", [LONG_MAX, 1])
def test_what_was_appended_before_a_damaged_batch_is_not_fetched_again(
    tmp_path: Path, flush_messages: int
) -> None:
    """The two batches go to two segments, by two writes."""
    follower = Follower(tmp_path)
    first, second = batches((0, 1, 0)), batches((1, 1, 0))
    bad = bytearray(second)
    bad[-1] ^= 1

    async def test() -> None:
        settings = {"segment_bytes": len(first), "flush_messages": flush_messages}
        follower.manager.add([follower.follow(0, **settings), follower.follow(1)])
        await follower.answered(data(first + bytes(bad)))
        follower.world.advance(0.02)
        following = await follower.answered()
        if flush_messages == 1:  # the log is synced between two fetches
            following = await follower.answered()
            assert log_of(follower).recovery_point == 1
        assert wanted(following) == [(0, 1, 0)]
        await follower.answered(data(second))
        assert log_of(follower).log_end_offset == 2
        assert not follower.manager.failed

    follower.run(test())


def test_batches_below_the_log_end_fail_the_partition(tmp_path: Path) -> None:
    follower = Follower(tmp_path)

    async def test() -> None:
        follower.manager.add([follower.follow(index) for index in range(2)])
        await follower.answered(data(batches((0, 3, 0))))
        await follower.answered(data(batches((1, 3, 0))))
        assert list(follower.manager.failed) == [("t", 0)]
        assert log_of(follower).log_end_offset == 3

    follower.run(test())


def test_a_lost_session_begins_anew_with_all_partitions(tmp_path: Path) -> None:
    follower = Follower(tmp_path)

    async def test() -> None:
        follower.manager.add([follower.follow(index) for index in range(2)])
        await follower.answered()
        following = await follower.answered(error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        assert (following.session_id, following.session_epoch, len(wanted(following))) == (0, 0, 2)
        assert follower.leader.connections == 1

    follower.run(test())


def test_without_room_for_a_session_each_request_names_all_partitions(tmp_path: Path) -> None:
    follower = Follower(tmp_path)

    async def test() -> None:
        follower.manager.add([follower.follow(index) for index in range(2)])
        for _ in range(2):
            following = await follower.answered(session=0)
            assert (following.session_id, following.session_epoch, len(wanted(following))) == (0, 0, 2)

    follower.run(test())


def test_a_lost_connection_is_opened_again_with_a_new_session(tmp_path: Path) -> None:
    follower = Follower(tmp_path)

    async def test() -> None:
        follower.manager.add([follower.follow()])
        await follower.answered(data(batches((0, 1, 0))))
        follower.leader.close()
        await eventually_async(  # the back-off is real time
            lambda: follower.leader.connections == 2 and follower.leader.is_asked, "it is asked again"
        )
        following = follower.leader.fetches[-1]
        assert (following.session_epoch, wanted(following)) == (0, [(0, 1, 0)])

    follower.run(test())


def test_an_answer_for_a_partition_that_left_changes_nothing(tmp_path: Path) -> None:
    follower = Follower(tmp_path)

    async def test() -> None:
        follower.manager.add([follower.follow(index) for index in range(2)])
        await follower.asked()
        follower.manager.remove([("t", 0)])
        following = await follower.answered(data(batches((0, 3, 0))))
        assert forgotten(following) == [0]
        assert log_of(follower).log_end_offset == 0

    follower.run(test())


def large(base: int, epoch: int = 0) -> bytes:
    return build_batch([Record(base, 0, None, bytes(100_000))], base_offset=base, leader_epoch=epoch)


def test_a_large_append_is_written_by_the_worker(tmp_path: Path) -> None:
    worker = HeldWorker()
    follower = Follower(tmp_path, worker=worker)

    async def test() -> None:
        follower.manager.add([follower.follow(segment_bytes=150_000)])
        await follower.asked()
        follower.leader.answer(data(large(0) + large(1) + large(2), hw=3))
        for count in range(3):  # each batch in a segment of its own
            await follower.until(lambda: log_of(follower).has_pending)
            assert log_of(follower).log_end_offset == count
            assert worker.run_one()
        assert wanted(await follower.asked(2)) == [(0, 3, 0)]
        assert log_of(follower).high_watermark == 3

    follower.run(test())


def test_a_change_of_the_leader_waits_for_the_append_and_stops_the_rest(tmp_path: Path) -> None:
    worker = HeldWorker()
    follower = Follower(tmp_path, worker=worker)

    async def test() -> None:
        partition = follower.follow(segment_bytes=150_000)
        follower.manager.add([partition])
        await follower.asked()
        follower.leader.answer(data(large(0) + large(1), hw=3))
        await follower.until(lambda: log_of(follower).has_pending)
        ends: list[int] = []

        def lead() -> None:
            state = PartitionState([0, LEADER], 0, 1, [0, LEADER])
            ends.append(log_of(follower).log_end_offset)
            follower.world.replicas.become_leader("t", partition.topic_id, 0, state, LogConfig())

        follower.manager.remove([("t", 0)])
        partition.appends.between(lead)
        assert ends == []
        worker.run_all()
        assert ends == [1]
        assert partition.log_or_raise().log_end_offset == 1
        assert partition.log_or_raise().leader_epochs.entries() == [(0, 0), (1, 1)]

    follower.run(test())


def test_fetchers_share_the_partitions_of_a_leader_and_end_when_they_have_none(tmp_path: Path) -> None:
    follower = Follower(tmp_path, fetchers=3)

    async def test() -> None:
        partitions = [follower.follow(index) for index in range(6)]
        follower.manager.add(partitions)
        assert [len(fetcher.states) for fetcher in follower.manager.fetchers.values()] == [2, 2, 2]
        settings = follower.manager.settings
        follower.manager.update_settings(type(settings)(fetchers=1, backoff_ms=20))
        assert [len(fetcher.states) for fetcher in follower.manager.fetchers.values()] == [6]
        follower.manager.remove([("t", index) for index in range(6)])
        follower.manager.end_idle()
        assert not follower.manager.fetchers

    follower.run(test())


def test_a_throttled_partition_that_lags_waits_for_its_quota(tmp_path: Path) -> None:
    measured = ReplicationQuota(ManualClock())
    follower = Follower(tmp_path, quota=FollowerQuota(measured))

    async def test() -> None:
        follower.manager.add(
            [follower.follow(index, follower_replication_throttled_replicas=("0:0",)) for index in range(2)]
        )
        sent = batches((0, 1, 0))
        await follower.asked()
        measured.configure(len(sent) - 1, 11, 1)
        following = await follower.answered(data(sent, 0, hw=9), data(sent, 1, hw=9))
        assert measured.rate() == len(sent)
        assert (wanted(following), forgotten(following)) == ([(1, 1, 0)], [0])
        assert wanted(await follower.answered()) == []
        measured.configure(None, 11, 1)
        assert wanted(await follower.answered()) == [(0, 1, 0)]

    follower.run(test())


def test_topics_without_ids_are_fetched_by_name(tmp_path: Path) -> None:
    follower = Follower(tmp_path)

    async def test() -> None:
        partition = follower.follow()
        partition.topic_id = bytes(16)
        follower.manager.add([partition])
        asked = await follower.asked()
        assert (asked.topics[0].topic, asked.replica_id) == ("t", 0)
        follower.leader.answer(data(batches((0, 1, 0))))
        await follower.until(lambda: len(follower.leader.fetches) == 2)

    follower.run(test())


def test_an_idle_fetch_looks_at_no_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follower = Follower(tmp_path)
    looks: list[PartitionFetchState] = []
    is_ready = PartitionFetchState.is_ready

    def counted(state: PartitionFetchState, now: float) -> bool:
        looks.append(state)
        return is_ready(state, now)

    monkeypatch.setattr(PartitionFetchState, "is_ready", counted)

    async def test() -> None:
        follower.manager.add([follower.follow(index) for index in range(20)])
        await follower.asked()
        assert len(looks) == 20
        looks.clear()
        for _ in range(5):
            following = await follower.answered()
            assert (following.topics, following.forgotten_topics_data) == ([], [])
        assert looks == []

    follower.run(test())


def test_a_follower_that_is_truncated_is_not_read(tmp_path: Path) -> None:
    follower = Follower(tmp_path)
    partition = follower.follow()
    log = partition.log_or_raise()
    log.append_as_follower(batches((0, 2, 0), (2, 2, 0)), 0)
    assert partition.local_log(only_leader=False) is log
    truncation = log.truncation(2, 0)
    truncation.find()
    truncation.begin()
    with pytest.raises(NotLeaderOrFollower, match="truncated"):
        partition.local_log(only_leader=False)
    truncation.cut()
    truncation.end()
    assert partition.local_log(only_leader=False) is log
    follower.world.close()


def test_a_broker_that_is_about_to_stop_follows_no_further_partition(tmp_path: Path) -> None:
    follower = Follower(tmp_path)

    async def test() -> None:
        follower.manager.add([follower.follow(0)])
        await follower.asked()
        follower.manager.add_no_more()
        follower.manager.add([follower.follow(1)])
        assert wanted(await follower.answered()) == []
        assert [key for fetcher in follower.manager.fetchers.values() for key in fetcher.states] == [("t", 0)]

    follower.run(test())
