"""AclCache: all access rules in memory, and the decisions that follow from them.

A deny rule takes precedence over every allow rule. The rules of a resource are those of the literal pattern
with its name, of the wildcard, and of every prefix of its name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from tidelog.security.acl import (
    WILDCARD,
    WILDCARD_PRINCIPAL,
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    AclPermissionType,
    PatternType,
    ResourcePattern,
)
from tidelog.security.operations import AclOperation, AclResourceType

ALL: Final = AclOperation.ALL
DENY, ALLOW = AclPermissionType.DENY, AclPermissionType.ALLOW
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED

ALLOWED_BY: Final[Mapping[int, tuple[AclOperation, ...]]] = {
    operation: (operation, ALL) for operation in AclOperation
} | {
    AclOperation.DESCRIBE: (
        AclOperation.DESCRIBE,
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        ALL,
    ),
    AclOperation.DESCRIBE_CONFIGS: (AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS, ALL),
}
"""The operations whose allow rules allow an operation. A deny rule denies its own operation alone."""

Key = tuple[str, str, int]  # principal, host, operation


class _Rules:
    """The rules of one pattern."""

    __slots__ = ("allowed", "denied", "entries")

    def __init__(self, entries: Iterable[AccessControlEntry]) -> None:
        self.entries = tuple(entries)
        self.allowed: frozenset[Key] = frozenset(_keys(self.entries, ALLOW))
        self.denied: frozenset[Key] = frozenset(_keys(self.entries, DENY))


def _keys(entries: Sequence[AccessControlEntry], permission: AclPermissionType) -> Iterator[Key]:
    for entry in entries:
        if entry.permission is permission:
            yield entry.principal, entry.host, entry.operation


class _RulesOfType:
    """The rules of all patterns of a resource type."""

    __slots__ = ("_lengths", "literal", "prefix_lengths", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, _Rules] = {}
        self.prefixed: dict[str, _Rules] = {}
        self.prefix_lengths: tuple[int, ...] = ()
        self._lengths: Counter[int] = Counter()

    def of_pattern(self, pattern_type: PatternType) -> dict[str, _Rules]:
        return self.literal if pattern_type is LITERAL else self.prefixed

    def replace(self, pattern_type: PatternType, name: str, rules: _Rules) -> int:
        """Replace the rules of a pattern; returns the difference in their number."""
        patterns = self.of_pattern(pattern_type)
        before = patterns.pop(name, None)
        if rules.entries:
            patterns[name] = rules
        if pattern_type is PREFIXED:
            self._count_prefix(len(name), bool(rules.entries) - (before is not None))
        return len(rules.entries) - (0 if before is None else len(before.entries))

    def _count_prefix(self, length: int, change: int) -> None:
        """Note that there are more or fewer prefixes of a length."""
        self._lengths[length] += change
        is_known = length in self.prefix_lengths
        if is_known != (self._lengths[length] > 0):
            self.prefix_lengths = tuple(sorted(+self._lengths))

    def of_resource(self, name: str) -> list[_Rules]:
        found = []
        literal = self.literal
        if (rules := literal.get(name)) is not None:
            found.append(rules)
        if name != WILDCARD and (rules := literal.get(WILDCARD)) is not None:
            found.append(rules)
        for length in self.prefix_lengths:
            if (rules := self.prefixed.get(name[:length])) is not None and length <= len(name):
                found.append(rules)
        return found


class AclCache:
    """`generation` grows with every change: a decision of an older generation may be wrong."""

    def __init__(self, on_change: Callable[[int], None] = lambda generation: None) -> None:
        """`on_change` gets the generation of each change."""
        self._on_change = on_change
        self._types: dict[int, _RulesOfType] = {}
        self.generation = 0
        self.count = 0

    def replace(self, pattern: ResourcePattern, entries: Iterable[AccessControlEntry]) -> None:
        """Replace the rules of a pattern."""
        of_type = self._types.setdefault(pattern.resource_type, _RulesOfType())
        self.count += of_type.replace(pattern.pattern_type, pattern.name, _Rules(dict.fromkeys(entries)))
        self._changed()

    def replace_all(self, rules: Mapping[ResourcePattern, Iterable[AccessControlEntry]]) -> None:
        """Replace all rules."""
        types: dict[int, _RulesOfType] = {}
        count = 0
        for pattern, entries in rules.items():
            made = _Rules(dict.fromkeys(entries))
            if made.entries:
                of_type = types.setdefault(pattern.resource_type, _RulesOfType())
                count += of_type.replace(pattern.pattern_type, pattern.name, made)
        self._types, self.count = types, count
        self._changed()

    def _changed(self) -> None:
        self.generation += 1
        self._on_change(self.generation)

    def entries(self, pattern: ResourcePattern) -> tuple[AccessControlEntry, ...]:
        of_type = self._types.get(pattern.resource_type)
        rules = None if of_type is None else of_type.of_pattern(pattern.pattern_type).get(pattern.name)
        return () if rules is None else rules.entries

    def patterns(self) -> Iterator[ResourcePattern]:
        """The patterns that are there now. Rules may change while the caller rests between two."""
        for kind, of_type in list(self._types.items()):
            literal, prefixed = list(of_type.literal), list(of_type.prefixed)
            for name in literal:
                yield ResourcePattern(AclResourceType(kind), name, LITERAL)
            for name in prefixed:
                yield ResourcePattern(AclResourceType(kind), name, PREFIXED)

    def matching(self, wanted: AclBindingFilter) -> Iterator[AclBinding | None]:
        """The matching rules, with a None before each pattern. The caller may rest at a None."""
        for pattern in self.patterns():
            yield None
            if wanted.matches_pattern(pattern):
                for entry in self.entries(pattern):
                    if wanted.matches_entry(entry):
                        yield AclBinding.of(pattern, entry)

    # -- decisions

    def decide(
        self, principal: str, host: str, operation: AclOperation, resource_type: AclResourceType, name: str
    ) -> bool | None:
        """Whether the rules allow an operation; None if the resource has no rule at all."""
        of_type = self._types.get(resource_type)
        found = [] if of_type is None else of_type.of_resource(name)
        if not found:
            return None
        who = [(p, h) for p in (principal, WILDCARD_PRINCIPAL) for h in (host, WILDCARD)]
        for rules in found:
            denied = rules.denied
            if denied:
                for principal, host in who:
                    if (principal, host, operation) in denied or (principal, host, ALL) in denied:
                        return False
        for rules in found:
            allowed = rules.allowed
            for principal, host in who:
                for allowing in ALLOWED_BY[operation]:
                    if (principal, host, allowing) in allowed:
                        return True
        return False

    def decide_any(
        self,
        principal: str,
        host: str,
        operation: AclOperation,
        resource_type: AclResourceType,
        *,
        without_rules: bool,
    ) -> bool:
        """Whether an operation is allowed on at least one resource of a type, known or not.

        As in Kafka, implied operations do not count here. `without_rules` says whether resources without
        rules are open to all.
        """
        of_type = self._types.get(resource_type) or _RulesOfType()
        keys = [
            (p, h, o)
            for p in (principal, WILDCARD_PRINCIPAL)
            for h in (host, WILDCARD)
            for o in (operation, ALL)
        ]
        denied_names = {
            name for name, rules in of_type.literal.items() if not rules.denied.isdisjoint(keys)
        }
        if WILDCARD in denied_names:
            return False
        if without_rules:
            return True
        denied_prefixes = [
            name for name, rules in of_type.prefixed.items() if not rules.denied.isdisjoint(keys)
        ]

        def is_left(name: str) -> bool:
            return not any(name.startswith(prefix) for prefix in denied_prefixes)

        for name, rules in of_type.prefixed.items():
            if not rules.allowed.isdisjoint(keys) and is_left(name):
                return True
        return any(
            name == WILDCARD or (name not in denied_names and is_left(name))
            for name, rules in of_type.literal.items()
            if not rules.allowed.isdisjoint(keys)
        )
