"""Configs of topics, brokers, groups, loggers and client metrics: describe, alter, list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple, TypeVar

from tidelog.clients.admin.client import AsyncAdmin
from tidelog.clients.admin.driver import Deadline, Outcomes
from tidelog.clients.admin.results import Results, error_from, first_code, raise_for, settled
from tidelog.config import ConfigType
from tidelog.config.entries import ConfigEntry, ConfigSource, ConfigSynonym
from tidelog.errors import KafkaError, UnsupportedVersion
from tidelog.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from tidelog.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tidelog.protocol.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

T = TypeVar("T")


class ResourceType(IntEnum):
    """The types of resources that have configs."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    """A resource with configs. A broker with the name "" stands for the default of all brokers."""

    type: ResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.type.name.lower()} {self.name or '(default)'!r}"


class OpType(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class AlterConfigOp(NamedTuple):
    """One change. APPEND and SUBTRACT are for lists, DELETE restores the default."""

    name: str
    value: str | None
    op: OpType = OpType.SET


async def describe_configs(
    self: AsyncAdmin,
    resources: Iterable[ConfigResource],
    *,
    names: Iterable[str] | None = None,
    include_synonyms: bool = False,
    include_documentation: bool = False,
    partial: bool = False,
    timeout: float | None = None,
) -> Results[ConfigResource, dict[str, ConfigEntry]]:
    """The configs of resources, all or those in `names`. Configs of a broker come from that broker."""
    deadline = self.driver.deadline(timeout)
    wanted_names = None if names is None else list(names)

    async def ask(
        node: int | None, asked: list[ConfigResource]
    ) -> Outcomes[ConfigResource, dict[str, ConfigEntry]]:
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=resource.type,
                    resource_name=resource.name,
                    configuration_keys=wanted_names,
                )
                for resource in asked
            ],
            include_synonyms=include_synonyms,
            include_documentation=include_documentation,
        )
        if node is None:
            answer = await self.driver.ask_any(request, DescribeConfigsResponse, deadline)
        else:
            answer = await self.driver.ask_node(node, request, DescribeConfigsResponse, deadline)
        return {
            _resource(result): _refused(result) or {entry.name: _entry(entry) for entry in result.configs}
            for result in answer.results
        }

    return settled(await _by_owner(resources, ask, partial), partial)


async def incremental_alter_configs(
    self: AsyncAdmin,
    changes: Mapping[ConfigResource, Iterable[AlterConfigOp]],
    *,
    validate_only: bool = False,
    partial: bool = False,
    timeout: float | None = None,
) -> Results[ConfigResource, None]:
    """Change some configs and leave the others as they are."""
    deadline = self.driver.deadline(timeout)

    async def ask(node: int | None, asked: list[ConfigResource]) -> Outcomes[ConfigResource, None]:
        request = IncrementalAlterConfigsRequest(
            resources=[_changed(resource, changes[resource]) for resource in asked],
            validate_only=validate_only,
        )
        answer = await _alter(self, node, request, deadline)
        return {_resource(result): _refused(result) for result in answer.responses}

    return settled(await _by_owner(changes, ask, partial), partial)


async def list_config_resources(
    self: AsyncAdmin, types: Iterable[ResourceType] = (), *, timeout: float | None = None
) -> list[ConfigResource]:
    """The resources that have configs, of the given types or of any type."""
    deadline = self.driver.deadline(timeout)
    wanted = [int(kind) for kind in types]
    connection = await self.driver.any_connection(deadline, "list_config_resources")
    only_metrics = connection.version_for(ListConfigResourcesRequest) == 0
    if only_metrics and wanted != [ResourceType.CLIENT_METRICS]:
        raise UnsupportedVersion(
            f"the broker {connection.node.address} lists client metrics alone (ListConfigResources 0)"
        )
    request = ListConfigResourcesRequest(resource_types=[] if only_metrics else wanted)
    answer = await self.driver.ask_any(request, ListConfigResourcesResponse, deadline)
    raise_for(answer.error_code, None, "resources with settings")
    return [_resource(found) for found in answer.config_resources]


async def list_client_metrics_resources(self: AsyncAdmin, *, timeout: float | None = None) -> list[str]:
    """The names of the client metrics subscriptions."""
    found = await list_config_resources(self, [ResourceType.CLIENT_METRICS], timeout=timeout)
    return [resource.name for resource in found]


async def _alter(
    self: AsyncAdmin, node: int | None, request: IncrementalAlterConfigsRequest, deadline: Deadline
) -> IncrementalAlterConfigsResponse:
    if node is not None:
        return await self.driver.ask_node(node, request, IncrementalAlterConfigsResponse, deadline)
    return await self.driver.ask_controller(
        request,
        IncrementalAlterConfigsResponse,
        deadline,
        lambda found: first_code(found.responses),
    )


async def _by_owner(
    resources: Iterable[ConfigResource],
    ask: Callable[[int | None, list[ConfigResource]], Awaitable[Outcomes[ConfigResource, T]]],
    partial: bool,
) -> Outcomes[ConfigResource, T]:
    """The answers of the brokers that own the resources. Raises the first error unless `partial`."""
    outcomes: Outcomes[ConfigResource, T] = {}
    for node, asked in _by_node(resources).items():
        try:
            outcomes |= await ask(node, asked)
        except KafkaError as error:
            if not partial:
                raise
            outcomes |= dict.fromkeys(asked, error)
    return outcomes


def _by_node(resources: Iterable[ConfigResource]) -> dict[int | None, list[ConfigResource]]:
    """Resources by the broker that has to be asked. None stands for any broker."""
    found: dict[int | None, list[ConfigResource]] = {}
    for resource in resources:
        own = resource.type in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) and resource.name
        if own and not resource.name.isdigit():
            raise ValueError(f"{resource}: expected the number of a broker")
        found.setdefault(int(resource.name) if own else None, []).append(resource)
    return found


def _resource(
    found: DescribeConfigsResponse.DescribeConfigsResult
    | IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
    | ListConfigResourcesResponse.ConfigResource,
) -> ConfigResource:
    return ConfigResource(ResourceType(found.resource_type), found.resource_name)


def _refused(
    result: DescribeConfigsResponse.DescribeConfigsResult
    | IncrementalAlterConfigsResponse.AlterConfigsResourceResponse,
) -> KafkaError | None:
    """The error of a resource."""
    return error_from(result.error_code, result.error_message, f"settings of {_resource(result)}")


def _changed(
    resource: ConfigResource, ops: Iterable[AlterConfigOp]
) -> IncrementalAlterConfigsRequest.AlterConfigsResource:
    return IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=resource.type,
        resource_name=resource.name,
        configs=[
            IncrementalAlterConfigsRequest.AlterableConfig(
                name=op.name, config_operation=op.op, value=op.value
            )
            for op in ops
        ],
    )


def _entry(entry: DescribeConfigsResponse.DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        entry.name,
        entry.value,
        ConfigSource(entry.config_source),
        entry.is_sensitive,
        entry.read_only,
        ConfigType(entry.config_type),
        [ConfigSynonym(found.name, found.value, ConfigSource(found.source)) for found in entry.synonyms],
        entry.documentation,
    )
