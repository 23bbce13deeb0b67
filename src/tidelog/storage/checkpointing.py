"""The checkpoints of the log folders: recovery points, log start offsets and high watermarks.

They are written off the loop; without a scheduler at once.
"""

from __future__ import annotations

from collections.abc import Callable

from tidelog.errors import KafkaStorageError
from tidelog.partitions import PartitionKey
from tidelog.storage.checkpoints import HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS, encode_offsets
from tidelog.storage.folders import LogFolder
from tidelog.storage.hosted import HostedLogs
from tidelog.storage.log import Log
from tidelog.storage.segmented import SegmentedLog


def _log_start_to_keep(log: Log) -> int | None:
    return None if log.starts_with_its_files else log.log_start_offset


CHECKPOINTS: tuple[tuple[str, Callable[[Log], int | None]], ...] = (
    (RECOVERY_POINTS, lambda log: log.recovery_point_to_keep),
    (LOG_START_OFFSETS, _log_start_to_keep),
    (HIGH_WATERMARKS, lambda log: log.high_watermark),
)


class CheckpointedLogs(HostedLogs):
    def checkpoint_recovery_points(self) -> None:
        self._checkpoint(RECOVERY_POINTS, lambda log: log.recovery_point_to_keep)

    def log_truncated(self, log: SegmentedLog) -> None:
        """The recovery points of a log's folder, durable on return."""
        self._write_recovery_points(self._folder_of[log.topic, log.partition])
        if self.on_truncated is not None:
            self.on_truncated(log)

    def _write_recovery_points(self, folder: LogFolder) -> None:
        writer = folder.writer(RECOVERY_POINTS)
        writer.prepare(encode_offsets(self._values(folder, lambda log: log.recovery_point_to_keep)))
        try:
            writer.write()
        except OSError as error:
            self._failed(folder, error)
            raise KafkaStorageError(f"{folder.path}/{RECOVERY_POINTS} cannot be written: {error}") from error

    def checkpoint_writer(self, log: SegmentedLog) -> Callable[[], None]:
        """Made on the loop, called anywhere: recovery points and log starts as they are now, made durable."""
        folder = self._folder_of[log.topic, log.partition]
        points, starts = folder.writer(RECOVERY_POINTS), folder.writer(LOG_START_OFFSETS)
        points.prepare(encode_offsets(self._values(folder, lambda log: log.recovery_point_to_keep)))
        starts.prepare(encode_offsets(self._values(folder, _log_start_to_keep)))

        def write() -> None:
            points.write()
            starts.write()

        return write

    def checkpoint_high_watermarks(self) -> None:
        self._checkpoint(HIGH_WATERMARKS, lambda log: log.high_watermark)

    def checkpoint_log_start_offsets(self) -> None:
        """Only logs that do not start with their first segment: for the others the folder says it."""
        self._checkpoint(LOG_START_OFFSETS, _log_start_to_keep)

    def _checkpoint(self, name: str, value: Callable[[Log], int | None]) -> None:
        for folder in self.folders:
            if folder.offline is None:
                self._write_later(folder, name, encode_offsets(self._values(folder, value)))

    def _values(self, folder: LogFolder, value: Callable[[Log], int | None]) -> dict[PartitionKey, int]:
        values: dict[PartitionKey, int] = {}
        for key, owner in self._folder_of.items():
            if owner is folder:
                offset = value(self.logs[key])
                if offset is not None:
                    values[key] = offset
        for key, future in self.futures.items():
            # Until one of the two folders is out of the way, a start may use either.
            concerned = future.arriving and future.folder is folder
            concerned = concerned or (future.leaves is not None and future.leaves[0] is folder)
            if concerned and key in self.logs:
                offset = value(self.logs[key])
                if offset is not None:
                    values[key] = offset
        return values

    def _write_later(self, folder: LogFolder, name: str, data: bytes) -> None:
        writer = folder.writer(name)

        def done(_: None, error: BaseException | None) -> None:
            if isinstance(error, OSError):
                self._failed(folder, error)

        if writer.prepare(data):
            self._run(writer.write, done)
