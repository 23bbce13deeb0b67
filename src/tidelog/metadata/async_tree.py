"""AsyncTree: the operations of a live ZooKeeper on the broker's loop.

Calls are pipelined: a caller may start many before the first is answered, and ZooKeeper answers in order. If
the connection is lost, a read is sent again over the next one. A write whose answer was lost raises
ConnectionLost, and the caller reads the node to find out the outcome. Every call raises SessionExpired when
the session expires.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import Enum
from typing import Protocol, TypeAlias

from tidelog.metadata.tree import (
    ANY_VERSION,
    Delete,
    NodeExists,
    NoNode,
    Operation,
    Result,
    Stat,
    TreeUnavailable,
    Watch,
    child_of,
    parent_of,
)


class ConnectionLost(TreeUnavailable):
    """The connection was lost before the answer. The change may have been made or not."""

    reason = "the connection to ZooKeeper was lost, and the outcome of the change is not known"


class SessionExpired(TreeUnavailable):
    """The session has expired, and its ephemeral nodes are deleted. The write may have been made before."""

    reason = "the ZooKeeper session has expired"


class SessionEvent(Enum):
    CONNECTED = "connected"
    """The session has a connection again. Its watches are set again, and missed changes are delivered."""

    DISCONNECTED = "disconnected"
    """The connection is lost; the session lives on until its time-out."""

    EXPIRED = "expired"
    """The session is over, with its ephemeral nodes and watches. The next session begins by itself."""

    AUTHENTICATION_FAILED = "authentication failed"
    """ZooKeeper refused the credentials: no call will succeed."""


SessionListener: TypeAlias = Callable[[SessionEvent], None]
"""Called on the loop. EXPIRED comes before any call of the new session succeeds."""


class AsyncTree(Protocol):
    """Watches and listeners are called on the loop, in the order of the events.

    The event of a watch comes before the answer to any later read that shows the change.
    """

    @property
    def session_id(self) -> int:
        """The id of the session, the `ephemeral_owner` of its nodes; 0 before the first connection."""

    @property
    def session_timeout(self) -> float:
        """The session time-out in seconds, as ZooKeeper chose it."""

    def listen(self, listener: SessionListener) -> None: ...

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        """Create a node and return its path, with ten digits appended if `sequential`.

        Raises NodeExists, NoNode if the parent is missing, NoChildrenForEphemerals.
        """

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        """The data of a node. The watch is called when it changes or is deleted. Raises NoNode."""

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        """Replace the data of a node. Raises NoNode, and BadVersion if it has another version."""

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Remove a node. Raises NoNode, BadVersion, NotEmpty."""

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        """The Stat of a node, or None. The watch is called when it is created, changes or is deleted."""

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """The sorted names of the children. The watch is called when they change or the node is deleted."""

    async def multi(self, operations: Sequence[Operation]) -> list[Result]:
        """Do all operations in order, or none: then raises the error of the first failed one."""

    async def get_all(self, paths: Iterable[str]) -> dict[str, tuple[bytes, Stat]]:
        """The data of many nodes, read in a pipeline. Missing nodes are left out."""

    async def children_of_all(self, paths: Iterable[str]) -> dict[str, list[str]]:
        """The children of many nodes, read in a pipeline. Missing nodes are left out."""

    async def close(self) -> None:
        """End the session and delete its ephemeral nodes."""


async def ensure_path(tree: AsyncTree, path: str) -> None:
    """Create a node and its parents without data, unless they exist."""
    while path != "/" and await tree.exists(path) is None:
        await ensure_path(tree, parent_of(path))
        try:
            await tree.create(path)
        except NodeExists:
            return
        except ConnectionLost:
            continue  # look whether it was created
        return


async def subtree(tree: AsyncTree, path: str) -> list[str]:
    """The paths of a node and all nodes below it, parents before children; empty if there is none."""
    found: list[str] = []
    level = [path]
    while level:
        children = await tree.children_of_all(level)
        found += [node for node in level if node in children]
        level = [child_of(node, name) for node in level for name in children.get(node, ())]
    return found


async def delete_recursively(tree: AsyncTree, path: str, *, at_once: int = 500) -> None:
    """Delete a node and all nodes below it, children first, in several steps if there are many."""
    doomed = await subtree(tree, path)
    doomed.reverse()
    for start in range(0, len(doomed), at_once):
        try:
            await tree.multi([Delete(node) for node in doomed[start : start + at_once]])
        except NoNode:
            continue  # another session deletes the same nodes


async def within_one_session(tree: AsyncTree, work: Callable[[], Awaitable[None]]) -> None:
    """Repeat `work` until it ends in the session in which it began, so that its ephemeral nodes exist."""
    expirations = 0

    def note(event: SessionEvent) -> None:
        nonlocal expirations
        expirations += event is SessionEvent.EXPIRED

    tree.listen(note)
    while True:
        before = expirations
        try:
            await work()
        except SessionExpired:
            continue  # the next call waits for the new session
        if expirations == before:
            return
