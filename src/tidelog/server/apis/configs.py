"""DescribeConfigs (32) v1-4, AlterConfigs (33) v0-2, IncrementalAlterConfigs (44) v0-1 and
ListConfigResources (74) v0-1.

- Resources: TOPIC 2, BROKER 4 (an empty name means all brokers), BROKER_LOGGER 8 (log levels; only
  incremental changes), CLIENT_METRICS 16 (a subscription need not exist) and GROUP 32 (the group need not
  exist; the broker's settings limit the values).
- DescribeConfigs v1 answers with the source and the synonyms of a value, v3 with its type and documentation.
  Values of sensitive settings are null.
- AlterConfigs replaces all settings of a resource, IncrementalAlterConfigs changes the named settings.
  In both, a resource that occurs twice is INVALID_REQUEST.
- Settings need DESCRIBE_CONFIGS or ALTER_CONFIGS on the topic, on the group or, for brokers, on the cluster.
- ListConfigResources v0 lists subscriptions of client metrics, v1 the resources of the requested types.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict, TypeVar

from tidelog.config.entries import ConfigEntry
from tidelog.controller.interface import ConfigChange, ConfigEntity, ConfigKind
from tidelog.controller.validation import check_topic_name
from tidelog.errors import (
    ClusterAuthorizationFailed,
    ErrorCode,
    GroupAuthorizationFailed,
    InvalidRequest,
    KafkaError,
    KafkaStorageError,
    RequestTimedOut,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from tidelog.metadata.paths import decode_name
from tidelog.metadata.state import DEFAULT_ENTITY
from tidelog.metadata.tree import TreeUnavailable
from tidelog.network.request import Request
from tidelog.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from tidelog.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from tidelog.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tidelog.protocol.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from tidelog.security.operations import AclOperation, AclResourceType
from tidelog.server.apis.api import Api
from tidelog.server.apis.authorization import ALTER_CONFIGS, DENIED, DESCRIBE_CONFIGS, is_allowed
from tidelog.server.config.changes import ConfigOp
from tidelog.server.services import Services
from tidelog.slices import Slices, finished, mapped

if TYPE_CHECKING:
    from tidelog.cluster.topic_overrides import TopicOverrides

R = TypeVar(
    "R", AlterConfigsRequest.AlterConfigsResource, IncrementalAlterConfigsRequest.AlterConfigsResource
)

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
RESOURCE_TYPES = (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP)
_KINDS = {CLIENT_METRICS: ConfigKind.CLIENT_METRICS, GROUP: ConfigKind.GROUP}


def describe_configs(
    services: Services, request: Request, body: DescribeConfigsRequest
) -> Slices[DescribeConfigsResponse] | Coroutine[None, None, DescribeConfigsResponse]:
    if services.cluster is not None:
        return _describe_in_cluster(services, services.cluster.overrides, request, body)
    metadata = services.metadata
    return _describe(services, request, body, lambda topic: metadata.snapshot.topics[topic].configs)


async def _describe_in_cluster(
    services: Services, overrides: TopicOverrides, request: Request, body: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """Read the settings of topics from the tree, as each may be on other brokers alone."""
    topics = {resource.resource_name for resource in body.resources if resource.resource_type == TOPIC}
    known = topics & services.metadata.snapshot.topics.keys()
    found: Mapping[str, Mapping[str, str]] = {}
    failure: KafkaError | None = None
    limit_ms = services.config["request.timeout.ms"]
    assert isinstance(limit_ms, int)
    try:
        if known:
            # Reads wait for a ZooKeeper that is gone. Requests that do so for ever would fill the queue.
            async with asyncio.timeout(limit_ms / 1000):
                found = await overrides.read(sorted(known))
    except TreeUnavailable as error:
        failure = KafkaStorageError(f"The settings of topics cannot be read: {error}")
    except TimeoutError:
        failure = RequestTimedOut("The settings of topics cannot be read: ZooKeeper does not answer.")

    def overrides_of(topic: str) -> Mapping[str, str]:
        if failure is not None:
            raise failure
        return found.get(topic, {})

    return await finished(_describe(services, request, body, overrides_of))


def _check_access(
    services: Services, request: Request, operation: AclOperation, kind: int, name: str
) -> None:
    """Raise the error of a resource whose settings the client may not see or change."""
    if services.authorizer is None:
        return
    if kind == TOPIC:
        if not is_allowed(services, request, operation, AclResourceType.TOPIC, name):
            raise TopicAuthorizationFailed(DENIED)
    elif kind == GROUP:
        if not is_allowed(services, request, operation, AclResourceType.GROUP, name):
            raise GroupAuthorizationFailed(DENIED)
    elif kind in RESOURCE_TYPES and not is_allowed(services, request, operation, AclResourceType.CLUSTER):
        raise ClusterAuthorizationFailed(DENIED)


def _describe(
    services: Services,
    request: Request,
    body: DescribeConfigsRequest,
    overrides_of: Callable[[str], Mapping[str, str]],
) -> Slices[DescribeConfigsResponse]:
    results = []
    # A resource that occurs several times is described once: the description is far larger than the name.
    once = {
        (resource.resource_type, resource.resource_name, tuple(resource.configuration_keys or ())): resource
        for resource in body.resources
    }
    for resource in once.values():
        result = DescribeConfigsResponse.DescribeConfigsResult(
            error_message="", resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        try:
            kind, name = resource.resource_type, resource.resource_name
            _check_access(services, request, DESCRIBE_CONFIGS, kind, name)
            entries = _entries(services, resource, body.include_documentation, overrides_of)
            yield
        except KafkaError as error:
            result.error_code = error.code
            # As in Kafka, the error of an unknown topic has no message.
            result.error_message = "" if isinstance(error, UnknownTopicOrPartition) else error.message
        else:
            result.configs = yield from mapped(
                lambda entry: _described(entry, body.include_synonyms), entries
            )
        results.append(result)
        yield
    return DescribeConfigsResponse(results=results)


def _entries(
    services: Services,
    resource: DescribeConfigsRequest.DescribeConfigsResource,
    documentation: bool,
    overrides_of: Callable[[str], Mapping[str, str]],
) -> Iterable[ConfigEntry]:
    """The settings of a resource. Many of them are made one by one, as they are taken."""
    dynamic = services.dynamic_config
    kind, name, names = resource.resource_type, resource.resource_name, resource.configuration_keys
    # As in Kafka, an empty list of names means all settings.
    names = names or None
    if kind == TOPIC:
        check_topic_name(name)
        if name not in services.metadata.snapshot.topics:
            raise UnknownTopicOrPartition(f"there is no topic {name}")
        return dynamic.topics.describe(overrides_of(name), names, documentation=documentation)
    if kind in _KINDS:
        own = services.metadata.snapshot.entity_configs.get(ConfigEntity(_KINDS[kind], name).path, {})
        configs = dynamic.groups if kind == GROUP else dynamic.client_metrics
        return configs.describe(name, own, names, documentation=documentation)
    if kind == BROKER and not name:
        return dynamic.broker.describe_default(names, documentation=documentation)
    if kind in (BROKER, BROKER_LOGGER):
        _check_broker(services, name)
        if kind == BROKER:
            return dynamic.broker.describe(names, documentation=documentation)
        return dynamic.loggers.describe(names)
    raise _unsupported(kind)


def _check_broker(services: Services, name: str) -> None:
    """Raise InvalidRequest unless the resource is this broker: other brokers have settings of their own."""
    if name != str(services.broker_id):
        what = "is not a broker id" if not name.isdecimal() else f"is not this broker, {services.broker_id}"
        raise InvalidRequest(f"resource {name!r} {what}")


def _unsupported(kind: int) -> InvalidRequest:
    return InvalidRequest(f"resource type {kind} is not known")


def _described(entry: ConfigEntry, synonyms: bool) -> DescribeConfigsResponse.DescribeConfigsResourceResult:
    return DescribeConfigsResponse.DescribeConfigsResourceResult(
        name=entry.name,
        value=None if entry.is_sensitive else entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=[
            DescribeConfigsResponse.DescribeConfigsSynonym(
                name=synonym.name, value=synonym.value, source=synonym.source
            )
            for synonym in entry.synonyms
        ]
        if synonyms
        else [],
        config_type=entry.type,
        documentation=entry.documentation,
    )


async def alter_configs(
    services: Services, request: Request, body: AlterConfigsRequest
) -> AlterConfigsResponse:
    async def change(resource: AlterConfigsRequest.AlterConfigsResource) -> None:
        kind, name = resource.resource_type, resource.resource_name
        _check_access(services, request, ALTER_CONFIGS, kind, name)
        if resource.resource_type == BROKER_LOGGER:
            raise InvalidRequest("log levels are changed with IncrementalAlterConfigs")
        entity = _entity(services, resource.resource_type, resource.resource_name)
        configs = [(config.name, config.value) for config in resource.configs]
        await services.controller.alter_configs(entity, configs, validate_only=body.validate_only)
        _reload_keys(services, entity, body.validate_only)
        if not body.validate_only:
            _note_change(services, request, kind, name, [config.name for config in resource.configs])

    return AlterConfigsResponse(
        responses=[
            AlterConfigsResponse.AlterConfigsResourceResponse(**fields)
            for fields in await _alter_each(body.resources, change)
        ]
    )


async def incremental_alter_configs(
    services: Services, request: Request, body: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    async def change(resource: IncrementalAlterConfigsRequest.AlterConfigsResource) -> None:
        kind, name = resource.resource_type, resource.resource_name
        _check_access(services, request, ALTER_CONFIGS, kind, name)
        if resource.resource_type == BROKER_LOGGER:
            _change_levels(services, resource, body.validate_only)
            if not body.validate_only:
                _note_change(services, request, kind, name, [config.name for config in resource.configs])
            return
        entity = _entity(services, resource.resource_type, resource.resource_name)
        changes = [
            ConfigChange(config.name, config.config_operation, config.value) for config in resource.configs
        ]
        await services.controller.incremental_alter_configs(entity, changes, validate_only=body.validate_only)
        _reload_keys(services, entity, body.validate_only)
        if not body.validate_only:
            _note_change(services, request, kind, name, [config.name for config in resource.configs])

    return IncrementalAlterConfigsResponse(
        responses=[
            IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(**fields)
            for fields in await _alter_each(body.resources, change)
        ]
    )


def _reload_keys(services: Services, entity: ConfigEntity, validate_only: bool) -> None:
    """Load changed key stores, as Kafka does when a setting is set to the value that it has."""
    tls = services.dynamic_config.tls
    if tls is not None and entity.kind == ConfigKind.BROKER and not validate_only:
        tls.update()


def _note_change(services: Services, request: Request, kind: int, name: str, settings: Sequence[str]) -> None:
    names = {TOPIC: "TopicConfig", GROUP: "GroupConfig", BROKER_LOGGER: "LogLevel"}
    what = names.get(kind, "BrokerConfig")
    services.audit.changed(request, what, name, f"changed: {', '.join(settings)}")


class _Altered(TypedDict):
    """The fields of a response to AlterConfigs and to IncrementalAlterConfigs."""

    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str


async def _alter_each(resources: Sequence[R], change: Callable[[R], Awaitable[None]]) -> list[_Altered]:
    """Change one resource after the other. An error of one leaves the others alone."""
    occurrences = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    altered = []
    for resource in resources:
        kind, name = resource.resource_type, resource.resource_name
        result = _Altered(
            error_code=ErrorCode.NONE, error_message=None, resource_type=kind, resource_name=name
        )
        try:
            if occurrences[kind, name] > 1:
                raise InvalidRequest("the resource is named more than once")
            await change(resource)
        except KafkaError as error:
            result["error_code"], result["error_message"] = error.code, error.message
        altered.append(result)
    return altered


def _entity(services: Services, kind: int, name: str) -> ConfigEntity:
    if kind == TOPIC:
        return ConfigEntity(ConfigKind.TOPIC, name)
    if kind == BROKER:
        if name:
            _check_broker(services, name)
        return ConfigEntity(ConfigKind.BROKER, name or DEFAULT_ENTITY)
    if kind in _KINDS:
        return ConfigEntity(_KINDS[kind], name)
    raise _unsupported(kind)


def _change_levels(
    services: Services,
    resource: IncrementalAlterConfigsRequest.AlterConfigsResource,
    validate_only: bool,
) -> None:
    _check_broker(services, resource.resource_name)
    operations = [ConfigOp(config.name, config.config_operation, config.value) for config in resource.configs]
    if validate_only:
        services.dynamic_config.loggers.validate(operations)
    else:
        services.dynamic_config.change_levels(operations)


def list_config_resources(
    services: Services, request: Request, body: ListConfigResourcesRequest
) -> Slices[ListConfigResourcesResponse]:
    if services.authorizer is not None and not is_allowed(
        services, request, DESCRIBE_CONFIGS, AclResourceType.CLUSTER
    ):
        return ListConfigResourcesResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    wanted = set(body.resource_types) if request.api_version >= 1 else {CLIENT_METRICS}
    if wanted - set(RESOURCE_TYPES):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    wanted = wanted or set(RESOURCE_TYPES)
    names: list[tuple[int, str]] = []
    broker = str(services.broker_id)
    names += [(kind, broker) for kind in (BROKER_LOGGER, BROKER) if kind in wanted]
    if TOPIC in wanted:
        names += [(TOPIC, name) for name in services.metadata.snapshot.topics]
    for kind in _KINDS.keys() & wanted:
        names += [(kind, name) for name in _entity_names(services, _KINDS[kind])]
    resources = yield from mapped(_listed_resource, names)
    return ListConfigResourcesResponse(config_resources=resources)


def _listed_resource(resource: tuple[int, str]) -> ListConfigResourcesResponse.ConfigResource:
    kind, name = resource
    return ListConfigResourcesResponse.ConfigResource(resource_name=name, resource_type=kind)


def _entity_names(services: Services, kind: str) -> list[str]:
    prefix = f"{kind}/"
    entities = services.metadata.snapshot.entity_configs
    return [decode_name(path.removeprefix(prefix)) for path in entities if path.startswith(prefix)]


_ALTERS = ("TOPIC ALTER_CONFIGS", "GROUP ALTER_CONFIGS", "CLUSTER ALTER_CONFIGS")

APIS = (
    Api(
        32,
        1,
        4,
        describe_configs,
        access=("TOPIC DESCRIBE_CONFIGS", "GROUP DESCRIBE_CONFIGS", "CLUSTER DESCRIBE_CONFIGS"),
    ),
    Api(33, 0, 2, alter_configs, access=_ALTERS),
    Api(44, 0, 1, incremental_alter_configs, access=_ALTERS),
    Api(74, 0, 1, list_config_resources, access=("CLUSTER DESCRIBE_CONFIGS",)),
)
