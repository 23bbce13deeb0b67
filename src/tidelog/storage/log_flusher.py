"""LogFlusher: the recovery point of a log, and the flushes that move it. Everything below it is on disk.

`begin` chooses the files to sync on the loop, `FlushJob.run` syncs them in any thread, and `end` moves the
recovery point on the loop. The job calls `write_file`, `make_index_files` and `files_synced` in its thread.
"""

from __future__ import annotations

from tidelog.storage.checkpoints import PARTITION_METADATA
from tidelog.storage.flush_job import CompletedSegment, FlushJob, Syncs
from tidelog.storage.leader_epoch_file_cache import LeaderEpochFileCache
from tidelog.storage.local_log import LocalLog
from tidelog.storage.log_segment import LOG, OFFSET_INDEX, SNAPSHOT, TIME_INDEX, TRANSACTION_INDEX, LogSegment


class LogFlusher:
    __slots__ = (
        "_epochs",
        "_local",
        "_synced_names",
        "_syncs",
        "last_flush_ms",
        "recovery_point",
        "topic_id_is_loose",
    )

    def __init__(
        self, local: LocalLog, epochs: LeaderEpochFileCache, recovery_point: int, now_ms: int
    ) -> None:
        self._local = local
        self._epochs = epochs
        self._syncs = Syncs()
        self._synced_names = 0  # the number of unlinked files at the last sync of the folder
        self.recovery_point = recovery_point
        self.last_flush_ms = now_ms
        self.topic_id_is_loose = False  # the topic id is in its file, which is not synced yet

    # -- the recovery point

    @property
    def recovery_point_to_keep(self) -> int:
        """The recovery point for checkpoints. A recovery from there includes the active segment.

        The recovery point may be the end of the active segment. If the segment is rolled there and the broker
        crashes, the segment has no indexes on disk: recovery has to read it, so it begins one offset before.
        """
        point, segments = self.recovery_point, self._local.segments
        is_inside = point > segments[segments.find(point)].base_offset
        return point - 1 if is_inside and not self._local.closed else point

    def completed(self, next_base: int) -> None:
        """Lower the recovery point into a segment that is complete, until a flush has written its indexes.

        Older checkpoints are no higher: see `recovery_point_to_keep`.
        """
        self.recovery_point = min(self.recovery_point, next_base - 1)

    def lower(self, offset: int) -> bool:
        """Lower the recovery point to `offset`, from where offsets are used again; returns whether it was
        higher.
        """
        if offset > self.recovery_point:
            return False
        self.recovery_point = offset
        return True

    # -- a flush

    def begin(self, up_to: int) -> FlushJob | None:
        """The job that makes everything below `up_to` durable; None if it is durable already."""
        if up_to <= self.recovery_point:
            return None
        local, segments = self._local, self._local.segments
        job = FlushJob(local.disk, up_to, self._epochs, local.generation, self._syncs, self)
        if self.topic_id_is_loose:
            job.add_path(f"{local.dir}/{PARTITION_METADATA}")
            job.add_directory(local.dir)
            job.names_topic = True
        removal = local.unfinished_removal
        if removal is not None:
            # Dropped segments are not synced. If the next start found one of them, the log would end in it.
            job.rename_first(removal)
            job.add_directory(local.dir)
        for segment in segments.starting_from(self.recovery_point):
            if segment.base_offset >= up_to and segment.base_offset > self.recovery_point:
                break
            job.add_file(segment.file)
            if not segment.linked:
                job.add_directory(local.dir)
                job.linked.append(segment)
            if segment is not segments.active and segment.size == segment.write_position:
                self._add_completed(segment, job)
            elif not segment.has_index_files and segment.base_offset < up_to:
                job.growing = segment
                job.add_directory(local.dir)
        if local.loose_names != self._synced_names:
            job.add_directory(local.dir)
        job.loose_names = local.loose_names
        return job

    def _add_completed(self, segment: LogSegment, job: FlushJob) -> None:
        local = self._local
        following = local.segments.base_after(segment)
        assert following is not None
        if segment.snapshot_to_write is not None:
            local.snapshots.note(following)
        for path in index_paths(segment):
            job.add_path(path)
        if following in local.snapshots:
            job.add_path(local.snapshots.path(following))
        job.add_directory(local.dir)
        job.completed.append(CompletedSegment(segment, following))

    def end(self, job: FlushJob, log_end_offset: int, now_ms: int) -> None:
        """Move the recovery point after `job.run`, unless the log was truncated meanwhile."""
        local, segments = self._local, self._local.segments
        if job.truncations != local.generation or local.closed:
            return
        if job.names_topic:
            self.topic_id_is_loose = False
        for segment in job.linked:
            segment.linked = True
        self._synced_names = max(self._synced_names, job.loose_names)
        self._note_synced(job.completed)
        synced_up_to = min(job.up_to, log_end_offset)
        at = segments.find(self.recovery_point)
        while (following := segments.next_base(at)) is not None and following <= synced_up_to:
            if not segments[at].synced:  # rolled while the job ran: recovery has to begin in this segment
                synced_up_to = following - 1
            at += 1
        self.recovery_point = max(self.recovery_point, synced_up_to)
        self.last_flush_ms = now_ms

    def _note_synced(self, synced: list[CompletedSegment]) -> None:
        for completed in synced:
            segment = completed.segment
            if not self._is_still(completed):
                continue
            with self._local.lock:
                segment.indexes_written()
                segment.snapshot_to_write = None
            segment.has_loose_tail = False
            segment.synced = True

    # -- for a job, in any thread

    def write_file(self, completed: CompletedSegment, truncations: int, suffix: str, data: bytes) -> bool:
        """Write one of the small files of a complete segment.

        Returns False if the log was truncated, closed or moved since the flush began.
        """
        local, segment = self._local, completed.segment
        with local.lock:
            if local.closed or truncations != local.generation:
                return False
            if segment.synced or not self._is_still(completed):
                pass  # another flush was first, or its roll was taken back
            elif suffix == SNAPSHOT:
                if segment.snapshot_to_write is not None:  # else the removal of the segment writes it
                    local.disk.write(local.snapshots.path(completed.next_base), data)
            elif suffix == LOG:
                local.disk.open(segment.path(LOG)).truncate(completed.size)
            elif segment.is_growing:
                segment.write_index(suffix, data)
            return True

    def make_index_files(self, segment: LogSegment, truncations: int) -> None:
        """Make the missing index files of the active segment, unless the segment is gone."""
        local = self._local
        with local.lock:
            if local.closed or truncations != local.generation:
                return
            if local.segments[local.segments.find(segment.base_offset)] is segment:  # its roll still counts
                segment.make_index_files()

    def files_synced(self, completed: CompletedSegment, truncations: int) -> None:
        """Mark the segment as synced, so that no other flush writes its files again."""
        with self._local.lock:
            if truncations == self._local.generation and self._is_still(completed):
                completed.segment.synced = True

    def _is_still(self, completed: CompletedSegment) -> bool:
        """Whether the segment is still complete and has the size that it had when the flush began."""
        segment = completed.segment
        return segment is not self._local.segments.active and segment.size == completed.size

    # -- a clean stop

    def close(self, log_end_offset: int, producers: bytes) -> None:
        """Write and sync the files for a clean start: indexes, a producer snapshot, leader epochs.

        The log is flushed, and nothing is appended any more.
        """
        local, synced = self._local, []
        active = local.segments.active
        if active.is_growing:
            active.complete()
            active.write_indexes()
            synced += index_paths(active)
        if log_end_offset > 0 and log_end_offset not in local.snapshots:
            local.snapshots.write(log_end_offset, producers)
            synced.append(local.snapshots.path(log_end_offset))
        for path in synced:
            local.disk.fsync(path)
        if synced:
            local.disk.fsync_dir(local.dir)
        self._epochs.save()


def index_paths(segment: LogSegment) -> list[str]:
    paths = [segment.path(OFFSET_INDEX), segment.path(TIME_INDEX)]
    if segment.has_aborted:
        paths.append(segment.path(TRANSACTION_INDEX))
    return paths
