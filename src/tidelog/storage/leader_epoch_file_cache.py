"""The leader epochs of a log with their start offsets, kept in `leader-epoch-checkpoint`.

Epochs and their start offsets only rise. The flush that moves the recovery point writes the file: the file
has all epochs below the recovery point, and recovery reads later ones from the batches.
"""

from __future__ import annotations

from bisect import bisect_right
from threading import Lock

from tidelog.storage.checkpoints import LEADER_EPOCHS, CorruptCheckpoint, decode_epochs, encode_epochs
from tidelog.storage.disk import Disk

NO_EPOCH = -1
NO_OFFSET = -1


class LeaderEpochFileCache:
    __slots__ = ("_disk", "_epochs", "_path", "_starts", "_writing", "changes", "latest", "saved_changes")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._path = f"{directory}/{LEADER_EPOCHS}"
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.latest = NO_EPOCH
        self._writing = Lock()
        self.changes = 0
        self.saved_changes = 0

    def moved(self, directory: str) -> None:
        self._path = f"{directory}/{LEADER_EPOCHS}"

    def load(self) -> None:
        """Read the file, if it exists. Raises CorruptCheckpoint if epochs or offsets do not rise."""
        try:
            data = self._disk.read(self._path)
        except FileNotFoundError:
            data = b""
        # For Kafka an empty file is one without entries.
        entries = decode_epochs(self._path, data) if data else []
        before = NO_EPOCH, NO_OFFSET
        for entry in entries:
            if entry[0] <= before[0] or entry[1] <= before[1]:
                raise CorruptCheckpoint(self._path, f"epoch {entry[0]} at {entry[1]} comes after {before}")
            before = entry
        self._epochs, self._starts = [epoch for epoch, _ in entries], [start for _, start in entries]
        self._changed()
        self.saved_changes = self.changes

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> None:
        """Add an epoch with its start offset, and remove the entries of a diverged log that contradict it."""
        if epoch < 0 or (epoch == self.latest and start_offset >= self._starts[-1]):
            return
        if epoch < self.latest:
            return
        while self._epochs and (self._epochs[-1] >= epoch or self._starts[-1] >= start_offset):
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self._changed()

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest epoch up to `epoch`, and its end offset; (-1, -1) if there is none."""
        if epoch == NO_EPOCH or not self._epochs:
            return NO_EPOCH, NO_OFFSET
        if epoch == self.latest:
            return epoch, log_end_offset
        higher = bisect_right(self._epochs, epoch)
        if higher == len(self._epochs):
            return NO_EPOCH, NO_OFFSET
        if higher == 0:
            return epoch, self._starts[0]
        return self._epochs[higher - 1], self._starts[higher]

    def epoch_for_offset(self, offset: int) -> int:
        at = bisect_right(self._starts, offset)
        return self._epochs[at - 1] if at else NO_EPOCH

    def truncate_from_end(self, offset: int) -> None:
        """Forget epochs that began at `offset` or later."""
        keep = len(self._starts)
        while keep and self._starts[keep - 1] >= offset:
            keep -= 1
        if keep < len(self._starts):
            del self._epochs[keep:], self._starts[keep:]
            self._changed()

    def truncate_from_start(self, offset: int) -> None:
        """Forget epochs that ended before the new log start offset.

        The epoch of `offset` begins there now.
        """
        covered = bisect_right(self._starts, offset)
        if covered == 0 or (covered == 1 and self._starts[0] == offset):
            return
        del self._epochs[: covered - 1], self._starts[: covered - 1]
        self._starts[0] = offset
        self._changed()

    def clear(self) -> None:
        self._epochs, self._starts = [], []
        self._changed()

    def encoded_if_changed(self) -> tuple[int, bytes] | None:
        """The contents of the file and the number of their last change; None if the file is up to date."""
        if self.saved_changes == self.changes:
            return None
        return self.changes, encode_epochs(zip(self._epochs, self._starts, strict=True))

    def save(self) -> None:
        """Write the file if the epochs changed; durable on return."""
        pending = self.encoded_if_changed()
        if pending is not None:
            self.write(*pending)

    def write(self, change: int, data: bytes) -> None:
        """Write the file, in any thread, unless it has newer contents already."""
        with self._writing:
            if change > self.saved_changes:
                self._disk.atomic_write(self._path, data)
                self.saved_changes = change

    def _changed(self) -> None:
        self.latest = self._epochs[-1] if self._epochs else NO_EPOCH
        self.changes += 1
