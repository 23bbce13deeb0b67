"""A log with a cleaner, on a simulated clock; what a test says is only what differs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.storage.helpers import NOW, marker
from tests.support.simdisk import SimulatedDisk
from tidelog.clock import ManualClock, SimulatedScheduler
from tidelog.records.batch import (
    CONTROL_ABORT,
    BatchHeader,
    Record,
    build_batch,
    control_record_type,
    crc_is_valid,
    iter_batches,
    read_records,
)
from tidelog.records.codecs import Codec
from tidelog.storage.append import AppendOrigin
from tidelog.storage.cleaner.log_cleaner import CleanerSettings, LogCleaner
from tidelog.storage.config import LogConfig
from tidelog.storage.disk import Disk
from tidelog.storage.log import Log
from tidelog.storage.log_manager import LogManager

KEY = ("topic", 0)
COMPACT = frozenset({"compact"})
HASH_KEY = bytes(16)

Pair = tuple[bytes | None, bytes | None]


def settings(**changes: object) -> LogConfig:
    values: dict[str, object] = {
        "cleanup_policy": COMPACT,
        "min_cleanable_dirty_ratio": 0.0,
        "segment_bytes": 1 << 20,
        "index_interval_bytes": 200,
        "delete_retention_ms": 60_000,
        "file_delete_delay_ms": 1000,
    }
    return LogConfig(**{**values, **changes})  # type: ignore[arg-type]


class World:
    """One broker's storage, its clock and its cleaner."""

    def __init__(
        self,
        config: LogConfig | None = None,
        *,
        disk: Disk | None = None,
        folder: Path | str = "/data",
        cleaner: CleanerSettings | None = None,
        step_bytes: int = 1 << 20,
    ) -> None:
        self.config = config or settings()
        self.disk: Disk = disk if disk is not None else SimulatedDisk()
        self.folder = str(folder)
        self.scheduler = SimulatedScheduler(ManualClock(NOW))
        self.cleaner_settings = cleaner or CleanerSettings(backoff_ms=1000)
        self.step_bytes = step_bytes
        self.start()

    def start(self) -> Log:
        self.manager = LogManager(
            [self.folder], self.config, disk=self.disk, clock=self.scheduler.clock, scheduler=self.scheduler
        )
        self.manager.log_dirs.lock()
        self.manager.load(lambda _: self.config)
        self.cleaner = LogCleaner(
            self.manager, self.scheduler, self.cleaner_settings, step_bytes=self.step_bytes, hash_key=HASH_KEY
        )
        self.cleaner.start()
        self.log = self.manager.get_or_create("topic", 0, None, self.config)
        self.log.update_high_watermark(self.log.log_end_offset)
        return self.log

    @property
    def now(self) -> int:
        return self.scheduler.clock.ms()

    def restart(self) -> Log:
        self.cleaner.close()
        self.manager.shutdown()
        return self.start()

    def append(
        self,
        *pairs: Pair,
        producer: tuple[int, int, int] | None = None,
        transactional: bool = False,
        codec: Codec = Codec.NONE,
        timestamp: int | None = None,
        log: Log | None = None,
    ) -> int:
        """One batch; its base offset. `producer` is id, epoch and first sequence."""
        stamp = self.now if timestamp is None else timestamp
        producer_id, epoch, sequence = producer or (-1, -1, -1)
        data = build_batch(
            [Record(at, stamp + at, key, value) for at, (key, value) in enumerate(pairs)],
            codec=codec,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        log = log or self.log
        result = log.appender.append_as_leader(bytearray(data), leader_epoch=0, now_ms=self.now)
        log.update_high_watermark(log.log_end_offset)
        return result.base_offset

    def end_transaction(self, producer_id: int, *, commit: bool, epoch: int = 0) -> int:
        data = marker(producer_id, commit=commit, epoch=epoch, timestamp=self.now)
        result = self.log.appender.append_as_leader(
            data, leader_epoch=0, origin=AppendOrigin.COORDINATOR, now_ms=self.now
        )
        self.log.update_high_watermark(self.log.log_end_offset)
        return result.base_offset

    def roll(self, log: Log | None = None) -> None:
        """What was appended so far is in segments of its own, and on disk."""
        log = log or self.log
        log.roll(self.now)
        log.flush(self.now)

    def clean(self, *, roll: bool = True) -> None:
        """Let the cleaner do all that is due."""
        if roll:
            self.roll()
        passes = -1
        while passes != self.cleaner.figures.passes:
            passes = self.cleaner.figures.passes
            assert passes < 2000  # each brings the checkpoint on
            self.scheduler.run_pending()
            self.cleaner.clean_dirtiest()
            self.scheduler.run_pending()
        assert not self.cleaner.is_busy

    def names(self) -> list[str]:
        return sorted(self.disk.listdir(self.log.dir))


def batches(log: Log, start: int | None = None) -> list[tuple[BatchHeader, list[Record]]]:
    """Every batch with its records, through the log's own reads; each is checked."""
    found = []
    offset = log.log_start_offset if start is None else start
    while (piece := log.read(offset, 1 << 20).slice) is not None:
        data = piece.read()
        for position, header in iter_batches(data):
            assert crc_is_valid(data, position, header)
            found.append((header, read_records(data, position)))
            offset = header.next_offset
    return found


def records(log: Log) -> list[Record]:
    return [record for header, inside in batches(log) if not header.is_control for record in inside]


def offsets(log: Log) -> list[int]:
    return [record.offset for record in records(log)]


def headers(log: Log) -> list[BatchHeader]:
    return [header for header, _ in batches(log)]


def committed(log: Log) -> list[Record]:
    """What a consumer of committed records gets: as it does, by the transaction index and the markers."""
    aborted = log.aborted_transactions(log.log_start_offset, log.last_stable_offset)
    aborted.sort(key=lambda transaction: transaction.first_offset)
    hidden: set[int] = set()
    found: list[Record] = []
    for header, inside in batches(log):
        if header.last_offset >= log.last_stable_offset:
            break
        while aborted and aborted[0].first_offset <= header.last_offset:
            hidden.add(aborted.pop(0).producer_id)
        if header.is_control:
            if inside and control_record_type(inside[0]) == CONTROL_ABORT:
                hidden.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in hidden):
            found += inside
    return found


def bytes_of(pairs: Sequence[Record]) -> list[Pair]:
    return [(record.key, record.value) for record in pairs]
