"""Watches: the callbacks of a session, by node and by the kind of change they wait for."""

from __future__ import annotations

from tidelog.metadata.tree import EventType, Watch

_Watches = dict[str, dict[Watch, None]]


class Watches:
    """Each callback is called once for the next event, also if it was added several times."""

    __slots__ = ("child", "data", "exist")

    def __init__(self) -> None:
        self.data: _Watches = {}
        self.exist: _Watches = {}
        """Watches of nodes that did not exist."""
        self.child: _Watches = {}

    def add_data(self, path: str, watch: Watch) -> None:
        self.data.setdefault(path, {})[watch] = None

    def add_exist(self, path: str, watch: Watch) -> None:
        self.exist.setdefault(path, {})[watch] = None

    def add_child(self, path: str, watch: Watch) -> None:
        self.child.setdefault(path, {})[watch] = None

    def take(self, kind: EventType, path: str) -> list[Watch]:
        """Remove and return the watches that an event concerns."""
        if kind is EventType.CHILDREN:
            return list(self.child.pop(path, ()))
        found = {**self.data.pop(path, {}), **self.exist.pop(path, {})}
        if kind is EventType.DELETED:
            found.update(self.child.pop(path, {}))
        return list(found)

    def clear(self) -> None:
        self.data.clear()
        self.exist.clear()
        self.child.clear()
