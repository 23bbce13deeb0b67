"""The logs of a broker: found in their folders, kept, cleaned, deleted and closed."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.storage.helpers import NOW, append, batch, config, offsets, records
from tests.support.simdisk import SimulatedDisk
from tidelog.clock import ManualClock, SimulatedScheduler
from tidelog.errors import InconsistentTopicId, KafkaStorageError
from tidelog.partitions import PartitionKey
from tidelog.storage.checkpoints import HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS, decode_offsets
from tidelog.storage.config import LogConfig
from tidelog.storage.disk import RealDisk
from tidelog.storage.flush_job import FlushJob
from tidelog.storage.log import Log
from tidelog.storage.log_dir import LogDirRefused
from tidelog.storage.log_manager import Intervals, LogManager
from tidelog.storage.log_manager_listener import LogManagerListener
from tidelog.storage.reads import Reads

ID = bytes(range(16))


class Broker:
    """Storage on a simulated disk and clock, started and stopped at will."""

    def __init__(self, *dirs: str, defaults: LogConfig | None = None) -> None:
        self.dirs = dirs or ("/data",)
        self.disk = SimulatedDisk()
        self.scheduler = SimulatedScheduler(ManualClock(NOW))
        self.defaults = defaults or LogConfig()

    def start(self, intervals: Intervals | None = None) -> LogManager:
        manager = LogManager(
            self.dirs, self.defaults, disk=self.disk, clock=self.scheduler.clock, scheduler=self.scheduler
        )
        manager.log_dirs.lock()
        manager.log_dirs.claim("cluster", 1)
        manager.load()
        manager.start(intervals or Intervals())
        return manager

    def kill(self, manager: LogManager) -> None:
        """The process is gone, what it wrote is there."""
        manager.log_dirs.unlock()
        self.scheduler = SimulatedScheduler(self.scheduler.clock)  # its timers are gone with it

    def offsets(self, name: str) -> dict[PartitionKey, int]:
        return decode_offsets(name, self.disk.read(f"/data/{name}"))


def test_logs_are_found_again_after_a_clean_stop() -> None:
    broker = Broker()
    manager = broker.start()
    append(manager.get_or_create("a-b.c_d", 12, ID), batch(4))
    manager.shutdown(broker_epoch=9)
    assert broker.disk.read("/data/.kafka_cleanshutdown") == b'{"version":0,"brokerEpoch":9}'
    assert broker.offsets(RECOVERY_POINTS) == {("a-b.c_d", 12): 4}
    again = broker.start()
    assert again.log_dirs.had_clean_shutdown
    log = again.get("a-b.c_d", 12)
    assert log is not None
    assert (log.log_end_offset, log.recovery_point, log.topic_id) == (4, 4, ID)
    assert not broker.disk.exists("/data/.kafka_cleanshutdown"), "from now on a crash is a crash"


def test_after_a_kill_everything_written_is_recovered() -> None:
    broker = Broker(defaults=config(segment_bytes=200))
    manager = broker.start()
    for name in "abcde":
        for _ in range(10):
            append(manager.get_or_create(name, 0, ID))
    broker.kill(manager)
    progress: list[tuple[int, int]] = []
    again = LogManager(["/data"], broker.defaults, disk=broker.disk, clock=broker.scheduler.clock)
    again.log_dirs.lock()
    again.load(progress=lambda done, total, key: progress.append((done, total)))
    assert not again.log_dirs.had_clean_shutdown
    assert sorted(progress) == [(done, 5) for done in range(1, 6)]
    for log in again.logs.values():
        assert offsets(records(log)) == list(range(10))


def test_a_second_broker_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    first = LogManager([str(tmp_path)], LogConfig(), disk=RealDisk(), clock=ManualClock())
    first.log_dirs.lock()
    second = LogManager([str(tmp_path)], LogConfig(), disk=RealDisk(), clock=ManualClock())
    with pytest.raises(LogDirRefused, match="in use by another broker"):
        second.log_dirs.lock()
    first.log_dirs.unlock()
    second.log_dirs.lock()
    second.log_dirs.unlock()


def test_a_folder_of_another_cluster_or_broker_is_refused_with_the_reason() -> None:
    broker = Broker()
    broker.kill(broker.start())
    manager = LogManager(["/data"], LogConfig(), disk=broker.disk, clock=ManualClock())
    (meta,) = manager.log_dirs.lock()
    assert meta is not None
    assert (meta.cluster_id, meta.broker_id) == ("cluster", 1)
    with pytest.raises(LogDirRefused, match=r"belongs to cluster\.id cluster .* has cluster\.id other"):
        manager.log_dirs.claim("other", 1)
    with pytest.raises(LogDirRefused, match=r"broker\.id 1 .* broker\.id 2"):
        manager.log_dirs.claim("cluster", 2)
    manager.log_dirs.claim("cluster", 1)


def test_folders_of_two_clusters_are_refused() -> None:
    disk = SimulatedDisk()
    for number in (1, 2):
        disk.make_dir(f"/{number}")
        disk.write(f"/{number}/meta.properties", b"version=0\nbroker.id=1\ncluster.id=c%d\n" % number)
    manager = LogManager(["/1", "/2"], LogConfig(), disk=disk, clock=ManualClock())
    with pytest.raises(LogDirRefused, match="different clusters: c1, c2"):
        manager.log_dirs.lock()
    assert not disk.locks


def test_a_partition_in_two_folders_is_refused() -> None:
    disk = SimulatedDisk()
    for name in ("/1/t-0", "/2/t-0"):
        disk.make_dir(name)
    manager = LogManager(["/1", "/2"], LogConfig(), disk=disk, clock=ManualClock())
    manager.log_dirs.lock()
    with pytest.raises(LogDirRefused, match="t-0 is in /1 and in /2"):
        manager.load()


def test_names_that_are_no_partitions_are_left_alone() -> None:
    broker = Broker()
    names = ["__cluster_metadata-0", "nothing", "x-", "-1", "t-0.0123456789abcdef0123456789abcdef-future"]
    for name in names:
        broker.disk.make_dir(f"/data/{name}")
    manager = broker.start()
    assert not manager.logs
    broker.scheduler.advance(1e6)
    assert all(broker.disk.exists(f"/data/{name}") for name in names)


def test_new_logs_go_where_the_fewest_are() -> None:
    broker = Broker("/1", "/2", "/3")
    manager = broker.start()
    for partition in range(7):
        manager.get_or_create("t", partition, ID)
    assert sorted(log.dir[:2] for log in manager.logs.values()) == ["/1"] * 3 + ["/2"] * 2 + ["/3"] * 2


def test_a_log_keeps_its_topic_id_for_life() -> None:
    broker = Broker()
    manager = broker.start()
    manager.get_or_create("t", 0, None)
    assert manager.get_or_create("t", 0, ID).topic_id == ID
    with pytest.raises(InconsistentTopicId):
        manager.get_or_create("t", 0, bytes(16))
    broker.kill(manager)
    assert broker.start().logs["t", 0].topic_id == ID


def test_a_deleted_log_is_gone_at_once_and_its_files_later() -> None:
    broker = Broker()
    manager = broker.start()
    append(manager.get_or_create("t", 0, ID))
    manager.delete("t", 0)
    assert manager.get("t", 0) is None
    (moved,) = [name for name in broker.disk.listdir("/data") if name.endswith("-delete")]
    assert manager.get_or_create("t", 0, ID).log_end_offset == 0
    broker.scheduler.advance(59)
    assert broker.disk.exists(f"/data/{moved}")
    broker.scheduler.advance(2)
    assert not broker.disk.exists(f"/data/{moved}")


def test_a_deletion_that_a_stop_interrupted_is_completed_after_the_next_start() -> None:
    broker = Broker()
    manager = broker.start()
    append(manager.get_or_create("t", 0, ID))
    manager.delete("t", 0)
    manager.shutdown()
    again = broker.start()
    assert not again.logs
    broker.scheduler.advance(61)
    assert not [name for name in broker.disk.listdir("/data") if name.endswith("-delete")]


def test_retention_renames_at_once_and_unlinks_after_the_delay() -> None:
    broker = Broker(defaults=config(retention_ms=1000, segment_bytes=100, file_delete_delay_ms=5000))
    manager = broker.start(Intervals(log_retention_check_interval_ms=2000))
    log = manager.get_or_create("t", 0, ID)
    for _ in range(3):
        append(log)
    log.update_high_watermark(3)
    broker.scheduler.advance(2.5)
    assert log.log_start_offset == 3
    left = broker.disk.listdir("/data/t-0")
    assert len([name for name in left if name.endswith(".log.deleted")]) == 3
    broker.scheduler.advance(5)
    assert not [name for name in broker.disk.listdir("/data/t-0") if name.endswith(".deleted")]


def test_retention_of_many_logs_gives_way_to_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(defaults=config(retention_ms=1000, segment_bytes=100, file_delete_delay_ms=60_000))
    manager = broker.start(Intervals(log_retention_check_interval_ms=2000))
    for partition in range(10):
        log = manager.get_or_create("t", partition, ID)
        append(log)
        append(log)
        log.update_high_watermark(2)
    clock, delete = broker.scheduler.clock, Log.delete_old_segments

    def slow_delete(log: Log, now_ms: int, reads: Reads) -> int:
        clock.advance(0.004)
        return delete(log, now_ms, reads)

    monkeypatch.setattr(Log, "delete_old_segments", slow_delete)
    meanwhile: list[int] = []

    def done() -> int:
        return sum(log.log_start_offset == 2 for log in manager.logs.values())

    broker.scheduler.schedule(2.001, lambda: meanwhile.append(done()))
    broker.scheduler.advance(2.5)
    assert meanwhile == [1]
    assert done() == 10


def with_two_old_segments(broker: Broker) -> tuple[LogManager, Log]:
    """Retention has dropped two segments, and nothing is renamed yet."""
    manager = broker.start()
    log = manager.get_or_create("t", 0, ID)
    for _ in range(3):
        append(log)
    log.update_high_watermark(3)
    broker.scheduler.run_pending()
    assert manager.retention.run() == 2
    assert log.log_start_offset == 2
    assert not deleted_files(broker)
    return manager, log


def deleted_files(broker: Broker) -> list[str]:
    return [name for name in broker.disk.listdir("/data/t-0") if name.endswith(".deleted")]


SMALL: dict[str, object] = {"retention_bytes": 1, "segment_bytes": 100}


def test_retention_renames_beside_the_loop() -> None:
    broker = Broker(defaults=config(**SMALL))
    manager, log = with_two_old_segments(broker)
    broker.scheduler.run_pending()
    assert [name for name in deleted_files(broker) if ".log" in name] == [
        f"{base:020d}.log.deleted" for base in (0, 1)
    ]
    assert offsets(records(log)) == [2]
    manager.checkpoints.write_log_start_offsets()
    broker.scheduler.run_pending()
    assert broker.offsets(LOG_START_OFFSETS) == {}


def refuse_renames(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = broker.disk.rename

    def refuse(source: str, target: str) -> None:
        if target.endswith(".deleted"):
            raise OSError(errno.ENOSPC, "no space", source)
        rename(source, target)

    monkeypatch.setattr(broker.disk, "rename", refuse)


def test_a_start_does_not_bring_back_what_was_dropped_and_not_renamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = Broker(defaults=config(**SMALL))
    manager, _ = with_two_old_segments(broker)
    with monkeypatch.context() as patch:
        refuse_renames(broker, patch)
        broker.scheduler.run_pending()
        assert not deleted_files(broker)
        manager.checkpoints.write_log_start_offsets()
        broker.scheduler.run_pending()
        assert broker.offsets(LOG_START_OFFSETS) == {("t", 0): 2}
    broker.kill(manager)
    again = broker.start()
    log = again.logs["t", 0]
    assert (log.log_start_offset, offsets(records(log))) == (2, [2])
    assert again.retention.run() == 2
    broker.scheduler.run_pending()
    assert len(deleted_files(broker)) >= 6


def test_a_rename_that_was_refused_is_tried_by_the_next_retention(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(defaults=config(**SMALL))
    manager, _ = with_two_old_segments(broker)
    with monkeypatch.context() as patch:
        refuse_renames(broker, patch)
        broker.scheduler.run_pending()
    assert manager.retention.run() == 0
    broker.scheduler.run_pending()
    assert len(deleted_files(broker)) == 7


def test_a_topic_that_is_made_anew_keeps_its_files_when_the_old_ones_were_to_be_renamed() -> None:
    broker = Broker(defaults=config(**SMALL))
    manager, _ = with_two_old_segments(broker)
    manager.delete("t", 0)
    append(manager.get_or_create("t", 0, bytes(16)))
    broker.scheduler.run_pending()
    assert not deleted_files(broker)
    assert broker.disk.exists("/data/t-0/00000000000000000000.log")


def test_a_folder_that_fails_at_a_rename_goes_offline() -> None:
    broker = Broker(defaults=config(**SMALL))
    manager, _ = with_two_old_segments(broker)
    broker.disk.broken = "/data"
    broker.scheduler.run_pending()
    assert manager.log_dirs[0].offline is not None


def test_a_reader_in_the_middle_of_a_dropped_segment_finishes() -> None:
    broker = Broker(defaults=config(**SMALL))
    manager = broker.start()
    log = manager.get_or_create("t", 0, ID)
    for _ in range(3):
        append(log)
    log.update_high_watermark(3)
    piece = log.read(0, 1 << 20).slice
    assert piece is not None
    before = piece.read()
    assert manager.retention.run() == 2
    broker.scheduler.advance(120)
    assert not deleted_files(broker)
    assert piece.read() == before


def test_a_clean_stop_renames_what_is_left() -> None:
    broker = Broker(defaults=config(**SMALL))
    manager, _ = with_two_old_segments(broker)
    manager.shutdown()
    assert len(deleted_files(broker)) == 6 + 1
    again = broker.start().logs["t", 0]
    assert (again.log_start_offset, offsets(records(again))) == (2, [2])


def test_leftovers_of_a_deletion_are_removed_by_the_next_start() -> None:
    broker = Broker(defaults=config(retention_ms=1000, segment_bytes=100))
    manager = broker.start()
    log = manager.get_or_create("t", 0, ID)
    append(log)
    append(log)
    log.update_high_watermark(2)
    broker.scheduler.clock.advance(10)
    assert manager.retention.run() == 2
    manager.shutdown()
    broker.start()
    assert not [name for name in broker.disk.listdir("/data/t-0") if "deleted" in name]


def test_checkpoints_are_written_at_their_intervals() -> None:
    broker = Broker()
    manager = broker.start(Intervals(log_flush_scheduler_interval_ms=1000))
    log = manager.get_or_create("t", 0, ID, config(flush_ms=2000))
    append(log, batch(5))
    log.update_high_watermark(5)
    log.delete_records_before(2)
    broker.scheduler.advance(5.5)
    assert broker.offsets(HIGH_WATERMARKS) == {("t", 0): 5}
    assert log.recovery_point == 5, "flush.ms has passed"
    broker.scheduler.advance(60)
    # Should the segment be complete by the time this is read, recovery still has to begin in it.
    assert broker.offsets(RECOVERY_POINTS) == {("t", 0): 4}
    assert broker.offsets(LOG_START_OFFSETS) == {("t", 0): 2}
    broker.kill(manager)
    log = broker.start().logs["t", 0]
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (2, 5, 5)


def test_a_roll_is_followed_by_a_flush_of_what_came_before_it() -> None:
    broker = Broker()
    manager = broker.start()
    log = manager.get_or_create("t", 0, ID)
    append(log, batch(3))
    assert log.recovery_point == 0
    log.roll(NOW)
    append(log, batch(2))
    broker.scheduler.run_pending()
    assert log.recovery_point == 3


def test_rolls_during_a_flush_share_the_next_one() -> None:
    broker = Broker()
    manager = broker.start()
    flushes: list[FlushJob] = []

    class Listener(LogManagerListener):
        def log_flushed(self, job: FlushJob) -> None:
            flushes.append(job)

    manager.listen(Listener())
    log = manager.get_or_create("t", 0, ID)
    for count in (3, 2, 4):
        append(log, batch(count))
        log.roll(NOW)  # the flush that the first one began has not run yet
    append(log, batch(1))
    broker.scheduler.run_pending()
    assert [job.up_to for job in flushes] == [3, 9]
    assert log.recovery_point == 9


def test_a_failed_flush_takes_the_folder_offline_and_not_the_recovery_point_further() -> None:
    broker = Broker()
    manager = broker.start()
    log = manager.get_or_create("t", 0, ID)
    append(log, batch(3))
    broker.disk.broken = "/data"
    manager.flushes.flush(log)
    broker.scheduler.run_pending()
    assert log.recovery_point == 0
    assert manager.log_dirs[0].offline is not None
    with pytest.raises(KafkaStorageError, match="every folder"):
        manager.get_or_create("u", 0, ID)


def test_a_log_that_cannot_be_read_is_not_served_and_the_others_are() -> None:
    broker = Broker()
    manager = broker.start()
    append(manager.get_or_create("good", 0, ID))
    manager.get_or_create("old", 0, ID)
    broker.kill(manager)
    old_message = bytes.fromhex("00000000000000000000000e41cc2bef0000ffffffffffffffff")
    broker.disk.open("/data/old-0/00000000000000000000.log").pwrite(with_crc(old_message), 0)
    again = broker.start()
    assert list(again.logs) == [("good", 0)]
    with pytest.raises(KafkaStorageError, match="messages of format 0"):
        again.get_or_create("old", 0, ID)
    assert broker.disk.size("/data/old-0/00000000000000000000.log") == len(old_message), "nothing was cut"


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EMFILE])
def test_a_folder_that_fails_while_its_logs_are_loaded_serves_none_of_them(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Also if its disk is full: nothing would open the log once there is room."""
    broker = Broker("/1", "/2")
    manager = broker.start()
    for partition in range(4):
        append(manager.get_or_create("t", partition, ID))
    broker.kill(manager)
    first, *others = sorted(key for key, log in manager.logs.items() if log.dir.startswith("/1/"))
    original = Log.open

    def fails_once(topic: str, partition: int, *arguments: object, **more: object) -> Log:
        if (topic, partition) == first:
            raise OSError(number, "broken")
        return original(topic, partition, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Log, "open", fails_once)
    again = broker.start()
    assert again.log_dirs[0].offline is not None
    assert [log.dir[:2] for log in again.logs.values()] == ["/2", "/2"]
    for key in (first, *others):
        with pytest.raises(KafkaStorageError, match="broken"):
            again.get_or_create(*key, ID)


