"""Killed at any operation, a log comes back with every flushed batch and without a torn one.

Each seed plays a life of appends, flushes, rolls, truncations, retention and checkpoints on a simulated disk,
pulls the plug at an operation drawn from the seed, starts again and goes on, three times.
"""

from __future__ import annotations

import random

import pytest

from tests.storage.helpers import NOW, batch, marker
from tests.support.scale import scale
from tests.support.simdisk import Crash, SimulatedDisk
from tidelog.clock import ManualClock, SimulatedScheduler
from tidelog.errors import KafkaStorageError
from tidelog.partitions import PartitionKey
from tidelog.records.batch import (
    crc_is_valid,
    iter_batches,
    read_control_record,
    read_header,
    read_records,
)
from tidelog.records.check import check_produced
from tidelog.storage.append import AppendOrigin, PendingAppend, write_together
from tidelog.storage.config import LogConfig
from tidelog.storage.log import Log
from tidelog.storage.log_manager import LogManager
from tidelog.storage.log_manager_listener import LogManagerListener

RUNS = scale(250, 5000)
TOPIC_ID = bytes(range(16))
SETTINGS = LogConfig(
    segment_bytes=1200,
    index_interval_bytes=200,
    retention_bytes=4000,
    segment_index_bytes=400,
    transaction_verification_enable=False,
)


