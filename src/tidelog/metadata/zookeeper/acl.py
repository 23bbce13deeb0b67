"""The ACLs of new nodes, as Kafka sets them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from tidelog.metadata import paths

READ = 1
ALL = 31


class Acl(NamedTuple):
    """The permissions of an identity on a node, as a sum of ZooKeeper's bits."""

    permissions: int
    scheme: str
    id: str


AclOf: TypeAlias = Callable[[str], Sequence[Acl]]
"""The ACL of a new node, by its path below the chroot."""

OPEN = (Acl(ALL, "world", "anyone"),)
CREATOR_ALL = (Acl(ALL, "auth", ""),)
CREATOR_ALL_OTHERS_READ = (*CREATOR_ALL, Acl(READ, "world", "anyone"))

SENSITIVE = (f"{paths.CONFIG}/users", f"{paths.CONFIG}/brokers", paths.TOKENS)
"""Nodes with credentials: nobody but the brokers may read them."""


def open_acl(path: str) -> Sequence[Acl]:
    """The ACL of a cluster without ACLs: all permissions for everybody."""
    return OPEN


def secure_acl(path: str) -> Sequence[Acl]:
    """The ACLs of `zookeeper.set.acl=true`: only the creator may change a node, everybody may read it.

    Nodes with credentials are readable for the creator only. `/consumers` stays open for old consumers.
    """
    if path == paths.CONSUMERS:
        return OPEN
    return CREATOR_ALL if path.startswith(SENSITIVE) else CREATOR_ALL_OTHERS_READ
