"""DescribeAcls (29), CreateAcls (30) and DeleteAcls (31), each v1-3: the access rules of the cluster.

- Without authorizer.class.name every answer is SECURITY_DISABLED.
- Any broker of a cluster changes rules: it writes them to the tree with a notification. The answer comes when
  this broker decides by the new rules; the others follow at once.
- CreateAcls: a rule that exists already is no error. The cluster has the name kafka-cluster; another name, no
  name, a name with a slash, and a principal without a type are INVALID_REQUEST. ANY and MATCH are for filters
  alone: in a rule they are UNKNOWN_SERVER_ERROR, as in Kafka.
- DescribeAcls and DeleteAcls take filters: null and ANY match everything, the pattern type MATCH matches
  every pattern that covers the named resource. DeleteAcls answers with the removed rules of each filter.
- A 0 for a type, an operation or a permission closes the connection, as in Kafka. A higher number than those
  known is INVALID_REQUEST in a rule, and matches nothing in a filter.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from enum import IntEnum
from typing import TypeVar

from tidelog.errors import (
    ClusterAuthorizationFailed,
    InvalidRequest,
    KafkaError,
    SecurityDisabled,
    UnknownServerError,
)
from tidelog.network.request import Request
from tidelog.protocol.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from tidelog.protocol.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from tidelog.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from tidelog.security.acl import AclBinding, AclBindingFilter, AclPermissionType, PatternType, ResourcePattern
from tidelog.security.authorizer import Authorizer
from tidelog.security.operations import CLUSTER_NAME, AclOperation, AclResourceType, title
from tidelog.server.apis.authorization import ALTER, DESCRIBE, check_cluster
from tidelog.server.services import Services
from tidelog.slices import Slices, finished, mapped

E = TypeVar("E", bound=IntEnum)

_Filter = DescribeAclsRequest | DeleteAclsRequest.DeleteAclsFilter
_DISABLED = "access is not checked: authorizer.class.name is not set"


def describe_acls(
    services: Services, request: Request, body: DescribeAclsRequest
) -> Slices[DescribeAclsResponse | None]:
    try:
        authorizer = _authorizer(services, request, DESCRIBE)
    except KafkaError as error:
        return DescribeAclsResponse(error_code=error.code, error_message=str(error))
    if _has_zero(_codes_of_filter(body)):
        request.close_connection("a filter of access rules has an unknown type")
        return None
    resources: dict[ResourcePattern, DescribeAclsResponse.DescribeAclsResource] = {}
    for binding in authorizer.acls(_filter(body)):
        yield
        if binding is None:
            continue
        pattern = binding.pattern
        if pattern not in resources:
            resources[pattern] = DescribeAclsResponse.DescribeAclsResource(
                resource_type=pattern.resource_type,
                resource_name=pattern.name,
                pattern_type=pattern.pattern_type,
            )
        resources[pattern].acls.append(
            DescribeAclsResponse.AclDescription(
                principal=binding.principal,
                host=binding.host,
                operation=binding.operation,
                permission_type=binding.permission,
            )
        )
    return DescribeAclsResponse(error_message=None, resources=list(resources.values()))


def create_acls(
    services: Services, request: Request, body: CreateAclsRequest
) -> CreateAclsResponse | Coroutine[None, None, CreateAclsResponse] | None:
    try:
        authorizer = _authorizer(services, request, ALTER)
    except KafkaError as error:
        return _created([error] * len(body.creations))
    codes = [
        code
        for rule in body.creations
        for code in (rule.resource_type, rule.resource_pattern_type, rule.operation, rule.permission_type)
    ]
    if _has_zero(codes):
        request.close_connection("a new access rule has an unknown type")
        return None
    return _create_acls(services, request, authorizer, body)


async def _create_acls(
    services: Services, request: Request, authorizer: Authorizer, body: CreateAclsRequest
) -> CreateAclsResponse:
    results: list[KafkaError | None] = []
    wanted: dict[int, AclBinding] = {}
    for index, rule in enumerate(body.creations):
        try:
            wanted[index] = _binding(rule)
            results.append(None)
        except KafkaError as error:
            results.append(error)
    errors = await authorizer.create_acls(request, list(wanted.values()))
    for (index, binding), failure in zip(wanted.items(), errors, strict=True):
        results[index] = failure
        if failure is None:
            services.audit.changed(request, "Acl", _shown(binding), "created")
    return _created(results)


def _created(results: Sequence[KafkaError | None]) -> CreateAclsResponse:
    return CreateAclsResponse(
        results=[
            CreateAclsResponse.AclCreationResult(
                error_code=0 if error is None else error.code,
                error_message=None if error is None else str(error),
            )
            for error in results
        ]
    )


def delete_acls(
    services: Services, request: Request, body: DeleteAclsRequest
) -> DeleteAclsResponse | Coroutine[None, None, Slices[DeleteAclsResponse]] | None:
    try:
        authorizer = _authorizer(services, request, ALTER)
    except KafkaError as error:
        return DeleteAclsResponse(
            filter_results=[
                DeleteAclsResponse.DeleteAclsFilterResult(error_code=error.code, error_message=str(error))
                for _ in body.filters
            ]
        )
    if any(_has_zero(_codes_of_filter(wanted)) for wanted in body.filters):
        request.close_connection("a filter of access rules has an unknown type")
        return None
    return _delete_acls(services, request, authorizer, body)


async def _delete_acls(
    services: Services, request: Request, authorizer: Authorizer, body: DeleteAclsRequest
) -> Slices[DeleteAclsResponse]:
    filters = await finished(mapped(_filter, body.filters))
    return _deleted(services, request, await authorizer.delete_acls(request, filters))


def _deleted(
    services: Services, request: Request, removed: Sequence[Sequence[tuple[AclBinding, KafkaError | None]]]
) -> Slices[DeleteAclsResponse]:
    answer = DeleteAclsResponse()
    told: set[AclBinding] = set()
    for found in removed:
        result = DeleteAclsResponse.DeleteAclsFilterResult(error_message=None)
        answer.filter_results.append(result)
        for binding, error in found:
            if error is None and binding not in told:
                told.add(binding)
                services.audit.changed(request, "Acl", _shown(binding), "deleted")
            result.matching_acls.append(_matching(binding, error))
            yield
        yield
    return answer


def _matching(binding: AclBinding, error: KafkaError | None) -> DeleteAclsResponse.DeleteAclsMatchingAcl:
    return DeleteAclsResponse.DeleteAclsMatchingAcl(
        error_code=0 if error is None else error.code,
        error_message=None if error is None else str(error),
        resource_type=binding.resource_type,
        resource_name=binding.name,
        pattern_type=binding.pattern_type,
        principal=binding.principal,
        host=binding.host,
        operation=binding.operation,
        permission_type=binding.permission,
    )


def _authorizer(services: Services, request: Request, operation: AclOperation) -> Authorizer:
    """The authorizer, if the client may see or change its rules. Raises KafkaError."""
    if services.authorizer is None:
        raise SecurityDisabled(_DISABLED)
    try:
        check_cluster(services, request, operation)
    except ClusterAuthorizationFailed:
        raise ClusterAuthorizationFailed("the client may not see or change access rules") from None
    return services.authorizer


def _binding(rule: CreateAclsRequest.AclCreation) -> AclBinding:
    binding = AclBinding(
        _member(AclResourceType, rule.resource_type),
        rule.resource_name,
        rule.principal,
        _member(AclOperation, rule.operation),
        _member(AclPermissionType, rule.permission_type),
        rule.host,
        _member(PatternType, rule.resource_pattern_type),
    )
    kinds = (binding.resource_type, binding.operation, binding.permission, binding.pattern_type)
    if any(kind == 0 for kind in kinds):
        raise InvalidRequest("a resource type, pattern, operation or permission is not known")
    if any(kind == 1 for kind in kinds) or binding.pattern_type is PatternType.MATCH:
        raise UnknownServerError("ANY and MATCH are for filters, not for rules")
    if binding.resource_type is AclResourceType.CLUSTER and binding.name != CLUSTER_NAME:
        raise InvalidRequest(f"the resource of the type CLUSTER has the name {CLUSTER_NAME}")
    if not binding.name:
        raise InvalidRequest("a rule needs the name of a resource")
    if ":" not in binding.principal:
        raise InvalidRequest(f"the principal {binding.principal!r} has no type, such as User:")
    return binding


def _filter(wanted: _Filter) -> AclBindingFilter:
    return AclBindingFilter(
        _member(AclResourceType, wanted.resource_type_filter),
        wanted.resource_name_filter,
        wanted.principal_filter,
        _member(AclOperation, wanted.operation),
        _member(AclPermissionType, wanted.permission_type),
        wanted.host_filter,
        _member(PatternType, wanted.pattern_type_filter),
    )


def _codes_of_filter(wanted: _Filter) -> tuple[int, ...]:
    return wanted.resource_type_filter, wanted.pattern_type_filter, wanted.operation, wanted.permission_type


def _has_zero(codes: Sequence[int]) -> bool:
    return 0 in codes


def _member(kind: type[E], code: int) -> E:
    try:
        return kind(code)
    except ValueError:
        return kind(0)


def _shown(binding: AclBinding) -> str:
    return (
        f"{title(binding.permission)} {binding.principal} {title(binding.operation)} from {binding.host} on "
        f"{title(binding.resource_type)}:{binding.pattern_type.name}:{binding.name}"
    )
