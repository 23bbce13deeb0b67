"""Exports a tree into another one, such as a ZooKeeper for Kafka 3.9.

Ephemeral nodes are left out, because they belong to processes, and so are notifications that brokers have
read. A target with a cluster is refused, or replaced with `force`; one with live brokers is always refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidelog.metadata import paths
from tidelog.metadata.tree import NodeExists, NoNode, Tree, child_of, walk

TOP_LEVEL = (
    "admin",
    "brokers",
    "cluster",
    "config",
    "consumers",
    "controller_epoch",
    "delegation_token",
    "feature",
    "isr_change_notification",
    "kafka-acl",
    "kafka-acl-changes",
    "kafka-acl-extended",
    "kafka-acl-extended-changes",
    "latest_producer_id_block",
    "log_dir_event_notification",
)
"""Kafka's root nodes in a ZooKeeper that others may use, too."""

NOTICES = (paths.CONFIG_CHANGES, paths.ISR_CHANGES, paths.LOG_DIR_EVENTS)

OnProgress = Callable[[int, int], None]
"""Called with the number of nodes written and the total."""


class ExportRefused(Exception):
    """The target must not be written; the message says why."""


@dataclass(slots=True)
class Exported:
    """How many nodes were written, and how many topics they hold."""

    nodes: int
    topics: int


def export_tree(
    source: Tree, target: Tree, *, force: bool = False, progress: OnProgress | None = None
) -> Exported:
    """Write the nodes of `source` into `target`. ExportRefused before anything is changed.

    An interrupted export leaves a target with a cluster: repeat it with `force`.
    """
    if source.exists(paths.CLUSTER_ID) is None:
        raise ExportRefused(
            "there is nothing to export: the tree has no cluster id, no broker was started on it"
        )
    _check_target(target, force)
    for name in TOP_LEVEL:
        _clear(target, child_of("/", name))
    wanted = _nodes_to_write(source)
    for done, (path, data, version) in enumerate(wanted, 1):
        _write(target, path, data, version)
        if progress is not None:
            progress(done, len(wanted))
    return Exported(len(wanted), len(_children(source, paths.TOPICS)))


def _check_target(target: Tree, force: bool) -> None:
    alive = _children(target, paths.BROKER_IDS)
    if alive or target.exists(paths.CONTROLLER) is not None:
        raise ExportRefused(
            f"brokers are running on the target (ids {', '.join(alive) or '?'}): stop them first"
        )
    topics = _children(target, paths.TOPICS)
    if not force and (topics or target.exists(paths.CLUSTER_ID) is not None):
        raise ExportRefused(
            f"the target holds a Kafka cluster already, with {len(topics)} topic(s): "
            "name an empty ZooKeeper or chroot, or replace what is there with --force"
        )


def _nodes_to_write(source: Tree) -> list[tuple[str, bytes, int]]:
    """Path, data and version of each node; the cluster id first, which marks the target as used."""
    found: list[tuple[str, bytes, int]] = []
    for name in ("cluster", *(name for name in TOP_LEVEL if name != "cluster")):
        for path, data, stat in walk(source, child_of("/", name)):
            if stat.ephemeral_owner == 0 and not path.startswith(tuple(f"{notices}/" for notices in NOTICES)):
                found.append((path, data, stat.version))
    return found


def _clear(target: Tree, path: str) -> None:
    """Write node by node: a large cluster does not fit into one ZooKeeper transaction."""
    doomed = [node for node, _, _ in walk(target, path)]
    for node in reversed(doomed):
        target.delete(node)


def _write(target: Tree, path: str, data: bytes, version: int) -> None:
    try:
        target.create(path, data, make_parents=True)
    except NodeExists:
        target.set(path, data)
    if path == paths.BROKER_SEQUENCE:
        # The next generated broker id is computed from the node's version.
        for _ in range(version):
            target.set(path, b"")


def _children(tree: Tree, path: str) -> list[str]:
    try:
        return tree.children(path)
    except NoNode:
        return []
