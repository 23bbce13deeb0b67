"""CreateDelegationToken (38) v1-3, Renew (39) v1-2, Expire (40) v1-2 and DescribeDelegationToken (41) v1-3.

- A client that is not authenticated, or that logged in with a token itself, gets
  DELEGATION_TOKEN_REQUEST_NOT_ALLOWED. Without delegation.token.secret.key it is
  DELEGATION_TOKEN_AUTH_DISABLED.
- Owner and renewers may renew and expire a token; for others it is DELEGATION_TOKEN_OWNER_MISMATCH.
- A token for another owner needs CREATE_TOKENS on that user. Describe shows tokens of others with DESCRIBE
  on the token or DESCRIBE_TOKENS on its owner.
- v3 of Create names an owner, v3 of Describe has the requester.
- Describe lists the tokens that one of some principals owns, asked for or may renew: with an empty list none,
  without a list all.
"""

from __future__ import annotations

from tidelog.errors import (
    DelegationTokenAuthDisabled,
    DelegationTokenAuthorizationFailed,
    DelegationTokenRequestNotAllowed,
    InvalidPrincipalType,
    KafkaError,
)
from tidelog.metadata.security_nodes import TokenNode
from tidelog.network.request import Request
from tidelog.protocol.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from tidelog.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from tidelog.protocol.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from tidelog.protocol.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from tidelog.security.delegation_tokens import DelegationTokenManager, owns_or_renews
from tidelog.server.apis.authorization import (
    CREATE_TOKENS,
    DELEGATION_TOKEN,
    DENIED,
    DESCRIBE,
    DESCRIBE_TOKENS,
    USER,
    is_allowed,
)
from tidelog.server.services import Services
from tidelog.slices import Slices

USER_TYPE = "User"
ANONYMOUS = "User:ANONYMOUS"
WITH_REQUESTER = 3
AUDITED = "DelegationToken"


def _manager(services: Services, request: Request) -> DelegationTokenManager:
    """The tokens; raises the error of a client that may not ask for them."""
    protocol = services.config.protocol_of(request.listener)
    is_known = protocol != "PLAINTEXT" and not (protocol == "SSL" and request.principal == ANONYMOUS)
    if not is_known or request.is_token_authenticated:
        raise DelegationTokenRequestNotAllowed("only authenticated clients have tokens, and not by a token")
    if services.tokens is None:
        raise DelegationTokenAuthDisabled("delegation.token.secret.key is not set")
    return services.tokens


async def create_delegation_token(
    services: Services, request: Request, body: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse:
    requester = request.principal
    owner = requester
    if body.owner_principal_name:
        owner = f"{body.owner_principal_type}:{body.owner_principal_name}"
    answer = CreateDelegationTokenResponse(issue_timestamp_ms=-1, expiry_timestamp_ms=-1, max_timestamp_ms=-1)
    answer.principal_type, _, answer.principal_name = owner.partition(":")
    if request.api_version >= WITH_REQUESTER:
        kind, _, name = requester.partition(":")
        answer.token_requester_principal_type, answer.token_requester_principal_name = kind, name
    try:
        tokens = _manager(services, request)
        if owner != requester and not is_allowed(services, request, CREATE_TOKENS, USER, owner):
            raise DelegationTokenAuthorizationFailed(DENIED)
        if any(renewer.principal_type != USER_TYPE for renewer in body.renewers):
            raise InvalidPrincipalType("renewers are users")
        renewers = [f"{renewer.principal_type}:{renewer.principal_name}" for renewer in body.renewers]
        node = await tokens.create(owner, requester, renewers, body.max_lifetime_ms)
        services.audit.changed(request, AUDITED, node.token_id, f"created for {owner}")
    except KafkaError as error:
        answer.error_code = error.code
        return answer
    answer.issue_timestamp_ms = node.issue_timestamp
    answer.expiry_timestamp_ms = node.expiry_timestamp
    answer.max_timestamp_ms = node.max_timestamp
    answer.token_id, answer.hmac = node.token_id, tokens.hmac_of(node.token_id)
    return answer


async def renew_delegation_token(
    services: Services, request: Request, body: RenewDelegationTokenRequest
) -> RenewDelegationTokenResponse:
    try:
        tokens = _manager(services, request)
        token_id = tokens.id_of(bytes(body.hmac))
        expiry = await tokens.renew(request.principal, bytes(body.hmac), body.renew_period_ms)
        services.audit.changed(request, AUDITED, token_id, "renewed")
    except KafkaError as error:
        return RenewDelegationTokenResponse(error_code=error.code, expiry_timestamp_ms=-1)
    return RenewDelegationTokenResponse(expiry_timestamp_ms=expiry)


async def expire_delegation_token(
    services: Services, request: Request, body: ExpireDelegationTokenRequest
) -> ExpireDelegationTokenResponse:
    try:
        tokens = _manager(services, request)
        token_id = tokens.id_of(bytes(body.hmac))
        expiry = await tokens.expire(request.principal, bytes(body.hmac), body.expiry_time_period_ms)
        services.audit.changed(request, AUDITED, token_id, "expired")
    except KafkaError as error:
        return ExpireDelegationTokenResponse(error_code=error.code, expiry_timestamp_ms=-1)
    return ExpireDelegationTokenResponse(expiry_timestamp_ms=expiry)


def describe_delegation_token(
    services: Services, request: Request, body: DescribeDelegationTokenRequest
) -> Slices[DescribeDelegationTokenResponse]:
    try:
        tokens = _manager(services, request)
    except KafkaError as error:
        return DescribeDelegationTokenResponse(error_code=error.code)
    owners = None
    if body.owners is not None:
        owners = {f"{owner.principal_type}:{owner.principal_name}" for owner in body.owners}
    described = []
    for node in tokens.tokens():
        if (owners is None or owns_or_renews(node, owners)) and _may_describe(services, request, node):
            described.append(_described(node, tokens.hmac_of(node.token_id), request.api_version))
        yield
    return DescribeDelegationTokenResponse(tokens=described)


def _may_describe(services: Services, request: Request, node: TokenNode) -> bool:
    return (
        owns_or_renews(node, {request.principal})
        or is_allowed(services, request, DESCRIBE, DELEGATION_TOKEN, node.token_id, tell_denied=False)
        or is_allowed(services, request, DESCRIBE_TOKENS, USER, node.owner, tell_denied=False)
    )


def _described(
    node: TokenNode, hmac: bytes, version: int
) -> DescribeDelegationTokenResponse.DescribedDelegationToken:
    owner_type, _, owner = node.owner.partition(":")
    requester_type, _, requester = (
        node.requester.partition(":") if version >= WITH_REQUESTER else ("", "", "")
    )
    renewers = [renewer.partition(":") for renewer in node.renewers]
    return DescribeDelegationTokenResponse.DescribedDelegationToken(
        principal_type=owner_type,
        principal_name=owner,
        token_requester_principal_type=requester_type,
        token_requester_principal_name=requester,
        issue_timestamp=node.issue_timestamp,
        expiry_timestamp=node.expiry_timestamp,
        max_timestamp=node.max_timestamp,
        token_id=node.token_id,
        hmac=hmac,
        renewers=[
            DescribeDelegationTokenResponse.DescribedDelegationTokenRenewer(
                principal_type=kind, principal_name=name
            )
            for kind, _, name in renewers
        ],
    )
