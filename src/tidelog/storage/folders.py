"""The folders of `log.dirs`: locked by one broker, marked with whose they are, and what their names mean."""

from __future__ import annotations

import errno
import logging
import os
import re
import time
import uuid
from threading import Lock

from tidelog.partitions import PartitionKey
from tidelog.storage.checkpoints import (
    CLEAN_SHUTDOWN,
    LOCK,
    META_PROPERTIES,
    RECOVERY_POINTS,
    CorruptCheckpoint,
    MetaProperties,
    decode_meta_properties,
    decode_offsets,
    encode_clean_shutdown,
    encode_meta_properties,
    encode_offsets,
)
from tidelog.storage.disk import Disk, DiskLock, SyncFailed

logger = logging.getLogger("tidelog.storage")

_PARTITION = re.compile(r"([A-Za-z0-9._-]{1,249})-(\d{1,10})")
_LEFTOVER = re.compile(r".+\.[0-9a-f]{32}-(delete|future|stray)")
MAX_NAME = 255  # what file systems allow a file to be called
METADATA_TOPIC = "__cluster_metadata"  # Kafka's own quorum log, which is no partition of ours

_PASSING_ERRORS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ECANCELED}
)


def is_passing(error: OSError) -> bool:
    """Whether the disk is full, or the process has too much open: neither says that the folder is broken.

    A sync that failed does, whatever its reason.
    """
    return error.errno in _PASSING_ERRORS and not isinstance(error, SyncFailed)


class FolderRefused(Exception):
    """A log folder that this broker must not use; the message says why and what would be right."""


def parse_partition(name: str) -> PartitionKey | None:
    """Topic and partition of a folder's name, None when it is not a partition's."""
    match = _PARTITION.fullmatch(name)
    if match is None or match[1] == METADATA_TOPIC:
        return None
    return match[1], int(match[2])


def path_for_deletion(directory: str) -> str:
    """What a partition's folder is called from when it is deleted until it is removed."""
    parent, name = os.path.split(directory)
    suffix = f".{uuid.uuid4().hex}-delete"
    return f"{parent}/{name[: MAX_NAME - len(suffix)]}{suffix}"


def is_marked_for_deletion(name: str) -> bool:
    match = _LEFTOVER.fullmatch(name)
    return match is not None and match[1] == "delete"


class CheckpointWriter:
    """Writes one checkpoint file, from any thread: never the same twice, never an older state last."""

    __slots__ = ("_disk", "_lock", "_newest", "_path", "_written")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._lock = Lock()
        self._newest = b""
        self._written = b""

    def prepare(self, data: bytes) -> bool:
        """Whether there is anything to write."""
        self._newest = data
        return data != self._written

    def write(self) -> None:
        with self._lock:
            data = self._newest
            if data != self._written:
                self._disk.atomic_write(self._path, data)
                self._written = data


class LogFolder:
    """One of `log.dirs`."""

    __slots__ = ("_disk", "_lock", "had_clean_shutdown", "meta", "offline", "path", "writers")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path.rstrip("/") or "/"
        self._lock: DiskLock | None = None
        self.meta: MetaProperties | None = None
        self.had_clean_shutdown = False
        self.offline: str | None = None  # why it is not used, once it failed
        self.writers: dict[str, CheckpointWriter] = {}

    def lock(self) -> None:
        """Take the folder for this process, making it where it does not exist."""
        self._disk.make_dir(self.path)
        self._lock = self._disk.lock(f"{self.path}/{LOCK}")
        if self._lock is None:
            raise FolderRefused(
                f"log folder {self.path} is in use by another broker, which holds {self.path}/{LOCK}; "
                "stop that broker or give this one another folder in log.dirs"
            )

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def read_identity(self) -> MetaProperties | None:
        path = f"{self.path}/{META_PROPERTIES}"
        try:
            self.meta = decode_meta_properties(path, self._disk.read(path))
        except FileNotFoundError:
            self.meta = None
        except CorruptCheckpoint as error:
            raise FolderRefused(f"log folder {self.path} cannot be identified: {error}") from None
        return self.meta

    def claim(self, cluster_id: str, broker_id: int) -> None:
        """Refuse a folder of another cluster or broker; sign one that nobody has signed."""
        meta = self.meta
        for name, found, wanted in (
            ("cluster.id", meta and meta.cluster_id, cluster_id),
            ("broker.id", meta and meta.broker_id, broker_id),
        ):
            if found is not None and found != wanted:
                raise FolderRefused(
                    f"log folder {self.path} belongs to {name} {found} by its {META_PROPERTIES}, "
                    f"this broker has {name} {wanted}; use that broker's folder or start with {name} {found}"
                )
        if meta is None or meta.cluster_id is None or meta.broker_id is None:
            if meta is None and not self._disk.exists(f"{self.path}/{RECOVERY_POINTS}"):
                # A new folder: from the first log on it is known how far each is on disk.
                self._disk.atomic_write(f"{self.path}/{RECOVERY_POINTS}", encode_offsets({}))
            meta = meta or MetaProperties()
            meta.cluster_id, meta.broker_id = cluster_id, broker_id
            written_at = time.strftime("%a %b %d %H:%M:%S UTC %Y", time.gmtime())
            self._disk.atomic_write(
                f"{self.path}/{META_PROPERTIES}", encode_meta_properties(meta, written_at)
            )
            self.meta = meta

    def take_clean_shutdown_marker(self) -> bool:
        """Whether the last broker stopped cleanly. The marker goes at once: a crash from now on is one."""
        path = f"{self.path}/{CLEAN_SHUTDOWN}"
        self.had_clean_shutdown = self._disk.exists(path)
        if self.had_clean_shutdown:
            self._disk.unlink(path)
            self._disk.fsync_dir(self.path)
        return self.had_clean_shutdown

    def write_clean_shutdown_marker(self, broker_epoch: int) -> None:
        self._disk.atomic_write(f"{self.path}/{CLEAN_SHUTDOWN}", encode_clean_shutdown(broker_epoch))

    def writer(self, name: str) -> CheckpointWriter:
        found = self.writers.get(name)
        if found is None:
            found = self.writers[name] = CheckpointWriter(self._disk, f"{self.path}/{name}")
        return found

    def read_offsets(self, name: str) -> dict[PartitionKey, int] | None:
        """A checkpoint; None where there is none that can be read, which costs time and loses nothing."""
        path = f"{self.path}/{name}"
        try:
            data = self._disk.read(path)
            # Kafka makes the files when it starts and fills them later: an empty one says nothing yet.
            return decode_offsets(path, data) if data else None
        except FileNotFoundError:
            return None
        except (CorruptCheckpoint, UnicodeDecodeError) as error:
            logger.warning("a checkpoint is not used: %s", error)
            return None
