"""All logs of a broker in its log folders: loaded, created, deleted, moved between folders, closed.

What takes long (fsync, unlink, checkpoints) runs through the scheduler off the loop; without a scheduler it
runs at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from tidelog.errors import InconsistentTopicId, KafkaStorageError
from tidelog.partitions import PartitionKey
from tidelog.storage.checkpointing import CHECKPOINTS
from tidelog.storage.checkpoints import encode_offsets
from tidelog.storage.config import LogConfig
from tidelog.storage.creation import EmptiestFolder, LogCreation, NewLog, WantedLog
from tidelog.storage.disk import DiskFile
from tidelog.storage.folders import LogFolder, path_for_deletion
from tidelog.storage.future_replica import FutureReplica, future_name
from tidelog.storage.loading import LoadedLogs
from tidelog.storage.log import Log
from tidelog.storage.upkeep import Intervals

__all__ = ["Intervals", "LogManager"]

logger = logging.getLogger("tidelog.storage")

MAX_WISHES = 10_000
"""Folders that are remembered for partitions that do not exist; anybody can wish."""


class LogManager(LoadedLogs):
    # -- logs

    def get_or_create(
        self,
        topic: str,
        partition: int,
        topic_id: bytes | None,
        config: LogConfig | None = None,
        *,
        is_new: bool = True,
    ) -> Log:
        """The log of a partition, made in the folder with the fewest logs where there is none.

        A partition that is not new may have its log in a folder that is offline: then none is made.
        """
        key = (topic, partition)
        log = self.logs.get(key)
        if log is None:
            if key in self.failed:
                raise KafkaStorageError(f"{topic}-{partition} could not be loaded: {self.failed[key]}")
            offline = [folder.path for folder in self.folders if folder.offline is not None]
            if offline and not is_new and key not in self.unmade:
                raise KafkaStorageError(
                    f"the log of {topic}-{partition} is in no folder that works: it may be in "
                    + ", ".join(offline)
                )
            return self._create(WantedLog(topic, partition, topic_id, config or self.defaults))
        if topic_id is not None and log.topic_id != topic_id:
            if log.topic_id is not None:
                raise InconsistentTopicId(
                    f"{log.dir} belongs to the topic id {log.topic_id.hex()}, not to {topic_id.hex()}"
                )
            log.set_topic_id(topic_id)
        if config is not None:
            log.update_config(config)
        return log

    def _create(self, wanted: WantedLog) -> Log:
        folder = self.unmade.get(wanted.key) or self._wish(wanted.key)
        new = NewLog(wanted, folder if folder is not None else self._emptiest_folder().take())
        creation = LogCreation(self._disk, self._files, self._clock.ms())
        creation.logs.append(new)
        creation.run()
        self._take_in(creation)
        if new.error is not None:
            raise new.kafka_error() from new.error
        return self.logs[wanted.key]

    def make_later(
        self,
        wanted: Iterable[WantedLog],
        done: Callable[[set[PartitionKey]], None],
        *,
        is_new: bool = True,
    ) -> None:
        """Make the logs that are missing, off the loop, for `get_or_create` to find or to say why not.

        `done` hears of those that lacked room on the disk, or something else that may come back. They can be
        asked for again, and are made in the same folder then: a start must not find parts of them in two.
        """
        creation = self._choose(wanted, is_new)
        if not creation.logs:
            done(set())
            return

        def made(_: None, error: BaseException | None) -> None:
            self._files.evicting = True
            if error is not None:
                creation.failed(error)
            done(self._take_in(creation))

        self._files.evicting = False  # only the loop may take files from logs that it uses
        self._run(creation.run, made)

    def _choose(self, wanted: Iterable[WantedLog], is_new: bool) -> LogCreation:
        creation = LogCreation(self._disk, self._files, self._clock.ms())
        emptiest = self._emptiest_folder()
        may_choose = emptiest.any if is_new else not any(folder.offline for folder in self.folders)
        for one in wanted:
            log = self.logs.get(one.key)
            if log is not None:
                if log.topic_id is None and one.topic_id is not None:
                    creation.logs.append(NewLog(one, self._folder_of[one.key], present=log))
            elif one.key in self.unmade:
                creation.logs.append(NewLog(one, self.unmade[one.key]))
            elif one.key not in self.failed and may_choose:
                creation.logs.append(NewLog(one, self._wish(one.key) or emptiest.take()))
        return creation

    def wish(self, key: PartitionKey, folder: LogFolder) -> None:
        """Let a log that does not exist yet be made in this folder."""
        self.wished.pop(key, None)
        while len(self.wished) >= MAX_WISHES:
            del self.wished[next(iter(self.wished))]
        self.wished[key] = folder

    def _wish(self, key: PartitionKey) -> LogFolder | None:
        folder = self.wished.pop(key, None)
        return folder if folder is not None and folder.offline is None else None

    def _take_in(self, creation: LogCreation) -> set[PartitionKey]:
        """Serve the logs that were made; gives those that may be asked for again."""
        unmade: set[PartitionKey] = set()
        failures: dict[str, tuple[LogFolder, OSError]] = {}
        for new in creation.logs:
            key, error = new.wanted.key, new.error
            self.unmade.pop(key, None)
            if error is None and new.log is not None and new.folder.offline is not None:
                error = new.error = KafkaStorageError(f"its folder {new.folder.path} is offline")
            if error is None:
                if new.log is not None:
                    self._add(new.log, new.folder)
                continue
            if new.log is not None:
                new.log.release()
            if isinstance(error, OSError):
                failures.setdefault(new.folder.path, (new.folder, error))
            if new.may_be_tried_again:
                self.unmade[key] = new.folder
                unmade.add(key)
            elif new.present is None:
                self.failed[key] = str(error)
        for folder, failure in failures.values():
            self._failed(folder, failure)
        return unmade

    def _emptiest_folder(self) -> EmptiestFolder:
        futures = [future.folder for future in self.futures.values() if not future.is_promoted]
        return EmptiestFolder(self.folders, (*self._folder_of.values(), *self.unmade.values(), *futures))

    def delete(self, topic: str, partition: int) -> None:
        """The partition is gone at once, its files after file.delete.delay.ms.

        It stays gone after a crash once `sync_deletions` is done.
        """
        key = (topic, partition)
        log = self.logs.pop(key, None)
        self.failed.pop(key, None)
        self.unmade.pop(key, None)
        self.wished.pop(key, None)
        future = self.futures.pop(key, None)
        if future is not None:
            try:
                self._put_away(*future.leftover(), self.defaults.file_delete_delay_ms)
            except KafkaStorageError as error:
                logger.error("%s-%d is deleted, but not all of it: %s", topic, partition, error)
        if log is None:
            self._delete_unopened(f"{topic}-{partition}")
            return
        folder = self._folder_of.pop(key)
        self._unsynced[folder.path] = folder
        if self.on_deleted is not None:
            self.on_deleted(key, folder)
        self._remover.remove_tree_later(log.delete(), log.config.file_delete_delay_ms)

    def _delete_unopened(self, name: str) -> None:
        """A log that could not be loaded, or not be made to its end: no later one may find its folder."""
        for folder in self.folders:
            path = f"{folder.path}/{name}"
            if folder.offline is None and self._disk.is_dir(path):
                self._put_away(folder, path, self.defaults.file_delete_delay_ms)

    def _put_away(self, folder: LogFolder, path: str, delay_ms: int) -> None:
        """Rename a folder so that no start finds it, for `sync_deletions` to make that durable."""
        if folder.offline is not None:
            return
        target = path_for_deletion(path)
        try:
            self._disk.rename(path, target)
        except OSError as error:
            raise KafkaStorageError(f"{path} cannot be renamed for deletion: {error}") from error
        self._unsynced[folder.path] = folder
        self._remover.remove_tree_later(target, delay_ms)

    def sync_deletions(self, done: Callable[[KafkaStorageError | None], None]) -> None:
        """Bring the deletions so far to the disk, off the loop."""
        folders = [folder for folder in self._unsynced.values() if folder.offline is None]
        self._unsynced.clear()
        if not folders:
            done(None)
            return
        at: LogFolder = folders[0]

        def sync() -> None:
            nonlocal at
            for at in folders:
                self._disk.fsync_dir(at.path)

        def synced(_: None, error: BaseException | None) -> None:
            if error is None:
                done(None)
                return
            self._unsynced.update((folder.path, folder) for folder in folders)
            if isinstance(error, OSError):
                self._failed(at, error)
            done(KafkaStorageError(f"{at.path} cannot be synced: {error}"))

        self._run(sync, synced)

    # -- logs on their way into another folder

    def begin_future(self, key: PartitionKey, folder: LogFolder) -> FutureReplica:
        """A new folder for a copy of the log."""
        path = f"{folder.path}/{future_name(key)}"
        try:
            self._disk.make_dir(path)
        except OSError as error:
            self._failed(folder, error)
            raise KafkaStorageError(f"{path} cannot be made: {error}") from error
        future = self.futures[key] = FutureReplica(key, folder, path)
        return future

    def drop_future(self, future: FutureReplica) -> None:
        """The copy is not wanted any more."""
        if self.futures.get(future.key) is future and not future.is_promoted:
            del self.futures[future.key]
            try:
                self._put_away(future.folder, future.path, self.defaults.file_delete_delay_ms)
            except KafkaStorageError as error:
                logger.error("a future log is left where it is: %s", error)

    def arrival_writer(self, future: FutureReplica, *, again: bool = False) -> Callable[[], None]:
        """Made on the loop, called anywhere: the checkpoints of a folder with the log that is to come there.

        Without them a start would take nothing of the log for synced. `again`, while appends wait for it,
        writes only what has changed meanwhile; the high watermark always has, and follows by itself.
        """
        future.arriving = True
        folder = future.folder
        writers = []
        for name, value in CHECKPOINTS[:2] if again else CHECKPOINTS:
            writer = folder.writer(name)
            writer.prepare(encode_offsets(self._values(folder, value)))
            writers.append(writer)

        def write() -> None:
            for writer in writers:
                writer.write()

        return write

    def promote(self, future: FutureReplica) -> list[DiskFile]:
        """The copy becomes the log. OSError, and nothing has changed, where its folder cannot be renamed.

        Gives back the descriptors of the files that it replaces.
        """
        key = future.key
        log, folder = self.logs[key], self._folder_of[key]
        path = f"{future.folder.path}/{key[0]}-{key[1]}"
        self._disk.rename(future.path, path)
        future.leaves = folder, log.dir
        future.path = path
        future.arriving = False
        self._folder_of[key] = future.folder
        return log.moved_to(path)

    def retire(self, future: FutureReplica) -> None:
        """Rename what a promoted log replaced, once the new name is durable."""
        self._put_away(*future.leftover(), self.logs[future.key].config.file_delete_delay_ms)

    # -- end

    def shutdown(self, broker_epoch: int = -1) -> None:
        """Close every log, write the checkpoints and, where all went well, the marker of a clean stop."""
        if self._closed:
            return
        self._closed = True
        self._remover.close()
        for timer in self._timers.values():
            timer.cancel()
        now_ms = self._clock.ms()
        unclean: set[int] = set()

        def close(log: Log) -> None:
            try:
                log.close(now_ms)
            except (KafkaStorageError, OSError) as error:
                unclean.add(id(self._folder_of[log.topic, log.partition]))
                logger.error("%s-%d is not closed cleanly: %s", log.topic, log.partition, error)

        self._in_threads(close, list(self.logs.values()))
        self.checkpoint_recovery_points()
        self.checkpoint_log_start_offsets()
        self.checkpoint_high_watermarks()
        for folder in self.folders:
            if folder.offline is None and id(folder) not in unclean:
                try:
                    folder.write_clean_shutdown_marker(broker_epoch)
                except OSError as error:
                    logger.error("log folder %s is not left cleanly: %s", folder.path, error)
        self.unlock()
