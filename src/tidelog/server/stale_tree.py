"""Checks at the start whether another broker has used the log folders since the last stop.

If so, the tree is outdated. A Kafka broker leaves its own marker of a clean stop, newer leader epochs, topics
that the tree does not have, or topics with other ids. With the old tree, these topics would be missing, and
new batches would get old leader epochs, so the start is refused. If only a marker differs, the start logs a
warning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from tidelog.metadata import paths
from tidelog.metadata.embedded_tree import FILE_NAME
from tidelog.metadata.state import TopicState
from tidelog.metadata.tree import Tree
from tidelog.partitions import PartitionKey
from tidelog.protocol.wire import uuid_to_text
from tidelog.storage.checkpoints import (
    CLEAN_SHUTDOWN,
    LEADER_EPOCHS,
    PARTITION_METADATA,
    CorruptCheckpoint,
    decode_clean_shutdown,
    decode_epochs,
    decode_partition_metadata,
)
from tidelog.storage.disk import Disk
from tidelog.storage.log import Log
from tidelog.storage.partition_folders import parse_partition

log = logging.getLogger("tidelog.server")

STOPS = "/tidelog/stops"
"""The node with the broker epochs in the markers of our last clean stops; exports leave it out."""
KEPT_STOPS = 100
"""Many, because a folder may be missing in log.dirs for some starts."""


class StaleTree(Exception):
    """The tree is older than the folders; the message says how they differ and what to do."""


def note_stop(tree: Tree, broker_epoch: int) -> None:
    """Write the broker epoch of a clean stop to the tree. The markers in the folders follow."""
    epoch = str(broker_epoch).encode()
    if tree.exists(STOPS) is None:
        tree.create(STOPS, epoch, make_parents=True)
    else:
        stops = tree.get(STOPS)[0].split()
        tree.set(STOPS, b" ".join([*stops[1 - KEPT_STOPS :], epoch]))


def last_stop(tree: Tree) -> int:
    """The broker epoch of the newest clean stop, -1 before the first."""
    return -1 if tree.exists(STOPS) is None else int(tree.get(STOPS)[0].split()[-1])


def check_no_logs(disk: Disk, folders: Sequence[str]) -> None:
    """Raise StaleTree if the folders have partitions, before a new tree is created.

    The tree is in the first folder. If only other folders have partitions, the disk of the first one is
    probably not mounted, and an adoption of the others would lose the settings of their topics.
    """
    first, *others = folders
    adopt = f"`tidelog adopt {' '.join(folders)}`"
    if found := _partitions_in(disk, first):
        raise StaleTree(
            f"{first} has {found} partitions, but no {FILE_NAME} with their topics: "
            f"adopt the folder with {adopt}, or name an empty one in log.dirs"
        )
    for folder in others:
        if found := _partitions_in(disk, folder):
            raise StaleTree(
                f"{folder} has {found} partitions, but {first} has no {FILE_NAME} with their topics: "
                f"if {first} is a disk that is not mounted, mount it; if Kafka wrote the folders, "
                f"adopt them with {adopt}; or name empty folders in log.dirs"
            )


def _partitions_in(disk: Disk, folder: str) -> int:
    if not disk.is_dir(folder):
        return 0
    return sum(
        1 for name in disk.listdir(folder) if parse_partition(name) and disk.is_dir(f"{folder}/{name}")
    )


def check_folders(disk: Disk, folders: Iterable[str], tree: Tree, topics: Mapping[str, TopicState]) -> None:
    """Compare the folders with the tree before logs are opened, if another broker has stopped cleanly in
    them.

    Raises StaleTree if they differ, else logs a warning.
    """
    if tree.exists(STOPS) is None:
        return  # the folders are new, or were just adopted
    stops = tree.get(STOPS)[0].split()
    used: list[str] = []
    for folder in folders:
        try:
            marker = decode_clean_shutdown(disk.read(f"{folder}/{CLEAN_SHUTDOWN}"))
        except OSError:
            continue
        if str(marker).encode() in stops:
            continue
        for difference in _differences(disk, folder, topics, set(tree.children(paths.DELETE_TOPICS))):
            raise StaleTree(_refusal(difference))
        used.append(folder)
    if used:
        log.warning(
            "%s was used by another broker since this one stopped: settings changed there are not known, "
            "and producer ids given out there may be given out again; if that matters, %s",
            " and ".join(used),
            what_to_do(),
        )


def check_logs(logs: Mapping[PartitionKey, Log], topics: Mapping[str, TopicState]) -> None:
    """Raise StaleTree if opened logs differ from the tree: another broker may have used them and crashed."""
    for (name, index), opened in logs.items():
        topic = topics.get(name)
        if topic is not None:
            difference = _difference(opened.dir, topic, index, opened.topic_id, opened.leader_epochs.latest)
            if difference is not None:
                raise StaleTree(_refusal(difference))


def name_empty_folders(
    new_folders: Sequence[str], found: Set[PartitionKey], topics: Mapping[str, TopicState]
) -> None:
    """Log an error if a folder is new and logs are missing: its disk may not be mounted."""
    missing = [
        f"{name}-{index}"
        for name, topic in topics.items()
        for index in topic.partitions
        if (name, index) not in found
    ]
    if new_folders and missing:
        log.error(
            "%d partitions have no log in any folder and begin empty, for example %s; %s was not used "
            "before: if its disk is not mounted, stop the broker and mount the disk",
            len(missing),
            missing[0],
            " and ".join(new_folders),
        )


def _differences(
    disk: Disk, folder: str, topics: Mapping[str, TopicState], deleting: Set[str]
) -> Iterator[str]:
    for name in sorted(disk.listdir(folder)):
        path, key = f"{folder}/{name}", parse_partition(name)
        if key is None or key[0] in deleting or not disk.is_dir(path):
            continue
        topic = topics.get(key[0])
        if topic is None or key[1] not in topic.partitions:
            yield f"the tree does not know {path}"
            continue
        difference = _difference(path, topic, key[1], _topic_id(disk, path), _latest_epoch(disk, path))
        if difference is not None:
            yield difference


def _difference(path: str, topic: TopicState, index: int, topic_id: bytes | None, epoch: int) -> str | None:
    if topic_id is not None and topic_id != topic.topic_id:
        found, wanted = uuid_to_text(topic_id), uuid_to_text(topic.topic_id)
        return f"{path} has the topic id {found}, in the tree {topic.name} has {wanted}"
    state = topic.partitions.get(index)
    if state is not None and epoch > state.leader_epoch:
        return f"{path} was led with epoch {epoch}, the tree knows of epochs up to {state.leader_epoch}"
    return None


def _topic_id(disk: Disk, path: str) -> bytes | None:
    file = f"{path}/{PARTITION_METADATA}"
    try:
        return decode_partition_metadata(file, disk.read(file))
    except (OSError, CorruptCheckpoint, UnicodeDecodeError):
        return None


def _latest_epoch(disk: Disk, path: str) -> int:
    file = f"{path}/{LEADER_EPOCHS}"
    try:
        return max((epoch for epoch, _ in decode_epochs(file, disk.read(file))), default=-1)
    except (OSError, CorruptCheckpoint):
        return -1


def _refusal(difference: str) -> str:
    return f"another broker used the log folders since this one stopped: {difference}; {what_to_do()}"


def what_to_do() -> str:
    return f"move the outdated {FILE_NAME} away, and adopt the folders with `tidelog adopt`"
