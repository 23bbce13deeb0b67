"""The access rules and filters that the flags of `tidelog acls` mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidelog.security.acl import (
    WILDCARD,
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    AclPermissionType,
    PatternType,
    ResourcePattern,
)
from tidelog.security.acl_templates import CONSUMER_OPERATIONS, PRODUCER_OPERATIONS
from tidelog.security.operations import CLUSTER_NAME, OPERATIONS_OF, AclOperation, AclResourceType, title

TOPIC, GROUP, CLUSTER = AclResourceType.TOPIC, AclResourceType.GROUP, AclResourceType.CLUSTER
TRANSACTIONAL_ID, USER = AclResourceType.TRANSACTIONAL_ID, AclResourceType.USER
DELEGATION_TOKEN = AclResourceType.DELEGATION_TOKEN

PATTERNS = {kind.name.lower(): kind for kind in PatternType if kind is not PatternType.UNKNOWN}
OPERATIONS = {operation.name.replace("_", ""): operation for operation in AclOperation if operation > 1}

Rules = dict[ResourcePattern, dict[AccessControlEntry, None]]


@dataclass(slots=True)
class AclFlags:
    """The flags of one call. The methods raise ValueError for flags that do not go together."""

    add: bool = False
    remove: bool = False
    listing: bool = False
    topics: Sequence[str] = ()
    groups: Sequence[str] = ()
    transactional_ids: Sequence[str] = ()
    delegation_tokens: Sequence[str] = ()
    user_principals: Sequence[str] = ()
    cluster: bool = False
    pattern: str = "literal"
    allow_principals: Sequence[str] = ()
    deny_principals: Sequence[str] = ()
    allow_hosts: Sequence[str] = ()
    deny_hosts: Sequence[str] = ()
    principals: Sequence[str] = ()
    operations: Sequence[str] = ()
    producer: bool = False
    consumer: bool = False
    idempotent: bool = False

    def check(self) -> None:
        if self.add + self.remove + self.listing != 1:
            raise ValueError("expected exactly one of --list, --add and --remove")
        given = {
            "--allow-principal": self.allow_principals,
            "--deny-principal": self.deny_principals,
            "--allow-host": self.allow_hosts,
            "--deny-host": self.deny_hosts,
            "--operation": self.operations,
        }
        refused = {"--producer": self.producer, "--consumer": self.consumer}
        for flag, wanted in refused.items():
            for other in ("--operation", "--deny-principal", "--deny-host"):
                if wanted and given[other]:
                    raise ValueError(f"{flag} does not go with {other}")
        for other in ("--producer", "--consumer", "--allow-principal", "--deny-principal", "--allow-host"):
            if self.listing and (refused.get(other) or given.get(other)):
                raise ValueError(f"--list does not go with {other}")
        if self.principals and not self.listing:
            raise ValueError("--principal goes with --list alone")
        if self.producer and not self.topics:
            raise ValueError("--producer needs a --topic")
        if self.idempotent and not self.producer:
            raise ValueError("--idempotent goes with --producer")
        if self.consumer and (
            not self.topics
            or not self.groups
            or (not self.producer and (self.cluster or self.transactional_ids))
        ):
            raise ValueError("--consumer needs a --topic and a --group, without --cluster and the like")
        if self.add and not (self.allow_principals or self.deny_principals):
            raise ValueError("--add needs --allow-principal or --deny-principal")
        if self.add and self.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
            raise ValueError(f"a new rule cannot have --resource-pattern-type {self.pattern}")
        if not self.listing and not any(self._resources()):
            raise ValueError(
                "expected at least one resource: --topic, --group, --cluster, --transactional-id, "
                "--delegation-token or --user-principal"
            )
        for principal in (*self.allow_principals, *self.deny_principals, *self.principals):
            if ":" not in principal:
                raise ValueError(f"the principal {principal} has no type: write User:{principal}")

    @property
    def pattern_type(self) -> PatternType:
        found = PATTERNS.get(self.pattern.lower())
        if found is None:
            raise ValueError(f"--resource-pattern-type {self.pattern}: expected one of {', '.join(PATTERNS)}")
        return found

    def _resources(self) -> Iterator[ResourcePattern]:
        pattern = self.pattern_type
        for kind, names in (
            (TOPIC, self.topics),
            (GROUP, self.groups),
            (TRANSACTIONAL_ID, self.transactional_ids),
            (DELEGATION_TOKEN, self.delegation_tokens),
            (USER, self.user_principals),
        ):
            for name in names:
                yield ResourcePattern(kind, name.strip(), pattern)
        if self.cluster or self.idempotent:
            yield ResourcePattern(CLUSTER, CLUSTER_NAME, PatternType.LITERAL)

    def rules(self) -> Rules:
        """The rules of each resource; none for a resource whose rules are all to be removed."""
        found: Rules = {}
        for resource in self._resources():
            kind = resource.resource_type
            operations: tuple[AclOperation, ...] = ()
            if self.producer:
                operations += PRODUCER_OPERATIONS.get(kind, ())
                if kind is CLUSTER and self.idempotent:
                    operations += (AclOperation.IDEMPOTENT_WRITE,)
            if self.consumer:
                operations += CONSUMER_OPERATIONS.get(kind, ())
            if not self.producer and not self.consumer:
                operations = tuple(self._operations(kind))
            elif not operations:
                continue
            found[resource] = dict.fromkeys(self._entries(operations))
        return found

    def _operations(self, kind: AclResourceType) -> Iterator[AclOperation]:
        allowed = (*OPERATIONS_OF[kind], AclOperation.ALL)
        for text in self.operations or ("All",):
            operation = OPERATIONS.get(text.strip().upper().replace("_", ""))
            if operation not in allowed:
                names = ", ".join(map(title, allowed))
                raise ValueError(f"--operation {text}: a resource of the type {kind.name} has {names}")
            yield operation

    def _entries(self, operations: Sequence[AclOperation]) -> Iterator[AccessControlEntry]:
        for principals, hosts, permission in (
            (self.allow_principals, self.allow_hosts, AclPermissionType.ALLOW),
            (self.deny_principals, self.deny_hosts, AclPermissionType.DENY),
        ):
            for principal in principals:
                for host in hosts or (WILDCARD,):
                    for operation in operations:
                        yield AccessControlEntry(principal.strip(), host.strip(), operation, permission)

    def bindings(self) -> list[AclBinding]:
        return [
            AclBinding.of(resource, entry) for resource, entries in self.rules().items() for entry in entries
        ]

    def filters(self) -> list[AclBindingFilter]:
        """The filters of the resources to list: one for everything without a resource."""
        wanted = [
            AclBindingFilter(kind, name, pattern_type=pattern) for kind, name, pattern in self._resources()
        ]
        return wanted or [AclBindingFilter()]


def filters_of(resource: ResourcePattern, entries: Sequence[AccessControlEntry]) -> list[AclBindingFilter]:
    """The filters that match these rules of a resource, or all of its rules if there are none."""
    kind, name, pattern = resource
    if not entries:
        return [AclBindingFilter(kind, name, pattern_type=pattern)]
    return [
        AclBindingFilter(
            kind, name, entry.principal, entry.operation, entry.permission, entry.host, pattern
        )
        for entry in entries
    ]
