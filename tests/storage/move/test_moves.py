"""A partition moves to another folder as a reader and a writer see it: not at all."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from tests.storage.helpers import NOW, append, batch, end_transaction, marker, offsets, open_log, records
from tests.storage.move.world import KEY, A, B, C, Moving
from tests.support.simdisk import SimulatedDisk, SimulatedFile
from tidelog.cluster.append_queue import AppendQueue
from tidelog.cluster.moves import MoveSettings
from tidelog.errors import (
    InvalidTopic,
    KafkaStorageError,
    LogDirNotFound,
    UnknownTopicOrPartition,
)
from tidelog.metadata.state import PartitionState
from tidelog.storage.append import AppendOrigin
from tidelog.storage.checkpoints import CLEANER_OFFSETS, HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS
from tidelog.storage.config import LogConfig
from tidelog.storage.disk import DiskFile
from tidelog.storage.future_copy import FutureCopy
from tidelog.storage.future_replica import MOVE_COMPLETE, FutureReplica
from tidelog.storage.partition_folders import parse_future


def filled(count: int = 60, **settings: object) -> Moving:
    world = Moving(**settings)  # type: ignore[arg-type]
    for _ in range(count):
        world.append()
    world.advance()
    assert world.folder() == A
    return world


def test_a_partition_moves_with_all_that_it_has() -> None:
    world = filled()
    before = records(world.log)
    world.moves.alter(KEY, B)
    world.advance(1)
    assert world.folder() == B
    assert world.log.dir == f"{B}/t-0"
    assert records(world.log) == before
    assert world.log.high_watermark == 60
    assert world.names(B) == ["t-0"]
    assert MOVE_COMPLETE not in world.disk.listdir(f"{B}/t-0")
    assert all(name.endswith("-delete") for name in world.names(A))
    world.advance(120)
    assert world.names(A) == []


@pytest.mark.parametrize("rolls_at_the_end", [False, True], ids=["", "with an empty segment at the end"])
def test_segments_of_one_record_move_too(rolls_at_the_end: bool) -> None:
    """Each segment begins at the offset after the begin of the one before."""
    world = filled(5, segment_bytes=100)
    if rolls_at_the_end:
        world.log.roll(NOW)
    bases = [segment.base_offset for segment in world.log.segments]
    assert bases == list(range(5 + rolls_at_the_end))
    world.moves.alter(KEY, B)
    world.advance(1)
    assert world.folder() == B
    assert offsets(records(world.log)) == list(range(5))
    world.append()
    world.logs.shutdown()
    again = world.crashed(world.disk, epoch=0)
    assert again.folder() == B
    assert offsets(records(again.log)) == list(range(6))


def test_what_is_written_on_the_way_comes_along() -> None:
    world = filled()
    world.moves.alter(KEY, B)
    answers = []
    while world.folder() == A:
        answers.append(world.append(heavy=len(answers) % 2 == 0))
        world.advance()
    world.append()
    world.advance(1)
    assert all(answer[0].error is None for answer in answers)
    assert offsets(records(world.log)) == list(range(61 + len(answers)))
    assert world.log.dir == f"{B}/t-0"


def test_appends_wait_for_the_swap_and_readers_do_not() -> None:
    world = filled(step_bytes=1 << 20)
    world.moves.alter(KEY, B)
    held: list[int] = []
    world.partition.appends.hold(lambda: held.append(world.log.log_end_offset))
    waiting = world.append()
    assert not waiting
    assert offsets(records(world.log)) == list(range(60))
    world.partition.appends.release()
    assert waiting[0].error is None
    assert held == [60]


def test_appends_wait_for_few_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []

    def note(kind: type[SimulatedDisk] | type[SimulatedFile], name: str) -> None:
        sync = getattr(kind, name)

        def noted(self: SimulatedFile, path: str | None = None) -> None:
            synced.append(path or self.path)
            sync(self) if path is None else sync(self, path)

        monkeypatch.setattr(kind, name, noted)

    note(SimulatedDisk, "fsync")
    note(SimulatedDisk, "fsync_dir")
    note(SimulatedFile, "fsync")
    world = filled()
    world.moves.alter(KEY, B)
    names: list[str] = []
    hold, release = AppendQueue.hold, AppendQueue.release

    def note_hold(self: AppendQueue, held: Callable[[], None]) -> None:
        synced.clear()
        hold(self, held)

    def note_release(self: AppendQueue) -> None:
        names.extend(name.rpartition("/")[2] for name in synced)
        release(self)

    monkeypatch.setattr(AppendQueue, "hold", note_hold)
    monkeypatch.setattr(AppendQueue, "release", note_release)
    world.advance(1)
    assert world.folder() == B
    future = names[1]
    assert parse_future(future) == KEY
    assert names == [f"{world.log.segments[-1].base_offset:020d}.log", future, MOVE_COMPLETE, future, "b"]


def test_a_reader_in_the_middle_of_the_old_log_finishes() -> None:
    world = filled()
    piece = world.log.read(0, 1 << 20).slice
    assert piece is not None
    before = piece.read()
    world.moves.alter(KEY, B)
    world.advance(200)
    assert world.names(A) == []
    assert piece.read() == before


def test_it_says_how_far_it_is() -> None:
    world = filled(settings=MoveSettings(io_max_bytes_per_second=100_000))
    world.moves.alter(KEY, B)
    (a, b) = world.logs.describe_log_dirs()
    assert (a.futures, b.futures) == ({}, {KEY: (0, 60)})
    seen = []
    while world.folder() == A:
        world.advance(0.001)
        seen += world.logs.describe_log_dirs()[1].futures.values()
    sizes, lags = [size for size, _ in seen], [lag for _, lag in seen]
    assert sizes == sorted(sizes)
    assert lags == sorted(lags, reverse=True)
    assert len(set(sizes)) > 3
    world.advance(1)
    (a, b) = world.logs.describe_log_dirs()
    assert (a.sizes, b.sizes, b.futures) == ({}, {KEY: world.log.size}, {})


def test_the_throttle_is_kept_and_can_be_changed() -> None:
    world = filled(400, settings=MoveSettings(io_max_bytes_per_second=70_000), segment_bytes=1 << 20)
    size = world.log.size
    assert size > 20_000
    world.moves.update_settings(MoveSettings(io_max_bytes_per_second=0))
    world.moves.alter(KEY, B)
    world.advance(100)
    assert world.folder() == A
    world.moves.update_settings(MoveSettings(io_max_bytes_per_second=size // 10))
    began = world.scheduler.clock.monotonic()
    while world.folder() == A:
        world.advance(0.1)
    assert 0.3 < world.scheduler.clock.monotonic() - began < 15


def test_checkpoints_go_with_it() -> None:
    world = filled()
    world.cleaner.checkpoints[KEY] = 17
    world.log.flush(NOW)
    world.log.delete_records_before(33)
    world.moves.alter(KEY, B)
    world.advance(1)
    there, here = world.logs.log_dirs[1], world.logs.log_dirs[0]
    assert there.checkpoint(RECOVERY_POINTS).read() == {KEY: 59}, "recovery begins in the active segment"
    assert there.checkpoint(HIGH_WATERMARKS).read() == {KEY: 60}
    assert there.checkpoint(LOG_START_OFFSETS).read() == {KEY: 33}
    assert there.checkpoint(CLEANER_OFFSETS).read() == {KEY: 17}
    assert not here.checkpoint(CLEANER_OFFSETS).read()
    world.logs.checkpoints.write_recovery_points()
    world.advance()
    assert here.checkpoint(RECOVERY_POINTS).read() == {}


def test_producers_epochs_and_aborted_transactions_go_with_it() -> None:
    world = filled(10)
    for sequence in range(20):
        data = batch(2, producer=(7, 0, 2 * sequence), transactional=True)
        world.append(data)
    world.append(marker(7, commit=False), origin=AppendOrigin.COORDINATOR)
    world.append(batch(1, producer=(8, 0, 0), transactional=True))
    world.advance()
    world.log.assign_epoch(5, world.log.log_end_offset)
    aborted, entries = world.log.aborted_transactions(0, 1000), world.log.leader_epochs.entries()
    assert aborted
    world.moves.alter(KEY, B)
    world.advance(1)
    assert world.folder() == B
    end_transaction(world.log, 8, commit=False)
    world.logs.shutdown()
    again = world.crashed(world.disk, epoch=0)
    assert again.folder() == B
    assert again.log.aborted_transactions(0, 1000)[: len(aborted)] == aborted
    assert len(again.log.aborted_transactions(0, 1000)) == 2
    assert again.log.leader_epochs.entries() == entries
    assert again.log.topic_id == b"t" * 16
    refused = again.append(batch(1, producer=(7, 0, 99), transactional=True))
    assert type(refused[0].error).__name__ == "OutOfOrderSequenceNumber"


def test_retention_on_the_way_is_followed() -> None:
    world = filled(retention_bytes=3000)
    world.moves.alter(KEY, B)
    world.advance()
    world.logs.retention.run()
    start = world.log.log_start_offset
    assert start > 0
    world.advance(1)
    assert world.folder() == B
    assert offsets(records(world.log)) == list(range(start, 60))
    assert f"{0:020d}.log" not in world.disk.listdir(f"{B}/t-0")


def test_the_cleaner_leaves_it_alone_meanwhile() -> None:
    world = filled(settings=MoveSettings(io_max_bytes_per_second=0), cleanup_policy=frozenset({"compact"}))
    world.moves.alter(KEY, B)
    world.advance(60)
    assert world.cleaner.figures.passes == 0
    world.moves.alter(KEY, A)
    world.advance(60)
    assert world.cleaner.figures.passes > 0


def test_a_new_target_or_the_present_folder_gives_the_move_up() -> None:
    world = filled(dirs=(A, B, C), settings=MoveSettings(io_max_bytes_per_second=20_000))
    world.moves.alter(KEY, B)
    world.advance(0.01)
    world.moves.alter(KEY, C)
    assert not any(parse_future(name) for name in world.names(B))
    assert any(parse_future(name) for name in world.names(C))
    world.moves.alter(KEY, A)
    assert not any(parse_future(name) for name in world.names(C))
    world.advance(60)
    assert world.folder() == A
    assert world.append()[0].error is None


def test_it_can_go_back_and_forth() -> None:
    world = filled()
    for target in (B, A, B, A):
        world.moves.alter(KEY, target)
        world.append()
        world.advance(1)
        assert world.folder() == target
    assert offsets(records(world.log)) == list(range(64))


def test_being_sent_back_at_the_moment_of_the_swap_counts() -> None:
    world = filled()
    world.moves.alter(KEY, B)
    promote = world.logs.futures.promote

    def and_back(future: FutureReplica) -> list[DiskFile]:
        replaced = promote(future)
        world.moves.alter(KEY, A)
        return replaced

    world.logs.futures.promote = and_back  # type: ignore[method-assign]
    while world.folder() == A:
        world.advance()
        if not world.moves._moves:
            break
    world.logs.futures.promote = promote  # type: ignore[method-assign]
    world.advance(1)
    assert world.folder() == A
    assert offsets(records(world.log)) == list(range(60))


def test_a_deleted_partition_takes_its_future_with_it() -> None:
    world = filled(settings=MoveSettings(io_max_bytes_per_second=20_000))
    world.moves.alter(KEY, B)
    world.advance(0.01)
    world.replicas.delete_partition(*KEY)
    world.logs.deletions.sync(lambda error: None)
    world.advance(200)
    assert world.names(A) == world.names(B) == []
    assert not world.moves._moves


def test_a_target_that_fails_leaves_the_partition_where_it_is() -> None:
    world = filled(settings=MoveSettings(io_max_bytes_per_second=20_000))
    world.moves.alter(KEY, B)
    world.advance(0.01)
    world.disk.broken = B
    world.advance(10)
    assert world.logs.log_dirs[1].offline is not None
    assert world.folder() == A
    assert world.append()[0].error is None
    with pytest.raises(KafkaStorageError):
        world.moves.alter(KEY, B)


def test_a_source_that_fails_ends_the_move() -> None:
    world = filled(settings=MoveSettings(io_max_bytes_per_second=20_000))
    world.moves.alter(KEY, B)
    world.advance(0.01)
    world.disk.broken = A
    world.advance(10)
    assert world.logs.log_dirs[0].offline is not None
    assert world.logs.log_dirs[1].offline is None
    with pytest.raises(KafkaStorageError):
        world.moves.alter(KEY, B)


def test_a_full_target_is_waited_for() -> None:
    world = filled()
    world.disk.free_bytes = 1500
    world.moves.alter(KEY, B)
    world.advance(30)
    assert world.folder() == A
    world.disk.free_bytes = None
    world.advance(30)
    assert world.folder() == B
    assert offsets(records(world.log)) == list(range(60))
    assert world.logs.log_dirs[1].offline is None


def test_a_stop_on_the_way_is_no_end() -> None:
    world = filled(settings=MoveSettings(io_max_bytes_per_second=20_000))
    world.moves.alter(KEY, B)
    world.advance(0.01)
    world.moves.close()
    world.advance()
    assert not world.moves.is_busy
    world.cleaner.close()
    world.logs.shutdown()
    again = world.crashed(world.disk, epoch=1)
    again.append()
    again.advance(1)
    assert again.folder() == B
    assert offsets(records(again.log)) == list(range(61))
    assert again.names(B) == ["t-0"]


def test_a_move_in_a_cluster_goes_on_when_the_controller_has_the_broker_lead() -> None:
    world = filled(settings=MoveSettings(io_max_bytes_per_second=20_000))
    world.moves.alter(KEY, B)
    world.advance(0.05)
    assert world.folder() == A
    world.disk.locks.clear()
    again = Moving(world.disk, is_hosted=False)
    again.advance(1)
    assert again.logs.futures.get(KEY) is not None
    assert again.folder() == A
    again.partition = again.lead(1)
    again.moves.partition_hosted(again.partition)
    again.advance(1)
    assert again.folder() == B
    assert offsets(records(again.log)) == list(range(60))


def test_what_an_earlier_try_left_is_used_as_far_as_it_is_right() -> None:
    world = filled(settings=MoveSettings(io_max_bytes_per_second=20_000))
    world.moves.alter(KEY, B)
    world.advance(0.05)
    (future,) = world.names(B)
    first = f"{B}/{future}/{0:020d}.log"
    assert world.disk.size(first) == world.log.segments[0].size
    world.disk.open(first).pwrite(b"damage", 300)
    world.disk.write(f"{B}/{future}/{12345:020d}.log", b"of another life")
    again = world.crashed(world.disk, epoch=1)
    again.advance(1)
    assert again.folder() == B
    assert offsets(records(again.log)) == list(range(60))
    assert f"{12345:020d}.log" not in again.disk.listdir(f"{B}/t-0")


def test_indexes_of_an_earlier_try_do_not_stay_beside_a_segment_without_any() -> None:
    """It has none before a flush, and the first try may have been of records that were cut off since."""
    disk = SimulatedDisk()
    log = open_log(A, LogConfig(segment_bytes=100), disk=disk)
    for _ in range(3):
        append(log)
    disk.make_dir(B)
    index = f"{1:020d}.index"
    disk.write(f"{B}/{index}", b"\0\0\0\1\0\0\0\1")
    assert index not in disk.listdir(A)
    copy = FutureCopy(disk, A, B, log.generation)
    copy.step(copy.next_segments(log), 1 << 20)
    names = disk.listdir(B)
    assert f"{1:020d}.log" in names
    assert index not in names


def test_of_two_folders_the_marked_one_is_right() -> None:
    world = filled()
    world.log.flush(NOW)
    before = records(world.log)
    world.moves.alter(KEY, B)
    retired: list[FutureReplica] = []

    def fail(future: FutureReplica) -> None:
        retired.append(future)
        raise KafkaStorageError("the rename is not done")

    world.logs.futures.delete_replaced = fail  # type: ignore[method-assign]
    world.advance(1)
    assert retired
    world.append()
    world.log.flush(NOW)
    assert world.names(A) == world.names(B) == ["t-0"]
    again = world.crashed(world.disk, epoch=1)
    assert again.folder() == B
    assert offsets(records(again.log)) == list(range(61))
    assert records(again.log)[:60] == before
    assert MOVE_COMPLETE not in again.disk.listdir(f"{B}/t-0")
    assert again.names(A)[0].endswith("-delete")


def test_what_is_refused_and_why() -> None:
    world = filled()
    for path in ("/nowhere", "a", A + "/", ""):
        with pytest.raises(LogDirNotFound):
            world.moves.alter(KEY, path)
    with pytest.raises(UnknownTopicOrPartition):
        world.moves.alter(("t", 1), B)
    with pytest.raises(InvalidTopic):
        world.moves.alter(("x" * 230, 0), B)
    world.logs.log_dirs.failed(world.logs.log_dirs[1], OSError(errno.EIO, "broken"))
    with pytest.raises(KafkaStorageError):
        world.moves.alter(KEY, B)


def test_a_partition_that_does_not_exist_yet_is_made_where_it_was_wished_to_be() -> None:
    world = filled()
    for index in range(1, 4):
        with pytest.raises(UnknownTopicOrPartition):
            world.moves.alter(("new", index), A)
    for index in range(1, 4):
        log = world.logs.get_or_create("new", index, None)
        assert log.dir.startswith(A)
    assert world.logs.get_or_create("new", 4, None).dir.startswith(B)
    assert not world.logs.creator.preferred


def test_many_moves_take_turns() -> None:
    world = filled(settings=MoveSettings(threads=1))
    logs = [world.logs.get_or_create("many", index, None) for index in range(4)]
    for index, log in enumerate(logs):
        alone = PartitionState([0], 0, 0, [0])
        world.replicas.become_leader("many", b"m" * 16, index, alone, world.config)
        log.appender.append_as_leader(batch(), leader_epoch=0, now_ms=NOW)
        target = B if log.dir.startswith(A) else A
        world.moves.alter(("many", index), target)
        assert sum(move.running for move in world.moves._moves.values()) == 1
    before = [log.dir for log in logs]
    world.advance(5)
    assert all(log.dir != old for log, old in zip(logs, before, strict=True))
    assert [len(records(log)) for log in logs] == [1] * 4
