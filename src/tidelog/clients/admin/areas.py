"""The modules with the calls of the admin client. Each is imported on the first use of one of its calls.

Their functions are the methods of `AsyncAdmin`. A tool makes two or three calls: importing the types and
messages of all modules would take longer than the answers.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

__all__ = [
    "AreaCall",
    "acls",
    "cluster",
    "configs",
    "group_offsets",
    "groups",
    "other_groups",
    "topics",
    "transactions",
    "users",
]

Method = Callable[..., object]


class AreaCall:
    """A method that is imported on first use. From then on its class has the method itself."""

    def __init__(self, module: str, name: str, wrap: Callable[[Method], Method] | None = None) -> None:
        self._module = module
        self._name = name
        self._wrap = wrap

    def wrapped(self, wrap: Callable[[Method], Method]) -> AreaCall:
        """The same method, wrapped in a function."""
        return AreaCall(self._module, self._name, wrap)

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner = owner

    def __get__(self, instance: object, owner: type) -> object:
        method: Method = getattr(import_module(self._module), self._name)
        if self._wrap is not None:
            method = self._wrap(method)
        setattr(self._owner, self._name, method)
        return method.__get__(instance, owner)


class Area:
    """Stands for a module until one of its calls is used."""

    def __init__(self, name: str) -> None:
        self._module = f"{__package__}.{name}"

    def __getattr__(self, name: str) -> AreaCall:
        return AreaCall(self._module, name)


if TYPE_CHECKING:
    from tidelog.clients.admin import (
        acls,
        cluster,
        configs,
        group_offsets,
        groups,
        other_groups,
        topics,
        transactions,
        users,
    )
else:
    acls = Area("acls")
    cluster = Area("cluster")
    configs = Area("configs")
    group_offsets = Area("group_offsets")
    groups = Area("groups")
    other_groups = Area("other_groups")
    topics = Area("topics")
    transactions = Area("transactions")
    users = Area("users")
