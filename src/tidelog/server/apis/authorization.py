"""The authorization checks of handlers. Without an authorizer everything is allowed."""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.errors import ClusterAuthorizationFailed
from tidelog.network.request import Request
from tidelog.security.operations import (
    CLUSTER_NAME,
    OPERATIONS_OF,
    AclOperation,
    AclResourceType,
    Action,
)
from tidelog.server.services import Services
from tidelog.slices import Slices

TOPIC, GROUP, CLUSTER = AclResourceType.TOPIC, AclResourceType.GROUP, AclResourceType.CLUSTER
TRANSACTIONAL_ID = AclResourceType.TRANSACTIONAL_ID
DELEGATION_TOKEN, USER = AclResourceType.DELEGATION_TOKEN, AclResourceType.USER
READ, WRITE, CREATE, DELETE = AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE, AclOperation.DELETE
ALTER, DESCRIBE = AclOperation.ALTER, AclOperation.DESCRIBE
CLUSTER_ACTION, IDEMPOTENT_WRITE = AclOperation.CLUSTER_ACTION, AclOperation.IDEMPOTENT_WRITE
DESCRIBE_CONFIGS, ALTER_CONFIGS = AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS
TWO_PHASE_COMMIT = AclOperation.TWO_PHASE_COMMIT
CREATE_TOKENS, DESCRIBE_TOKENS = AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS

DENIED = "no access rule allows this to the client"
"""The message of an error. It does not say whether the resource exists."""


NAMES_PER_STEP = 50
"""How many names of a long request are checked in one step."""

REMEMBERED_TOPICS = 1_000
"""How many topics a connection remembers that it may read, and that it may write."""


def topic_name(services: Services, topic: str | bytes) -> str | None:
    """The name of a topic by its name or id; None if there is no topic with this id."""
    if isinstance(topic, str):
        return topic
    found = services.metadata.snapshot.topic_by_id(topic)
    return None if found is None else found.name


def is_allowed(
    services: Services,
    request: Request,
    operation: AclOperation,
    resource_type: AclResourceType,
    name: str = CLUSTER_NAME,
    *,
    tell_denied: bool = True,
    tell_allowed: bool = True,
) -> bool:
    """Whether the client may do the operation. The `tell_...` flags say which decisions the audit logs."""
    authorizer = services.authorizer
    if authorizer is None:
        return True
    (allowed,) = authorizer.authorize(request, (Action(operation, resource_type, name),))
    tell = tell_allowed if allowed else tell_denied
    services.audit.decided(request, operation, resource_type, name, allowed, tell=tell)
    return allowed


def allowed_names(
    services: Services,
    request: Request,
    operation: AclOperation,
    resource_type: AclResourceType,
    names: Iterable[str],
    *,
    tell_denied: bool = True,
) -> set[str]:
    """The names of resources on which the client may do the operation."""
    wanted = dict.fromkeys(names)
    authorizer = services.authorizer
    if authorizer is None:
        return set(wanted)
    decisions = authorizer.authorize(request, [Action(operation, resource_type, name) for name in wanted])
    allowed = set()
    for name, decision in zip(wanted, decisions, strict=True):
        services.audit.decided(
            request, operation, resource_type, name, decision, tell=decision or tell_denied
        )
        if decision:
            allowed.add(name)
    return allowed


def allowed_in_slices(
    services: Services,
    request: Request,
    operation: AclOperation,
    resource_type: AclResourceType,
    names: Iterable[str],
    *,
    tell_denied: bool = True,
) -> Slices[set[str]]:
    """`allowed_names` of a request that may have very many names."""
    wanted = list(dict.fromkeys(names))
    allowed: set[str] = set()
    for begin in range(0, len(wanted), NAMES_PER_STEP):
        some = wanted[begin : begin + NAMES_PER_STEP]
        allowed |= allowed_names(services, request, operation, resource_type, some, tell_denied=tell_denied)
        yield
    return allowed


def is_allowed_on_any(
    services: Services, request: Request, operation: AclOperation, resource_type: AclResourceType
) -> bool:
    """Whether the client may do the operation on any resource of a type."""
    authorizer = services.authorizer
    if authorizer is None:
        return True
    allowed = authorizer.authorize_by_resource_type(request, operation, resource_type)
    services.audit.decided(request, operation, resource_type, "*", allowed)
    return allowed


def check_cluster(services: Services, request: Request, operation: AclOperation) -> None:
    """Raise ClusterAuthorizationFailed unless the client may do the operation on the cluster."""
    if services.authorizer is not None and not is_allowed(services, request, operation, CLUSTER):
        raise ClusterAuthorizationFailed(f"{request.principal} may not do {operation.name} on the cluster")


def authorized_operations(
    services: Services, request: Request, resource_type: AclResourceType, name: str = CLUSTER_NAME
) -> int:
    """The operations that the client may do on a resource, one bit each."""
    operations = OPERATIONS_OF[resource_type]
    authorizer = services.authorizer
    if authorizer is None:
        return sum(1 << operation for operation in operations)
    decisions = authorizer.authorize(
        request, [Action(operation, resource_type, name) for operation in operations]
    )
    return sum(1 << operation for operation, decision in zip(operations, decisions, strict=True) if decision)
