"""AclStore: access rules in the tree, as Kafka 3.9 keeps them.

The rules of a pattern are one node: /kafka-acl/<Type>/<name> for a literal name, and
/kafka-acl-extended/prefixed/<Type>/<name> for a prefix. A change writes the node and a notification in one
step. A node that another broker changed meanwhile is read again, so that no change is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from tidelog.errors import InvalidRequest, KafkaStorageError
from tidelog.metadata import paths
from tidelog.metadata.async_tree import AsyncTree, ConnectionLost, ensure_path
from tidelog.metadata.nodes import BadNode
from tidelog.metadata.operations import CHANGE_EXPIRY_MS, unread
from tidelog.metadata.security_nodes import AclChange, AclEntry, decode_acls, encode_acls
from tidelog.metadata.tree import (
    BadVersion,
    Create,
    DataTooLarge,
    Delete,
    NodeExists,
    NoNode,
    Operation,
    SetData,
    TreeError,
    Watch,
    check_path,
    child_of,
    parent_of,
)
from tidelog.security.acl import (
    OPERATION_OF_TITLE,
    PERMISSION_OF_TITLE,
    RESOURCE_TYPE_OF_TITLE,
    RESOURCE_TYPES,
    AccessControlEntry,
    PatternType,
    ResourcePattern,
)
from tidelog.security.operations import AclResourceType, title

Entries = tuple[AccessControlEntry, ...]

_log = logging.getLogger("tidelog.security.acls")

ROOTS = {PatternType.LITERAL: paths.ACLS, PatternType.PREFIXED: paths.PREFIXED_ACLS}
CHANGE_PREFIXES = {
    PatternType.LITERAL: paths.ACL_CHANGE_PREFIX,
    PatternType.PREFIXED: paths.EXTENDED_ACL_CHANGE_PREFIX,
}
ATTEMPTS = 100
"""How often a change is made again because another broker changed the same rules."""


MOST_BYTES = 256 * 1024
"""The most bytes of rules in one step: ZooKeeper takes up to 1 MB."""

RulesByPattern: TypeAlias = dict[ResourcePattern, Entries]


class AclChangeNotice(NamedTuple):
    """`pattern` is None if the notification is not understood: any rules may have changed."""

    sequence: int
    pattern: ResourcePattern | None


class AclStore:
    """Raises TreeUnavailable if the tree cannot be read or written, BadNode if a node is not understood."""

    def __init__(self, tree: AsyncTree) -> None:
        self._tree = tree

    async def prepare(self) -> None:
        """Create the parents of all nodes, unless they exist."""
        for root in ROOTS.values():
            for kind in RESOURCE_TYPES:
                await ensure_path(self._tree, child_of(root, title(kind)))
        for prefix in CHANGE_PREFIXES.values():
            await ensure_path(self._tree, parent_of(prefix))

    async def read_all(self) -> RulesByPattern:
        patterns: dict[str, ResourcePattern] = {}
        for pattern_type, root in ROOTS.items():
            parents = {
                child_of(root, kind): RESOURCE_TYPE_OF_TITLE.get(kind) for kind in await self._children(root)
            }
            for parent, names in (await self._tree.children_of_all(parents)).items():
                kind = parents[parent]
                if kind is not None:
                    for name in names:
                        patterns[child_of(parent, name)] = ResourcePattern(kind, name, pattern_type)
        found = await self._tree.get_all(patterns)
        return {patterns[path]: _decode(path, data) for path, (data, _) in found.items()}

    async def read(self, patterns: Iterable[ResourcePattern]) -> RulesByPattern:
        """The rules of these patterns; an empty tuple for a pattern without rules."""
        paths = {path_of(pattern): pattern for pattern in patterns}
        found = await self._tree.get_all(paths)
        return {
            pattern: _decode(path, found[path][0]) if path in found else () for path, pattern in paths.items()
        }

    async def change(
        self, pattern: ResourcePattern, after: Callable[[Entries], Iterable[AccessControlEntry]]
    ) -> Entries:
        """Replace the rules of a pattern by the result of `after` for its present rules, and notify all
        brokers.

        Returns the rules that are there then. Raises InvalidRequest if there cannot be so many rules.
        """
        path = path_of(pattern)
        for _ in range(ATTEMPTS):
            version: int | None = None
            present: Entries = ()
            try:
                data, stat = await self._tree.get(path)
                present, version = _decode(path, data), stat.version
            except NoNode:
                pass
            wanted = tuple(dict.fromkeys(after(present)))
            if wanted == present:
                return present
            try:
                await self._tree.multi([_written(path, wanted, version), _notice(pattern)])
                return wanted
            except (BadVersion, NodeExists, ConnectionLost):
                continue  # another broker changed the rules, or the outcome is not known
            except NoNode:
                await ensure_path(self._tree, parent_of(path))
            except DataTooLarge as error:
                raise InvalidRequest(f"{pattern.name} has too many rules: {error}") from error
        raise KafkaStorageError(f"other brokers change the rules of {pattern.name} all the time")

    async def add_all(
        self, added: Mapping[ResourcePattern, Iterable[AccessControlEntry]]
    ) -> RulesByPattern | None:
        """Add rules to several patterns in one step; returns the rules that each has then.

        None if the step fails, for instance because another broker changed one of them: `change` raises the
        reason.
        """
        patterns = {path_of(pattern): pattern for pattern in added}
        found = await self._tree.get_all(patterns)
        after: RulesByPattern = {}
        operations: list[Operation] = []
        size = 0
        for path, pattern in patterns.items():
            version: int | None = None
            present: Entries = ()
            if path in found:
                data, stat = found[path]
                present, version = _decode(path, data), stat.version
                size += len(data)
            after[pattern] = wanted = tuple(dict.fromkeys((*present, *added[pattern])))
            if wanted != present:
                operations += [_written(path, wanted, version), _notice(pattern)]
        if size > MOST_BYTES:
            return None
        try:
            if operations:
                await self._tree.multi(operations)
        except (BadVersion, NodeExists, NoNode, ConnectionLost, DataTooLarge):
            return None
        return after

    async def read_changes(
        self, pattern_type: PatternType, after: int, watch: Watch | None = None
    ) -> list[AclChangeNotice]:
        """The notifications with a number above `after`, in order. Old ones are deleted.

        The watch is called when a notification is added or deleted.
        """
        parent = parent_of(CHANGE_PREFIXES[pattern_type])
        by_path = {child_of(parent, name): _sequence(name) for name in await self._children(parent, watch)}
        found = await self._tree.get_all(unread(by_path, after))
        # By ZooKeeper's clock, not by that of a broker.
        limit = max((stat.ctime for _, stat in found.values()), default=0) - CHANGE_EXPIRY_MS
        notices = []
        for path, (data, stat) in found.items():
            if stat.ctime < limit:
                with suppress(NoNode, ConnectionLost):
                    await self._tree.delete(path)
            if by_path[path] > after:
                notices.append(AclChangeNotice(by_path[path], _changed_pattern(path, data)))
        return sorted(notices, key=lambda notice: notice.sequence)

    async def _children(self, path: str, watch: Watch | None = None) -> list[str]:
        try:
            return await self._tree.children(path, watch)
        except NoNode:
            return []


def path_of(pattern: ResourcePattern) -> str:
    """The node of a pattern. InvalidRequest if no node can have the name."""
    path = child_of(child_of(ROOTS[pattern.pattern_type], title(pattern.resource_type)), pattern.name)
    try:
        if "/" in pattern.name:
            raise ValueError
        check_path(path)
    except ValueError:
        raise InvalidRequest(f"no rule can be stored for the resource name {pattern.name!r}") from None
    return path


def _written(path: str, entries: Entries, version: int | None) -> Operation:
    if not entries:
        assert version is not None
        return Delete(path, version)
    data = encode_acls(
        [
            AclEntry(entry.principal, title(entry.permission), title(entry.operation), entry.host)
            for entry in entries
        ]
    )
    return Create(path, data) if version is None else SetData(path, data, version)


def _notice(pattern: ResourcePattern) -> Create:
    change = AclChange(pattern.resource_type.name, pattern.name, pattern.pattern_type.name)
    return Create(CHANGE_PREFIXES[pattern.pattern_type], change.encode(), sequential=True)


def _decode(path: str, data: bytes) -> Entries:
    try:
        return tuple(_entry(entry) for entry in decode_acls(data))
    except (BadNode, KeyError, TreeError) as error:
        raise BadNode(f"{path}: the access rules are not understood: {error}") from error


def _entry(entry: AclEntry) -> AccessControlEntry:
    return AccessControlEntry(
        entry.principal,
        entry.host,
        OPERATION_OF_TITLE[entry.operation],
        PERMISSION_OF_TITLE[entry.permission],
    )


def _changed_pattern(path: str, data: bytes) -> ResourcePattern | None:
    try:
        change = AclChange.decode(data)
        return ResourcePattern(
            AclResourceType[change.resource_type], change.name, PatternType[change.pattern_type]
        )
    except (BadNode, KeyError) as error:
        _log.error("%s: the change of access rules is not understood: %s", path, error)
        return None


def _sequence(name: str) -> int:
    digits = name[-10:]
    return int(digits) if digits.isdecimal() else -1
