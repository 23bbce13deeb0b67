"""Appends of one partition reach its log one after the other, whichever way each of them takes."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cluster.world import FailingDisk, HeldWorker, Produced, World, stored
from tests.storage.helpers import NOW, batch
from tests.support.scale import scale
from tidelog.cluster.leader_append import LeaderAppend
from tidelog.cluster.worker import ThreadWorker
from tidelog.errors import KafkaStorageError, NotLeaderOrFollower
from tidelog.metadata.state import PartitionState
from tidelog.records.batch import Record, build_batch, read_records
from tidelog.records.codecs import Codec
from tidelog.storage.append import AppendOrigin, AppendResult
from tidelog.storage.config import LogConfig


@pytest.fixture
def worker() -> HeldWorker:
    return HeldWorker()


def test_a_light_append_waits_behind_a_heavy_one_that_is_being_written(
    tmp_path: Path, worker: HeldWorker
) -> None:
    world = World(tmp_path, worker=worker)
    partition = world.partition()
    heavy = world.produce(partition, acks=1, heavy=True)
    assert worker.run_one()  # it is checked; its write is next
    assert not partition.can_append_now(1)
    light = [world.produce(partition, acks=1) for _ in range(2)]
    assert not heavy.answered
    assert not any(produced.answered for produced in light)
    assert worker.run_one()
    assert [heavy.offset, *(produced.offset for produced in light)] == [0, 1, 2]
    assert partition.can_append_now(1)


def test_a_light_append_passes_a_heavy_one_that_is_still_being_checked(
    tmp_path: Path, worker: HeldWorker
) -> None:
    world = World(tmp_path, worker=worker)
    partition = world.partition()
    heavy = world.produce(partition, acks=1, heavy=True)
    assert world.produce(partition, acks=1).offset == 0
    worker.run_all()
    assert heavy.offset == 1


def test_appends_of_other_partitions_do_not_wait(tmp_path: Path, worker: HeldWorker) -> None:
    world = World(tmp_path, worker=worker)
    busy, idle = world.partition(index=0), world.partition(index=1)
    heavy = world.produce(busy, heavy=True)
    worker.run_one()
    assert world.produce(idle).offset == 0
    assert not heavy.answered


Step = tuple[str, int]  # what happens, and how many records the batch has
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["light", "heavy", "broken", "fails"]), st.integers(1, 4)),
        st.just(("work", 0)),
    ),
    max_size=40,
)


def run(steps: list[Step], world: World, disk: FailingDisk, worker: HeldWorker) -> None:
    """Every interleaving: offsets follow the order of the file, and only what failed is missing from it."""
    partition = world.partition(segment_bytes=1000)
    produced: list[tuple[bytes, Produced]] = []
    for at, (kind, count) in enumerate(steps):
        value = b"%s %d" % (kind.encode(), at)
        if kind == "work":
            worker.run_one()
            continue
        data = batch(count, value=value)
        if kind == "broken":
            data[-1] ^= 1
        if kind == "fails":
            # The next write of a batch fails, whichever it is.
            disk.write_errors.append(errno.ENOSPC)
        heavy = kind == "heavy" or (kind == "broken" and count % 2 == 0)
        produced.append((value, world.produce(partition, data, acks=1, heavy=heavy)))
    worker.run_all()

    assert all(answer.answered for _, answer in produced)
    batches = stored(partition)
    expected_offset = 0
    in_file: dict[bytes, int] = {}
    for header, stored_batch in batches:
        assert header.base_offset == expected_offset
        expected_offset = header.next_offset
        in_file[read_records(stored_batch)[0].value or b""] = header.base_offset
    assert partition.log is not None
    assert partition.log.log_end_offset == partition.log.high_watermark == expected_offset
    acknowledged = {}
    for value, answer in produced:
        assert answer.outcomes is not None
        (outcome,) = answer.outcomes
        if outcome.result is not None:
            acknowledged[value] = outcome.result.base_offset
    assert acknowledged == in_file
    failed = len(produced) - len(acknowledged)
    broken = sum(kind == "broken" for kind, _ in steps)
    fails = sum(kind == "fails" for kind, _ in steps)
    assert broken <= failed <= broken + fails, "an append failed that nothing had happened to"
    assert failed == broken + fails - len(disk.write_errors)


@settings(max_examples=scale(150, 3_000), derandomize=True, deadline=None)
@given(steps=STEPS)
def test_any_interleaving_gives_offsets_in_the_order_of_the_bytes(steps: list[Step]) -> None:
    with TemporaryDirectory() as folder:
        disk, worker = FailingDisk(), HeldWorker()
        run(steps, World(Path(folder), disk=disk, worker=worker), disk, worker)


@settings(max_examples=scale(60, 1_000), derandomize=True, deadline=None)
@given(plan=st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=30), data=st.data())
def test_the_batches_of_one_connection_keep_their_order(
    plan: list[tuple[int, bool]], data: st.DataObject
) -> None:
    """A connection sends its next batch when the last one is answered, as the network lets it."""
    with TemporaryDirectory() as folder:
        worker = HeldWorker()
        world = World(Path(folder), worker=worker)
        partition = world.partition()
        waiting: dict[int, Produced] = {}
        sent: dict[int, list[bytes]] = {}
        for at, (connection, heavy) in enumerate(plan):
            while connection in waiting and not waiting[connection].answered:
                worker.run_one()
            value = b"%d/%d" % (connection, at)
            sent.setdefault(connection, []).append(value)
            waiting[connection] = world.produce(partition, batch(value=value), acks=1, heavy=heavy)
            if data.draw(st.booleans()):
                worker.run_one()
        worker.run_all()
        found: dict[int, list[bytes]] = {}
        for _, stored_batch in stored(partition):
            value = read_records(stored_batch)[0].value or b""
            found.setdefault(int(value.split(b"/")[0]), []).append(value)
        assert found == sent


@pytest.mark.parametrize("heavy", [False, True], ids=["light", "heavy"])
def test_a_full_disk_fails_one_append_and_cuts_the_file_back(tmp_path: Path, heavy: bool) -> None:
    disk, worker = FailingDisk(), HeldWorker()
    world = World(tmp_path, disk=disk, worker=worker)
    partition = world.partition()
    world.produce(partition)
    disk.write_errors.append(errno.ENOSPC)
    failed = world.produce(partition, batch(value=b"v" * 500), heavy=heavy)
    worker.run_one()
    behind = world.produce(partition, heavy=True)
    worker.run_all()
    assert isinstance(failed.error, KafkaStorageError)
    assert behind.offset == 1
    assert [header.base_offset for header, _ in stored(partition)] == [0, 1]
    assert not partition.offline


def test_appends_queued_behind_a_failed_write_go_on(tmp_path: Path, worker: HeldWorker) -> None:
    disk = FailingDisk()
    world = World(tmp_path, disk=disk, worker=worker)
    partition = world.partition()
    disk.write_errors.append(errno.ENOSPC)
    failed = world.produce(partition, batch(value=b"v" * 500), heavy=True)
    worker.run_one()
    behind = [world.produce(partition, heavy=heavy) for heavy in (False, False, True)]
    worker.run_all()
    assert isinstance(failed.error, KafkaStorageError)
    assert [produced.offset for produced in behind] == [0, 1, 2]
    assert [header.base_offset for header, _ in stored(partition)] == [0, 1, 2]


def test_a_failed_write_takes_back_the_sequences_of_its_producer(tmp_path: Path, worker: HeldWorker) -> None:
    disk = FailingDisk()
    world = World(tmp_path, disk=disk, worker=worker)
    partition = world.partition()
    world.produce(partition, batch(producer=(7, 0, 0)))
    disk.write_errors.append(errno.ENOSPC)
    data = batch(producer=(7, 0, 1))
    failed = world.produce(partition, data, heavy=True)
    worker.run_all()
    assert isinstance(failed.error, KafkaStorageError)
    again = world.produce(partition, data)
    assert again.offset == 1, "the retry is no duplicate of what never was written"


def test_a_broken_disk_takes_the_partitions_of_its_folder_offline(tmp_path: Path, worker: HeldWorker) -> None:
    disk = FailingDisk()
    world = World(tmp_path, disk=disk, worker=worker)
    partition, other = world.partition(index=0), world.partition(index=1)
    disk.write_errors.append(errno.EIO)
    failed = world.produce(partition, heavy=True)
    worker.run_one()
    behind = world.produce(partition)
    worker.run_all()
    assert isinstance(failed.error, KafkaStorageError)
    assert isinstance(behind.error, KafkaStorageError)
    assert isinstance(world.produce(other).error, KafkaStorageError)


def test_a_partition_that_goes_offline_while_it_is_written_answers_the_writer(
    tmp_path: Path, worker: HeldWorker
) -> None:
    disk = FailingDisk()
    world = World(tmp_path, disk=disk, worker=worker)
    partition, other = world.partition(index=0), world.partition(index=1)
    heavy = world.produce(partition, heavy=True)
    worker.run_one()
    behind = world.produce(partition)
    disk.write_errors.append(errno.EIO)
    world.produce(other)
    worker.run_all()
    assert heavy.answered
    assert isinstance(behind.error, KafkaStorageError)


@pytest.mark.parametrize("acks", [1, -1])
def test_a_partition_that_is_deleted_while_it_is_written_is_no_longer_led(
    tmp_path: Path, worker: HeldWorker, acks: int
) -> None:
    world = World(tmp_path, worker=worker)
    partition = world.partition()
    heavy = world.produce(partition, heavy=True, acks=acks)
    worker.run_one()
    behind = world.produce(partition, acks=acks)
    world.replicas.delete_partition("t", 0)
    worker.run_all()
    assert isinstance(heavy.error, NotLeaderOrFollower)
    assert isinstance(behind.error, NotLeaderOrFollower)


def test_a_batch_that_unpacks_to_much_is_left_to_the_worker(tmp_path: Path, worker: HeldWorker) -> None:
    world = World(tmp_path, worker=worker)
    partition = world.partition()
    outcomes: list[AppendResult | None] = []
    records = [Record(0, NOW, None, bytes(2 << 20))]
    data = memoryview(bytearray(build_batch(records, codec=Codec.ZSTD)))
    assert len(data) < 64 * 1024
    append = LeaderAppend(
        partition,
        data,
        False,
        True,
        AppendOrigin.CLIENT,
        NOW,
        lambda result, error: outcomes.append(result),
        scheduler=world.scheduler,
    )
    partition.submit(append)
    assert append.heavy
    assert outcomes == []
    worker.run_all()
    assert [result.base_offset for result in outcomes if result is not None] == [0]


def test_the_thread_beside_the_loop_keeps_the_order_for_real(tmp_path: Path) -> None:
    """Large and small batches through the real thread; its callbacks run where this thread drains them."""
    posted = threading.Semaphore(0)
    callbacks: list[object] = []

    def post(callback: object) -> None:
        callbacks.append(callback)
        posted.release()

    worker = ThreadWorker("append", post)
    world = World(tmp_path, worker=worker)
    partition = world.partition(segment_bytes=300_000)
    produced: list[tuple[bytes, Produced]] = []

    def drain() -> None:
        assert posted.acquire(timeout=10)
        callback = callbacks.pop(0)
        assert callable(callback)
        callback()

    for at in range(60):
        value = b"%d" % at
        heavy = at % 3 != 0
        data = batch(value=value + bytes(100_000) if heavy else value)
        produced.append((value, world.produce(partition, data, acks=1, heavy=heavy)))
        if at % 5 == 4:
            drain()
    while not all(answer.answered for _, answer in produced):
        drain()
    in_file = {}
    for header, stored_batch in stored(partition):
        value = read_records(stored_batch)[0].value or b""
        in_file[value.rstrip(b"\0")] = header.base_offset
    assert in_file == {value: answer.offset for value, answer in produced}
    assert sorted(in_file.values()) == list(range(60))
    worker.close()


def test_a_write_that_ends_after_the_leadership_commits_nothing(tmp_path: Path, worker: HeldWorker) -> None:
    world = World(tmp_path, worker=worker)
    partition = world.partition()
    produced = world.produce(partition, acks=-1, heavy=True)
    assert worker.run_one()  # it is checked; its write is next
    state = PartitionState(list(partition.replicas), -1, 1, list(partition.replicas))
    world.replicas.become_follower(partition.topic, partition.topic_id, 0, state, LogConfig())
    worker.run_all()
    log = partition.log
    assert log is not None
    assert (log.high_watermark, log.log_end_offset) == (0, 1)
    assert isinstance(produced.error, NotLeaderOrFollower)
    world.partition(leader_epoch=2)
    assert log.high_watermark == 1
