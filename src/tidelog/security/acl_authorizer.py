"""AclAuthorizer: decides by the access rules in the tree.

Settings: `super.users` (principals that may do everything, separated by semicolons) and
`allow.everyone.if.no.acl.found` (whether a resource without any rule is open to all).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager

from tidelog.config.values import ConfigError
from tidelog.errors import InvalidRequest, KafkaError, KafkaStorageError, RequestTimedOut
from tidelog.metadata.async_tree import AsyncTree, within_one_session
from tidelog.metadata.change_follower import ChangeFollower
from tidelog.metadata.nodes import BadNode
from tidelog.metadata.tree import TreeError
from tidelog.security.acl import (
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    PatternType,
    ResourcePattern,
)
from tidelog.security.acl_cache import AclCache
from tidelog.security.acl_store import AclStore
from tidelog.security.authorizer import AuthorizableRequestContext
from tidelog.security.operations import AclOperation, AclResourceType, Action
from tidelog.slices import Slices, finished

_log = logging.getLogger("tidelog.security.acls")

SUPER_USERS = "super.users"
ALLOW_EVERYONE = "allow.everyone.if.no.acl.found"
REQUEST_TIMEOUT = "request.timeout.ms"

PATTERNS_AT_ONCE = 50
"""The most patterns that get new rules in one step of the tree. Other changes wait for a step at most."""

FILTERS_PER_STEP = 50
"""How many filters are compared with a pattern in one step."""

DECISIONS = 10_000
"""How many decisions are remembered."""

REMEMBERED_NAME = 249
"""The longest name of a topic. Clients may send longer names: decisions about those would fill the memory."""


class AclAuthorizer:
    """Implements tidelog.security.authorizer.Authorizer, which documents the public methods."""

    def __init__(self) -> None:
        self.generation = 0  # a plain attribute: every small produce reads it
        self.cache = AclCache(self._rules_changed)
        self._super_users: frozenset[str] = frozenset()
        self._allow_everyone = False
        self._timeout = 30.0
        self._store: AclStore | None = None
        self._newest = dict.fromkeys((PatternType.LITERAL, PatternType.PREFIXED), -1)
        self._follower = ChangeFollower("access rules", _log)
        self._lock = asyncio.Lock()
        self._decisions: dict[tuple[str, str, int, int, str], bool] = {}
        self._decided_generation = -1

    def _rules_changed(self, generation: int) -> None:
        self.generation = generation

    @property
    def acl_count(self) -> int:
        return self.cache.count

    def configure(self, settings: Mapping[str, str]) -> None:
        self._super_users = parse_super_users(settings.get(SUPER_USERS, ""))
        self._allow_everyone = settings.get(ALLOW_EVERYONE, "").strip().lower() == "true"
        self._timeout = int(settings.get(REQUEST_TIMEOUT) or 30_000) / 1000

    # -- decisions

    def authorize(self, context: AuthorizableRequestContext, actions: Sequence[Action]) -> list[bool]:
        principal, host = context.principal, context.client_address
        return [self.is_allowed(principal, host, *action) for action in actions]

    def is_allowed(
        self, principal: str, host: str, operation: AclOperation, resource_type: AclResourceType, name: str
    ) -> bool:
        """Whether a principal may do an operation from a host."""
        if principal in self._super_users:
            return True
        decisions = self._decisions
        if self._decided_generation != self.generation or len(decisions) >= DECISIONS:
            decisions.clear()
            self._decided_generation = self.generation
        key = (principal, host, operation, resource_type, name)
        decision = decisions.get(key)
        if decision is None:
            found = self.cache.decide(principal, host, operation, resource_type, name)
            decision = self._allow_everyone if found is None else found
            if len(name) <= REMEMBERED_NAME:
                decisions[key] = decision
        return decision

    def authorize_by_resource_type(
        self,
        context: AuthorizableRequestContext,
        operation: AclOperation,
        resource_type: AclResourceType,
    ) -> bool:
        if context.principal in self._super_users:
            return True
        return self.cache.decide_any(
            context.principal,
            context.client_address,
            operation,
            resource_type,
            without_rules=self._allow_everyone,
        )

    def acls(self, wanted: AclBindingFilter) -> Iterator[AclBinding | None]:
        return self.cache.matching(wanted)

    # -- changes

    async def create_acls(
        self, context: AuthorizableRequestContext, bindings: Sequence[AclBinding]
    ) -> list[KafkaError | None]:
        by_pattern: dict[ResourcePattern, list[AccessControlEntry]] = {}
        for binding in bindings:
            by_pattern.setdefault(binding.pattern, []).append(binding.entry)
        errors: dict[ResourcePattern, KafkaError] = {}
        patterns = list(by_pattern)
        for begin in range(0, len(patterns), PATTERNS_AT_ONCE):
            some = {pattern: by_pattern[pattern] for pattern in patterns[begin : begin + PATTERNS_AT_ONCE]}
            errors.update(await self._add_all(some))
        return [errors.get(binding.pattern) for binding in bindings]

    async def _add_all(
        self, added: Mapping[ResourcePattern, Sequence[AccessControlEntry]]
    ) -> dict[ResourcePattern, KafkaError]:
        """Add rules to patterns, in one step if possible; returns the errors."""
        try:
            async with self._changing() as store:
                entries = await store.add_all(added)
                if entries is not None:
                    for pattern, rules in entries.items():
                        self.cache.replace(pattern, rules)
                    return {}
        except InvalidRequest:
            pass  # of one of them
        except KafkaError as error:
            return dict.fromkeys(added, error)
        errors: dict[ResourcePattern, KafkaError] = {}
        for pattern, wanted in added.items():
            try:
                await self._add(pattern, wanted)
            except KafkaError as error:
                errors[pattern] = error
        return errors

    async def _add(self, pattern: ResourcePattern, added: Sequence[AccessControlEntry]) -> None:
        async with self._changing() as store:
            entries = await store.change(pattern, lambda present: (*present, *added))
            self.cache.replace(pattern, entries)

    async def delete_acls(
        self, context: AuthorizableRequestContext, filters: Sequence[AclBindingFilter]
    ) -> list[list[tuple[AclBinding, KafkaError | None]]]:
        results: list[list[tuple[AclBinding, KafkaError | None]]] = [[] for _ in filters]
        for pattern, wanted in (await finished(self._matched(filters))).items():
            failure: KafkaError | None = None
            try:
                removed = await self._remove(pattern, wanted)
            except KafkaError as error:
                failure = error
                removed = [entry for entry in self.cache.entries(pattern) if _matches_any(wanted, entry)]
            for entry in removed:
                # As in Kafka 3.9, a rule is removed by the first filter that matches it.
                first = next(index for index, chosen in wanted.items() if chosen.matches_entry(entry))
                results[first].append((AclBinding.of(pattern, entry), failure))
        return results

    def _matched(
        self, filters: Sequence[AclBindingFilter]
    ) -> Slices[dict[ResourcePattern, dict[int, AclBindingFilter]]]:
        """The patterns with rules that match, each with the filters of its name by their places."""
        matched: dict[ResourcePattern, dict[int, AclBindingFilter]] = {}
        for pattern in self.cache.patterns():
            wanted: dict[int, AclBindingFilter] = {}
            for place, chosen in enumerate(filters):
                if chosen.matches_pattern(pattern):
                    wanted[place] = chosen
                if place % FILTERS_PER_STEP == 0:
                    yield
            if any(_matches_any(wanted, entry) for entry in self.cache.entries(pattern)):
                matched[pattern] = wanted
        return matched

    async def _remove(
        self, pattern: ResourcePattern, wanted: Mapping[int, AclBindingFilter]
    ) -> list[AccessControlEntry]:
        """Remove rules of a pattern; returns those that the tree had, which may be newer than the cache."""
        removed: list[AccessControlEntry] = []

        def left(present: Sequence[AccessControlEntry]) -> list[AccessControlEntry]:
            removed[:] = [entry for entry in present if _matches_any(wanted, entry)]
            return [entry for entry in present if entry not in removed]

        async with self._changing() as store:
            self.cache.replace(pattern, await store.change(pattern, left))
        return removed

    @asynccontextmanager
    async def _changing(self) -> AsyncIterator[AclStore]:
        """Let one change at a time update the tree and the cache; errors of the tree become KafkaErrors."""
        if self._store is None:
            raise InvalidRequest("the authorizer is not started")
        try:
            async with asyncio.timeout(self._timeout), self._lock:
                yield self._store
        except TimeoutError:
            raise RequestTimedOut("the rules cannot be changed: the tree does not answer") from None
        except (BadNode, TreeError) as error:
            raise KafkaStorageError(f"the rules cannot be changed: {error}") from error

    # -- the tree

    async def start(self, tree: AsyncTree) -> None:
        self._store = store = AclStore(tree)
        self._follower.listen(tree)

        async def load() -> None:
            await store.prepare()
            for kind in self._newest:
                notices = await store.read_changes(kind, -1, self._follower.watch)
                self._newest[kind] = max((notice.sequence for notice in notices), default=-1)
            self.cache.replace_all(await store.read_all())

        await within_one_session(tree, load)
        self._follower.start(self._read_changes)

    async def close(self) -> None:
        await self._follower.close()

    async def _read_changes(self, everything: bool) -> None:
        async with self._lock:
            await self._apply_changes(everything)

    async def _apply_changes(self, is_stale: bool) -> None:
        store = self._store
        assert store is not None
        changed: dict[ResourcePattern, None] = {}
        for kind in self._newest:
            for notice in await store.read_changes(kind, self._newest[kind], self._follower.watch):
                self._newest[kind] = notice.sequence
                if notice.pattern is None:
                    is_stale = True
                else:
                    changed[notice.pattern] = None
        if is_stale:
            self.cache.replace_all(await store.read_all())
            _log.info("all access rules are read again")
            return
        for pattern, entries in (await store.read(changed)).items():
            if entries != self.cache.entries(pattern):
                self.cache.replace(pattern, entries)
                _log.info("access rules of %s %s are applied", pattern.resource_type.name, pattern.name)


def _matches_any(filters: Mapping[int, AclBindingFilter], entry: AccessControlEntry) -> bool:
    return any(chosen.matches_entry(entry) for chosen in filters.values())


def parse_super_users(text: str) -> frozenset[str]:
    """Principals of super.users. ConfigError if one has no type such as `User:`."""
    found = [principal.strip() for principal in text.split(";") if principal.strip()]
    for principal in found:
        if ":" not in principal:
            raise ConfigError(SUPER_USERS, text, f"{principal!r} has no type: write User:{principal}")
    return frozenset(found)
