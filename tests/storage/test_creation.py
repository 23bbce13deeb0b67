"""Logs are made and deleted off the loop with few syncs; a crash leaves nothing that a start cannot use."""

from __future__ import annotations

import random

import pytest

from tests.storage.helpers import NOW, append, batch
from tests.support.scale import scale
from tests.support.simdisk import Crash, SimulatedDisk
from tidelog.clock import ManualClock, SimulatedScheduler
from tidelog.errors import InconsistentTopicId, KafkaStorageError
from tidelog.partitions import PartitionKey
from tidelog.storage.config import LogConfig
from tidelog.storage.log_creation import WantedLog
from tidelog.storage.log_manager import Intervals, LogManager

ID = bytes(range(16))
OTHER_ID = bytes(16)
CONFIG = LogConfig()


class CountingDisk(SimulatedDisk):
    syncs = 0

    def fsync(self, path: str) -> None:
        self.syncs += 1
        super().fsync(path)

    def fsync_dir(self, path: str) -> None:
        self.syncs += 1
        super().fsync_dir(path)


class Storage:
    """Log folders on a disk; what leaves the loop runs in `settle`."""

    def __init__(self, *dirs: str, disk: SimulatedDisk | None = None) -> None:
        self.disk = disk or SimulatedDisk()
        self.scheduler = SimulatedScheduler(ManualClock(NOW))
        self.manager = LogManager(
            dirs or ("/data",), CONFIG, disk=self.disk, clock=self.scheduler.clock, scheduler=self.scheduler
        )
        self.manager.log_dirs.lock()
        self.manager.log_dirs.claim("cluster", 1)
        self.manager.load()
        self.manager.start(Intervals())
        self.unmade: set[PartitionKey] | None = None

    def begin(self, count: int, topic: str = "t", *, is_new: bool = True) -> None:
        def done(unmade: set[PartitionKey]) -> None:
            self.unmade = unmade

        self.unmade = None
        wanted = [WantedLog(topic, partition, ID, CONFIG) for partition in range(count)]
        self.manager.creator.create_later(wanted, done, is_new=is_new)

    def make(self, count: int, topic: str = "t") -> set[PartitionKey]:
        self.begin(count, topic)
        self.settle()
        assert self.unmade is not None
        return self.unmade

    def delete(self, count: int, topic: str = "t") -> KafkaStorageError | None:
        for partition in range(count):
            self.manager.delete(topic, partition)
        answers: list[KafkaStorageError | None] = []
        self.manager.deletions.sync(answers.append)
        self.settle()
        (answer,) = answers
        return answer

    def settle(self) -> None:
        self.scheduler.run_pending()

    def partitions(self, folder: str = "/data") -> list[str]:
        return [name for name in self.disk.listdir(folder) if name.startswith("t-") and "delete" not in name]


def test_nothing_is_touched_before_the_loop_is_left() -> None:
    storage = Storage()
    before = storage.disk.operations
    storage.begin(10)
    assert storage.disk.operations == before
    assert storage.unmade is None
    storage.settle()
    assert storage.unmade == set()
    made = storage.disk.operations
    logs = [storage.manager.get_or_create("t", partition, ID, CONFIG) for partition in range(10)]
    assert storage.disk.operations == made, "the loop finds everything there"
    assert {log.topic_id for log in logs} == {ID}


def test_many_logs_cost_one_sync_a_folder() -> None:
    disk = CountingDisk()
    storage = Storage("/1", "/2", "/3", disk=disk)
    before = disk.syncs
    storage.make(100)
    assert disk.syncs - before == 3
    sizes = sorted(len(storage.partitions(folder)) for folder in ("/1", "/2", "/3"))
    assert sizes == [33, 33, 34], "those that are being made count"
    before = disk.syncs
    assert storage.delete(100) is None
    assert disk.syncs - before == 3


LOG_FILE = "00000000000000000000.log"
INDEXES = {"00000000000000000000.index", "00000000000000000000.timeindex"}


def test_a_new_log_is_a_folder_with_two_files() -> None:
    """A file system can take a millisecond to find a free inode for each new file."""
    storage = Storage()
    storage.make(3)
    for partition in range(3):
        assert set(storage.disk.listdir(f"/data/t-{partition}")) == {LOG_FILE, "partition.metadata"}
    again = Storage(disk=storage.disk.after_crash(random.Random(1)))
    assert set(storage.disk.listdir("/data/t-0")) >= {LOG_FILE}
    assert not INDEXES & set(storage.disk.listdir("/data/t-0")), "a start after a crash makes none either"
    assert append(again.manager.get_or_create("t", 0, ID, CONFIG)).base_offset == 0


