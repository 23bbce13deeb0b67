"""LogDirs: the folders of `log.dirs`, each online or offline.

A log folder whose disk fails goes offline; the others stay online.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import overload

from tidelog.storage.checkpoints import MetaProperties
from tidelog.storage.disk import Disk
from tidelog.storage.log_dir import LogDir, LogDirRefused, is_transient

logger = logging.getLogger("tidelog.storage")


class LogDirs(Sequence[LogDir]):
    """In the order of `log.dirs`. `on_offline` is called once for each folder that goes offline."""

    def __init__(
        self, disk: Disk, paths: Iterable[str], on_offline: Callable[[LogDir, OSError], None]
    ) -> None:
        self._log_dirs = [LogDir(disk, path) for path in paths]
        self._on_offline = on_offline

    @overload
    def __getitem__(self, index: int) -> LogDir: ...

    @overload
    def __getitem__(self, index: slice) -> list[LogDir]: ...

    def __getitem__(self, index: int | slice) -> LogDir | list[LogDir]:
        return self._log_dirs[index]

    def __len__(self) -> int:
        return len(self._log_dirs)

    @property
    def online(self) -> list[LogDir]:
        return [log_dir for log_dir in self._log_dirs if log_dir.offline is None]

    @property
    def offline(self) -> list[LogDir]:
        return [log_dir for log_dir in self._log_dirs if log_dir.offline is not None]

    # -- start

    def lock(self) -> list[MetaProperties | None]:
        """Lock every folder; returns its meta.properties, None for a new folder.

        A folder that cannot be read or written goes offline. Raises OSError if no folder is online.
        """
        metas: list[MetaProperties | None] = []
        try:
            for log_dir in self._log_dirs:
                try:
                    log_dir.lock()
                    metas.append(log_dir.read_meta())
                except OSError as error:
                    self.take_offline(log_dir, error)
                    metas.append(None)
                    if not self.online:
                        raise
            known = {meta.cluster_id for meta in metas if meta is not None and meta.cluster_id is not None}
            if len(known) > 1:
                raise LogDirRefused(
                    f"the folders of log.dirs belong to different clusters: {', '.join(sorted(known))}"
                )
        except BaseException:
            self.unlock()
            raise
        return metas

    def claim(self, cluster_id: str, broker_id: int) -> None:
        """Write meta.properties to new folders. Raises LogDirRefused for one of another cluster or broker."""
        for log_dir in self.online:
            log_dir.claim(cluster_id, broker_id)

    def unlock(self) -> None:
        for log_dir in self._log_dirs:
            log_dir.unlock()

    @property
    def had_clean_shutdown(self) -> bool:
        return all(log_dir.had_clean_shutdown for log_dir in self._log_dirs)

    # -- failures

    def failed(self, log_dir: LogDir, error: OSError) -> None:
        """Handle an error of the disk: take the log folder offline unless the error is transient."""
        if is_transient(error):
            logger.error("log folder %s: %s", log_dir.path, error)
        else:
            self.take_offline(log_dir, error)

    def take_offline(self, log_dir: LogDir, error: OSError) -> None:
        if log_dir.offline is None:
            log_dir.offline = str(error)
            self._on_offline(log_dir, error)
