"""Adopts log folders of Kafka: writes a tree for the topics in them.

Segments of message formats 0 and 1 are converted to format 2 first; other logs stay unchanged. Topic ids come
from `partition.metadata`, cluster id and broker id from `meta.properties`. Log folders do not have the
settings of topics. The logs show compaction and LogAppendTime, which are set. Retention is switched off, so
that no default deletes data. The operator has to set the other settings. New producer ids come after the ids
in the logs.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tidelog.metadata.embedded_tree import FILE_NAME, EmbeddedTree
from tidelog.metadata.nodes import ProducerIdBlock, random_id
from tidelog.metadata.operations import PRODUCER_ID_BLOCK
from tidelog.metadata.paths import PRODUCER_IDS
from tidelog.metadata.state import INTERNAL_TOPICS, PartitionState, TopicState
from tidelog.metadata.store import MetadataStore
from tidelog.server.adopt_logs import (
    NO_PRODUCER,
    highest_producer_id,
    highest_transactional_id,
    last_epoch,
    stamps_appends,
)
from tidelog.storage.checkpoints import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    LOCK,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    CorruptCheckpoint,
    MetaProperties,
    decode_meta_properties,
    decode_offsets,
    decode_partition_metadata,
    encode_partition_metadata,
)
from tidelog.storage.convert import Converted, DamagedSegment, OldSegment, convert_folder, old_segments
from tidelog.storage.disk import RealDisk

KEEP_EVERYTHING = {"retention.ms": "-1", "retention.bytes": "-1"}
# Kafka's settings of internal topics. The broker reads these topics at the start, so segments are small.
INTERNAL_SETTINGS = {
    "cleanup.policy": "compact",
    "compression.type": "producer",
    "segment.bytes": "104857600",
}
UNKNOWN_SETTINGS = (
    "retention.ms",
    "retention.bytes",
    "cleanup.policy",
    "segment.bytes",
    "max.message.bytes",
    "min.insync.replicas",
    "compression.type",
)
KRAFT_METADATA = "__cluster_metadata"
TRANSACTIONS = "__transaction_state"
# No cluster allocates this many ids. A higher id in a log was made up by a client, and leaves no ids after
# it.
HIGHEST_GIVEN_ID = 1 << 60
# Skipped ids, for producers that have not yet written to these logs. There are 2^63 ids.
SKIPPED_PRODUCER_IDS = 1000 * PRODUCER_ID_BLOCK

_PARTITION_FOLDER = re.compile(r"([a-zA-Z0-9._-]+)-([0-9]+)")
_LEFT_ALONE = re.compile(r".*\.[0-9a-z]*-(delete|future|stray)")


class CannotAdopt(Exception):
    """The folder cannot be adopted; the message says why."""


@dataclass(slots=True)
class FoundTopic:
    name: str
    topic_id: bytes | None = None
    # The folder and the last leader epoch of each partition.
    partitions: dict[int, tuple[Path, int]] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def missing(self) -> list[int]:
        """Partitions without a folder: in a larger cluster they are on other brokers."""
        return [index for index in range(max(self.partitions)) if index not in self.partitions]


@dataclass(slots=True)
class Survey:
    """The topics, ids and old segments in the folders."""

    folders: list[Path]
    cluster_id: str | None
    broker_id: int | None
    clean: bool
    topics: dict[str, FoundTopic]
    left_alone: list[str]
    highest_producer_id: int = NO_PRODUCER
    # Segments of message formats 0 and 1, by the folder of their partition.
    old_segments: dict[Path, list[OldSegment]] = field(default_factory=dict)

    @property
    def old_bytes(self) -> int:
        return sum(old.size for found in self.old_segments.values() for old in found)


def survey(folders: Sequence[Path]) -> Survey:
    """Read the folders, without changes. Raises CannotAdopt."""
    found = Survey([folder.resolve() for folder in folders], None, None, True, {}, [])
    for folder in found.folders:
        if not folder.is_dir():
            raise CannotAdopt(f"{folder} is not a folder")
        if (folder / FILE_NAME).exists():
            raise CannotAdopt(
                f"{folder} is tidelog's already: it has a {FILE_NAME}. If Kafka has used the folder since, "
                "that file is out of date: move it away and adopt again"
            )
        with ExitStack() as locks:
            if (folder / LOCK).exists():
                _lock(locks, folder)
            _read_folder(found, folder)
    if not found.topics and found.cluster_id is None:
        raise CannotAdopt(f"{found.folders[0]} holds no {META_PROPERTIES} and no partition: not a log folder")
    return found


def _lock(locks: ExitStack, folder: Path) -> None:
    lock = RealDisk().lock(str(folder / LOCK))
    if lock is None:
        raise CannotAdopt(f"a broker is running on {folder}: stop it first")
    locks.callback(lock.close)


def _read_folder(found: Survey, folder: Path) -> None:
    _read_identity(found, folder)
    clean = (folder / CLEAN_SHUTDOWN).exists()
    found.clean &= clean
    compacted = _compacted_topics(folder)
    for entry in sorted(folder.iterdir()):
        if entry.is_dir():
            _read_partition(found, entry, compacted, clean)


def _read_identity(found: Survey, folder: Path) -> None:
    path = folder / META_PROPERTIES
    if not path.exists():
        return
    try:
        meta: MetaProperties = decode_meta_properties(str(path), path.read_bytes())
    except CorruptCheckpoint as error:
        raise CannotAdopt(str(error)) from error
    for name, present, here in (
        ("cluster", found.cluster_id, meta.cluster_id),
        ("broker", found.broker_id, meta.broker_id),
    ):
        if present is not None and here is not None and present != here:
            raise CannotAdopt(f"the folders are of different {name}s: {present} and {here} ({path})")
    found.cluster_id = found.cluster_id or meta.cluster_id
    found.broker_id = meta.broker_id if found.broker_id is None else found.broker_id


def _compacted_topics(folder: Path) -> set[str]:
    path = folder / CLEANER_OFFSETS
    try:
        return {topic for topic, _ in decode_offsets(str(path), path.read_bytes())}
    except (OSError, CorruptCheckpoint):
        return set()


def _read_partition(found: Survey, folder: Path, compacted: set[str], clean: bool) -> None:
    match = _PARTITION_FOLDER.fullmatch(folder.name)
    if match is None or _LEFT_ALONE.fullmatch(folder.name) or match[1] == KRAFT_METADATA:
        found.left_alone.append(folder.name)
        return
    name, index = match[1], int(match[2])
    topic = found.topics.setdefault(name, FoundTopic(name))
    if index in topic.partitions:
        raise CannotAdopt(f"{folder.name} is in two folders: {topic.partitions[index][0]} and {folder}")
    topic_id = _topic_id(folder)
    if topic.topic_id is not None and topic_id is not None and topic.topic_id != topic_id:
        raise CannotAdopt(f"{folder} has another topic id than the partitions before it")
    topic.topic_id = topic.topic_id or topic_id
    topic.partitions[index] = (folder, last_epoch(folder))
    old = old_segments(RealDisk(), str(folder))
    if old:
        found.old_segments[folder] = old
    ids = [highest_producer_id(folder, HIGHEST_GIVEN_ID, clean=clean)]
    if name == TRANSACTIONS:
        ids.append(highest_transactional_id(folder, HIGHEST_GIVEN_ID))
    found.highest_producer_id = max(found.highest_producer_id, *ids)
    topic.settings = dict(INTERNAL_SETTINGS if name in INTERNAL_TOPICS else KEEP_EVERYTHING)
    if name in compacted:
        topic.settings["cleanup.policy"] = "compact"
    if name not in INTERNAL_TOPICS and stamps_appends(folder):
        topic.settings["message.timestamp.type"] = "LogAppendTime"


def _topic_id(folder: Path) -> bytes | None:
    """The id in partition.metadata; None if there is no such file, as in Kafka before 2.8."""
    path = folder / PARTITION_METADATA
    if not path.exists():
        return None
    try:
        return decode_partition_metadata(str(path), path.read_bytes())
    except CorruptCheckpoint as error:
        raise CannotAdopt(str(error)) from error


def adopt(
    found: Survey,
    broker_id: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
    converting: Callable[[int], None] = lambda _: None,
) -> Converted:
    """Convert old segments, give ids to topics without one, and write the tree into the first folder.

    Calls `progress` with the name of each topic, and `converting` with the bytes read for conversion. The
    tree comes last: if a conversion is interrupted, a second call continues it. Raises CannotAdopt.
    """
    if broker_id is None:
        broker_id = found.broker_id
    if broker_id is None:
        raise CannotAdopt(f"no {META_PROPERTIES} names a broker id: give one")
    if found.broker_id is not None and broker_id != found.broker_id:
        raise CannotAdopt(f"the folder is of broker {found.broker_id}, not of {broker_id}")
    with ExitStack() as locks:
        for folder in found.folders:
            _lock(locks, folder)
        converted = _convert(found, converting)
        _write_tree(found, broker_id, progress)
    return converted


def _convert(found: Survey, progress: Callable[[int], None]) -> Converted:
    total = Converted()
    for folder in found.old_segments:
        try:
            total.add(
                convert_folder(
                    RealDisk(), str(folder), recovery_point=_recovery_point(folder), progress=progress
                )
            )
        except DamagedSegment as error:
            raise CannotAdopt(
                f"{error}. Nothing was lost: the segment is as it was. Restore it from a copy, or move the "
                "partition's folder away, and adopt again"
            ) from error
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise CannotAdopt(
                f"no room to convert a segment of {folder} beside itself; what is converted stays. Free as "
                "much as the largest segment takes, and adopt again"
            ) from error
    return total


def _recovery_point(folder: Path) -> int | None:
    """The recovery point of a partition; None after a clean stop, when all of its log is on disk."""
    match = _PARTITION_FOLDER.fullmatch(folder.name)
    if (folder.parent / CLEAN_SHUTDOWN).exists() or match is None:
        return None
    path = folder.parent / RECOVERY_POINTS
    try:
        return decode_offsets(str(path), path.read_bytes()).get((match[1], int(match[2])), 0)
    except (OSError, CorruptCheckpoint):
        return 0


def _write_tree(found: Survey, broker_id: int, progress: Callable[[str], None]) -> None:
    """Write the tree under another name and rename it, so that a crash leaves no incomplete tree."""
    path = found.folders[0] / FILE_NAME
    unfinished = path.with_name(FILE_NAME + ".adopting")
    for leftover in found.folders[0].glob(FILE_NAME + ".adopting*"):
        leftover.unlink()
    with EmbeddedTree(unfinished) as tree:
        store = MetadataStore(tree)
        store.prepare()
        store.cluster_id(found.cluster_id)
        tree.set(PRODUCER_IDS, _used_producer_ids(found, broker_id).encode())
        for topic in found.topics.values():
            progress(topic.name)
            store.create_topics([_topic_state(topic, broker_id)])
    for leftover in found.folders[0].glob(FILE_NAME + ".adopting-*"):
        leftover.unlink()
    os.rename(unfinished, path)
    RealDisk().fsync_dir(str(found.folders[0]))


def _used_producer_ids(found: Survey, broker_id: int) -> ProducerIdBlock:
    """A block after all used ids: new blocks begin after it."""
    blocks = (found.highest_producer_id + SKIPPED_PRODUCER_IDS) // PRODUCER_ID_BLOCK
    first = blocks * PRODUCER_ID_BLOCK
    return ProducerIdBlock(broker_id, first, first + PRODUCER_ID_BLOCK - 1)


def _topic_state(topic: FoundTopic, broker_id: int) -> TopicState:
    if topic.topic_id is None:
        topic.topic_id = random_id()
        for folder, _ in topic.partitions.values():
            RealDisk().atomic_write(
                str(folder / PARTITION_METADATA), encode_partition_metadata(topic.topic_id)
            )
    return TopicState(
        topic.name,
        topic.topic_id,
        {
            index: PartitionState(
                [broker_id],
                broker_id,
                topic.partitions[index][1] if index in topic.partitions else 0,
                [broker_id],
            )
            for index in range(max(topic.partitions) + 1)
        },
        topic.settings,
        topic.name in INTERNAL_TOPICS,
    )
