"""The end of a log's life in a folder: closed, deleted, or moved to another folder."""

from __future__ import annotations

from tidelog.storage.disk import DiskFile
from tidelog.storage.folders import path_for_deletion
from tidelog.storage.shortened import ShortenedLog


class ClosingLog(ShortenedLog):
    __slots__ = ()

    def close(self, now_ms: int) -> None:
        """Everything to disk, with a snapshot of the producers at its end; unfinished appends are lost."""
        if self.closed:
            return
        if self._outstanding:
            self.abandon(self._outstanding[0])
        self._rename_removed()
        self.flush(now_ms)
        active, synced = self._active, []
        if active.is_growing:
            active.complete()
            active.write_indexes()
            synced += self._small_files(active, None)
        if self.log_end_offset > 0 and self.log_end_offset not in self.snapshots:
            self.snapshots.write(self.log_end_offset, self.producers.encode_snapshot())
            synced.append(self.snapshots.path(self.log_end_offset))
        for path in synced:
            self._disk.fsync(path)
        if synced:
            self._disk.fsync_dir(self.dir)
        self.leader_epochs.save()
        self.release()

    def release(self) -> None:
        """Let go of all files without writing anything."""
        with self._writing:
            self.closed = True
        self._forget_removed()
        for segment in self.segments:
            segment.close()

    def release_files(self) -> None:
        """Keep no descriptor while nobody uses the log: they are opened again when needed."""
        for segment in self.segments:
            segment.release_files()
            self._files.forget(segment)

    def delete(self) -> str:
        """Close the log and rename its folder so that it is no partition any more; returns the new path.

        Once the folder above is synced it stays so, whatever happens.
        """
        self.release()
        target = path_for_deletion(self.dir)
        try:
            self._disk.rename(self.dir, target)
        except OSError as error:
            raise self._storage_error(f"{self.dir} cannot be renamed for deletion", error) from error
        self._moved(target)
        return target

    def moved_to(self, directory: str) -> list[DiskFile]:
        """The same files lie in another folder: everything from now on is done there.

        Descriptors of the old files are given back, for the caller to close; whoever reads a slice keeps his.
        """
        held: list[DiskFile] = []
        for segment in self.segments:
            held += segment.close()
        self._forget_removed()
        self._moved(directory)
        return held

    def _moved(self, directory: str) -> None:
        """What is still written on its way out must not reach the next log of this name."""
        with self._writing:
            self.dir = directory
            self.leader_epochs.moved(directory)
            self.snapshots.moved(directory)
            for segment in self.segments:
                segment.directory = directory
