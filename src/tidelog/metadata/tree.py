"""Tree: the blocking operations of ZooKeeper that the broker uses.

Any thread may call them. A change is durable when the call returns. `multi` does all of its operations or
none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias

ANY_VERSION = -1


class TreeError(Exception):
    """An operation on the tree failed; `path` is its node."""

    def __init__(self, path: str, message: str | None = None) -> None:
        super().__init__(message or f"{path}: {self.reason}")
        self.path = path

    reason = "the operation failed"


class NoNode(TreeError):
    reason = "there is no such node, or its parent is missing"


class NodeExists(TreeError):
    reason = "the node exists already"


class BadVersion(TreeError):
    reason = "the node has another version than the one expected"


class NotEmpty(TreeError):
    reason = "the node has children"


class NoChildrenForEphemerals(TreeError):
    reason = "an ephemeral node cannot have children"


class NoAuth(TreeError):
    reason = "the ACL of the node does not allow this"


class DataTooLarge(TreeError):
    """The request is larger than the tree accepts. Nothing was changed."""

    reason = "the data is too large"


class TreeUnavailable(TreeError):
    """The tree cannot be reached, read or written. The change may have been made or not."""

    reason = "the tree cannot be read or written"


class Stat(NamedTuple):
    """The metadata of a node.

    `czxid` and `mzxid` are the numbers of the changes that created it and last set its data, over the whole
    tree; `version` counts the changes of data, `cversion` those of children; times are in milliseconds;
    `ephemeral_owner` is the session of an ephemeral node, 0 for a persistent one.
    """

    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    ephemeral_owner: int
    children: int


class EventType(Enum):
    CREATED = "created"
    DELETED = "deleted"
    CHANGED = "changed"
    CHILDREN = "children"


class WatchEvent(NamedTuple):
    type: EventType
    path: str


Watch: TypeAlias = Callable[[WatchEvent], None]
"""Called once, with the next change of the watched node, after that change is durable.

It may be called from any thread, and during the call that made the change: it should only pass the event to
its loop and return.
"""


class Create(NamedTuple):
    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


class SetData(NamedTuple):
    path: str
    data: bytes
    version: int = ANY_VERSION


class Delete(NamedTuple):
    path: str
    version: int = ANY_VERSION


class Check(NamedTuple):
    """Do the other operations only if this node has this version."""

    path: str
    version: int


Operation: TypeAlias = Create | SetData | Delete | Check
Result: TypeAlias = str | Stat | None
"""The result of an operation: of Create the path, of SetData the new Stat, of Delete and Check None."""


class Tree(Protocol):
    def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
    ) -> str:
        """Create a node and return its path, with ten digits appended if `sequential`.

        Raises NodeExists, NoNode if the parent is missing, NoChildrenForEphemerals.
        """

    def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        """The data of a node. The watch is called when it changes or is deleted. Raises NoNode."""

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        """Replace the data of a node. Raises NoNode, and BadVersion if it has another version."""

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Remove a node. Raises NoNode, BadVersion, NotEmpty."""

    def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        """The Stat of a node, or None. The watch is called when it is created, changes or is deleted."""

    def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """The sorted names of the children. The watch is called when they change or the node is deleted."""

    def multi(self, operations: Sequence[Operation]) -> list[Result]:
        """Do all operations in order, or none: then raises the error of the first failed one."""

    def close(self) -> None:
        """End the session and delete its ephemeral nodes."""


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def child_of(parent: str, name: str) -> str:
    return f"/{name}" if parent == "/" else f"{parent}/{name}"


def check_path(path: str) -> None:
    """Refuse a path that is not absolute or has empty names, because such a node would be unreachable."""
    if path == "/":
        return
    if not path.startswith("/") or path.endswith("/") or "//" in path or "\0" in path:
        raise ValueError(f"{path!r} is not the path of a node: it has to look like /name/name")
    if any(name in (".", "..") for name in path.split("/")):
        raise ValueError(f"{path!r} is not the path of a node: '.' and '..' have no meaning in the tree")


def ensure_path(tree: Tree, path: str) -> None:
    """Create a node and its parents without data, unless they exist."""
    if path == "/" or tree.exists(path) is not None:
        return
    try:
        tree.create(path, make_parents=True)
    except NodeExists:
        pass


def walk(tree: Tree, path: str = "/") -> Iterator[tuple[str, bytes, Stat]]:
    """A node and all nodes below it, parents before children, sorted by name."""
    try:
        data, stat = tree.get(path)
        names = tree.children(path)
    except NoNode:
        return
    yield path, data, stat
    for name in names:
        yield from walk(tree, child_of(path, name))


def delete_recursively(tree: Tree, path: str) -> None:
    """Delete a node and all nodes below it in one step, if it exists."""
    operations = [Delete(node) for node, _, _ in walk(tree, path)]
    operations.reverse()
    if operations:
        tree.multi(operations)