def test_a_folder_with_a_log_that_cannot_be_closed_is_not_marked_as_clean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = Broker("/1", "/2")
    manager = broker.start()
    for partition in range(2):
        append(manager.get_or_create("t", partition, ID))
    original = Log.close

    def fails_in_one(log: Log, now_ms: int) -> None:
        if log.dir.startswith("/1/"):
            raise OSError(errno.EIO, "broken")
        original(log, now_ms)

    monkeypatch.setattr(Log, "close", fails_in_one)
    manager.shutdown()
    assert not broker.disk.exists("/1/.kafka_cleanshutdown")
    assert broker.disk.exists("/2/.kafka_cleanshutdown")


def with_crc(message: bytes) -> bytes:
    import zlib

    return message[:12] + zlib.crc32(message[16:]).to_bytes(4, "big") + message[16:]


def test_sizes_per_folder() -> None:
    broker = Broker("/1", "/2")
    manager = broker.start()
    for partition in range(3):
        append(manager.get_or_create("t", partition, ID), batch(partition + 1))
    uses = manager.describe_log_dirs()
    assert [use.path for use in uses] == ["/1", "/2"]
    assert {key: size for use in uses for key, size in use.sizes.items()} == {
        ("t", partition): len(batch(partition + 1)) for partition in range(3)
    }
    broker.disk.broken = "/1"
    with pytest.raises(KafkaStorageError):
        append(manager.logs["t", 0])
    assert [use.offline is None for use in manager.describe_log_dirs()] == [False, True]
