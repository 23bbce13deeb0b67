"""All logs of a broker in its log folders: loaded, created, checkpointed, cleaned by retention, closed.

A folder whose disk fails goes offline with its logs; the broker and the other folders go on. What takes long
(fsync, unlink, checkpoints) runs through the scheduler off the loop; without a scheduler it runs at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from tidelog.clock import Clock, Scheduler, TimerHandle
from tidelog.errors import InconsistentTopicId, KafkaError, KafkaStorageError
from tidelog.storage.checkpoints import (
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    MetaProperties,
    TopicPartition,
    encode_offsets,
)
from tidelog.storage.config import LogConfig
from tidelog.storage.creation import EmptiestFolder, LogCreation, NewLog, WantedLog
from tidelog.storage.disk import Disk, DiskFile
from tidelog.storage.files import FileCache
from tidelog.storage.flush import FlushJob
from tidelog.storage.folders import (
    PASSING_ERRORS,
    FolderRefused,
    LogFolder,
    is_marked_for_deletion,
    parse_partition,
)
from tidelog.storage.futures import Future, future_name, parse_future, settle_twins
from tidelog.storage.log import Log
from tidelog.storage.removal import FileRemover
from tidelog.storage.segmented import SegmentedLog, path_for_deletion

logger = logging.getLogger("tidelog.storage")

T = TypeVar("T")
MAX_WISHES = 10_000
"""Folders that are remembered for partitions that do not exist; anybody can wish."""
RETENTION_TURN_SECONDS = 0.003
"""What one turn of retention may keep the loop from its requests."""

Progress = Callable[[int, int, TopicPartition], None]  # done, of how many, which


@dataclass(slots=True)
class Intervals:
    """How often the regular work is done, in milliseconds; the names are those of the broker's settings."""

    log_retention_check_interval_ms: int = 300_000
    log_flush_scheduler_interval_ms: int = (1 << 63) - 1
    log_flush_offset_checkpoint_interval_ms: int = 60_000
    log_flush_start_offset_checkpoint_interval_ms: int = 60_000
    replica_high_watermark_checkpoint_interval_ms: int = 5_000
    producer_id_expiration_check_interval_ms: int = 600_000


@dataclass(slots=True)
class FolderUse:
    path: str
    offline: str | None
    total_bytes: int
    usable_bytes: int
    sizes: dict[TopicPartition, int]
    futures: dict[TopicPartition, tuple[int, int]]  # size and offset lag of those on their way into it


@dataclass(slots=True)
class _ToLoad:
    folder: LogFolder
    name: str
    key: TopicPartition
    recovery_point: int | None  # None: the folder has no checkpoint of them
    log_start_offset: int
    high_watermark: int


