"""Moves of partitions between the folders of `log.dirs`, while they are written and read.

A future log in the new folder is filled beside the loop until little is left. Then appends wait for moments:
the last bytes are copied and synced, the copy gets the name of the partition, and the log goes on there. What
was before is renamed once that is durable. A move that is interrupted is taken up by the next start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tidelog.clock import Scheduler
from tidelog.cluster.partition import Partition
from tidelog.cluster.replica_manager import ReplicaManager
from tidelog.errors import (
    InvalidTopic,
    KafkaError,
    KafkaStorageError,
    LogDirNotFound,
    UnknownTopicOrPartition,
)
from tidelog.partitions import PartitionKey
from tidelog.storage.cleaner.service import LogCleaner, Throttle
from tidelog.storage.folders import MAX_NAME, LogFolder, is_passing
from tidelog.storage.future_replica import MOVE_COMPLETE, FutureReplica, future_name
from tidelog.storage.log import Log
from tidelog.storage.move import FutureCopy

log = logging.getLogger("tidelog.cluster.moves")

STEP_BYTES = 4 << 20
"""Gone over before a thread is given back."""
SMALLEST_STEP = 64 << 10
NEAR_BYTES = 1 << 20
"""What may be left to copy when appends begin to wait."""
LOOK_AGAIN_SECONDS = 0.005
RETRY_SECONDS = 10.0
"""How long a move waits for room on its disk before it is tried again."""


@dataclass(slots=True)
class MoveSettings:
    """`num.replica.alter.log.dirs.threads` (None: one for each folder) and the throttle of all together."""

    threads: int | None = None
    io_max_bytes_per_second: int | None = None


class _Move:
    """One partition on its way."""

    __slots__ = ("copy", "future", "holds", "key", "log", "partition", "running", "tries", "working")

    def __init__(self, partition: Partition, log: Log, future: FutureReplica) -> None:
        self.key = future.key
        self.partition = partition
        self.log = log
        self.future = future
        self.copy = FutureCopy(log.disk, log.dir, future.path, log.generation)
        self.running = False  # has its turn
        self.working = False  # something of it is being done off the loop
        self.tries = 0  # how often too much was left to let appends wait
        self.holds = False  # appends wait for it, or will


class ReplicaMoves:
    def __init__(
        self,
        replicas: ReplicaManager,
        scheduler: Scheduler,
        cleaner: LogCleaner | None = None,
        settings: MoveSettings | None = None,
        *,
        step_bytes: int = STEP_BYTES,
        near_bytes: int = NEAR_BYTES,
    ) -> None:
        self.settings = settings or MoveSettings()
        self._replicas = replicas
        self._logs = replicas.logs
        self._scheduler = scheduler
        self._cleaner = cleaner
        self._step_bytes = step_bytes
        self._near_bytes = near_bytes
        self._throttle = Throttle(0.0)
        self._moves: dict[PartitionKey, _Move] = {}
        self._next: dict[PartitionKey, LogFolder] = {}  # where to go once the present move is at its end
        self._working = 0
        self._closed = False
        self.update_settings(self.settings)

    # -- life

    def start(self) -> None:
        """Take up the moves that the last broker did not finish."""
        all_online = all(folder.offline is None for folder in self._logs.folders)
        for key, future in list(self._logs.futures.items()):
            present = self._logs.folder_of(key)
            try:
                partition = self._replicas.partition(*key)
            except UnknownTopicOrPartition:
                partition = None
            if present is None or present is future.folder or partition is None:
                if all_online:  # else its log may lie in a folder that comes back
                    self._logs.drop_future(future)
            elif not partition.offline:
                log.info("the move of %s-%d to %s goes on", *key, future.folder.path)
                self._begin(partition, future)
        self._take_up()

    def close(self) -> None:
        """Copy no further; what is being swapped is swapped, which takes moments (`is_busy`)."""
        self._closed = True
        self._next.clear()
        for move in list(self._moves.values()):
            if not move.working:
                self._go_on(move, lambda: None)

    @property
    def is_busy(self) -> bool:
        return self._working > 0

    def update_settings(self, settings: MoveSettings) -> None:
        self.settings = settings
        self._throttle.rate = float(settings.io_max_bytes_per_second or 0)
        self._take_up()

    # -- what is asked for

    def alter(self, key: PartitionKey, path: str) -> None:
        """Let a partition be in the folder `path`: its move begins, changes its target or is given up."""
        if len(future_name(key)) > MAX_NAME:
            raise InvalidTopic(f"the name of topic {key[0]} is too long for the folder of a future log")
        folder = self._folder(path)
        partition = self._hosted(key)
        self._next.pop(key, None)
        move = self._moves.get(key)
        if move is not None and move.future.folder is not folder and not move.future.is_promoted:
            self._cancel(move, f"it is to be in {path}")
        if partition is None:
            self._logs.wish(key, folder)
            partition = self._replicas.partition(*key)  # says what is not known
        move = self._moves.get(key)
        if self._logs.folder_of(key) is folder:
            return
        if move is None:
            self._request(partition, folder)
        elif move.future.is_promoted:
            self._next[key] = folder

    def _request(self, partition: Partition, folder: LogFolder) -> None:
        for other in self._logs.folders:
            if other.offline is not None:
                raise KafkaStorageError(
                    f"nothing is moved while a folder is offline, which may hold it too: {other.path}"
                )
        key = (partition.topic, partition.index)
        left = self._logs.futures.get(key)
        if left is not None:
            self._logs.drop_future(left)
        future = self._logs.begin_future(key, folder)
        log.info("%s moves from %s to %s", partition.name, partition.leader_log().dir, folder.path)
        self._begin(partition, future)
        self._take_up()

    def _folder(self, path: str) -> LogFolder:
        for folder in self._logs.folders:
            if folder.path == path:
                if folder.offline is not None:
                    raise KafkaStorageError(f"the log folder {path} is offline: {folder.offline}")
                return folder
        known = ", ".join(folder.path for folder in self._logs.folders)
        raise LogDirNotFound(f"{path!r} is no log folder of this broker, which has {known}")

    def _hosted(self, key: PartitionKey) -> Partition | None:
        try:
            partition = self._replicas.partition(*key)
        except UnknownTopicOrPartition:
            return None
        if partition.offline or partition.log is None:
            raise KafkaStorageError(f"the folder of {partition.name} is offline")
        return partition

    def _cancel(self, move: _Move, reason: str) -> None:
        log.info("the move of %s to %s is given up: %s", move.partition.name, move.future.folder.path, reason)
        self._logs.drop_future(move.future)
        self._end(move)

    # -- turns

    def _begin(self, partition: Partition, future: FutureReplica) -> None:
        assert partition.log is not None
        move = self._moves[future.key] = _Move(partition, partition.log, future)
        if self._cleaner is not None:
            self._cleaner.pause(move.key)

    def _take_up(self) -> None:
        limit = self.settings.threads or len(self._logs.folders)
        running = sum(1 for move in self._moves.values() if move.running)
        for move in list(self._moves.values()):
            if running >= limit or self._closed:
                return
            if not move.running:
                move.running = True
                running += 1
                self._step(move)

    def _is_over(self, move: _Move) -> bool:
        """Given up, or its partition or one of its folders is gone, or the broker stops."""
        return (
            self._moves.get(move.key) is not move
            or self._logs.futures.get(move.key) is not move.future
            or move.log.closed
            or (self._closed and not move.future.is_promoted)
        )

    def _end(self, move: _Move) -> None:
        self._release(move)
        if self._moves.get(move.key) is not move:
            return
        del self._moves[move.key]
        if self._cleaner is not None and self._logs.get(*move.key) is move.log:
            self._cleaner.resume(move.key)
        folder = self._next.pop(move.key, None)
        if folder is not None and folder.offline is None and not move.partition.offline:
            try:
                self._request(move.partition, folder)
            except KafkaError as error:
                log.error("%s is not moved to %s: %s", move.partition.name, folder.path, error)
        self._take_up()

    def _release(self, move: _Move) -> None:
        move.future.arriving = False
        if move.holds:
            move.holds = False
            move.partition.release()

    def _go_on(self, move: _Move, then: Callable[[], None]) -> None:
        if self._is_over(move):
            self._end(move)
        else:
            then()

    def _later(self, move: _Move, seconds: float, then: Callable[[_Move], None]) -> None:
        self._scheduler.schedule(seconds, lambda: self._go_on(move, partial(then, move)))

    def _work(self, move: _Move, work: Callable[[], int | None], then: Callable[[int], None]) -> None:
        """Off the loop; then go on, or see to the error."""

        def done(result: int | None, error: BaseException | None) -> None:
            move.working = False
            self._working -= 1
            if self._is_over(move):
                self._end(move)
            elif error is not None:
                self._failed(move, error)
            else:
                then(result or 0)

        move.working = True
        self._working += 1
        self._scheduler.run_blocking(work, done)

    # -- copying

    def _step(self, move: _Move) -> None:
        if self._cleaner is not None and self._cleaner.is_cleaning(move.key):
            self._later(move, LOOK_AGAIN_SECONDS, self._step)  # its pass is being given up
            return
        if self.settings.io_max_bytes_per_second == 0:
            self._later(move, 1.0, self._step)
            return
        limit, rate = self._step_bytes, int(self._throttle.rate)
        if rate:
            limit = min(limit, max(SMALLEST_STEP, rate))
        pieces = move.copy.look(move.log)
        self._work(move, lambda: move.copy.step(pieces, limit), lambda count: self._stepped(move, count))

    def _stepped(self, move: _Move, count: int) -> None:
        self._note(move)
        delay = self._throttle.delay(count, self._scheduler.clock.monotonic())
        if delay > 0:
            self._later(move, delay, self._step)
        elif move.copy.remaining(move.log) > self._near_bytes:
            self._step(move)
        else:
            checkpoint = self._logs.arrival_writer(move.future)
            look = move.copy.last_look(move.log)

            def prepare() -> None:
                move.copy.prepare(look)
                checkpoint()

            self._work(move, prepare, lambda _: self._is_near(move))

    def _note(self, move: _Move) -> None:
        move.future.size = move.copy.copied_bytes()
        move.future.next_offset = move.copy.next_offset(move.log)

    def _is_near(self, move: _Move) -> None:
        if move.copy.remaining(move.log) > (4 * self._near_bytes) << move.tries:
            # Much was appended during the sync. Where that goes on, appends wait longer rather than for ever.
            move.tries += 1
            move.future.arriving = False
            self._step(move)
        else:
            move.holds = True
            move.partition.hold(lambda: self._go_on(move, lambda: self._held(move)))

    # -- swapping

    def _held(self, move: _Move) -> None:
        """Nothing is appended from here on."""
        if self._is_flushing(move):
            self._later(move, LOOK_AGAIN_SECONDS, self._held)
            return
        last = move.copy.last_look(move.log)
        checkpoint = self._logs.arrival_writer(move.future, again=True)
        self._work(move, lambda: move.copy.complete(last, checkpoint), lambda _: self._completed(move))

    def _is_flushing(self, move: _Move) -> bool:
        """A flush under way means the files of the old folder, which must not be renamed under it."""
        return self._logs.is_flushing(move.key) or move.partition.flushing is not None

    def _completed(self, move: _Move) -> None:
        if self._is_flushing(move):
            self._later(move, LOOK_AGAIN_SECONDS, self._completed)
            return
        try:
            replaced = self._logs.promote(move.future)
        except OSError as error:
            move.copy.at_target = True
            self._failed(move, error)
            return

        def sync() -> None:
            replaced.clear()  # closing the last descriptor of a large file can take long
            move.log.disk.fsync_dir(move.future.folder.path)

        self._work(move, sync, lambda _: self._retire(move))

    def _retire(self, move: _Move) -> None:
        """The new name is durable: appends go on, and the old folder is put away."""
        self._release(move)
        future, disk = move.future, move.log.disk
        assert future.leaves is not None
        source = future.leaves[0]
        try:
            self._logs.retire(future)
        except KafkaStorageError as error:
            # The mark stays, so that the next start knows which of the two folders is right.
            log.error("%s is in %s now, but: %s", move.partition.name, future.folder.path, error)
            self._finish(move, source)
            return

        def sync() -> None:
            disk.fsync_dir(source.path)
            disk.unlink(f"{future.path}/{MOVE_COMPLETE}")
            disk.fsync_dir(future.path)

        self._work(move, sync, lambda _: self._finish(move, source))

    def _finish(self, move: _Move, source: LogFolder) -> None:
        del self._logs.futures[move.key]
        if self._cleaner is not None:
            self._cleaner.moved(move.key, source, move.future.folder)
        log.info("%s is in %s now", move.partition.name, move.future.folder.path)
        self._end(move)

    # -- failures

    def _failed(self, move: _Move, error: BaseException) -> None:
        self._release(move)
        if not isinstance(error, OSError):
            log.error("the move of %s failed and is given up", move.partition.name, exc_info=error)
            self._logs.drop_future(move.future)
        elif move.future.is_promoted:
            self._failed_after_swap(move, error)
        elif is_passing(error):
            log.warning("the move of %s waits: %s", move.partition.name, error)
            self._later(move, RETRY_SECONDS, self._step)
            return
        elif move.copy.at_target:
            self._logs.folder_failed(move.future.folder, error)
        elif isinstance(error, FileNotFoundError) and not move.log.segments.contains_base(move.copy.reading):
            self._step(move)  # retention took the segment away
            return
        else:
            self._logs.storage_failed(move.log, error)
        self._end(move)

    def _failed_after_swap(self, move: _Move, error: OSError) -> None:
        """One of the two folders cannot be synced. The mark says to the next start which of them is right."""
        assert move.future.leaves is not None
        self._logs.futures.pop(move.key, None)
        filename = str(error.filename or "")
        source = move.future.leaves[0]
        self._logs.folder_failed(source if filename.startswith(source.path) else move.future.folder, error)
