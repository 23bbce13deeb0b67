"""ChangeWatch: a watch of the controller that is set at most once at a time.

ZooKeeper calls a watch once. The event that follows reads the node again and sets the watch again.
"""

from __future__ import annotations

from collections.abc import Callable

from tidelog.metadata.tree import Watch, WatchEvent


class ChangeWatch:
    """`changed` is called with each event. Make a new ChangeWatch for a new session: the old one is gone."""

    __slots__ = ("_changed", "_is_set")

    def __init__(self, changed: Callable[[WatchEvent], None]) -> None:
        self._changed = changed
        self._is_set = False

    def set(self) -> Watch | None:
        """The watch to read with; None while it is set already."""
        if self._is_set:
            return None
        self._is_set = True
        return self._fire

    def _fire(self, event: WatchEvent) -> None:
        self._is_set = False
        self._changed(event)