class Life:
    """A broker's storage with a record of what it promised."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disk = SimulatedDisk()
        self.clock = ManualClock(NOW)
        self.later = seed % 2 == 1  # whether files are renamed, unlinked and flushed beside other work
        self.versions: dict[
            int, set[bytes]
        ] = {}  # what was ever written at a base offset since it was flushed
        self.flushed_end = 0
        self.history = History()

    def start(self) -> Log:
        self.scheduler = SimulatedScheduler(self.clock) if self.later else None
        self.manager = LogManager(
            ["/data"], SETTINGS, disk=self.disk, clock=self.clock, scheduler=self.scheduler
        )
        self.manager.log_dirs.lock()
        self.manager.log_dirs.claim("cluster", 1)
        self.manager.load()
        self.log = self.manager.get_or_create("topic", 0, TOPIC_ID, SETTINGS)
        self.log.update_high_watermark(self.log.log_end_offset)
        return self.log

    def restart(self) -> None:
        """Start on what the crash left; the power may fail again while the logs are being recovered."""
        while True:
            self.disk = self.disk.after_crash(self.rng)
            if self.rng.random() < 0.3:
                self.disk.crash_at = self.rng.randint(1, 60)
            try:
                self.start()
            except Crash:
                continue
            self.disk.crash_at = None
            return

    def step(self) -> None:
        log, rng = self.log, self.rng
        action = rng.random()
        if action < 0.5:
            self.append()
        elif action < 0.6:
            self.append_together()
        elif action < 0.7:
            log.flush(NOW)
            self.flushed_end = log.log_end_offset
        elif action < 0.73:
            self.manager.flushes.flush(log)
        elif action < 0.75:  # the recovery point is the log's end, and is known to be
            log.flush(NOW)
            self.flushed_end = log.log_end_offset
            self.manager.checkpoints.write_recovery_points()
            if self.scheduler is not None:
                self.scheduler.advance(0)
            if rng.random() < 0.5:
                log.roll(NOW)
        elif action < 0.8:
            log.roll(NOW)
        elif action < 0.84:
            log.delete_old_segments(NOW)
        elif action < 0.87:
            log.delete_records_before(rng.randint(log.log_start_offset, log.high_watermark))
        elif action < 0.9 and log.log_end_offset > log.log_start_offset:
            self.truncate(rng.randint(log.log_start_offset, log.log_end_offset))
        elif action < 0.93:
            self.manager.checkpoints.write_recovery_points()
        elif action < 0.96:
            self.manager.checkpoints.write_log_start_offsets()
            self.manager.checkpoints.write_high_watermarks()
        elif action < 0.965:
            self.manager.shutdown()
            self.flushed_end = log.log_end_offset
            start = log.log_start_offset
            self.start()
            assert self.log.log_start_offset == start
        elif self.scheduler is not None:
            self.scheduler.advance(rng.choice((0, 0, 60)))

    def append(self) -> None:
        log, rng = self.log, self.rng
        producer_id = rng.choice([-1, -1, 7, 8])
        if producer_id == 8 and 8 in log.producers.ongoing and rng.random() < 0.5:
            self.write(marker(8, commit=rng.random() < 0.5), AppendOrigin.COORDINATOR)
            return
        producer = None
        if producer_id >= 0:
            entry = log.producers.entries.get(producer_id)
            producer = (producer_id, 0, 0 if entry is None else entry.last_sequence + 1)
        value = rng.randbytes(rng.randint(0, 120))
        data = batch(rng.randint(1, 5), value=value, producer=producer, transactional=producer_id == 8)
        self.write(data, AppendOrigin.CLIENT)

    def write(self, data: bytearray, origin: AppendOrigin) -> None:
        log = self.log
        base_offset = log.log_end_offset
        try:
            log.appender.append_as_leader(data, leader_epoch=self.epoch(), origin=origin, now_ms=NOW)
            log.update_high_watermark(log.log_end_offset)
        finally:  # offset and epoch are patched in place, and the bytes may have reached the disk
            self.versions.setdefault(base_offset, set()).add(bytes(data))
            self.history.note(base_offset, bytes(data))

    def epoch(self) -> int:
        return max(self.log.leader_epochs.latest, self.rng.choice((0, 1, 2, 3)))

    def append_together(self) -> None:
        """Several appends on their way at once, as the worker and the coordinators have them."""
        log, rng = self.log, self.rng
        pending: list[PendingAppend] = []
        for _ in range(rng.randint(1, 4)):
            origin = AppendOrigin.CLIENT
            if 8 in log.producers.ongoing and rng.random() < 0.6:
                if any(append.marker is not None for append in pending):
                    continue
                data, origin = marker(8, commit=rng.random() < 0.5), AppendOrigin.COORDINATOR
            else:
                data = batch(rng.randint(1, 5), value=rng.randbytes(rng.randint(0, 120)))
            checked = check_produced(memoryview(data), log.appender.rules_for(origin), NOW)
            prepared = log.appender.prepare(checked, leader_epoch=self.epoch(), origin=origin, now_ms=NOW)
            assert isinstance(prepared, PendingAppend)
            pending.append(prepared)
            # The power may fail before it is written, or before it is finished: it may be there or not.
            self.versions.setdefault(prepared.base_offset, set()).add(bytes(data))
            self.history.note(prepared.base_offset, bytes(data))
        if rng.random() < 0.1:
            log.appender.abandon(pending[0])
            self.history.cut(log.log_end_offset)
            return
        write_together(pending)
        self.beside()
        for append in pending:
            log.appender.finish(append, NOW)
            if rng.random() < 0.3:
                self.beside()
        log.update_high_watermark(log.log_end_offset)

    def beside(self) -> None:
        """What may happen while appends are on their way: nothing, a flush, checkpoints, a power failure."""
        action = self.rng.random()
        if action < 0.03:
            raise Crash
        if action < 0.2:
            self.log.flush(NOW)
            self.flushed_end = max(self.flushed_end, self.log.log_end_offset)
        elif action < 0.3:
            self.manager.checkpoints.write_recovery_points()
        elif action < 0.5 and self.scheduler is not None:
            self.scheduler.advance(0)

    def truncate(self, offset: int) -> None:
        held_by = self.log.read(offset, 1).slice
        self.flushed_end = min(
            self.flushed_end, offset if held_by is None else read_header(held_by.read()).base_offset
        )
        self.log.truncate_to(offset, NOW)
        self.history.cut(self.log.log_end_offset)

    def check(self) -> None:
        """The promise."""
        log = self.log
        assert log.topic_id == TOPIC_ID
        assert log.log_start_offset <= log.high_watermark == log.log_end_offset
        assert log.log_end_offset >= self.flushed_end
        expected = None
        sequences: dict[int, int] = {}
        offset = log.log_start_offset
        while (found := log.read(offset, 1 << 20).slice) is not None:
            data = found.read()
            for position, header in iter_batches(data):
                assert crc_is_valid(data, position, header)
                assert data[position : position + header.total_size] in self.versions[header.base_offset]
                assert expected is None or header.base_offset == expected
                assert len(read_records(data, position)) == header.record_count
                expected = offset = header.next_offset
                if header.producer_id >= 0 and not header.is_control:
                    sequences[header.producer_id] = header.last_sequence
        assert offset == log.log_end_offset
        self.history.follow(log)
        self.check_transactions()
        for producer_id, sequence in sequences.items():
            assert log.producers.entries[producer_id].last_sequence == sequence
        # Offsets behind the end will be used again, by other batches.
        self.versions = {base: stored for base, stored in self.versions.items() if base < log.log_end_offset}
        for base, stored in list(self.versions.items()):
            read = log.read(base, 1).slice if base >= log.log_start_offset else None
            self.versions[base] = {read.read()} if read is not None else stored

    def check_transactions(self) -> None:
        """What readers of committed records see is what the batches of the log say."""
        log = self.log
        ongoing, aborted = self.history.transactions()
        start, first = log.log_start_offset, log.segments[0].base_offset
        assert {pid: max(at, first) for pid, at in log.producers.ongoing.items()} == {
            pid: max(at, first) for pid, at in ongoing.items()
        }
        stable = min([log.log_end_offset, *ongoing.values()])
        assert log.last_stable_offset == max(stable, start)
        assert [
            (found.producer_id, found.first_offset, found.last_offset)
            for found in log.aborted_transactions(start, log.log_end_offset)
        ] == [one for one in aborted if one[2] >= start]


class History:
    """Every batch that the log has or had at its start, by its offset."""

    def __init__(self) -> None:
        self._batches: dict[int, bytes] = {}

    def note(self, base_offset: int, data: bytes) -> None:
        self._batches[base_offset] = data

    def cut(self, end: int) -> None:
        self._batches = {base: data for base, data in self._batches.items() if base < end}

    def follow(self, log: Log) -> None:
        """After a start: what lies before the log's start is known, the rest is what can be read."""
        self.cut(log.log_start_offset)
        offset = log.log_start_offset
        if log.segments[0].base_offset == log.log_end_offset == offset and not log.snapshots:
            # The crash took the end up to before the log's start, and with it how transactions went on.
            self._batches.clear()
        while (found := log.read(offset, 1 << 20).slice) is not None:
            data = found.read()
            for position, header in iter_batches(data):
                self.note(header.base_offset, data[position : position + header.total_size])
                offset = header.next_offset

    def transactions(self) -> tuple[dict[int, int], list[tuple[int, int, int]]]:
        """Where open ones began; producer, first and last offset of the aborted ones."""
        ongoing: dict[int, int] = {}
        aborted: list[tuple[int, int, int]] = []
        for base in sorted(self._batches):
            data = self._batches[base]
            header = read_header(data)
            if header.is_control:
                ended = read_control_record(read_records(data)[0])
                assert ended is not None
                began = ongoing.pop(header.producer_id, None)
                if began is not None and not ended.commit:
                    aborted.append((header.producer_id, began, header.last_offset))
            elif header.is_transactional:
                ongoing.setdefault(header.producer_id, base)
        return ongoing, aborted


