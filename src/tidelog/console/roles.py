"""Roles: what a principal may do on the console, by patterns of clusters and resources.

A viewer sees everything and reads records, an operator also does the daily work (produce, reset offsets, edit
topics, abort transactions), an admin may do everything. A file of grants gives roles to principals and to the
groups of an OIDC provider:

    [roles]
    default = "viewer"              # everybody who has logged in; "none" if left out

    [[roles.grants]]
    role = "operator"
    principals = ["User:alice"]
    groups = ["billing-team"]
    clusters = ["prod*"]            # all if left out
    resources = ["topic:billing-*", "group:billing-*"]   # all if left out
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from fnmatch import fnmatchcase
from typing import Final

from tidelog.config import ConfigError

ALL: Final = ("*",)


class Role(IntEnum):
    """Each role may do what the roles before it may do."""

    NONE = 0
    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3


OPERATOR_ACTIONS: Final = frozenset(
    (
        "cluster.elect",
        "group.delete",
        "group.reset",
        "records.export",
        "records.import",
        "records.produce",
        "records.replay",
        "topic.create",
        "topic.edit",
        "topic.truncate",
        "transaction.abort",
    )
)
"""What an operator may do beyond a viewer. An action that is not known here needs an admin."""


WHOLE_CLUSTER: Final = frozenset(
    ("acl.view", "connection.view", "pipeline.view", "quota.view", "transaction.view", "user.view")
)
"""Lists whose rows are no topics or groups: a role for some resources does not open them."""


def needed_role(action: str) -> Role:
    """The least role that may do an action."""
    _, _, verb = action.rpartition(".")
    if verb in ("view", "read", "search"):
        return Role.VIEWER
    return Role.OPERATOR if action in OPERATOR_ACTIONS else Role.ADMIN


@dataclass(slots=True, frozen=True)
class Grant:
    """A role for principals and groups. Clusters and resources are patterns with `*`."""

    role: Role
    principals: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ALL
    resources: tuple[str, ...] = ALL

    def is_for(self, principal: str, groups: Iterable[str]) -> bool:
        return any(fnmatchcase(principal, wanted) for wanted in self.principals) or any(
            group in self.groups for group in groups
        )

    def covers(self, cluster: str, resource: str) -> bool:
        """Whether the grant is for a resource such as `topic:orders`; "" is the cluster as a whole."""
        if not any(fnmatchcase(cluster, wanted) for wanted in self.clusters):
            return False
        if self.resources == ALL:
            return True
        return bool(resource) and any(fnmatchcase(resource, wanted) for wanted in self.resources)


@dataclass(slots=True, frozen=True)
class Roles:
    """All grants, and the role of everybody who has logged in."""

    grants: tuple[Grant, ...] = ()
    default: Role = Role.NONE
    _cache: dict[tuple[str, tuple[str, ...]], tuple[Grant, ...]] = field(default_factory=dict, repr=False)

    def role(self, principal: str, groups: tuple[str, ...], cluster: str, resource: str) -> Role:
        """The highest role of a principal for a resource."""
        granted = (
            grant.role for grant in self.grants_of(principal, groups) if grant.covers(cluster, resource)
        )
        return max(granted, default=self.default)

    def may(self, principal: str, groups: tuple[str, ...], action: str, cluster: str, resource: str) -> bool:
        """Whether a principal may do an action. A list is open to all if its rows are filtered one by one."""
        needed = needed_role(action)
        if self.role(principal, groups, cluster, resource) >= needed:
            return True
        # A list has no resource of its own: a viewer of some resources may open it.
        return (
            needed is Role.VIEWER
            and action not in WHOLE_CLUSTER
            and not resource
            and any(
                grant.role >= Role.VIEWER and any(fnmatchcase(cluster, each) for each in grant.clusters)
                for grant in self.grants_of(principal, groups)
            )
        )

    def sees_all(self, principal: str, groups: tuple[str, ...], cluster: str) -> bool:
        """Whether no resource of the cluster is hidden from the principal."""
        return self.role(principal, groups, cluster, "") >= Role.VIEWER

    def grants_of(self, principal: str, groups: tuple[str, ...]) -> tuple[Grant, ...]:
        key = (principal, groups)
        found = self._cache.get(key)
        if found is None:
            found = tuple(grant for grant in self.grants if grant.is_for(principal, groups))
            if len(self._cache) > 10_000:
                self._cache.clear()
            self._cache[key] = found
        return found


EVERYTHING: Final = Roles(default=Role.ADMIN)
"""The roles of a console without a login."""


def role_named(text: object, setting: str) -> Role:
    """A role by its name. Raises ConfigError."""
    names = [role.name.lower() for role in Role]
    if not isinstance(text, str) or text.lower() not in names:
        raise ConfigError(setting, str(text), f"expected one of {', '.join(names)}")
    return Role[text.upper()]


def parse_roles(table: Mapping[str, object], setting: str) -> Roles:
    """The roles of a table of a file. Raises ConfigError that names the wrong value."""
    unknown = sorted(set(table) - {"default", "grants"})
    if unknown:
        raise ConfigError(setting, unknown[0], f"unknown name {unknown[0]}; expected default and grants")
    default = role_named(table.get("default", "none"), f"{setting}: default")
    listed = table.get("grants", [])
    if not isinstance(listed, list):
        raise ConfigError(setting, str(listed), "grants is not a list: begin each with [[roles.grants]]")
    return Roles(tuple(_grant(entry, at, setting) for at, entry in enumerate(listed, 1)), default)


def _grant(entry: object, at: int, setting: str) -> Grant:
    where = f"{setting}: grant {at}"
    if not isinstance(entry, dict) or "role" not in entry:
        raise ConfigError(where, str(entry), "expected a role")
    unknown = sorted(set(entry) - {"role", "principals", "groups", "clusters", "resources"})
    if unknown:
        raise ConfigError(where, unknown[0], "expected role, principals, groups, clusters or resources")
    grant = Grant(
        role_named(entry["role"], f"{where}: role"),
        _texts(entry.get("principals", []), f"{where}: principals"),
        _texts(entry.get("groups", []), f"{where}: groups"),
        _texts(entry.get("clusters", ALL), f"{where}: clusters"),
        _texts(entry.get("resources", ALL), f"{where}: resources"),
    )
    if not grant.principals and not grant.groups:
        raise ConfigError(where, "", "expected principals or groups")
    for name in grant.principals:
        if ":" not in name:
            raise ConfigError(f"{where}: principals", name, f"a principal has a type: write User:{name}")
    for name in grant.resources:
        if name != "*" and ":" not in name:
            raise ConfigError(f"{where}: resources", name, f"expected a kind, such as topic:{name}")
    return grant


def _texts(value: object, where: str) -> tuple[str, ...]:
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return tuple(value)
    raise ConfigError(where, str(value), "expected a list of texts")
