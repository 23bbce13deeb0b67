"""ACLs: list, create and delete."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import TypedDict

from tidelog.clients.admin.client import AsyncAdmin
from tidelog.clients.admin.driver import Outcomes
from tidelog.clients.admin.results import Results, error_from, first_code, raise_for, settled
from tidelog.errors import KafkaError
from tidelog.protocol.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from tidelog.protocol.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from tidelog.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

NOT_ASKED_FOR = -(2**31)


class AclResourceType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How the name of a pattern matches resources. ANY and MATCH are only for filters."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermissionType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


@dataclass(slots=True, frozen=True)
class AclBinding:
    """An ACL: allows or denies a principal, such as User:alice, an operation on resources of a pattern."""

    resource_type: AclResourceType
    name: str
    principal: str
    operation: AclOperation
    permission: AclPermissionType = AclPermissionType.ALLOW
    host: str = "*"
    pattern_type: PatternType = PatternType.LITERAL


@dataclass(slots=True, frozen=True)
class AclBindingFilter:
    """A filter of ACLs. None and ANY match everything."""

    resource_type: AclResourceType = AclResourceType.ANY
    name: str | None = None
    principal: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermissionType = AclPermissionType.ANY
    host: str | None = None
    pattern_type: PatternType = PatternType.ANY


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
