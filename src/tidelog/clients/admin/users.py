"""Users: SCRAM credentials, delegation tokens, and quotas of users, clients and addresses."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, TypeVar

from tidelog.clients.admin.client import AsyncAdmin
from tidelog.clients.admin.driver import Outcomes
from tidelog.clients.admin.results import Results, error_from, first_code, names_in, raise_for, settled
from tidelog.protocol.message import Message
from tidelog.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, AlterClientQuotasResponse
from tidelog.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from tidelog.protocol.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from tidelog.protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from tidelog.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from tidelog.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from tidelog.protocol.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from tidelog.protocol.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)

Expiry = TypeVar("Expiry", RenewDelegationTokenResponse, ExpireDelegationTokenResponse)

DEFAULT_ITERATIONS = 8192
SALT_BYTES = 24
EXACT, DEFAULT, ANY = 0, 1, 2


class ScramMechanism(IntEnum):
    """The mechanism of a SCRAM credential; UNKNOWN stands for one that this client does not know."""

    UNKNOWN = 0
    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def digest(self) -> str:
        return "sha512" if self is ScramMechanism.SCRAM_SHA_512 else "sha256"


class ScramCredentialInfo(NamedTuple):
    mechanism: ScramMechanism
    iterations: int


@dataclass(slots=True, frozen=True)
class UserScramCredentialUpsertion:
    """A password to set. The client salts and hashes it: the broker never sees it."""

    user: str
    password: str = field(repr=False)
    mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_512
    iterations: int = DEFAULT_ITERATIONS
    salt: bytes | None = field(default=None, repr=False)


@dataclass(slots=True, frozen=True)
class UserScramCredentialDeletion:
    user: str
    mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_512


class Principal(NamedTuple):
    """A principal such as User:alice."""

    type: str
    name: str


@dataclass(slots=True, frozen=True)
class DelegationToken:
    """A token: `token_id` and `hmac` are name and password for SCRAM. Times are in milliseconds."""

    token_id: str
    hmac: bytes = field(repr=False)
    owner: Principal
    requester: Principal
    issue_timestamp: int
    expiry_timestamp: int
    max_timestamp: int
    renewers: tuple[Principal, ...] = ()


QuotaEntity = tuple[tuple[str, str | None], ...]
"""The entity of a quota, such as (("user", "alice"), ("client-id", None)); None is the default.

