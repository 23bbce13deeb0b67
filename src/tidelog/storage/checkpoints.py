"""Kafka's small files: offset checkpoints, meta.properties, partition.metadata, the clean-shutdown marker.

Every file is checked when it is read, because a crash may have torn it and other programs write it, too.
`CorruptCheckpoint` names the file and the fault.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidelog.partitions import PartitionKey

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"
GAP = "gap-checkpoint"  # ours alone: Kafka ignores it
PARTITION_METADATA = "partition.metadata"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LOCK = ".lock"

_WHITE_SPACE = re.compile(r"\s+")


class CorruptCheckpoint(ValueError):
    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


def _versioned_lines(path: str, data: bytes) -> list[list[str]]:
    """The fields of each entry, from a file with a version, a count and one entry a line."""
    try:
        lines = data.decode("utf-8").splitlines()
        if len(lines) < 2:
            raise CorruptCheckpoint(path, "cut off before the number of entries")
        version, count = int(lines[0]), int(lines[1])
    except ValueError as error:
        if isinstance(error, CorruptCheckpoint):
            raise
        raise CorruptCheckpoint(path, f"not a checkpoint ({error})") from None
    if version != 0:
        raise CorruptCheckpoint(path, f"version {version}, only version 0 is known")
    entries = [line for line in lines[2:] if line]
    if len(entries) != count:
        raise CorruptCheckpoint(path, f"{len(entries)} entries where {count} are announced")
    return [_WHITE_SPACE.split(line.strip()) for line in entries]


def _encode_lines(entries: Iterable[str]) -> bytes:
    lines = list(entries)
    return "".join(f"{line}\n" for line in ["0", str(len(lines)), *lines]).encode()


def decode_offsets(path: str, data: bytes) -> dict[PartitionKey, int]:
    offsets: dict[PartitionKey, int] = {}
    for fields in _versioned_lines(path, data):
        try:
            topic, partition, offset = fields
            offsets[topic, int(partition)] = int(offset)
        except ValueError:
            raise CorruptCheckpoint(path, f"bad entry {' '.join(fields)!r}") from None
    return offsets


def encode_offsets(offsets: Mapping[PartitionKey, int]) -> bytes:
    return _encode_lines(f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items())


def decode_epochs(path: str, data: bytes) -> list[tuple[int, int]]:
    epochs = []
    for fields in _versioned_lines(path, data):
        try:
            epoch, start = fields
            epochs.append((int(epoch), int(start)))
        except ValueError:
            raise CorruptCheckpoint(path, f"bad entry {' '.join(fields)!r}") from None
    return epochs


def encode_epochs(epochs: Iterable[tuple[int, int]]) -> bytes:
    return _encode_lines(f"{epoch} {start}" for epoch, start in epochs)


def decode_gap(path: str, data: bytes) -> int:
    """The offset at which the first gap of a log begins."""
    match _versioned_lines(path, data):
        case [[offset]] if offset.isdecimal():
            return int(offset)
        case _:
            raise CorruptCheckpoint(path, "not one offset")


def encode_gap(offset: int) -> bytes:
    return _encode_lines([str(offset)])


def decode_partition_metadata(path: str, data: bytes) -> bytes:
    """The topic id, 16 bytes."""
    try:
        fields = dict(line.split(": ", 1) for line in data.decode().splitlines() if line)
    except ValueError:
        raise CorruptCheckpoint(path, "lines are not of the form 'name: value'") from None
    if fields.get("version") != "0":
        raise CorruptCheckpoint(path, f"version {fields.get('version')!r}, only version 0 is known")
    topic_id = fields.get("topic_id", "").strip()
    if not re.fullmatch(r"[A-Za-z0-9_-]{22}", topic_id):
        raise CorruptCheckpoint(path, f"topic_id {topic_id!r} is not 22 characters of base64url")
    return base64.urlsafe_b64decode(topic_id + "==")


def encode_partition_metadata(topic_id: bytes) -> bytes:
    return b"version: 0\ntopic_id: " + base64.urlsafe_b64encode(topic_id)[:22]


def decode_clean_shutdown(data: bytes) -> int:
    """The broker epoch in the marker; -1 for the empty marker of an older broker."""
    try:
        fields = json.loads(data)
        return int(fields["brokerEpoch"])
    except (ValueError, KeyError, TypeError):
        return -1


def encode_clean_shutdown(broker_epoch: int = -1) -> bytes:
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()


@dataclass(slots=True)
class MetaProperties:
    """The owner of a log folder. Kafka writes version 0 with ZooKeeper, version 1 with KRaft."""

    version: int = 0
    cluster_id: str | None = None
    broker_id: int | None = None
    directory_id: str | None = None


def decode_meta_properties(path: str, data: bytes) -> MetaProperties:
    fields: dict[str, str] = {}
    for line in data.decode("latin-1").splitlines():
        line = line.strip()
        if line and line[0] not in "#!":
            name, _, value = line.partition("=")
            fields[name.strip()] = value.strip().replace("\\:", ":").replace("\\=", "=")
    if "version" not in fields:
        raise CorruptCheckpoint(path, "it has no version")
    try:
        version = int(fields["version"])
        identity = fields.get("node.id" if version >= 1 else "broker.id")
        broker_id = None if identity is None else int(identity)
    except ValueError as error:
        raise CorruptCheckpoint(path, f"not a number: {error}") from None
    if version not in (0, 1):
        raise CorruptCheckpoint(path, f"version {version}, only versions 0 and 1 are known")
    if version == 1 and not {"node.id", "cluster.id"} <= fields.keys():
        raise CorruptCheckpoint(path, "version 1 has node.id and cluster.id, here one is missing")
    return MetaProperties(version, fields.get("cluster.id"), broker_id, fields.get("directory.id"))


def encode_meta_properties(meta: MetaProperties, written_at: str) -> bytes:
    lines = ["#", f"#{written_at}"]
    if meta.broker_id is not None:
        lines.append(f"{'node.id' if meta.version >= 1 else 'broker.id'}={meta.broker_id}")
    if meta.directory_id is not None:
        lines.append(f"directory.id={meta.directory_id}")
    lines.append(f"version={meta.version}")
    if meta.cluster_id is not None:
        lines.append(f"cluster.id={meta.cluster_id}")
    return "".join(f"{line}\n" for line in lines).encode("latin-1")
