"""Access rules: who may do which operation on which resources. Kafka calls a rule an ACL."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from tidelog.security.operations import AclOperation, AclResourceType, title

WILDCARD: Final = "*"
"""As the name of a literal pattern: all resources of a type. As a host: all hosts."""

WILDCARD_PRINCIPAL: Final = "User:*"


class PatternType(IntEnum):
    """How the name of a pattern matches resources. ANY and MATCH are only for filters."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclPermissionType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


class ResourcePattern(NamedTuple):
    """The resources of a rule: the one with this name, or those whose names begin with it."""

    resource_type: AclResourceType
    name: str
    pattern_type: PatternType = PatternType.LITERAL


class AccessControlEntry(NamedTuple):
    """A rule without its resources."""

    principal: str
    host: str
    operation: AclOperation
    permission: AclPermissionType


@dataclass(slots=True, frozen=True)
class AclBinding:
    """An ACL: allows or denies a principal, such as User:alice, an operation on resources of a pattern."""

    resource_type: AclResourceType
    name: str
    principal: str
    operation: AclOperation
    permission: AclPermissionType = AclPermissionType.ALLOW
    host: str = WILDCARD
    pattern_type: PatternType = PatternType.LITERAL

    @property
    def pattern(self) -> ResourcePattern:
        return ResourcePattern(self.resource_type, self.name, self.pattern_type)

    @property
    def entry(self) -> AccessControlEntry:
        return AccessControlEntry(self.principal, self.host, self.operation, self.permission)

    @classmethod
    def of(cls, pattern: ResourcePattern, entry: AccessControlEntry) -> AclBinding:
        resource_type, name, pattern_type = pattern
        principal, host, operation, permission = entry
        return cls(resource_type, name, principal, operation, permission, host, pattern_type)


@dataclass(slots=True, frozen=True)
class AclBindingFilter:
    """A filter of ACLs. None and ANY match everything."""

    resource_type: AclResourceType = AclResourceType.ANY
    name: str | None = None
    principal: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermissionType = AclPermissionType.ANY
    host: str | None = None
    pattern_type: PatternType = PatternType.ANY

    def matches_pattern(self, pattern: ResourcePattern) -> bool:
        """Whether the pattern is wanted. MATCH wants every pattern that has the named resource."""
        if self.resource_type not in (AclResourceType.ANY, pattern.resource_type):
            return False
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, pattern.pattern_type):
            return False
        if self.name is None or self.name == pattern.name:
            return True
        if self.pattern_type is not PatternType.MATCH:
            return False
        if pattern.pattern_type is PatternType.LITERAL:
            return pattern.name == WILDCARD
        return self.name.startswith(pattern.name)

    def matches_entry(self, entry: AccessControlEntry) -> bool:
        return (
            self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation in (AclOperation.ANY, entry.operation)
            and self.permission in (AclPermissionType.ANY, entry.permission)
        )

    def matches(self, binding: AclBinding) -> bool:
        return self.matches_pattern(binding.pattern) and self.matches_entry(binding.entry)


RESOURCE_TYPES: Final = tuple(kind for kind in AclResourceType if kind > AclResourceType.ANY)
RESOURCE_TYPE_OF_TITLE: Final = {title(kind): kind for kind in RESOURCE_TYPES}
OPERATION_OF_TITLE: Final = {title(operation): operation for operation in AclOperation if operation > 1}
PERMISSION_OF_TITLE: Final = {
    title(permission): permission for permission in (AclPermissionType.DENY, AclPermissionType.ALLOW)
}
