"""ACLs: list, create and delete."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from tidelog.clients.admin.client import AsyncAdmin
from tidelog.clients.admin.driver import Outcomes
from tidelog.clients.admin.results import Results, error_from, first_code, raise_for, settled
from tidelog.errors import KafkaError
from tidelog.protocol.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from tidelog.protocol.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from tidelog.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from tidelog.security.acl import AclBinding as AclBinding
from tidelog.security.acl import AclBindingFilter as AclBindingFilter
from tidelog.security.acl import AclPermissionType as AclPermissionType
from tidelog.security.acl import PatternType as PatternType
from tidelog.security.operations import AclOperation as AclOperation
from tidelog.security.operations import AclResourceType as AclResourceType

NOT_ASKED_FOR = -(2**31)


async def describe_acls(
    self: AsyncAdmin, wanted: AclBindingFilter | None = None, *, timeout: float | None = None
) -> list[AclBinding]:
    """The ACLs that match a filter; all without a filter."""
    request = DescribeAclsRequest(**_filter_fields(wanted or AclBindingFilter()))
    answer = await self.driver.ask_any(request, DescribeAclsResponse, self.driver.deadline(timeout))
    raise_for(answer.error_code, answer.error_message, "ACLs")
    return [_binding(found, acl) for found in answer.resources for acl in found.acls]


async def create_acls(
    self: AsyncAdmin, bindings: Iterable[AclBinding], *, partial: bool = False, timeout: float | None = None
) -> Results[AclBinding, None]:
    """Create ACLs; existing ones stay as they are."""
    made = list(bindings)
    request = CreateAclsRequest(
        creations=[
            CreateAclsRequest.AclCreation(
                resource_type=binding.resource_type,
                resource_name=binding.name,
                resource_pattern_type=binding.pattern_type,
                principal=binding.principal,
                host=binding.host,
                operation=binding.operation,
                permission_type=binding.permission,
            )
            for binding in made
        ]
    )
    answer = await self.driver.ask_controller(
        request,
        CreateAclsResponse,
        self.driver.deadline(timeout),
        lambda found: first_code(found.results),
    )
    outcomes: Outcomes[AclBinding, None] = {
        binding: error_from(result.error_code, result.error_message, "ACL")
        for binding, result in zip(made, answer.results, strict=True)
    }
    return settled(outcomes, partial)


async def delete_acls(
    self: AsyncAdmin,
    filters: Iterable[AclBindingFilter],
    *,
    partial: bool = False,
    timeout: float | None = None,
) -> Results[AclBindingFilter, list[AclBinding]]:
    """Delete the ACLs that match the filters; returns the deleted ACLs of each filter."""
    wanted = list(filters)
    request = DeleteAclsRequest(
        filters=[DeleteAclsRequest.DeleteAclsFilter(**_filter_fields(chosen)) for chosen in wanted]
    )
    answer = await self.driver.ask_controller(
        request,
        DeleteAclsResponse,
        self.driver.deadline(timeout),
        lambda found: first_code(found.filter_results),
    )
    outcomes: Outcomes[AclBindingFilter, list[AclBinding]] = {}
    for chosen, result in zip(wanted, answer.filter_results, strict=True):
        outcomes[chosen] = error_from(result.error_code, result.error_message, "ACLs") or _deleted(result)
    return settled(outcomes, partial)


def _deleted(result: DeleteAclsResponse.DeleteAclsFilterResult) -> list[AclBinding] | KafkaError:
    gone: list[AclBinding] = []
    for acl in result.matching_acls:
        error = error_from(acl.error_code, acl.error_message, f"ACL of {acl.principal}")
        if error is not None:
            return error
        gone.append(_binding(acl, acl))
    return gone


class FilterFields(TypedDict):
    """The fields of a filter, in a request to describe ACLs and in one to delete them."""

    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


def _filter_fields(chosen: AclBindingFilter) -> FilterFields:
    return FilterFields(
        resource_type_filter=chosen.resource_type,
        resource_name_filter=chosen.name,
        pattern_type_filter=chosen.pattern_type,
        principal_filter=chosen.principal,
        host_filter=chosen.host,
        operation=chosen.operation,
        permission_type=chosen.permission,
    )


def _binding(
    resource: DescribeAclsResponse.DescribeAclsResource | DeleteAclsResponse.DeleteAclsMatchingAcl,
    acl: DescribeAclsResponse.AclDescription | DeleteAclsResponse.DeleteAclsMatchingAcl,
) -> AclBinding:
    return AclBinding(
        AclResourceType(resource.resource_type),
        resource.resource_name,
        acl.principal,
        AclOperation(acl.operation),
        AclPermissionType(acl.permission_type),
        acl.host,
        PatternType(resource.pattern_type),
    )


def operations_of(bits: int) -> frozenset[AclOperation] | None:
    """The allowed operations, from the bits of an answer; None if they were not requested."""
    if bits == NOT_ASKED_FOR:
        return None
    return frozenset(operation for operation in AclOperation if bits & (1 << operation))
