"""CreateTopics (19) v2-7, DeleteTopics (20) v1-6 and CreatePartitions (37) v0-3.

- CreateTopics: -1 partitions or replicas mean the broker's defaults. With manual assignments both have to be
  -1. `validate_only` checks and creates nothing. v5 answers with the settings, v7 with the topic id. A topic
  that occurs twice is INVALID_REQUEST.
- DeleteTopics: v6 takes topic ids. A topic with both name and id, or with neither, is INVALID_REQUEST.
- CreatePartitions: takes the new number of partitions. A smaller number is INVALID_PARTITIONS.
The answer to a change comes when it is durable in the tree, and the partitions have leaders or are deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tidelog.controller.interface import (
    DeletedTopic,
    NewPartitions,
    NewTopic,
    PartitionsResult,
    TopicResult,
    TopicToDelete,
)
from tidelog.network.request import Request
from tidelog.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from tidelog.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from tidelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from tidelog.server.apis.api import Api
from tidelog.server.services import Services
from tidelog.slices import finished, mapped


async def create_topics(
    services: Services, request: Request, body: CreateTopicsRequest
) -> CreateTopicsResponse:
    wanted = await finished(mapped(_new_topic, body.topics))
    results = await services.controller.create_topics(wanted, validate_only=body.validate_only)
    # Most topics override nothing: their settings are the same.
    defaults = _settings(services, {})
    return CreateTopicsResponse(topics=await finished(mapped(partial(_created, services, defaults), results)))


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
            read_only=entry.read_only,
            config_source=entry.source,
            is_sensitive=entry.sensitive,
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
    results = await services.controller.delete_topics(wanted)
    return DeleteTopicsResponse(responses=await finished(mapped(_deleted, results)))


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
    results = await services.controller.create_partitions(wanted, validate_only=body.validate_only)
    return CreatePartitionsResponse(results=await finished(mapped(_grown, results)))


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
    Api(19, 2, 7, create_topics, forwarded=True),
    Api(20, 1, 6, delete_topics, forwarded=True),
    Api(37, 0, 3, create_partitions, forwarded=True),
)
