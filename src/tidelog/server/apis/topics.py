"""CreateTopics (19) v2-7, DeleteTopics (20) v1-6 and CreatePartitions (37) v0-3.

- CreateTopics: -1 partitions or replicas mean the broker's defaults. With manual assignments both have to be
  -1. `validate_only` checks and creates nothing. v5 answers with the settings, v7 with the topic id. A topic
  that occurs twice is INVALID_REQUEST.
- DeleteTopics: v6 takes topic ids. A topic with both name and id, or with neither, is INVALID_REQUEST.
- Over its controller_mutation_rate, a client gets THROTTLING_QUOTA_EXCEEDED from CreateTopics v6,
  DeleteTopics v5 and CreatePartitions v3 on. In older versions its topics are changed, and it is throttled.
  Topics that a broker creates for its clients count there, not here.
- CreatePartitions: takes the new number of partitions. A smaller number is INVALID_PARTITIONS.
- A new topic needs CREATE on the cluster or on the topic, DESCRIBE_CONFIGS to see its settings; a deletion
  needs DELETE, more partitions ALTER: TOPIC_AUTHORIZATION_FAILED otherwise, whether the topic exists or not.
The answer to a change comes when it is durable in the tree, and the partitions have leaders or are deleted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from tidelog.controller.interface import (
    DeletedTopic,
    NewPartitions,
    NewTopic,
    PartitionsResult,
    TopicResult,
    TopicToDelete,
)
from tidelog.errors import ErrorCode, TopicAuthorizationFailed
from tidelog.network.request import Request
from tidelog.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from tidelog.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from tidelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from tidelog.protocol.wire import ZERO_UUID
from tidelog.server.apis.api import Api
from tidelog.server.apis.authorization import (
    ALTER,
    CLUSTER,
    CLUSTER_ACTION,
    CREATE,
    DELETE,
    DENIED,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    TOPIC,
    allowed_in_slices,
    is_allowed,
)
from tidelog.server.services import Services
from tidelog.slices import Slices, finished, mapped

SETTINGS_FROM = 5
"""The first version whose answer has the settings of new topics."""
# The first versions whose changes over a quota are refused.
CREATE_STRICT_FROM, DELETE_STRICT_FROM, GROW_STRICT_FROM = 6, 5, 3


async def create_topics(
    services: Services, request: Request, body: CreateTopicsRequest
) -> CreateTopicsResponse:
    wanted = await finished(mapped(_new_topic, body.topics))
    denied: list[str] = []
    if services.authorizer is not None:
        allowed = await finished(_creatable(services, request, [topic.name for topic in wanted]))
        denied = [name for name in dict.fromkeys(topic.name for topic in wanted) if name not in allowed]
        wanted = [topic for topic in wanted if topic.name in allowed]
    quota = None
    if not _is_of_broker(services, request):
        quota = services.quotas.mutation_quota(request, CREATE_STRICT_FROM)
    results = await services.controller.create_topics(wanted, validate_only=body.validate_only, quota=quota)
    for result in results:
        if result.error is None and not body.validate_only:
            services.audit.changed(request, "Topic", result.name, "created")
    # Most topics override nothing: their settings are the same.
    defaults = _settings(services, {})
    topics = await finished(mapped(partial(_created, services, defaults), results))
    topics += [_denied_topic(name) for name in denied]
    if services.authorizer is not None and request.api_version >= SETTINGS_FROM:
        await finished(_hide_settings(services, request, topics))
    return CreateTopicsResponse(topics=topics, throttle_time_ms=quota.throttle_ms if quota else 0)


def _is_of_broker(services: Services, request: Request) -> bool:
    """Whether a broker of the cluster creates topics for a client, which has paid for them there."""
    cluster, client_id = services.cluster, request.client_id or ""
    return (
        cluster is not None
        and services.quotas.controller_mutation.enabled
        and request.listener in cluster.listeners
        and not request.is_forwarded
        and client_id.isdecimal()
        and int(client_id) in services.metadata.snapshot.brokers
        and is_allowed(services, request, CLUSTER_ACTION, CLUSTER, tell_denied=False)
    )


def _creatable(services: Services, request: Request, names: Sequence[str]) -> Slices[set[str]]:
    if is_allowed(services, request, CREATE, CLUSTER, tell_denied=False):
        return set(names)
    return (yield from allowed_in_slices(services, request, CREATE, TOPIC, names))


def _denied_topic(name: str) -> CreateTopicsResponse.CreatableTopicResult:
    return CreateTopicsResponse.CreatableTopicResult(
        name=name, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, error_message=DENIED
    )


def _hide_settings(
    services: Services, request: Request, topics: Sequence[CreateTopicsResponse.CreatableTopicResult]
) -> Slices[None]:
    """Leave out what a client may not see of its new topics."""
    created = [topic for topic in topics if topic.error_code == 0]
    names = [topic.name for topic in created]
    allowed = yield from allowed_in_slices(
        services, request, DESCRIBE_CONFIGS, TOPIC, names, tell_denied=False
    )
    for topic in created:
        if topic.name not in allowed:
            topic.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            topic.num_partitions = topic.replication_factor = -1
            topic.configs = []


def _new_topic(topic: CreateTopicsRequest.CreatableTopic) -> NewTopic:
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        [(assignment.partition_index, assignment.broker_ids) for assignment in topic.assignments],
        [(config.name, config.value) for config in topic.configs],
    )


def _settings(
    services: Services, overrides: Mapping[str, str]
) -> list[CreateTopicsResponse.CreatableTopicConfigs]:
    return [
        CreateTopicsResponse.CreatableTopicConfigs(
            name=entry.name,
            value=entry.value,
            read_only=entry.is_read_only,
            config_source=entry.source,
            is_sensitive=entry.is_sensitive,
        )
        for entry in services.dynamic_config.topics.created(overrides)
    ]


def _created(
    services: Services,
    defaults: list[CreateTopicsResponse.CreatableTopicConfigs],
    result: TopicResult,
) -> CreateTopicsResponse.CreatableTopicResult:
    if result.error is not None:
        return CreateTopicsResponse.CreatableTopicResult(
            name=result.name, error_code=result.error.code, error_message=result.error.message
        )
    return CreateTopicsResponse.CreatableTopicResult(
        name=result.name,
        topic_id=result.topic_id,
        error_message=None,
        num_partitions=result.num_partitions,
        replication_factor=result.replication_factor,
        configs=_settings(services, result.configs) if result.configs else defaults,
    )


async def delete_topics(
    services: Services, request: Request, body: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    if request.api_version >= 6:
        wanted = await finished(mapped(lambda topic: TopicToDelete(topic.name, topic.topic_id), body.topics))
    else:
        wanted = await finished(mapped(TopicToDelete, body.topic_names))
    denied: list[DeletedTopic] = []
    if services.authorizer is not None:
        wanted, denied = _deletable(services, request, wanted)
    quota = services.quotas.mutation_quota(request, DELETE_STRICT_FROM)
    results = await services.controller.delete_topics(wanted, quota=quota)
    for result in results:
        if result.error is None and result.name is not None:
            services.audit.changed(request, "Topic", result.name, "deleted")
    responses = await finished(mapped(_deleted, results + denied))
    return DeleteTopicsResponse(responses=responses, throttle_time_ms=quota.throttle_ms if quota else 0)


def _deletable(
    services: Services, request: Request, wanted: Sequence[TopicToDelete]
) -> tuple[list[TopicToDelete], list[DeletedTopic]]:
    """The topics that the client may delete, and the answers for the others.

    A client that may not describe a topic does not learn its name from the id, nor whether a name exists.
    """
    state = services.metadata.snapshot
    error = TopicAuthorizationFailed(DENIED)
    allowed: list[TopicToDelete] = []
    denied: list[DeletedTopic] = []
    for topic in wanted:
        by_id = topic.name is None and topic.topic_id != ZERO_UUID
        found = state.topic_by_id(topic.topic_id) if by_id else None
        name = topic.name if found is None else found.name
        if name is None or (topic.name is not None and topic.topic_id != ZERO_UUID):
            allowed.append(topic)  # the id is not known, or the request is not valid
        elif is_allowed(services, request, DELETE, TOPIC, name):
            allowed.append(topic)
        elif by_id and is_allowed(services, request, DESCRIBE, TOPIC, name):
            denied.append(DeletedTopic(name, topic.topic_id, error))
        else:
            denied.append(DeletedTopic(topic.name, topic.topic_id, error))
    return allowed, denied


def _deleted(result: DeletedTopic) -> DeleteTopicsResponse.DeletableTopicResult:
    return DeleteTopicsResponse.DeletableTopicResult(
        name=result.name,
        topic_id=result.topic_id,
        error_code=0 if result.error is None else result.error.code,
        error_message=None if result.error is None else result.error.message,
    )


async def create_partitions(
    services: Services, request: Request, body: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    wanted = await finished(mapped(_new_partitions, body.topics))
    denied: list[PartitionsResult] = []
    if services.authorizer is not None:
        names = [topic.name for topic in wanted]
        allowed = await finished(allowed_in_slices(services, request, ALTER, TOPIC, names))
        error = TopicAuthorizationFailed(DENIED)
        denied = [PartitionsResult(name, error) for name in dict.fromkeys(names) if name not in allowed]
        wanted = [topic for topic in wanted if topic.name in allowed]
    quota = services.quotas.mutation_quota(request, GROW_STRICT_FROM)
    results = await services.controller.create_partitions(
        wanted, validate_only=body.validate_only, quota=quota
    )
    for result in results:
        if result.error is None and not body.validate_only:
            services.audit.changed(request, "Topic", result.name, "partitions added")
    grown = await finished(mapped(_grown, [*results, *denied]))
    return CreatePartitionsResponse(results=grown, throttle_time_ms=quota.throttle_ms if quota else 0)


def _new_partitions(topic: CreatePartitionsRequest.CreatePartitionsTopic) -> NewPartitions:
    given = topic.assignments
    return NewPartitions(
        topic.name, topic.count, None if given is None else [assignment.broker_ids for assignment in given]
    )


def _grown(result: PartitionsResult) -> CreatePartitionsResponse.CreatePartitionsTopicResult:
    return CreatePartitionsResponse.CreatePartitionsTopicResult(
        name=result.name,
        error_code=0 if result.error is None else result.error.code,
        error_message=None if result.error is None else result.error.message,
    )


APIS = (
    Api(
        19,
        2,
        7,
        create_topics,
        forwarded=True,
        access=("CLUSTER CREATE", "TOPIC CREATE", "TOPIC DESCRIBE_CONFIGS"),
    ),
    Api(20, 1, 6, delete_topics, forwarded=True, access=("TOPIC DELETE", "TOPIC DESCRIBE")),
    Api(37, 0, 3, create_partitions, forwarded=True, access=("TOPIC ALTER",)),
)
