"""What follows from access rules: deny before allow, patterns, implied operations."""

from __future__ import annotations

import pytest

from tidelog.security.acl import (
    AccessControlEntry,
    AclBindingFilter,
    AclPermissionType,
    PatternType,
    ResourcePattern,
)
from tidelog.security.acl_cache import AclCache
from tidelog.security.operations import AclOperation, AclResourceType

TOPIC, GROUP = AclResourceType.TOPIC, AclResourceType.GROUP
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
READ, WRITE, DESCRIBE, ALL = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.ALL
ALICE, HERE = "User:alice", "127.0.0.1"


def allow(operation: AclOperation, principal: str = ALICE, host: str = "*") -> AccessControlEntry:
    return AccessControlEntry(principal, host, operation, AclPermissionType.ALLOW)


def deny(operation: AclOperation, principal: str = ALICE, host: str = "*") -> AccessControlEntry:
    return AccessControlEntry(principal, host, operation, AclPermissionType.DENY)


def cache(**rules: list[AccessControlEntry]) -> AclCache:
    """Rules of topics; a name with an underscore at its end is a prefix, `any` the wildcard."""
    made = AclCache()
    for name, entries in rules.items():
        pattern = PREFIXED if name.endswith("_") else LITERAL
        made.replace(
            ResourcePattern(TOPIC, "*" if name == "any" else name.removesuffix("_"), pattern), entries
        )
    return made


def decide(made: AclCache, operation: AclOperation, name: str = "orders") -> bool | None:
    return made.decide(ALICE, HERE, operation, TOPIC, name)


def test_a_resource_without_rules_is_undecided() -> None:
    made = cache(other=[allow(READ)])
    assert decide(made, READ) is None
    assert made.decide(ALICE, HERE, READ, GROUP, "other") is None


@pytest.mark.parametrize("name", ["orders", "any", "ord_", "o_", "orders_"])
def test_literal_names_wildcards_and_prefixes_match(name: str) -> None:
    assert decide(cache(**{name: [allow(READ)]}), READ) is True


@pytest.mark.parametrize("name", ["order", "orders2", "rders_", "orders2_"])
def test_other_names_and_longer_prefixes_do_not_match(name: str) -> None:
    assert decide(cache(**{name: [allow(READ)]}), READ) is None


@pytest.mark.parametrize("denied_at", ["orders", "any", "ord_"])
@pytest.mark.parametrize("allowed_at", ["orders", "any", "ord_"])
@pytest.mark.parametrize("operation", [READ, ALL])
def test_a_deny_rule_wins_wherever_it_is(denied_at: str, allowed_at: str, operation: AclOperation) -> None:
    rules: dict[str, list[AccessControlEntry]] = {allowed_at: [allow(ALL)]}
    rules[denied_at] = [*rules.get(denied_at, []), deny(operation)]
    assert decide(cache(**rules), READ) is False
    assert decide(cache(**rules), WRITE) is (operation is READ)


def test_principals_and_hosts_match_exactly_or_by_wildcard() -> None:
    assert decide(cache(orders=[allow(READ, "User:*", HERE)]), READ) is True
    assert decide(cache(orders=[allow(READ, "User:bob")]), READ) is False
    assert decide(cache(orders=[allow(READ, ALICE, "10.0.0.1")]), READ) is False
    assert decide(cache(orders=[allow(READ), deny(READ, "User:*", "10.0.0.1")]), READ) is True
    assert decide(cache(orders=[allow(READ), deny(READ, "User:*", HERE)]), READ) is False


@pytest.mark.parametrize("operation", ["READ", "WRITE", "DELETE", "ALTER", "ALL"])
def test_these_operations_allow_describe(operation: str) -> None:
    assert decide(cache(orders=[allow(AclOperation[operation])]), DESCRIBE) is True


def test_other_operations_do_not_allow_describe_and_deny_is_not_implied() -> None:
    assert decide(cache(orders=[allow(AclOperation.CREATE)]), DESCRIBE) is False
    assert decide(cache(orders=[allow(DESCRIBE), deny(READ)]), DESCRIBE) is True
    configs = cache(orders=[allow(AclOperation.ALTER_CONFIGS)])
    assert decide(configs, AclOperation.DESCRIBE_CONFIGS) is True
    assert decide(configs, DESCRIBE) is False


def test_removed_rules_do_not_count_and_every_change_is_a_new_generation() -> None:
    made = cache(orders=[allow(READ)], ord_=[allow(WRITE)])
    before = made.generation
    made.replace(ResourcePattern(TOPIC, "orders"), [])
    assert made.generation > before
    assert (decide(made, READ), decide(made, WRITE), made.count) == (False, True, 1)
    made.replace_all({})
    assert (decide(made, WRITE), made.count) == (None, 0)


def any_of(made: AclCache, *, open_to_all: bool = False) -> bool:
    return made.decide_any(ALICE, HERE, WRITE, TOPIC, without_rules=open_to_all)


def test_write_on_any_topic_needs_one_that_no_deny_rule_covers() -> None:
    assert any_of(cache()) is False
    assert any_of(cache(), open_to_all=True) is True
    assert any_of(cache(orders=[allow(READ)])) is False
    assert any_of(cache(orders=[allow(WRITE)])) is True
    assert any_of(cache(orders=[allow(ALL)])) is True
    assert any_of(cache(orders=[allow(WRITE), deny(WRITE)])) is False
    assert any_of(cache(orders=[allow(WRITE)], ord_=[deny(ALL)])) is False
    assert any_of(cache(orders=[allow(WRITE)], other_=[deny(ALL)])) is True
    assert any_of(cache(ord_=[allow(WRITE)], orders=[deny(ALL)])) is True
    assert any_of(cache(ord_=[allow(WRITE)], o_=[deny(ALL)])) is False
    assert any_of(cache(any=[allow(WRITE)], o_=[deny(ALL)])) is True
    assert any_of(cache(any=[allow(WRITE), deny(WRITE)])) is False
    assert any_of(cache(any=[deny(WRITE)]), open_to_all=True) is False


def test_a_match_filter_finds_every_pattern_of_a_name() -> None:
    made = cache(orders=[allow(READ)], any=[allow(READ)], ord_=[allow(READ)], x_=[allow(READ)])
    wanted = AclBindingFilter(TOPIC, "orders", pattern_type=PatternType.MATCH)
    assert {found.name for found in made.matching(wanted) if found is not None} == {"orders", "*", "ord"}
