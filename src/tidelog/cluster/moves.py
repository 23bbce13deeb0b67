"""ReplicaMoves: moves partitions between the folders of `log.dirs` while they are written and read.

A future replica in the new log folder is filled off the loop until it has nearly all records. Then appends
wait for a moment: the last bytes are copied and synced, the copy gets the name of the partition, and the log
continues there. Once that is durable, the old folder is deleted. The next start continues a move that was
interrupted.
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
    NotLeaderOrFollower,
    UnknownTopicOrPartition,
)
from tidelog.partitions import PartitionKey
from tidelog.storage.cleaner.log_cleaner import LogCleaner, Throttle
from tidelog.storage.future_copy import FutureCopy
from tidelog.storage.future_replica import MOVE_COMPLETE, FutureReplica
from tidelog.storage.log import Log
from tidelog.storage.log_dir import LogDir, is_transient
from tidelog.storage.partition_folders import MAX_NAME, future_name

log = logging.getLogger("tidelog.cluster.moves")

STEP_BYTES = 4 << 20
"""Bytes copied or compared in one step."""
SMALLEST_STEP = 64 << 10
NEAR_BYTES = 1 << 20
"""How many bytes may be left to copy when appends begin to wait."""
LOOK_AGAIN_SECONDS = 0.005
RETRY_SECONDS = 10.0
"""How long a move waits after a full disk or another transient error."""


@dataclass(slots=True)
class MoveSettings:
    """num.replica.alter.log.dirs.threads (None: one for each log folder), and the throttle of all moves."""

    threads: int | None = None
    io_max_bytes_per_second: int | None = None


class _Move:
    """The move of one partition."""

    __slots__ = ("copy", "future", "holds", "key", "log", "partition", "running", "tries", "working")

    def __init__(self, partition: Partition, log: Log, future: FutureReplica) -> None:
        self.key = future.key
        self.partition = partition
        self.log = log
        self.future = future
        self.copy = FutureCopy(log.disk, log.dir, future.path, log.generation)
        self.running = False  # one of the `threads` moves that run at a time
        self.working = False  # a part of its work runs off the loop
        self.tries = 0  # how often too many new bytes put the hold of the appends off
        self.holds = False  # the appends of the partition are held, or will be when the current one ends


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
        self._next: dict[PartitionKey, LogDir] = {}  # the next target, after the present move
        self._working = 0
        self._closed = False
        self.update_settings(self.settings)

    # -- life

    def start(self) -> None:
        """Continue the moves that were interrupted by the last shutdown.

        A broker of a cluster hosts no partition yet; `partition_hosted` continues its moves later.
        """
        metadata = self._replicas.metadata
        for future in self._logs.futures.all():
            partition = self._replicas.find_partition(*future.key)
            if partition is not None:
                self._continue(partition, future)
            elif metadata is None or metadata.is_initialized:
                self._give_up(future)
        self._take_up()

    def partition_hosted(self, partition: Partition) -> None:
        """Continue the interrupted move of a partition that this broker has just begun to host."""
        key = (partition.topic, partition.index)
        future = self._logs.futures.get(key)
        if future is not None and key not in self._moves and not self._closed:
            self._continue(partition, future)
            self._take_up()

    def _continue(self, partition: Partition, future: FutureReplica) -> None:
        log_dir = self._logs.log_dir_of(future.key)
        if log_dir is None or log_dir is future.log_dir:
            self._give_up(future)
        elif not partition.offline:
            log.info("the move of %s-%d to %s continues", *future.key, future.log_dir.path)
            self._begin(partition, future)

    def _give_up(self, future: FutureReplica) -> None:
        if not self._logs.log_dirs.offline:  # else its log may be in a log folder that comes back
            self._logs.futures.cancel(future)

    def close(self) -> None:
        """Stop copying. A swap that has begun is completed; `is_busy` until then."""
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
        """Move a partition to the log folder `path`: begin a move, or redirect or cancel the present one."""
        if len(future_name(key)) > MAX_NAME:
            raise InvalidTopic(f"the name of topic {key[0]} is too long for the folder of a future replica")
        log_dir = self._log_dir(path)
        partition = self._hosted(key)
        self._next.pop(key, None)
        move = self._moves.get(key)
        if move is not None and move.future.log_dir is not log_dir and not move.future.is_promoted:
            self._cancel(move, f"it is to be in {path}")
        if partition is None:
            self._logs.creator.prefer(key, log_dir)
            partition = self._replicas.partition(*key)  # raises if the partition is not known
        move = self._moves.get(key)
        if self._logs.log_dir_of(key) is log_dir:
            return
        if move is None:
            self._request(partition, log_dir)
        elif move.future.is_promoted:
            self._next[key] = log_dir

    def _request(self, partition: Partition, log_dir: LogDir) -> None:
        for offline in self._logs.log_dirs.offline:
            raise KafkaStorageError(
                f"no partition is moved while a log folder is offline: {offline.path} may hold it, too"
            )
        key = (partition.topic, partition.index)
        unfinished = self._logs.futures.get(key)
        if unfinished is not None:
            self._logs.futures.cancel(unfinished)
        future = self._logs.futures.begin(key, log_dir)
        assert partition.log is not None
        log.info("%s moves from %s to %s", partition.name, partition.log.dir, log_dir.path)
        self._begin(partition, future)
        self._take_up()

    def _log_dir(self, path: str) -> LogDir:
        for log_dir in self._logs.log_dirs:
            if log_dir.path == path:
                if log_dir.offline is not None:
                    raise KafkaStorageError(f"the log folder {path} is offline: {log_dir.offline}")
                return log_dir
        paths = ", ".join(log_dir.path for log_dir in self._logs.log_dirs)
        raise LogDirNotFound(f"{path!r} is no log folder of this broker, which has {paths}")

    def _hosted(self, key: PartitionKey) -> Partition | None:
        try:
            partition = self._replicas.partition(*key)
        except (UnknownTopicOrPartition, NotLeaderOrFollower):
            return None
        if partition.offline or partition.log is None:
            raise KafkaStorageError(f"the folder of {partition.name} is offline")
        return partition

    def _cancel(self, move: _Move, reason: str) -> None:
        log.info(
            "the move of %s to %s is given up: %s", move.partition.name, move.future.log_dir.path, reason
        )
        self._logs.futures.cancel(move.future)
        self._end(move)

    # -- turns

    def _begin(self, partition: Partition, future: FutureReplica) -> None:
        assert partition.log is not None
        move = self._moves[future.key] = _Move(partition, partition.log, future)
        if self._cleaner is not None:
            self._cleaner.pause(move.key)

    def _take_up(self) -> None:
        limit = self.settings.threads or len(self._logs.log_dirs)
        running = sum(1 for move in self._moves.values() if move.running)
        for move in list(self._moves.values()):
            if running >= limit or self._closed:
                return
            if not move.running:
                move.running = True
                running += 1
                self._step(move)

    def _is_over(self, move: _Move) -> bool:
        """Whether the move was cancelled, its partition or a log folder is gone, or the broker stops."""
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
        log_dir = self._next.pop(move.key, None)
        if log_dir is not None and log_dir.offline is None and not move.partition.offline:
            try:
                self._request(move.partition, log_dir)
            except KafkaError as error:
                log.error("%s is not moved to %s: %s", move.partition.name, log_dir.path, error)
        self._take_up()

    def _release(self, move: _Move) -> None:
        move.future.is_arriving = False
        if move.holds:
            move.holds = False
            move.partition.appends.release()

    def _go_on(self, move: _Move, step: Callable[[], None]) -> None:
        if self._is_over(move):
            self._end(move)
        else:
            step()

    def _later(self, move: _Move, seconds: float, step: Callable[[_Move], None]) -> None:
        self._scheduler.schedule(seconds, lambda: self._go_on(move, partial(step, move)))

    def _work(self, move: _Move, work: Callable[[], int | None], on_result: Callable[[int], None]) -> None:
        """Run `work` off the loop, then call `on_result` with its result, or handle the error."""

        def done(result: int | None, error: BaseException | None) -> None:
            move.working = False
            self._working -= 1
            if self._is_over(move):
                self._end(move)
            elif error is not None:
                self._failed(move, error)
            else:
                on_result(result or 0)

        move.working = True
        self._working += 1
        self._scheduler.run_blocking(work, done)

    # -- copying

    def _step(self, move: _Move) -> None:
        if self._cleaner is not None and self._cleaner.is_cleaning(move.key):
            self._later(move, LOOK_AGAIN_SECONDS, self._step)  # its cleaning is being given up
            return
        if self.settings.io_max_bytes_per_second == 0:
            self._later(move, 1.0, self._step)
            return
        limit, rate = self._step_bytes, int(self._throttle.rate)
        if rate:
            limit = min(limit, max(SMALLEST_STEP, rate))
        segments = move.copy.next_segments(move.log)
        self._work(move, lambda: move.copy.step(segments, limit), lambda count: self._stepped(move, count))

    def _stepped(self, move: _Move, count: int) -> None:
        self._note(move)
        delay = self._throttle.delay(count, self._scheduler.clock.monotonic())
        if delay > 0:
            self._later(move, delay, self._step)
        elif move.copy.remaining(move.log) > self._near_bytes:
            self._step(move)
        else:
            checkpoint = self._logs.checkpoints.writer_before_promotion(move.future)
            state = move.copy.log_state(move.log)

            def prepare() -> None:
                move.copy.prepare(state)
                checkpoint()

            self._work(move, prepare, lambda _: self._is_near(move))

    def _note(self, move: _Move) -> None:
        move.future.size = move.copy.copied_bytes()
        move.future.next_offset = move.copy.next_offset(move.log)

    def _is_near(self, move: _Move) -> None:
        if move.copy.remaining(move.log) > (4 * self._near_bytes) << move.tries:
            # Many bytes were appended during the sync: copy again. The limit rises with each try, so that the
            # move ends under any load.
            move.tries += 1
            move.future.is_arriving = False
            self._step(move)
        else:
            move.holds = True
            move.partition.appends.hold(lambda: self._go_on(move, lambda: self._copy_rest(move)))

    # -- swapping

    def _copy_rest(self, move: _Move) -> None:
        """Copy the rest: the appends are held now."""
        if self._is_flushing(move):
            self._later(move, LOOK_AGAIN_SECONDS, self._copy_rest)
            return
        state = move.copy.log_state(move.log)
        checkpoint = self._logs.checkpoints.writer_before_promotion(move.future, again=True)
        self._work(move, lambda: move.copy.complete(state, checkpoint), lambda _: self._completed(move))

    def _is_flushing(self, move: _Move) -> bool:
        """Whether a flush of the source folder is running. The folder must not be renamed meanwhile."""
        return self._logs.flushes.is_flushing(move.key) or move.partition.flushes.running is not None

    def _completed(self, move: _Move) -> None:
        if self._is_flushing(move):
            self._later(move, LOOK_AGAIN_SECONDS, self._completed)
            return
        try:
            replaced = self._logs.futures.promote(move.future)
        except OSError as error:
            move.copy.at_target = True
            self._failed(move, error)
            return

        def sync() -> None:
            replaced.clear()  # closing the last descriptor of a large file can take long
            move.log.disk.fsync_dir(move.future.log_dir.path)

        self._work(move, sync, lambda _: self._retire(move))

    def _retire(self, move: _Move) -> None:
        """Release the appends and delete the source folder: the new name is durable."""
        self._release(move)
        future, disk = move.future, move.log.disk
        assert future.replaced is not None
        source = future.replaced[0]
        try:
            self._logs.futures.delete_replaced(future)
        except KafkaStorageError as error:
            # The copy keeps its marker, so that the next start knows which of the two folders to load.
            log.error("%s is in %s now, but: %s", move.partition.name, future.log_dir.path, error)
            self._finish(move, source)
            return

        def sync() -> None:
            disk.fsync_dir(source.path)
            disk.unlink(f"{future.path}/{MOVE_COMPLETE}")
            disk.fsync_dir(future.path)

        self._work(move, sync, lambda _: self._finish(move, source))

    def _finish(self, move: _Move, source: LogDir) -> None:
        self._logs.futures.forget(move.key)
        if self._cleaner is not None:
            self._cleaner.moved(move.key, source, move.future.log_dir)
        log.info("%s is in %s now", move.partition.name, move.future.log_dir.path)
        self._end(move)

    # -- failures

    def _failed(self, move: _Move, error: BaseException) -> None:
        self._release(move)
        if not isinstance(error, OSError):
            log.error("the move of %s failed and is given up", move.partition.name, exc_info=error)
            self._logs.futures.cancel(move.future)
        elif move.future.is_promoted:
            self._failed_after_swap(move, error)
        elif is_transient(error):
            log.warning("the move of %s waits: %s", move.partition.name, error)
            self._later(move, RETRY_SECONDS, self._step)
            return
        elif move.copy.at_target:
            self._logs.log_dirs.failed(move.future.log_dir, error)
        elif isinstance(error, FileNotFoundError) and not move.log.segments.contains_base(move.copy.reading):
            self._step(move)  # retention deleted the segment
            return
        elif move.log.generation != move.copy.generation:
            self._step(move)  # a follower was truncated: the copy starts over
            return
        else:
            self._logs.storage_failed(move.log, error)
        self._end(move)

    def _failed_after_swap(self, move: _Move, error: OSError) -> None:
        """Take the log folder that cannot be synced offline.

        The marker in the copy tells the next start which of the two folders to load.
        """
        assert move.future.replaced is not None
        self._logs.futures.forget(move.key)
        filename = str(error.filename or "")
        source = move.future.replaced[0]
        self._logs.log_dirs.failed(source if filename.startswith(source.path) else move.future.log_dir, error)
