"""A flush on its way: what to sync is chosen on the loop, the syncing may run in any thread."""

from __future__ import annotations

import time

from tidelog.storage.disk import Disk, DiskFile
from tidelog.storage.epochs import LeaderEpochs
from tidelog.storage.removal import Removal
from tidelog.storage.segment import Segment


class FlushJob:
    """Makes everything below `up_to` durable; once `run` has returned the recovery point may move there."""

    __slots__ = (
        "_directory",
        "_disk",
        "_epochs",
        "_files",
        "_paths",
        "_removal",
        "_save_epochs",
        "linked",
        "names_topic",
        "sealed",
        "seconds",
        "truncations",
        "up_to",
    )

    def __init__(self, disk: Disk, up_to: int, epochs: LeaderEpochs, truncations: int) -> None:
        self._disk = disk
        self.up_to = up_to
        self.truncations = truncations
        self.seconds = 0.0  # how long it took
        self._epochs = epochs
        self._save_epochs = epochs.encoded_if_changed()
        self._files: list[DiskFile] = []
        self._paths: list[str] = []
        self._directory: str | None = None
        self._removal: Removal | None = None
        self.linked: list[Segment] = []  # those whose directory entries become durable with it
        self.sealed: list[Segment] = []  # those whose indexes do
        self.names_topic = False  # whether the log's topic id does

    def add_file(self, file: DiskFile) -> None:
        self._files.append(file)

    def add_path(self, path: str) -> None:
        """A small file that may have been deleted again by the time it is synced."""
        self._paths.append(path)

    def add_directory(self, directory: str) -> None:
        self._directory = directory

    def rename_first(self, removal: Removal) -> None:
        self._removal = removal

    def run(self) -> None:
        """OSError when the disk refuses: then nothing may be taken as durable."""
        began = time.perf_counter()
        if self._removal is not None:
            self._removal.rename()
        while self._files:
            # Let go of here: where the segment is dropped meanwhile, this is the last to hold its file open.
            self._files.pop(0).fsync()
        for path in self._paths:
            try:
                self._disk.fsync(path)
            except FileNotFoundError:
                pass
        if self._save_epochs is not None:
            self._epochs.write(*self._save_epochs)
        if self._directory is not None:
            self._disk.fsync_dir(self._directory)
        self.seconds = time.perf_counter() - began