class LogManager:
    def __init__(
        self,
        dirs: Iterable[str],
        defaults: LogConfig,
        *,
        disk: Disk,
        clock: Clock,
        scheduler: Scheduler | None = None,
        files: FileCache | None = None,
        recovery_threads_per_dir: int = 2,
    ) -> None:
        self.folders = [LogFolder(disk, path) for path in dirs]
        self.defaults = defaults
        self.logs: dict[TopicPartition, Log] = {}
        self.failed: dict[TopicPartition, str] = {}  # logs that could not be loaded or made, and why
        self.unmade: dict[TopicPartition, LogFolder] = {}  # new logs that can be tried again, and where
        self.futures: dict[TopicPartition, Future] = {}  # logs on their way into another folder
        self.wished: dict[TopicPartition, LogFolder] = {}  # where logs that do not exist yet are to be made
        self.on_folder_offline: Callable[[str, list[TopicPartition]], None] | None = None
        self.on_flush: Callable[[FlushJob], None] | None = None
        self.on_truncated: Callable[[SegmentedLog], None] | None = None  # below its recovery point
        self.on_deleted: Callable[[TopicPartition, LogFolder], None] | None = None
        self._disk = disk
        self._clock = clock
        self._scheduler = scheduler
        self._files = files if files is not None else FileCache()
        self._remover = FileRemover(disk, scheduler)
        self.recovery_threads_per_dir = recovery_threads_per_dir
        self._folder_of: dict[TopicPartition, LogFolder] = {}
        self._unsynced: dict[str, LogFolder] = {}  # folders whose deletions are not on the disk yet
        self._timers: dict[str, TimerHandle] = {}
        self._leftovers: list[str] = []  # folders that were being deleted when the last broker stopped
        self._settled: set[TopicPartition] = set()  # logs that were flushed while they were loaded
        self._flushing: set[TopicPartition] = set()
        self._rolled: set[TopicPartition] = set()  # logs that rolled while a flush was under way
        self._retaining = False  # another turn of it is due
        self._closed = False

    # -- start

    def lock(self) -> list[MetaProperties | None]:
        """Take the folders for this process and read whose they are; one that cannot be used is offline."""
        identities: list[MetaProperties | None] = []
        try:
            for folder in self.folders:
                try:
                    folder.lock()
                    identities.append(folder.read_identity())
                except OSError as error:
                    self._take_offline(folder, error)
                    if all(other.offline is not None for other in self.folders):
                        raise
        except BaseException:
            self.unlock()
            raise
        known = {meta.cluster_id for meta in identities if meta is not None and meta.cluster_id is not None}
        if len(known) > 1:
            self.unlock()
            raise FolderRefused(
                f"the folders of log.dirs belong to different clusters: {', '.join(sorted(known))}"
            )
        return identities

    def claim(self, cluster_id: str, broker_id: int) -> None:
        """Refuse folders of another cluster or broker, sign new ones."""
        for folder in self.folders:
            if folder.offline is None:
                folder.claim(cluster_id, broker_id)

    def unlock(self) -> None:
        for folder in self.folders:
            folder.unlock()

    @property
    def had_clean_shutdown(self) -> bool:
        return all(folder.had_clean_shutdown for folder in self.folders)

    def load(
        self,
        config_of: Callable[[str], LogConfig] | None = None,
        progress: Progress | None = None,
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
        """Logs with gaps were flushed: that has to be known before anything is written to them."""
        for log in [self.logs[key] for key in self._settled if key in self.logs]:
            try:
                self._write_recovery_points(self._folder_of[log.topic, log.partition])
            except KafkaStorageError as error:
                logger.error("%s-%d: %s", log.topic, log.partition, error)
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
                    self.futures[future] = Future(future, folder, path)
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
            if not item.folder.had_clean_shutdown and log.recovery_point > (item.recovery_point or 0):
                self._settled.add(item.key)

    def _in_threads(self, work: Callable[[T], None], items: list[T]) -> None:
        workers = min(len(items), self.recovery_threads_per_dir * len(self.folders))
        if workers <= 1:
            for item in items:
                work(item)
            return
        self._files.evicting = False
        try:
            with ThreadPoolExecutor(workers, thread_name_prefix="log") as pool:
                for _ in pool.map(work, items):
                    pass
        finally:
            self._files.evicting = True

    def _add(self, log: Log, folder: LogFolder) -> None:
        key = (log.topic, log.partition)
        log.on_roll = self._flush_after_roll
        log.on_flush = self._flushed
        log.on_remove = self._remover.rename_later
        log.on_delete = self._remover.unlink_later
        log.on_truncate = self._checkpoint_now
        log.on_storage_error = self.storage_failed
        self.logs[key] = log
        self._folder_of[key] = folder

    def _flushed(self, job: FlushJob) -> None:
        if self.on_flush is not None:
            self.on_flush(job)

    # -- logs

    def get(self, topic: str, partition: int) -> Log | None:
        return self.logs.get((topic, partition))

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
        done: Callable[[set[TopicPartition]], None],
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

    def wish(self, key: TopicPartition, folder: LogFolder) -> None:
        """Let a log that does not exist yet be made in this folder."""
        self.wished.pop(key, None)
        while len(self.wished) >= MAX_WISHES:
            del self.wished[next(iter(self.wished))]
        self.wished[key] = folder

    def _wish(self, key: TopicPartition) -> LogFolder | None:
        folder = self.wished.pop(key, None)
        return folder if folder is not None and folder.offline is None else None

    def _take_in(self, creation: LogCreation) -> set[TopicPartition]:
        """Serve the logs that were made; gives those that may be asked for again."""
        unmade: set[TopicPartition] = set()
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

    def begin_future(self, key: TopicPartition, folder: LogFolder) -> Future:
        """A new folder for a copy of the log."""
        path = f"{folder.path}/{future_name(key)}"
        try:
            self._disk.make_dir(path)
        except OSError as error:
            self._failed(folder, error)
            raise KafkaStorageError(f"{path} cannot be made: {error}") from error
        future = self.futures[key] = Future(key, folder, path)
        return future

    def drop_future(self, future: Future) -> None:
        """The copy is not wanted any more."""
        if self.futures.get(future.key) is future and not future.is_promoted:
            del self.futures[future.key]
            try:
                self._put_away(future.folder, future.path, self.defaults.file_delete_delay_ms)
            except KafkaStorageError as error:
                logger.error("a future log is left where it is: %s", error)

    def arrival_writer(self, future: Future, *, again: bool = False) -> Callable[[], None]:
        """Made on the loop, called anywhere: the checkpoints of a folder with the log that is to come there.

        Without them a start would take nothing of the log for synced. `again`, while appends wait for it,
        writes only what has changed meanwhile; the high watermark always has, and follows by itself.
        """
        future.arriving = True
        folder = future.folder
        writers = []
        for name, value in _CHECKPOINTS[:2] if again else _CHECKPOINTS:
            writer = folder.writer(name)
            writer.prepare(encode_offsets(self._values(folder, value)))
            writers.append(writer)

        def write() -> None:
            for writer in writers:
                writer.write()

        return write

    def promote(self, future: Future) -> list[DiskFile]:
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

    def retire(self, future: Future) -> None:
        """Rename what a promoted log replaced, once the new name is durable."""
        self._put_away(*future.leftover(), self.logs[future.key].config.file_delete_delay_ms)

    def is_flushing(self, key: TopicPartition) -> bool:
        return key in self._flushing

    def folder_of(self, key: TopicPartition) -> LogFolder | None:
        return self._folder_of.get(key)

    def folder_use(self) -> list[FolderUse]:
        uses = []
        for folder in self.folders:
            total = usable = -1
            if folder.offline is None:
                total, usable = self._disk.usage(folder.path)
            sizes = {key: self.logs[key].size for key, owner in self._folder_of.items() if owner is folder}
            futures = {
                key: (future.size, max(0, self.logs[key].log_end_offset - future.next_offset))
                for key, future in self.futures.items()
                if future.folder is folder and not future.is_promoted and key in self.logs
            }
            uses.append(FolderUse(folder.path, folder.offline, total, usable, sizes, futures))
        return uses

    # -- failures

    def storage_failed(self, log: SegmentedLog, error: OSError) -> None:
        """A log's files failed: a broken disk takes its folder offline, a full one does not."""
        key = (log.topic, log.partition)
        if self.logs.get(key) is log:  # the files of a deleted log may well be missing
            self._failed(self._folder_of[key], error)

    def folder_failed(self, folder: LogFolder, error: OSError) -> None:
        self._failed(folder, error)

    def _failed(self, folder: LogFolder, error: OSError) -> None:
        if error.errno in PASSING_ERRORS:
            logger.error("log folder %s: %s", folder.path, error)
        else:
            self._take_offline(folder, error)

    def _take_offline(self, folder: LogFolder, error: OSError) -> None:
        if folder.offline is not None:
            return
        folder.offline = str(error)
        lost = [key for key, owner in self._folder_of.items() if owner is folder]
        logger.error("log folder %s is offline with %d partitions: %s", folder.path, len(lost), error)
        for key in [key for key, owner in self.unmade.items() if owner is folder]:
            self.failed[key] = f"its folder {folder.path} is offline: {error}"
            del self.unmade[key]
        for key in [key for key, future in self.futures.items() if future.folder is folder]:
            del self.futures[key]
        for key in lost:
            self.failed[key] = f"its folder {folder.path} is offline: {error}"
            del self._folder_of[key]
            self.logs.pop(key).release()
        if self.on_folder_offline is not None:
            self.on_folder_offline(folder.path, lost)

    # -- regular work

    def start(self, intervals: Intervals) -> None:
        """Do the regular work from now on, by the scheduler."""
        while self._leftovers:
            self._remover.remove_tree_later(self._leftovers.pop(), self.defaults.file_delete_delay_ms)
        self._every("retention", intervals.log_retention_check_interval_ms, self._retain_in_turns)
        self._every("flush", intervals.log_flush_scheduler_interval_ms, self.run_flush)
        self._every(
            "recovery points",
            intervals.log_flush_offset_checkpoint_interval_ms,
            self.checkpoint_recovery_points,
        )
        self._every(
            "log starts",
            intervals.log_flush_start_offset_checkpoint_interval_ms,
            self.checkpoint_log_start_offsets,
        )
        self._every(
            "high watermarks",
            intervals.replica_high_watermark_checkpoint_interval_ms,
            self.checkpoint_high_watermarks,
        )
        self._every("producers", intervals.producer_id_expiration_check_interval_ms, self.expire_producers)

    def _every(self, name: str, interval_ms: int, work: Callable[[], object]) -> None:
        scheduler = self._scheduler
        if scheduler is None or self._closed or interval_ms > 1 << 40:
            return

        def turn() -> None:
            if not self._closed:
                try:
                    work()
                except KafkaError as error:
                    logger.error("%s: %s", name, error)
                except Exception:
                    logger.exception("%s could not be looked after this time", name)
                self._every(name, interval_ms, work)

        self._timers[name] = scheduler.schedule(interval_ms / 1000, turn)

    def run_retention(self) -> int:
        """Drop what retention no longer wants; how many segments went."""
        return sum(self._retain(key, log) for key, log in list(self.logs.items()))

    def _retain_in_turns(self) -> None:
        """The same, a few milliseconds at a time: when segments go from every log, their renames add up."""
        if not self._retaining:
            self._retain_on(iter(list(self.logs.items())))

    def _retain_on(self, logs: Iterator[tuple[TopicPartition, Log]]) -> None:
        assert self._scheduler is not None
        self._retaining = False
        until = self._clock.monotonic() + RETENTION_TURN_SECONDS
        for key, log in logs:
            if self._closed:
                return
            if self.logs.get(key) is log:
                self._retain(key, log)
            if self._clock.monotonic() > until:
                self._retaining = True
                self._scheduler.schedule(0.0, lambda: self._retain_on(logs))
                return

    def _retain(self, key: TopicPartition, log: Log) -> int:
        future = self.futures.get(key)
        if future is not None and future.arriving:
            return 0  # its last bytes are being copied: next time
        try:
            return log.delete_old_segments(self._clock.ms())
        except KafkaStorageError as error:
            logger.error("retention of %s-%d: %s", log.topic, log.partition, error)
        except OSError as error:
            self.storage_failed(log, error)
        return 0

    def run_flush(self) -> None:
        """Flush logs whose flush.ms has passed since their last flush."""
        now_ms = self._clock.ms()
        for log in list(self.logs.values()):
            if log.recovery_point < log.log_end_offset and now_ms - log.last_flush_ms >= log.config.flush_ms:
                self.flush_later(log)

    def expire_producers(self) -> None:
        now_ms = self._clock.ms()
        for log in self.logs.values():
            log.remove_expired_producers(now_ms)

    def _flush_after_roll(self, log: SegmentedLog) -> None:
        """Flush what the active segment follows. Rolls that come while a flush runs share the next one."""
        key = (log.topic, log.partition)
        if key in self._flushing:
            self._rolled.add(key)
        else:
            self.flush_later(log, log.active_segment.base_offset)

    def flush_later(self, log: SegmentedLog, up_to: int | None = None) -> None:
        """Sync what the log has now, off the loop; one flush a log at a time."""
        key = (log.topic, log.partition)
        if self._scheduler is None or key in self._flushing or log.closed:
            return
        job = log.begin_flush(up_to)
        if job is None:
            return
        self._flushing.add(key)

        def done(_: None, error: BaseException | None) -> None:
            self._flushing.discard(key)
            has_rolled = key in self._rolled
            self._rolled.discard(key)
            if isinstance(error, OSError):
                self.storage_failed(log, error)
            elif error is not None:
                raise error
            else:
                log.end_flush(job, self._clock.ms())
                current = self.logs.get(key)
                if has_rolled and current is not None and not self._closed:
                    self._flush_after_roll(current)

        self._scheduler.run_blocking(job.run, done)

    def checkpoint_recovery_points(self) -> None:
        self._checkpoint(RECOVERY_POINTS, lambda log: log.recovery_point)

    def _checkpoint_now(self, log: SegmentedLog) -> None:
        """The recovery points of a log's folder, durable on return."""
        self._write_recovery_points(self._folder_of[log.topic, log.partition])
        if self.on_truncated is not None:
            self.on_truncated(log)

    def _write_recovery_points(self, folder: LogFolder) -> None:
        writer = folder.writer(RECOVERY_POINTS)
        writer.prepare(encode_offsets(self._values(folder, lambda log: log.recovery_point)))
        try:
            writer.write()
        except OSError as error:
            self._failed(folder, error)
            raise KafkaStorageError(f"{folder.path}/{RECOVERY_POINTS} cannot be written: {error}") from error

    def checkpoint_writer(self, log: SegmentedLog) -> Callable[[], None]:
        """Made on the loop, called anywhere: recovery points and log starts as they are now, made durable."""
        folder = self._folder_of[log.topic, log.partition]
        points, starts = folder.writer(RECOVERY_POINTS), folder.writer(LOG_START_OFFSETS)
        points.prepare(encode_offsets(self._values(folder, lambda log: log.recovery_point)))
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

    def _values(self, folder: LogFolder, value: Callable[[Log], int | None]) -> dict[TopicPartition, int]:
        values: dict[TopicPartition, int] = {}
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

    def _run(self, work: Callable[[], None], done: Callable[[None, BaseException | None], None]) -> None:
        if self._scheduler is not None and not self._closed:
            self._scheduler.run_blocking(work, done)
            return
        try:
            work()
        except OSError as error:
            done(None, error)
        else:
            done(None, None)

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
                folder.write_clean_shutdown_marker(broker_epoch)
        self.unlock()


def _log_start_to_keep(log: Log) -> int | None:
    return None if log.starts_with_its_files else log.log_start_offset


_CHECKPOINTS: tuple[tuple[str, Callable[[Log], int | None]], ...] = (
    (RECOVERY_POINTS, lambda log: log.recovery_point),
    (LOG_START_OFFSETS, _log_start_to_keep),
    (HIGH_WATERMARKS, lambda log: log.high_watermark),
)
