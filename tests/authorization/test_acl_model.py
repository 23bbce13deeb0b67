"""The decisions of the authorizer against a slow model that looks at every rule, while rules come and go."""

from __future__ import annotations

import random

import pytest

from tests.support.scale import scale
from tidelog.security.acl import (
    AccessControlEntry,
    AclBinding,
    AclPermissionType,
    PatternType,
    ResourcePattern,
)
from tidelog.security.acl_authorizer import AclAuthorizer
from tidelog.security.acl_cache import AclCache
from tidelog.security.authorizer import AuthorizableRequestContext
from tidelog.security.operations import AclOperation, AclResourceType, Action

DENY, ALLOW = AclPermissionType.DENY, AclPermissionType.ALLOW
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
TYPES = (AclResourceType.TOPIC, AclResourceType.GROUP)
OPERATIONS = (AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
RULED = (*OPERATIONS, AclOperation.ALL, AclOperation.ALTER_CONFIGS, AclOperation.DELETE)
NAMES = ("*", "a", "ab", "abc", "b", "b*")
PRINCIPALS = ("User:alice", "User:bob", "User:*")
HOSTS = ("10.0.0.1", "10.0.0.2", "*")
DESCRIBERS = (AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER)
STEPS = scale(400, 20_000)


class Model:
    """All rules in a set. A decision reads each of them."""

    def __init__(self) -> None:
        self.rules: set[AclBinding] = set()

    def decide(
        self, principal: str, host: str, operation: AclOperation, kind: AclResourceType, name: str
    ) -> bool | None:
        about = [rule for rule in self.rules if rule.pattern.resource_type is kind and covers(rule, name)]
        if not about:
            return None
        mine = [
            rule.entry
            for rule in about
            if rule.entry.principal in (principal, "User:*") and rule.entry.host in (host, "*")
        ]
        for entry in mine:
            if entry.permission is DENY and entry.operation in (operation, AclOperation.ALL):
                return False
        return any(entry.permission is ALLOW and implies(entry.operation, operation) for entry in mine)


def covers(rule: AclBinding, name: str) -> bool:
    pattern = rule.pattern
    if pattern.pattern_type is PREFIXED:
        return name.startswith(pattern.name)
    return pattern.name in (name, "*")


def implies(allowed: AclOperation, operation: AclOperation) -> bool:
    if allowed in (operation, AclOperation.ALL):
        return True
    if operation is AclOperation.DESCRIBE:
        return allowed in DESCRIBERS
    return operation is AclOperation.DESCRIBE_CONFIGS and allowed is AclOperation.ALTER_CONFIGS


class Context:
    listener, client_id = "PLAINTEXT", "c"

    def __init__(self, principal: str, client_address: str) -> None:
        self.principal, self.client_address = principal, client_address


class Contest:
    """The same changes to the model and to an authorizer, and the same questions to both."""

    def __init__(self, chance: random.Random, cache: AclCache | None = None) -> None:
        self._chance = chance
        self._model = Model()
        self._authorizer = AclAuthorizer()
        self._authorizer.configure({})
        if cache is not None:
            self._authorizer.cache = cache

    def change(self) -> None:
        """Add or remove a rule, as a change in the tree does: all rules of its pattern are replaced."""
        chance, rules = self._chance, self._model.rules
        if rules and chance.random() < 0.5:
            rule = chance.choice(sorted(rules, key=repr))
            rules.remove(rule)
        else:
            pattern = ResourcePattern(
                chance.choice(TYPES), chance.choice(NAMES), chance.choice((LITERAL, PREFIXED))
            )
            entry = AccessControlEntry(
                chance.choice(PRINCIPALS),
                chance.choice(HOSTS),
                chance.choice(RULED),
                chance.choice((ALLOW, ALLOW, DENY)),
            )
            rule = AclBinding.of(pattern, entry)
            rules.add(rule)
        cache = self._authorizer.cache
        if chance.random() < 0.1:
            found: dict[ResourcePattern, list[AccessControlEntry]] = {}
            for each in rules:
                found.setdefault(each.pattern, []).append(each.entry)
            cache.replace_all(found)
        else:
            cache.replace(rule.pattern, [each.entry for each in rules if each.pattern == rule.pattern])
        assert cache.count == len(rules)

    def ask(self) -> None:
        chance = self._chance
        principal, host = chance.choice(PRINCIPALS[:2]), chance.choice(HOSTS[:2])
        kind, name = chance.choice(TYPES), chance.choice((*NAMES[1:], "abcd", "c", ""))
        context: AuthorizableRequestContext = Context(principal, host)
        expected = [self._model.decide(principal, host, each, kind, name) is True for each in OPERATIONS]
        asked = [Action(each, kind, name) for each in OPERATIONS]
        assert self._authorizer.authorize(context, asked) == expected, (context.principal, host, kind, name)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.change()
            for _ in range(5):
                self.ask()


def test_every_decision_is_that_of_the_model() -> None:
    Contest(random.Random(5)).run(STEPS)


class StaleCache(AclCache):
    """A cache whose changes have no new generation: the authorizer keeps the decisions before."""

    def replace(self, pattern: ResourcePattern, entries: object) -> None:
        generation = self.generation
        super().replace(pattern, entries)  # type: ignore[arg-type]
        self.generation = generation


class NoDeny(AclCache):
    """A cache that looks at allow rules of the name alone."""

    def decide(self, *asked: object) -> bool | None:
        return True if super().decide(*asked) is not None else None  # type: ignore[arg-type]


@pytest.mark.parametrize("planted", [StaleCache, NoDeny])
def test_the_contest_finds_a_wrong_decision(planted: type[AclCache]) -> None:
    with pytest.raises(AssertionError):
        Contest(random.Random(5), planted()).run(400)