def play(seed: int) -> None:
    life = Life(seed)
    life.start()
    for _ in range(3):
        life.disk.crash_at = life.disk.operations + life.rng.randint(1, 400)
        try:
            for _ in range(80):
                life.step()
        except Crash:
            pass
        life.restart()
        life.check()


@pytest.mark.parametrize("part", range(10))
def test_a_crash_at_any_operation_loses_nothing_flushed_and_keeps_nothing_torn(part: int) -> None:
    for seed in range(part * RUNS // 10, (part + 1) * RUNS // 10):
        try:
            play(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def test_a_full_disk_fails_the_append_and_the_log_goes_on() -> None:
    life = Life(1)
    log = life.start()
    log.appender.append_as_leader(batch(3), leader_epoch=0, now_ms=NOW)
    life.disk.free_bytes = 10
    with pytest.raises(KafkaStorageError):
        log.appender.append_as_leader(batch(3), leader_epoch=0, now_ms=NOW)
    assert log.log_end_offset == 3
    assert life.manager.log_dirs[0].offline is None
    life.disk.free_bytes = None
    assert log.appender.append_as_leader(batch(2), leader_epoch=0, now_ms=NOW).base_offset == 3
    life.manager.shutdown()
    assert life.start().log_end_offset == 5


def test_a_broken_disk_takes_its_folder_offline_and_not_the_other() -> None:
    disk = SimulatedDisk()
    manager = LogManager(["/one", "/two"], LogConfig(), disk=disk, clock=ManualClock(NOW))
    manager.log_dirs.lock()
    manager.load()
    first, second = (manager.get_or_create(name, 0, None) for name in ("a", "b"))
    assert {first.dir, second.dir} == {"/one/a-0", "/two/b-0"}
    lost: list[object] = []

    class Listener(LogManagerListener):
        def log_dir_offline(self, path: str, partitions: list[PartitionKey]) -> None:
            lost.append((path, partitions))

    manager.listen(Listener())
    disk.broken = "/one"
    with pytest.raises(KafkaStorageError):
        first.appender.append_as_leader(batch(), leader_epoch=0, now_ms=NOW)
    assert lost == [("/one", [("a", 0)])]
    assert manager.get("a", 0) is None
    with pytest.raises(KafkaStorageError):
        manager.get_or_create("a", 0, None)
    second.appender.append_as_leader(batch(), leader_epoch=0, now_ms=NOW)
    assert manager.get_or_create("c", 0, None).dir == "/two/c-0"
    manager.shutdown()
    assert disk.exists("/two/.kafka_cleanshutdown")
    assert not disk.exists("/one/.kafka_cleanshutdown")
