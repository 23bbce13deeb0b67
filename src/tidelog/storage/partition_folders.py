"""The names of the partition folders in a log folder, as Kafka gives them."""

from __future__ import annotations

import os
import re
import uuid

from tidelog.partitions import PartitionKey
from tidelog.storage.disk import Disk

_PARTITION = re.compile(r"([A-Za-z0-9._-]{1,249})-(\d{1,10})")
_FUTURE = re.compile(r"([A-Za-z0-9._-]{1,249})-(\d{1,10})\.[0-9a-f]{32}-future")
_DELETED = re.compile(r".+\.[0-9a-f]{32}-delete")
MAX_NAME = 255  # the longest file name that file systems allow
METADATA_TOPIC = "__cluster_metadata"  # the log of Kafka's KRaft quorum, not a partition of this broker


def parse_partition(name: str) -> PartitionKey | None:
    """Topic and partition of a partition's folder, None for any other name."""
    match = _PARTITION.fullmatch(name)
    if match is None or match[1] == METADATA_TOPIC:
        return None
    return match[1], int(match[2])


def has_log_files(disk: Disk, folder: str) -> bool:
    """Whether a partition of a log folder has a segment."""
    return any(
        name.endswith(".log")
        for partition in disk.listdir(folder)
        if parse_partition(partition) is not None
        for name in disk.listdir(f"{folder}/{partition}")
    )


def future_name(key: PartitionKey) -> str:
    """A new name for the folder of a partition's future replica."""
    return f"{key[0]}-{key[1]}.{uuid.uuid4().hex}-future"


def parse_future(name: str) -> PartitionKey | None:
    """Topic and partition of a future replica's folder, None for any other name."""
    match = _FUTURE.fullmatch(name)
    return None if match is None else (match[1], int(match[2]))


def path_for_deletion(directory: str) -> str:
    """A new path for a partition's folder between its deletion and the removal of its files."""
    parent, name = os.path.split(directory)
    suffix = f".{uuid.uuid4().hex}-delete"
    return f"{parent}/{name[: MAX_NAME - len(suffix)]}{suffix}"


def is_marked_for_deletion(name: str) -> bool:
    return _DELETED.fullmatch(name) is not None