Results have the parts in this order; results of a change have the order of the call."""


class QuotaComponent(NamedTuple):
    """A filter of quotas: by name, by default (None), or any name (`any_name`)."""

    entity_type: str
    name: str | None = None
    any_name: bool = False


# SCRAM


async def describe_user_scram_credentials(
    self: AsyncAdmin,
    users: Iterable[str] | None = None,
    *,
    partial: bool = False,
    timeout: float | None = None,
) -> Results[str, list[ScramCredentialInfo]]:
    """The SCRAM mechanisms of users; of all users without an argument."""
    request = DescribeUserScramCredentialsRequest(users=None)
    if users is not None:
        request.users = [DescribeUserScramCredentialsRequest.UserName(name=user) for user in names_in(users)]
    answer = await self.driver.ask_any(
        request, DescribeUserScramCredentialsResponse, self.driver.deadline(timeout)
    )
    raise_for(answer.error_code, answer.error_message, "SCRAM credentials")
    outcomes: Outcomes[str, list[ScramCredentialInfo]] = {
        result.user: error_from(result.error_code, result.error_message, f"user {result.user!r}")
        or [
            ScramCredentialInfo(ScramMechanism(found.mechanism), found.iterations)
            for found in result.credential_infos
        ]
        for result in answer.results
    }
    return settled(outcomes, partial)


async def alter_user_scram_credentials(
    self: AsyncAdmin,
    alterations: Iterable[UserScramCredentialUpsertion | UserScramCredentialDeletion],
    *,
    partial: bool = False,
    timeout: float | None = None,
) -> Results[str, None]:
    """Set and delete SCRAM credentials."""
    request = AlterUserScramCredentialsRequest()
    for change in alterations:
        if isinstance(change, UserScramCredentialDeletion):
            request.deletions.append(
                AlterUserScramCredentialsRequest.ScramCredentialDeletion(
                    name=change.user, mechanism=change.mechanism
                )
            )
        else:
            request.upsertions.append(_salted(change))
    answer = await self.driver.ask_controller(
        request,
        AlterUserScramCredentialsResponse,
        self.driver.deadline(timeout),
        lambda found: first_code(found.results),
    )
    outcomes: Outcomes[str, None] = {
        result.user: error_from(result.error_code, result.error_message, f"user {result.user!r}")
        for result in answer.results
    }
    return settled(outcomes, partial)


# Delegation tokens


async def create_delegation_token(
    self: AsyncAdmin,
    *,
    owner: Principal | None = None,
    renewers: Iterable[Principal] = (),
    max_lifetime_ms: int = -1,
    timeout: float | None = None,
) -> DelegationToken:
    """Create a token for this user or another owner; -1 gives it the longest life that the cluster allows."""
    allowed = tuple(renewers)
    request = CreateDelegationTokenRequest(
        owner_principal_type=None if owner is None else owner.type,
        owner_principal_name=None if owner is None else owner.name,
        renewers=[
            CreateDelegationTokenRequest.CreatableRenewers(
                principal_type=renewer.type, principal_name=renewer.name
            )
            for renewer in allowed
        ],
        max_lifetime_ms=max_lifetime_ms,
    )
    answer = await self.driver.ask_controller(
        request, CreateDelegationTokenResponse, self.driver.deadline(timeout), lambda found: found.error_code
    )
    raise_for(answer.error_code, None, "delegation token")
    return DelegationToken(
        answer.token_id,
        answer.hmac,
        Principal(answer.principal_type, answer.principal_name),
        Principal(answer.token_requester_principal_type, answer.token_requester_principal_name),
        answer.issue_timestamp_ms,
        answer.expiry_timestamp_ms,
        answer.max_timestamp_ms,
        allowed,
    )


async def renew_delegation_token(
    self: AsyncAdmin, hmac: bytes, *, renew_period_ms: int = -1, timeout: float | None = None
) -> int:
    """Extend the life of a token; returns its expiry time in milliseconds."""
    request = RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=renew_period_ms)
    return await _new_expiry(self, request, RenewDelegationTokenResponse, timeout)


async def expire_delegation_token(
    self: AsyncAdmin, hmac: bytes, *, expiry_period_ms: int = -1, timeout: float | None = None
) -> int:
    """Expire a token after a time, at once if it is negative; returns its expiry time."""
    request = ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=expiry_period_ms)
    return await _new_expiry(self, request, ExpireDelegationTokenResponse, timeout)


async def describe_delegation_tokens(
    self: AsyncAdmin, owners: Iterable[Principal] | None = None, *, timeout: float | None = None
) -> list[DelegationToken]:
    """The tokens that this user may see, or only those of some owners."""
    request = DescribeDelegationTokenRequest(owners=None)
    if owners is not None:
        request.owners = [
            DescribeDelegationTokenRequest.DescribeDelegationTokenOwner(
                principal_type=owner.type, principal_name=owner.name
            )
            for owner in owners
        ]
    answer = await self.driver.ask_any(
        request, DescribeDelegationTokenResponse, self.driver.deadline(timeout)
    )
    raise_for(answer.error_code, None, "delegation tokens")
    return [_token(found) for found in answer.tokens]


async def _new_expiry(
    self: AsyncAdmin, request: Message, response: type[Expiry], timeout: float | None
) -> int:
    """Change the expiry time of a token; returns the new one."""
    answer = await self.driver.ask_controller(
        request, response, self.driver.deadline(timeout), lambda found: found.error_code
    )
    raise_for(answer.error_code, None, "delegation token")
    return answer.expiry_timestamp_ms


# Quotas


async def describe_client_quotas(
    self: AsyncAdmin,
    components: Iterable[QuotaComponent] = (),
    *,
    strict: bool = False,
    timeout: float | None = None,
) -> dict[QuotaEntity, dict[str, float]]:
    """The quotas of the entities that match all components; `strict` leaves out entities with more parts."""
    request = DescribeClientQuotasRequest(
        components=[
            DescribeClientQuotasRequest.ComponentData(
                entity_type=part.entity_type,
                match_type=ANY if part.any_name else DEFAULT if part.name is None else EXACT,
                match=None if part.any_name else part.name,
            )
            for part in components
        ],
        strict=strict,
    )
    answer = await self.driver.ask_any(request, DescribeClientQuotasResponse, self.driver.deadline(timeout))
    raise_for(answer.error_code, answer.error_message, "quotas")
    return {
        _entity((part.entity_type, part.entity_name) for part in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in answer.entries or ()
    }


async def alter_client_quotas(
    self: AsyncAdmin,
    changes: Mapping[QuotaEntity, Mapping[str, float | None]],
    *,
    validate_only: bool = False,
    partial: bool = False,
    timeout: float | None = None,
) -> Results[QuotaEntity, None]:
    """Set quotas such as producer_byte_rate; None removes one."""
    entries = [
        AlterClientQuotasRequest.EntryData(
            entity=[
                AlterClientQuotasRequest.EntityData(entity_type=kind, entity_name=name)
                for kind, name in entity
            ],
            ops=[
                AlterClientQuotasRequest.OpData(key=key, value=value or 0.0, remove=value is None)
                for key, value in ops.items()
            ],
        )
        for entity, ops in changes.items()
    ]
    request = AlterClientQuotasRequest(entries=entries, validate_only=validate_only)
    answer = await self.driver.ask_controller(
        request,
        AlterClientQuotasResponse,
        self.driver.deadline(timeout),
        lambda found: first_code(found.entries),
    )
    # An answer may have the parts of an entity in another order.
    asked = {frozenset(entity): entity for entity in changes}
    outcomes: Outcomes[QuotaEntity, None] = {}
    for entry in answer.entries:
        named = _entity((part.entity_type, part.entity_name) for part in entry.entity)
        entity = asked.get(frozenset(named), named)
        outcomes[entity] = error_from(entry.error_code, entry.error_message, f"quota of {entity}")
    return settled(outcomes, partial)


def _entity(parts: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    """The parts of an entity, the user first: brokers return them in any order."""
    return tuple(sorted(parts, key=lambda part: part[0], reverse=True))


def _salted(
    change: UserScramCredentialUpsertion,
) -> AlterUserScramCredentialsRequest.ScramCredentialUpsertion:
    salt = secrets.token_bytes(SALT_BYTES) if change.salt is None else change.salt
    return AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name=change.user,
        mechanism=change.mechanism,
        iterations=change.iterations,
        salt=salt,
        salted_password=hashlib.pbkdf2_hmac(
            change.mechanism.digest, change.password.encode(), salt, change.iterations
        ),
    )


def _token(found: DescribeDelegationTokenResponse.DescribedDelegationToken) -> DelegationToken:
    return DelegationToken(
        found.token_id,
        found.hmac,
        Principal(found.principal_type, found.principal_name),
        Principal(found.token_requester_principal_type, found.token_requester_principal_name),
        found.issue_timestamp,
        found.expiry_timestamp,
        found.max_timestamp,
        tuple(Principal(renewer.principal_type, renewer.principal_name) for renewer in found.renewers),
    )