def test_the_index_files_of_a_new_log_come_with_a_clean_stop() -> None:
    storage = Storage()
    storage.make(2)
    log = storage.manager.get_or_create("t", 0, ID, CONFIG)
    for _ in range(3):
        append(log, batch(value=b"v" * 5000))
    storage.manager.shutdown()
    for partition in range(2):
        assert set(storage.disk.listdir(f"/data/t-{partition}")) >= INDEXES, "as a stop of Kafka"
    assert storage.disk.read("/data/t-0/00000000000000000000.index")
    again = Storage(disk=storage.disk)
    assert again.manager.get_or_create("t", 0, ID, CONFIG).log_end_offset == 3
    assert again.manager.get_or_create("t", 1, ID, CONFIG).log_end_offset == 0


def test_a_roll_makes_one_file_and_the_next_flush_the_indexes_before_it() -> None:
    storage = Storage()
    storage.make(1)
    log = storage.manager.get_or_create("t", 0, ID, CONFIG)
    append(log)
    before = set(storage.disk.listdir("/data/t-0"))
    log.roll(NOW)
    assert set(storage.disk.listdir("/data/t-0")) - before == {"00000000000000000001.log"}
    append(log)
    log.flush(NOW)
    assert set(storage.disk.listdir("/data/t-0")) >= INDEXES


def test_the_index_files_of_a_segment_come_with_its_first_flush() -> None:
    """Kafka calls a segment without them damaged where the recovery point is in it."""
    for seed in range(5):
        storage = Storage()
        storage.make(1)
        log = storage.manager.get_or_create("t", 0, ID, CONFIG)
        append(log)
        log.flush(NOW)
        append(log)
        left = storage.disk.after_crash(random.Random(seed))
        assert set(left.listdir("/data/t-0")) >= INDEXES
        assert Storage(disk=left).manager.get_or_create("t", 0, ID, CONFIG).log_end_offset >= 1


def test_a_new_segment_does_not_take_the_indexes_of_an_earlier_one() -> None:
    storage = Storage()
    storage.make(1)
    for name in INDEXES:
        storage.disk.write(f"/data/t-0/{name}", b"\0\0\0\1" * 3)
    storage.disk.unlink(f"/data/t-0/{LOG_FILE}")
    again = Storage(disk=storage.disk.after_crash(random.Random(1)))
    log = again.manager.get_or_create("t", 0, ID, CONFIG)
    assert not INDEXES & set(again.disk.listdir("/data/t-0"))
    assert log.log_end_offset == 0


def test_asking_for_logs_that_are_there_does_nothing() -> None:
    storage = Storage()
    storage.make(5)
    operations = storage.disk.operations
    storage.begin(5)
    assert storage.unmade == set(), "at once"
    assert storage.disk.operations == operations


@pytest.mark.parametrize("seed", range(scale(150, 2000)))
def test_a_crash_while_logs_are_made_leaves_what_the_next_start_finishes(seed: int) -> None:
    rng = random.Random(seed)
    storage = Storage("/1", "/2")
    storage.begin(4)
    storage.disk.crash_at = storage.disk.operations + rng.randint(1, 150)
    acknowledged = False
    try:
        storage.settle()
        for log in storage.manager.logs.values():
            append(log)
            log.flush(NOW)
        acknowledged = True
    except Crash:
        pass
    again = Storage("/1", "/2", disk=storage.disk.after_crash(rng))
    ids = {key: log.topic_id for key, log in again.manager.logs.items()}
    assert again.make(4) == set()
    for partition in range(4):
        log = again.manager.get_or_create("t", partition, ID, CONFIG)
        assert log.topic_id == ID
        if acknowledged:
            assert ids["t", partition] == ID, "a flush makes it durable whose log it is"
            assert log.log_end_offset > 0
        append(log)


@pytest.mark.parametrize("seed", range(scale(150, 2000)))
def test_a_deletion_that_was_synced_survives_a_crash(seed: int) -> None:
    rng = random.Random(seed)
    storage = Storage("/1", "/2")
    storage.make(4)
    storage.disk.crash_at = storage.disk.operations + rng.randint(1, 12)
    gone = False
    try:
        gone = storage.delete(4) is None
    except Crash:
        pass
    again = Storage("/1", "/2", disk=storage.disk.after_crash(rng))
    if gone:
        assert not again.manager.logs
    assert again.delete(4) is None
    assert not again.partitions("/1") + again.partitions("/2")


