"""OffsetCheckpointFile: one offset checkpoint of a log folder, such as recovery-point-offset-checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from threading import Lock

from tidelog.partitions import PartitionKey
from tidelog.storage.checkpoints import CorruptCheckpoint, decode_offsets, encode_offsets
from tidelog.storage.disk import Disk

logger = logging.getLogger("tidelog.storage")


class OffsetCheckpointFile:
    """The loop prepares the offsets, any thread writes them.

    After several writes the file has the offsets prepared last. Unchanged offsets are not written again.
    """

    __slots__ = ("_disk", "_lock", "_newest", "_path", "_written")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._lock = Lock()
        self._newest = b""
        self._written = b""

    def read(self) -> dict[PartitionKey, int] | None:
        """The offsets on disk; None if the file is missing, empty or corrupt.

        A log without a recovery point is checked from its start, which takes time but loses nothing.
        """
        try:
            data = self._disk.read(self._path)
            # Kafka creates the files empty when it starts and writes them later.
            return decode_offsets(self._path, data) if data else None
        except FileNotFoundError:
            return None
        except (CorruptCheckpoint, UnicodeDecodeError) as error:
            logger.warning("a checkpoint is not used: %s", error)
            return None

    def prepare(self, offsets: Mapping[PartitionKey, int]) -> bool:
        """Set the offsets for the next `write`; False if the file has them already."""
        self._newest = encode_offsets(offsets)
        return self._newest != self._written

    def write(self) -> None:
        """Write the prepared offsets; they are durable on return."""
        with self._lock:
            data = self._newest
            if data != self._written:
                self._disk.atomic_write(self._path, data)
                self._written = data
