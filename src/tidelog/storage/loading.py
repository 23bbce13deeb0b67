"""Logs found in their folders and opened when a broker starts, after a crash several at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from tidelog.errors import KafkaError, KafkaStorageError
from tidelog.partitions import PartitionKey
from tidelog.storage.checkpoints import HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS
from tidelog.storage.config import LogConfig
from tidelog.storage.folders import LogFolder, is_marked_for_deletion, parse_partition
from tidelog.storage.future_replica import FutureReplica, parse_future, settle_twins
from tidelog.storage.log import Log
from tidelog.storage.upkeep import KeptLogs

logger = logging.getLogger("tidelog.storage")

OnProgress = Callable[[int, int, PartitionKey], None]  # done, of how many, which


@dataclass(slots=True)
class _ToLoad:
    folder: LogFolder
    name: str
    key: PartitionKey
    recovery_point: int | None  # None: the folder has no checkpoint of them
    log_start_offset: int
    high_watermark: int


class LoadedLogs(KeptLogs):
    def load(
        self,
        config_of: Callable[[str], LogConfig] | None = None,
        progress: OnProgress | None = None,
    ) -> None:
        """Open every log; after a crash several at a time. `config_of` gives the settings of a topic."""
        clean: list[_ToLoad] = []
        crashed: list[_ToLoad] = []
        for folder in self.folders:
            if folder.offline is not None:
                continue
            try:
                found = self._list(folder)
            except OSError as error:
                self._take_offline(folder, error)
                continue
            (clean if folder.had_clean_shutdown else crashed).extend(found)
        all_online = all(folder.offline is None for folder in self.folders)
        kept, removed = settle_twins(self._disk, clean + crashed, all_online=all_online)
        self._leftovers += removed
        clean = [item for item in kept if item.folder.had_clean_shutdown]
        crashed = [item for item in kept if not item.folder.had_clean_shutdown]
        total, done = len(clean) + len(crashed), 0

        def load_one(item: _ToLoad) -> None:
            nonlocal done
            self._load_one(item, config_of)
            done += 1
            if progress is not None:
                progress(done, total, item.key)

        for item in clean:
            load_one(item)
        self._in_threads(load_one, crashed)
        self._checkpoint_settled()

    def _checkpoint_settled(self) -> None:
        """What the logs of a crash say now has to be known before anything is written to them.

        Those with gaps were flushed. Others may be rolled at the very offset that was their recovery point:
        recovery would then begin behind the segment whose indexes it has just made.
        """
        settled = [self._folder_of[key] for key in self._settled if key in self.logs]
        for folder in {folder.path: folder for folder in settled}.values():
            try:
                self._write_recovery_points(folder)
            except KafkaStorageError as error:
                logger.error("%s", error)
        self._settled.clear()

    def _list(self, folder: LogFolder) -> list[_ToLoad]:
        folder.take_clean_shutdown_marker()
        recovery_points = folder.read_offsets(RECOVERY_POINTS)
        starts = folder.read_offsets(LOG_START_OFFSETS) or {}
        high_watermarks = folder.read_offsets(HIGH_WATERMARKS) or {}
        found = []
        for name in self._disk.listdir(folder.path):
            key = parse_partition(name)
            path = f"{folder.path}/{name}"
            future = parse_future(name)
            if is_marked_for_deletion(name):
                self._leftovers.append(path)
            elif future is not None:
                if future in self.futures:
                    self._leftovers.append(path)
                else:
                    self.futures[future] = FutureReplica(future, folder, path)
            elif key is not None and self._disk.is_dir(path):
                found.append(
                    _ToLoad(
                        folder,
                        name,
                        key,
                        None if recovery_points is None else recovery_points.get(key, 0),
                        starts.get(key, 0),
                        high_watermarks.get(key, 0),
                    )
                )
        return found

    def _load_one(self, item: _ToLoad, config_of: Callable[[str], LogConfig] | None) -> None:
        topic, partition = item.key
        try:
            log = Log.open(
                topic,
                partition,
                f"{item.folder.path}/{item.name}",
                self.defaults if config_of is None else config_of(topic),
                disk=self._disk,
                files=self._files,
                now_ms=self._clock.ms(),
                clean=item.folder.had_clean_shutdown,
                recovery_point=item.recovery_point,
                log_start_offset=item.log_start_offset,
                high_watermark=item.high_watermark,
            )
        except OSError as error:
            self.failed[item.key] = str(error)
            self._failed(item.folder, error)
        except KafkaError as error:
            self.failed[item.key] = str(error)
            logger.error("partition %s is not served: %s", item.name, error)
        else:
            self._add(log, item.folder)
            known = item.recovery_point or 0
            if not item.folder.had_clean_shutdown and log.recovery_point_to_keep != known:
                self._settled.add(item.key)
