"""ChangeWatch and SharedWatch: the watches of the controller.

ZooKeeper calls a watch once. The event that follows reads the node and sets the watch again. A session keeps
its watches until they are called, even after their term has ended. So a watch must not keep the term in
memory.
"""

from __future__ import annotations

from collections.abc import Callable

from tidelog.metadata.tree import Watch, WatchEvent


class ChangeWatch:
    """A watch that is set at most once at a time; `changed` is called with each event.

    Make a new ChangeWatch for a new session: the old one is gone.
    """

    __slots__ = ("_changed", "_is_set")

    def __init__(self, changed: Callable[[WatchEvent], None]) -> None:
        self._changed: Callable[[WatchEvent], None] | None = changed
        self._is_set = False

    def close(self) -> None:
        """Ignore the events from now on."""
        self._changed = None

    def set(self) -> Watch | None:
        """The watch to read with; None while it is set already."""
        if self._is_set:
            return None
        self._is_set = True
        return self._fire

    def _fire(self, event: WatchEvent) -> None:
        self._is_set = False
        if self._changed is not None:
            self._changed(event)


class SharedWatch:
    """The watch of all terms on nodes of one kind, such as all topics.

    Its events go to the handler of the present term. So a session has the watch once for each node.
    """

    __slots__ = ("handler",)

    def __init__(self) -> None:
        self.handler: Callable[[WatchEvent], None] | None = None

    def __call__(self, event: WatchEvent) -> None:
        if self.handler is not None:
            self.handler(event)
