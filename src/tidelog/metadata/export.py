"""A tree written into another one, so that Kafka 3.9 on a ZooKeeper can take over what we kept.

Ephemeral nodes are left out: they belong to processes, and Kafka makes its own. So are notices that
brokers have read. A target that holds a cluster already is refused, or replaced where the caller insists;
one in which brokers are alive is always refused.
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
"""What belongs to Kafka in a ZooKeeper that it may share with others."""

NOTICES = (paths.CONFIG_CHANGES, paths.ISR_CHANGES, paths.LOG_DIR_EVENTS)

OnProgress = Callable[[int, int], None]
"""Called with the nodes written so far and those there are."""


class ExportRefused(Exception):
    """The target is not one to write into; the message says why."""


@dataclass(slots=True)
class Exported:
    """How much was written."""

    nodes: int
    topics: int


def export_tree(
    source: Tree, target: Tree, *, force: bool = False, progress: OnProgress | None = None
) -> Exported:
    """Write what `source` holds into `target`. Raises ExportRefused before anything is changed.

    An export that was cut short leaves a target that holds a cluster: do it again with `force`.
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
    """Path, data and version of each node, the cluster id first: it marks the target as taken."""
    found: list[tuple[str, bytes, int]] = []
    for name in ("cluster", *(name for name in TOP_LEVEL if name != "cluster")):
        for path, data, stat in walk(source, child_of("/", name)):
            if stat.ephemeral_owner == 0 and not path.startswith(tuple(f"{notices}/" for notices in NOTICES)):
                found.append((path, data, stat.version))
    return found


def _clear(target: Tree, path: str) -> None:
    """Node by node: all of a large cluster in one step would be more than ZooKeeper takes at once."""
    doomed = [node for node, _, _ in walk(target, path)]
    for node in reversed(doomed):
        target.delete(node)


def _write(target: Tree, path: str, data: bytes, version: int) -> None:
    try:
        target.create(path, data, make_parents=True)
    except NodeExists:
        target.set(path, data)
    if path == paths.BROKER_SEQUENCE:
        # The node's version is what the next generated broker id is made of.
        for _ in range(version):
            target.set(path, b"")


def _children(tree: Tree, path: str) -> list[str]:
    try:
        return tree.children(path)
    except NoNode:
        return []
