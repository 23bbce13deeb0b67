"""LogDir: one folder of `log.dirs`, with its lock, its owner and the files that Kafka keeps in it."""

from __future__ import annotations

import errno
import time

from tidelog.storage.checkpoints import (
    CLEAN_SHUTDOWN,
    LOCK,
    META_PROPERTIES,
    RECOVERY_POINTS,
    CorruptCheckpoint,
    MetaProperties,
    decode_meta_properties,
    encode_clean_shutdown,
    encode_meta_properties,
    encode_offsets,
)
from tidelog.storage.disk import Disk, DiskLock, SyncFailed
from tidelog.storage.offset_checkpoint_file import OffsetCheckpointFile

_TRANSIENT_ERRORS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ECANCELED}
)


def is_transient(error: OSError) -> bool:
    """Whether an error is a full disk or a limit of the process, and the log folder itself works.

    A failed sync is never transient: its data may be lost.
    """
    return error.errno in _TRANSIENT_ERRORS and not isinstance(error, SyncFailed)


class LogDirRefused(Exception):
    """This broker must not use a log folder. The message names the reason and the remedy."""


class LogDir:
    __slots__ = ("_checkpoints", "_disk", "_lock", "had_clean_shutdown", "meta", "offline", "path")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path.rstrip("/") or "/"
        self._lock: DiskLock | None = None
        self._checkpoints: dict[str, OffsetCheckpointFile] = {}
        self.meta: MetaProperties | None = None
        self.had_clean_shutdown = False
        self.offline: str | None = None  # the error that took it offline

    def lock(self) -> None:
        """Lock the folder for this process; create it if it does not exist."""
        self._disk.make_dir(self.path)
        self._lock = self._disk.lock(f"{self.path}/{LOCK}")
        if self._lock is None:
            raise LogDirRefused(
                f"log folder {self.path} is in use by another broker, which holds {self.path}/{LOCK}; "
                "stop that broker or give this one another folder in log.dirs"
            )

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def read_meta(self) -> MetaProperties | None:
        """The cluster and broker in meta.properties; None for a new folder."""
        path = f"{self.path}/{META_PROPERTIES}"
        try:
            self.meta = decode_meta_properties(path, self._disk.read(path))
        except FileNotFoundError:
            self.meta = None
        except CorruptCheckpoint as error:
            raise LogDirRefused(f"log folder {self.path} cannot be identified: {error}") from None
        return self.meta

    def claim(self, cluster_id: str, broker_id: int) -> None:
        """Write meta.properties to a new folder.

        Raises LogDirRefused for a folder of another cluster or broker.
        """
        meta = self.meta
        for name, found, wanted in (
            ("cluster.id", meta and meta.cluster_id, cluster_id),
            ("broker.id", meta and meta.broker_id, broker_id),
        ):
            if found is not None and found != wanted:
                raise LogDirRefused(
                    f"log folder {self.path} belongs to {name} {found} by its {META_PROPERTIES}, "
                    f"this broker has {name} {wanted}; use that broker's folder or start with {name} {found}"
                )
        if meta is None or meta.cluster_id is None or meta.broker_id is None:
            if meta is None and not self._disk.exists(f"{self.path}/{RECOVERY_POINTS}"):
                # In a new folder, all recovery points are known: it has no logs.
                self._disk.atomic_write(f"{self.path}/{RECOVERY_POINTS}", encode_offsets({}))
            meta = meta or MetaProperties()
            meta.cluster_id, meta.broker_id = cluster_id, broker_id
            written_at = time.strftime("%a %b %d %H:%M:%S UTC %Y", time.gmtime())
            self._disk.atomic_write(
                f"{self.path}/{META_PROPERTIES}", encode_meta_properties(meta, written_at)
            )
            self.meta = meta

    def take_clean_shutdown_marker(self) -> bool:
        """Remove the clean-shutdown marker; returns whether there was one, because the last broker stopped
        cleanly.
        """
        path = f"{self.path}/{CLEAN_SHUTDOWN}"
        self.had_clean_shutdown = self._disk.exists(path)
        if self.had_clean_shutdown:
            self._disk.unlink(path)
            self._disk.fsync_dir(self.path)
        return self.had_clean_shutdown

    def write_clean_shutdown_marker(self, broker_epoch: int) -> None:
        self._disk.atomic_write(f"{self.path}/{CLEAN_SHUTDOWN}", encode_clean_shutdown(broker_epoch))

    def checkpoint(self, name: str) -> OffsetCheckpointFile:
        """The offset checkpoint of that file name."""
        found = self._checkpoints.get(name)
        if found is None:
            found = self._checkpoints[name] = OffsetCheckpointFile(self._disk, f"{self.path}/{name}")
        return found
