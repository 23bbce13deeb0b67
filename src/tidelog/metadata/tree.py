"""The tree of small nodes that a cluster keeps its knowledge in: the operations of ZooKeeper that we use.

All calls block and may be made from any thread. A change is on disk (or with the ensemble) when the call
returns. `multi` does all of its operations or none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias

ANY_VERSION = -1


class TreeError(Exception):
    """An operation on the tree that was not done; `path` is the node it was about."""

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


class TreeUnavailable(TreeError):
    """The store cannot be reached, read or written; nothing is known to have changed."""

    reason = "the tree cannot be read or written"


class Stat(NamedTuple):
    """What the tree knows of a node besides its data.

    `czxid` and `mzxid` number the changes that made it and that last set its data, over the whole tree;
    `version` counts the changes of data, `cversion` those of children; times are in milliseconds;
    `ephemeral_owner` is the session the node goes with, 0 for one that stays.
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
"""Called once, at the next change of what was asked, after that change is durable.

It may be called from any thread, and from within the call that made the change: it hands the event on
(to its loop) and returns.
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
    """Do the other operations only while this node has this version."""

    path: str
    version: int


Operation: TypeAlias = Create | SetData | Delete | Check
Result: TypeAlias = str | Stat | None
"""What an operation gives: Create the path made, SetData the new Stat, Delete and Check nothing."""


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
        """Make a node and return its path, to which `sequential` appended ten digits.

        Raises NodeExists, NoNode where the parent is missing, NoChildrenForEphemerals.
        """

    def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        """The data of a node (empty for none). The watch sees its next change or its end. Raises NoNode."""

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        """Replace the data of a node. Raises NoNode, and BadVersion where it is not at `version`."""

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Remove a node. Raises NoNode, BadVersion, NotEmpty."""

    def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        """The Stat of a node, or None; the watch is set either way and sees its creation, change or end."""

    def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """The names of the children, sorted. The watch sees one made or removed, or the node's end."""

    def multi(self, operations: Sequence[Operation]) -> list[Result]:
        """Do all operations in order, or none and raise the error of the first that cannot be done."""

    def close(self) -> None:
        """End the session; its ephemeral nodes go."""


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def child_of(parent: str, name: str) -> str:
    return f"/{name}" if parent == "/" else f"{parent}/{name}"


def check_path(path: str) -> None:
    """Refuse what is not an absolute path of named nodes, before it becomes a node nobody can reach."""
    if path == "/":
        return
    if not path.startswith("/") or path.endswith("/") or "//" in path or "\0" in path:
        raise ValueError(f"{path!r} is not the path of a node: it has to look like /name/name")
    if any(name in (".", "..") for name in path.split("/")):
        raise ValueError(f"{path!r} is not the path of a node: '.' and '..' have no meaning in the tree")


def ensure_path(tree: Tree, path: str) -> None:
    """Make a node and its parents without data, unless they are there."""
    if path == "/" or tree.exists(path) is not None:
        return
    try:
        tree.create(path, make_parents=True)
    except NodeExists:
        pass


def walk(tree: Tree, path: str = "/") -> Iterator[tuple[str, bytes, Stat]]:
    """A node and everything below it, parents before children, names in order."""
    try:
        data, stat = tree.get(path)
        names = tree.children(path)
    except NoNode:
        return
    yield path, data, stat
    for name in names:
        yield from walk(tree, child_of(path, name))


def delete_recursively(tree: Tree, path: str) -> None:
    """Remove a node and everything below it in one step; nothing happens where there is none."""
    operations = [Delete(node) for node, _, _ in walk(tree, path)]
    operations.reverse()
    if operations:
        tree.multi(operations)
