"""What the storage tests share: logs in a temporary folder, batches by the dozen, readers of everything."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tidelog.records.batch import (
    BatchHeader,
    Record,
    build_batch,
    build_end_transaction_marker,
    iter_batches,
    read_records,
)
from tidelog.storage.append import AppendOrigin, AppendResult
from tidelog.storage.config import LogConfig
from tidelog.storage.disk import Disk, RealDisk
from tidelog.storage.file_cache import FileCache
from tidelog.storage.log import Log

NOW = 1_700_000_000_000


def config(**settings: object) -> LogConfig:
    return LogConfig(**settings)  # type: ignore[arg-type]


def open_log(
    folder: Path | str,
    settings: LogConfig | None = None,
    *,
    disk: Disk | None = None,
    files: FileCache | None = None,
    now_ms: int = NOW,
    clean: bool = False,
    recovery_point: int = 0,
    log_start_offset: int = 0,
) -> Log:
    disk = disk or RealDisk()
    disk.make_dir(str(folder))
    return Log.open(
        "topic",
        0,
        str(folder),
        settings or LogConfig(),
        disk=disk,
        files=files if files is not None else FileCache(),
        now_ms=now_ms,
        clean=clean,
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
    )


def batch(
    count: int = 1,
    *,
    timestamp: int = NOW,
    step: int = 1,
    value: bytes = b"value",
    producer: tuple[int, int, int] | None = None,
    transactional: bool = False,
) -> bytearray:
    """A batch of `count` records; `producer` is id, epoch and first sequence."""
    records = [Record(at, timestamp + at * step, b"%d" % at, value) for at in range(count)]
    producer_id, epoch, sequence = producer or (-1, -1, -1)
    return bytearray(
        build_batch(
            records,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
    )


def append(
    log: Log, data: bytes | bytearray | None = None, *, epoch: int = 0, now_ms: int = NOW
) -> AppendResult:
    return log.appender.append_as_leader(batch() if data is None else data, leader_epoch=epoch, now_ms=now_ms)


def marker(
    producer_id: int, *, commit: bool, epoch: int = 0, coordinator_epoch: int = 0, timestamp: int = NOW
) -> bytearray:
    return bytearray(
        build_end_transaction_marker(
            commit=commit,
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp=timestamp,
        )
    )


def end_transaction(
    log: Log, producer_id: int, *, commit: bool, epoch: int = 0, coordinator_epoch: int = 0
) -> AppendResult:
    data = marker(producer_id, commit=commit, epoch=epoch, coordinator_epoch=coordinator_epoch)
    return log.appender.append_as_leader(data, leader_epoch=0, origin=AppendOrigin.COORDINATOR, now_ms=NOW)


def headers(log: Log) -> list[BatchHeader]:
    """The headers of every batch, through the log's own reads."""
    found: list[BatchHeader] = []
    offset = log.log_start_offset
    while True:
        result = log.read(offset, 1 << 20)
        if result.slice is None:
            return found
        for _, header in iter_batches(result.slice.read()):
            found.append(header)
            offset = header.next_offset


def records(
    log: Log, start: int | None = None, *, max_bytes: int = 1 << 20
) -> list[tuple[BatchHeader, Record]]:
    """Every record from an offset on, with the header of its batch; control batches left out."""
    found: list[tuple[BatchHeader, Record]] = []
    offset = log.log_start_offset if start is None else start
    first = offset
    while True:
        result = log.read(offset, max_bytes)
        if result.slice is None:
            return found
        data = result.slice.read()
        for position, header in iter_batches(data):
            offset = header.next_offset
            if not header.is_control:
                found += [
                    (header, r) for r in read_records(data, position, header=header) if r.offset >= first
                ]


def offsets(found: Iterable[tuple[BatchHeader, Record]]) -> list[int]:
    return [record.offset for _, record in found]
