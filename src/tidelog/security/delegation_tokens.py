"""DelegationTokenManager: tokens with which a client logs in for their owner, by SCRAM.

A token is signed with the key that all brokers share (delegation.token.secret.key): its HMAC is the password.
Times are in milliseconds since 1970. The nodes of the tree never have the HMAC.
"""

from __future__ import annotations

import base64
import hmac
import secrets
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Protocol

from tidelog.errors import (
    DelegationTokenExpired,
    DelegationTokenNotFound,
    DelegationTokenOwnerMismatch,
)
from tidelog.metadata.security_nodes import TokenNode
from tidelog.security.sasl.scram import TokenCredential
from tidelog.security.scram import ScramAlgorithm, ScramCredential, scram_credential

EXPIRE_NOW = -1


class TokenStore(Protocol):
    """Where the nodes of tokens are."""

    async def read_tokens(self) -> list[TokenNode]: ...

    async def write_token(self, node: TokenNode) -> None:
        """Create or replace the node, and tell all brokers."""

    async def remove_token(self, token_id: str) -> None: ...


@dataclass(slots=True, frozen=True)
class TokenSettings:
    secret_key: str = field(repr=False)
    max_lifetime_ms: int = 604_800_000
    expiry_time_ms: int = 86_400_000


class DelegationTokenManager:
    """The tokens of the cluster, by id and by HMAC. All methods but `credential` run on the loop."""

    def __init__(self, settings: TokenSettings, store: TokenStore, now_ms: Callable[[], int]) -> None:
        self._settings = settings
        self._store = store
        self._now_ms = now_ms
        self._by_id: dict[str, TokenNode] = {}
        self._by_hmac: dict[bytes, str] = {}
        self._credentials: dict[tuple[str, ScramAlgorithm], ScramCredential] = {}

    # The cache, which follows the tree

    async def load(self) -> None:
        """Read all tokens: at the start, and after an expired session."""
        nodes = await self._store.read_tokens()
        for token_id in self._by_id.keys() - {node.token_id for node in nodes}:
            self.forget(token_id)
        for node in nodes:
            self.learn(node)

    def learn(self, node: TokenNode) -> None:
        self._by_id[node.token_id] = node
        self._by_hmac[self.hmac_of(node.token_id)] = node.token_id

    def forget(self, token_id: str) -> None:
        if self._by_id.pop(token_id, None) is not None:
            del self._by_hmac[self.hmac_of(token_id)]
            for mechanism in ScramAlgorithm:
                self._credentials.pop((token_id, mechanism), None)

    def hmac_of(self, token_id: str) -> bytes:
        return hmac.digest(self._settings.secret_key.encode(), token_id.encode(), "sha512")

    def id_of(self, hmac: bytes) -> str:
        """The id of the token with this HMAC; "" if there is none."""
        return self._by_hmac.get(hmac, "")

    def tokens(self) -> Sequence[TokenNode]:
        return list(self._by_id.values())

    def credential(self, token_id: str, mechanism: ScramAlgorithm) -> TokenCredential | None:
        """The SCRAM credential of a valid token. Slow when it is first asked for: call it on a thread."""
        node = self._by_id.get(token_id)
        if node is None or self._is_expired(node):
            return None
        credential = self._credentials.get((token_id, mechanism))
        if credential is None:
            password = base64.b64encode(self.hmac_of(token_id)).decode()
            credential = scram_credential(password, mechanism, mechanism.min_iterations)
            self._credentials[token_id, mechanism] = credential
        return TokenCredential(node.owner.partition(":")[2], credential, node.expiry_timestamp)

    # Changes

    async def create(
        self, owner: str, requester: str, renewers: Sequence[str], max_lifetime_ms: int
    ) -> TokenNode:
        """A new token; principals are texts such as User:alice. 0 or less is the longest life."""
        settings, now = self._settings, self._now_ms()
        longest = settings.max_lifetime_ms
        ends = now + (longest if max_lifetime_ms <= 0 else min(max_lifetime_ms, longest))
        node = TokenNode(
            secrets.token_urlsafe(16),
            owner,
            requester,
            list(renewers),
            now,
            min(ends, now + settings.expiry_time_ms),
            ends,
        )
        await self._write(node)
        return node

    async def renew(self, principal: str, hmac: bytes, period_ms: int) -> int:
        """Extend a token; returns when it expires. A negative period is delegation.token.expiry.time.ms."""
        node = self._token_of(principal, hmac)
        if self._is_expired(node):
            raise DelegationTokenExpired("the token has expired")
        return await self._expire_after(node, self._settings.expiry_time_ms if period_ms < 0 else period_ms)

    async def expire(self, principal: str, hmac: bytes, period_ms: int) -> int:
        """Expire a token after a time, or remove it now; returns when it expires."""
        node = self._token_of(principal, hmac)
        if period_ms < 0:
            await self._remove(node.token_id)
            return self._now_ms()
        if self._is_expired(node):
            raise DelegationTokenExpired("the token has expired")
        return await self._expire_after(node, period_ms)

    async def remove_expired(self) -> None:
        for node in self.tokens():
            if self._is_expired(node):
                await self._remove(node.token_id)

    def _is_expired(self, node: TokenNode) -> bool:
        return min(node.max_timestamp, node.expiry_timestamp) < self._now_ms()

    def _token_of(self, principal: str, hmac: bytes) -> TokenNode:
        token_id = self._by_hmac.get(hmac)
        if token_id is None:
            raise DelegationTokenNotFound("there is no token with this HMAC")
        node = self._by_id[token_id]
        if principal != node.owner and principal not in node.renewers:
            raise DelegationTokenOwnerMismatch(f"{principal} is not the owner or a renewer of the token")
        return node

    async def _expire_after(self, node: TokenNode, period_ms: int) -> int:
        expiry = min(node.max_timestamp, self._now_ms() + period_ms)
        await self._write(replace(node, expiry_timestamp=expiry))
        return expiry

    async def _write(self, node: TokenNode) -> None:
        await self._store.write_token(node)
        self.learn(node)

    async def _remove(self, token_id: str) -> None:
        await self._store.remove_token(token_id)
        self.forget(token_id)


def owns_or_renews(node: TokenNode, principals: Set[str]) -> bool:
    """Whether one of the principals owns the token, asked for it or may renew it: they may see it.

    This takes the same time for any number of principals.
    """
    return not principals.isdisjoint((node.owner, node.requester, *node.renewers))