def test_a_log_without_room_is_made_in_the_same_folder_when_there_is_some() -> None:
    storage = Storage("/1", "/2")
    storage.disk.free_bytes = 0
    assert storage.make(2) == {("t", 0), ("t", 1)}
    assert not storage.manager.logs
    assert all(folder.offline is None for folder in storage.manager.log_dirs)
    begun = {folder: storage.partitions(folder) for folder in ("/1", "/2")}
    storage.disk.free_bytes = None
    storage.make(1, "u")
    assert storage.make(2) == set()
    assert begun == {folder: storage.partitions(folder) for folder in ("/1", "/2")}
    for partition in range(2):
        append(storage.manager.get_or_create("t", partition, ID, CONFIG))
    Storage("/1", "/2", disk=storage.disk.after_crash(random.Random(1)))


def test_what_there_is_of_an_unmade_log_goes_with_its_partition() -> None:
    storage = Storage("/1", "/2")
    storage.disk.free_bytes = 0
    storage.make(2)
    assert storage.delete(2) is None
    assert not storage.partitions("/1") + storage.partitions("/2")
    assert not storage.manager.creator.lacking_room


def test_a_log_that_could_not_be_loaded_can_be_deleted() -> None:
    storage = Storage()
    storage.make(1)
    storage.manager.failed["t", 0] = "it makes no sense"
    storage.manager.logs.remove(("t", 0))
    assert storage.delete(1) is None
    assert storage.partitions() == []
    assert storage.make(1) == set()
    assert storage.manager.get_or_create("t", 0, ID, CONFIG).log_end_offset == 0


def test_a_broken_folder_fails_its_own_logs_only() -> None:
    storage = Storage("/1", "/2")
    storage.disk.broken = "/1"
    assert storage.make(4) == set(), "there is nothing to wait for"
    assert storage.manager.log_dirs[0].offline is not None
    served = [partition for partition in range(4) if storage.manager.get("t", partition) is not None]
    assert len(served) == 2
    for partition in set(range(4)) - set(served):
        with pytest.raises(KafkaStorageError, match="Input/output error"):
            storage.manager.get_or_create("t", partition, ID, CONFIG)
    assert storage.make(2, "u") == set()
    assert {log.dir[:2] for log in storage.manager.logs.values()} == {"/2"}


def test_a_folder_of_another_topic_is_not_taken_for_a_new_log() -> None:
    storage = Storage()
    stray = storage.manager.get_or_create("t", 1, OTHER_ID, CONFIG)
    append(stray)
    storage.manager.logs.remove(("t", 1))
    storage.make(3)
    assert sorted(storage.manager.logs) == [("t", 0), ("t", 2)]
    with pytest.raises(KafkaStorageError, match="belongs to the topic id"):
        storage.manager.get_or_create("t", 1, ID, CONFIG)
    with pytest.raises(InconsistentTopicId):
        storage.manager.get_or_create("t", 0, OTHER_ID, CONFIG)


def test_a_log_that_does_not_know_its_topic_learns_it_off_the_loop() -> None:
    storage = Storage()
    log = storage.manager.get_or_create("t", 0, None, CONFIG)
    storage.begin(1, is_new=False)
    assert log.topic_id is None
    storage.settle()
    assert log.topic_id == ID
    again = Storage(disk=storage.disk.after_crash(random.Random(3)))
    assert again.manager.logs["t", 0].topic_id == ID


def test_an_old_partition_gets_no_new_log_while_its_own_may_be_offline() -> None:
    storage = Storage("/1", "/2")
    storage.disk.broken = "/1"
    storage.make(1, "u")
    storage.begin(1, is_new=False)
    storage.settle()
    assert storage.unmade == set()
    with pytest.raises(KafkaStorageError, match="in no online log folder; it may be in an offline one: /1"):
        storage.manager.get_or_create("t", 0, ID, CONFIG, is_new=False)


def test_a_deletion_that_cannot_be_synced_is_told() -> None:
    storage = Storage()
    storage.make(1)
    storage.manager.delete("t", 0)
    storage.disk.broken = "/data"
    answers: list[KafkaStorageError | None] = []
    storage.manager.deletions.sync(answers.append)
    storage.settle()
    assert isinstance(answers[0], KafkaStorageError)
    assert storage.manager.log_dirs[0].offline is not None
