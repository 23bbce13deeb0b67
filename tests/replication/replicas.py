"""Whether the replicas of a partition are the same, byte for byte, below the high watermark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from tidelog.records.batch import iter_batches


def batches_of(folder: Path, below: int) -> dict[int, bytes]:
    """The batches in the segments of a partition's folder whose records are below an offset."""
    found: dict[int, bytes] = {}
    for file in sorted(folder.glob("*.log")):
        data = file.read_bytes()
        for start, header in iter_batches(data):
            if header.next_offset <= below:
                found[header.base_offset] = data[start : start + header.total_size]
    return found


def differences(folders: Mapping[int, Path], below: int) -> list[str]:
    """What differs between the replicas of one partition; `folders` has that of each broker.

    A replica may have deleted more of the beginning than another one.
    """
    logs = {broker_id: batches_of(folder, below) for broker_id, folder in folders.items()}
    start = max((min(log) for log in logs.values() if log), default=0)
    problems: list[str] = []
    for offset in sorted({offset for log in logs.values() for offset in log if offset >= start}):
        values = {broker_id: log.get(offset) for broker_id, log in logs.items()}
        if len(set(values.values())) > 1:
            sizes = {id: None if data is None else len(data) for id, data in values.items()}
            name = next(iter(folders.values())).name
            problems.append(f"{name} at {offset}: the batches of brokers differ, their sizes are {sizes}")
    return problems


def partition_folders(data: Mapping[int, Path]) -> dict[str, dict[int, Path]]:
    """The folders of each partition by broker."""
    found: dict[str, dict[int, Path]] = {}
    for broker_id, folder in data.items():
        for partition in _partitions(folder):
            found.setdefault(partition.name, {})[broker_id] = partition
    return found


def _partitions(folder: Path) -> Iterable[Path]:
    return (one for one in folder.iterdir() if one.is_dir() and not one.name.endswith(("-delete", "-future")))
