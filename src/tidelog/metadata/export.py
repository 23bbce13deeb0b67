"""Exports a tree into another one, such as a ZooKeeper for Kafka 3.9.

Ephemeral nodes, which belong to processes, and notifications are not exported. A target with a cluster is
refused, or replaced with `force`. A target with live brokers is always refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidelog.metadata import paths
from tidelog.metadata.async_tree import AsyncTree, ensure_path, subtree
from tidelog.metadata.tree import NodeExists, NoNode, Tree, child_of, parent_of, walk

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
    """The target must not be written, for the reason in the message."""


@dataclass(slots=True)
class Exported:
    """The number of written nodes, and of topics in them."""

    nodes: int
    topics: int


async def export_tree(
    source: Tree, target: AsyncTree, *, force: bool = False, progress: OnProgress | None = None
) -> Exported:
    """Write the nodes of `source` into `target`. Raises ExportRefused before any change.

    After an interrupted export, the target has a cluster: repeat the export with `force`.
    """
    if source.exists(paths.CLUSTER_ID) is None:
        raise ExportRefused(
            "there is nothing to export: the tree has no cluster id, no broker was started on it"
        )
    await _check_target(target, force)
    for name in TOP_LEVEL:
        await _clear(target, child_of("/", name))
    wanted = _nodes_to_write(source)
    for done, (path, data, version) in enumerate(wanted, 1):
        await _write(target, path, data, version)
        if progress is not None:
            progress(done, len(wanted))
    return Exported(len(wanted), _count_topics(source))


async def _check_target(target: AsyncTree, force: bool) -> None:
    alive = await _children(target, paths.BROKER_IDS)
    if alive or await target.exists(paths.CONTROLLER) is not None:
        raise ExportRefused(
            f"brokers are running on the target (ids {', '.join(alive) or '?'}): stop them first"
        )
    topics = await _children(target, paths.TOPICS)
    if not force and (topics or await target.exists(paths.CLUSTER_ID) is not None):
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


async def _clear(target: AsyncTree, path: str) -> None:
    """Delete node by node: a large cluster does not fit into one ZooKeeper transaction."""
    for node in reversed(await subtree(target, path)):
        await target.delete(node)


async def _write(target: AsyncTree, path: str, data: bytes, version: int) -> None:
    await ensure_path(target, parent_of(path))
    try:
        await target.create(path, data)
    except NodeExists:
        await target.set(path, data)
    if path == paths.BROKER_SEQUENCE:
        # The next generated broker id is computed from the node's version.
        for _ in range(version):
            await target.set(path, b"")


async def _children(tree: AsyncTree, path: str) -> list[str]:
    try:
        return await tree.children(path)
    except NoNode:
        return []


def _count_topics(source: Tree) -> int:
    try:
        return len(source.children(paths.TOPICS))
    except NoNode:
        return 0
