"""NodeTree: the nodes of a simulated ZooKeeper. Values in, values out; no time, no sessions.

Stats, sequence numbers and events are those of ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tidelog.metadata.tree import (
    ANY_VERSION,
    BadVersion,
    Check,
    Create,
    Delete,
    EventType,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    Result,
    SetData,
    Stat,
    TreeError,
    WatchEvent,
    parent_of,
)


@dataclass(slots=True)
class Node:
    data: bytes
    czxid: int
    mzxid: int
    pzxid: int
    """The number of the last change of the children."""
    ctime: int
    mtime: int
    owner: int = 0
    version: int = 0
    created: int = 0
    """How many children were ever created: the next sequence number."""
    children: dict[str, None] = field(default_factory=dict)

    @property
    def stat(self) -> Stat:
        count = len(self.children)
        cversion = 2 * self.created - count
        return Stat(
            self.czxid, self.mzxid, self.ctime, self.mtime, self.version, cversion, self.owner, count
        )


class OperationFailed(Exception):
    """The operation with this index failed, and nothing was changed."""

    def __init__(self, index: int, error: TreeError) -> None:
        super().__init__(str(error))
        self.index = index
        self.error = error


class NodeTree:
    """`apply` changes the nodes; `zxid` is the number of the last change."""

    def __init__(self, now: int = 0) -> None:
        self.zxid = 0
        self.nodes: dict[str, Node] = {"/": Node(b"", 0, 0, 0, now, now)}
        self.ephemerals: dict[int, dict[str, None]] = {}
        """The ephemeral nodes by their session."""
        self._undo: list[Callable[[], object]] = []
        self._events: list[WatchEvent] = []

    def apply(
        self, operations: Sequence[Operation], session: int, now: int
    ) -> tuple[list[Result], list[WatchEvent]]:
        """Do all operations as one change. Raises OperationFailed if one fails; then nothing is changed."""
        self.zxid += 1
        results: list[Result] = []
        self._undo, self._events = [], []
        for index, operation in enumerate(operations):
            try:
                results.append(self._apply(operation, session, now))
            except TreeError as error:
                for undo in reversed(self._undo):
                    undo()
                raise OperationFailed(index, error) from error
        return results, self._events

    def _apply(self, operation: Operation, session: int, now: int) -> Result:
        match operation:
            case Create():
                return self._create(operation, session, now)
            case SetData(path, data, version):
                return self._set(path, data, version, now)
            case Delete(path, version):
                self._delete(path, version)
            case Check(path, version):
                self._at_version(path, version)
        return None

    def _create(self, operation: Create, session: int, now: int) -> str:
        path, above = operation.path, parent_of(operation.path)
        parent = self.nodes.get(above)
        if parent is None:
            raise NoNode(path)
        if operation.sequential:
            path = f"{path}{parent.created:010d}"
        if path in self.nodes:
            raise NodeExists(path)
        if parent.owner:
            raise NoChildrenForEphemerals(path)
        owner = session if operation.ephemeral else 0
        self._insert(path, Node(operation.data, self.zxid, self.zxid, self.zxid, now, now, owner))
        before = parent.created
        self._undo.append(lambda: setattr(parent, "created", before))
        parent.created += 1
        self._events += (WatchEvent(EventType.CREATED, path), WatchEvent(EventType.CHILDREN, above))
        return path

    def _set(self, path: str, data: bytes, version: int, now: int) -> Stat:
        node = self._at_version(path, version)
        before = (node.data, node.mzxid, node.mtime, node.version)

        def undo() -> None:
            node.data, node.mzxid, node.mtime, node.version = before

        self._undo.append(undo)
        node.data, node.mzxid, node.mtime, node.version = data, self.zxid, now, node.version + 1
        self._events.append(WatchEvent(EventType.CHANGED, path))
        return node.stat

    def _delete(self, path: str, version: int) -> None:
        node = self._at_version(path, version)
        if node.children:
            raise NotEmpty(path)
        self._remove(path)
        self._undo.append(lambda: self._insert(path, node))
        self._events += (
            WatchEvent(EventType.DELETED, path),
            WatchEvent(EventType.CHILDREN, parent_of(path)),
        )

    def _at_version(self, path: str, version: int) -> Node:
        node = self.nodes.get(path)
        if node is None:
            raise NoNode(path)
        if version not in (ANY_VERSION, node.version):
            raise BadVersion(path)
        return node

    def _insert(self, path: str, node: Node) -> None:
        self.nodes[path] = node
        if node.owner:
            self.ephemerals.setdefault(node.owner, {})[path] = None
        self._change_children(path, present=True)
        self._undo.append(lambda: self._remove(path))

    def _remove(self, path: str) -> None:
        node = self.nodes.pop(path)
        if node.owner:
            self.ephemerals.get(node.owner, {}).pop(path, None)
        self._change_children(path, present=False)

    def _change_children(self, path: str, *, present: bool) -> None:
        parent = self.nodes[parent_of(path)]
        before = parent.pzxid
        self._undo.append(lambda: setattr(parent, "pzxid", before))
        parent.pzxid = self.zxid
        name = path.rpartition("/")[2]
        if present:
            parent.children[name] = None
        else:
            parent.children.pop(name, None)

    # --- reading

    def get(self, path: str) -> tuple[bytes, Stat]:
        """The data of a node. Raises NoNode."""
        node = self._at_version(path, ANY_VERSION)
        return node.data, node.stat

    def children(self, path: str) -> list[str]:
        """The sorted names of the children. Raises NoNode."""
        return sorted(self._at_version(path, ANY_VERSION).children)
