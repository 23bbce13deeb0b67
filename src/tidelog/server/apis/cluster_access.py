"""Checks of APIs whose requests need one operation on the cluster as a whole, and of delegation tokens.

`guarded` makes the handler of such an API; its Api declares the operation: `access=("CLUSTER ALTER",)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from tidelog.errors import ClusterAuthorizationFailed
from tidelog.network.request import Request
from tidelog.protocol.message import Message
from tidelog.security.acl import AclOperation, AclResourceType
from tidelog.server.apis.api import Answer, Handler
from tidelog.server.apis.authorization import CLUSTER, DENIED, DESCRIBE, is_allowed
from tidelog.server.services import Services

if TYPE_CHECKING:
    from tidelog.protocol.messages.alter_client_quotas import (
        AlterClientQuotasRequest,
        AlterClientQuotasResponse,
    )
    from tidelog.protocol.messages.alter_user_scram_credentials import (
        AlterUserScramCredentialsRequest,
        AlterUserScramCredentialsResponse,
    )
    from tidelog.protocol.messages.describe_client_quotas import (
        DescribeClientQuotasRequest,
        DescribeClientQuotasResponse,
    )
    from tidelog.protocol.messages.describe_user_scram_credentials import (
        DescribeUserScramCredentialsRequest,
        DescribeUserScramCredentialsResponse,
    )

B = TypeVar("B", bound=Message)

CODE = ClusterAuthorizationFailed.code


def guarded(handle: Handler, operation: AclOperation, refused: Callable[[B], Message]) -> Handler:
    """A handler that answers with `refused` unless the client may do the operation on the cluster."""

    def checked(services: Services, request: Request, body: B) -> Answer:
        if services.authorizer is not None and not is_allowed(services, request, operation, CLUSTER):
            return refused(body)
        return handle(services, request, body)

    return checked


def no_client_quotas(body: DescribeClientQuotasRequest) -> DescribeClientQuotasResponse:
    """For DescribeClientQuotas, which needs DESCRIBE_CONFIGS."""
    from tidelog.protocol.messages.describe_client_quotas import DescribeClientQuotasResponse

    return DescribeClientQuotasResponse(error_code=CODE, error_message=DENIED, entries=None)


def unaltered_client_quotas(body: AlterClientQuotasRequest) -> AlterClientQuotasResponse:
    """For AlterClientQuotas, which needs ALTER_CONFIGS."""
    from tidelog.protocol.messages.alter_client_quotas import AlterClientQuotasResponse

    return AlterClientQuotasResponse(
        entries=[
            AlterClientQuotasResponse.EntryData(
                error_code=CODE,
                error_message=DENIED,
                entity=[
                    AlterClientQuotasResponse.EntityData(
                        entity_type=part.entity_type, entity_name=part.entity_name
                    )
                    for part in entry.entity
                ],
            )
            for entry in body.entries
        ]
    )


def no_scram_credentials(
    body: DescribeUserScramCredentialsRequest,
) -> DescribeUserScramCredentialsResponse:
    """For DescribeUserScramCredentials, which needs DESCRIBE."""
    from tidelog.protocol.messages.describe_user_scram_credentials import (
        DescribeUserScramCredentialsResponse,
    )

    result = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
    return DescribeUserScramCredentialsResponse(
        error_code=CODE,
        error_message=DENIED,
        results=[result(user=user.name, error_code=CODE, error_message=DENIED) for user in body.users or ()],
    )


def unaltered_scram_credentials(
    body: AlterUserScramCredentialsRequest,
) -> AlterUserScramCredentialsResponse:
    """For AlterUserScramCredentials, which needs ALTER."""
    from tidelog.protocol.messages.alter_user_scram_credentials import AlterUserScramCredentialsResponse

    names = dict.fromkeys(
        [deleted.name for deleted in body.deletions] + [upserted.name for upserted in body.upsertions]
    )
    result = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
    return AlterUserScramCredentialsResponse(
        results=[result(user=name, error_code=CODE, error_message=DENIED) for name in names]
    )


def may_create_token(services: Services, request: Request, owner: str) -> bool:
    """Whether the client may create a delegation token for an owner such as User:alice.

    For itself it may; for others it needs CREATE_TOKENS on the user (DELEGATION_TOKEN_AUTHORIZATION_FAILED).
    """
    return owner == request.principal or is_allowed(
        services, request, AclOperation.CREATE_TOKENS, AclResourceType.USER, owner
    )


def may_describe_token(services: Services, request: Request, token_id: str, owner: str) -> bool:
    """Whether the client may see a token of another: DESCRIBE on it, or DESCRIBE_TOKENS on its owner."""
    return is_allowed(
        services, request, DESCRIBE, AclResourceType.DELEGATION_TOKEN, token_id, tell_denied=False
    ) or is_allowed(
        services, request, AclOperation.DESCRIBE_TOKENS, AclResourceType.USER, owner, tell_denied=False
    )
