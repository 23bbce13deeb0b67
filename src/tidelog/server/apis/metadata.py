"""Metadata (3) v0-13 and DescribeTopicPartitions (75) v0: brokers, topics and the leaders of partitions.

- A null list of topics means all topics, an empty list means none. In v0 an empty list means all.
- Topics by id: v10 has the field, v12 may use it. An unknown id is UNKNOWN_TOPIC_ID. If a topic has an id and
  a name, the id counts. In v10 and v11 an id or a null name is INVALID_REQUEST for the whole request.
- An unknown topic is created if the broker and the request (v4) allow it. The answer is
  UNKNOWN_TOPIC_OR_PARTITION, and the client asks again. An invalid name is INVALID_TOPIC_EXCEPTION. The
  partitions count for the client's controller_mutation_rate; as in Kafka, the answer has no throttle time.
- A partition whose leader is not alive is LEADER_NOT_AVAILABLE with the leader -1. Other than in Kafka, so is
  one whose leader this broker has just lost its connection to. If the leader has no endpoint on
  the client's listener, it is LISTENER_NOT_FOUND, below v6 LEADER_NOT_AVAILABLE. v0 lists only replicas with
  an endpoint on the client's listener; a partition with others is REPLICA_NOT_AVAILABLE.
- A broker that starts in a cluster answers when it knows brokers. It closes the connection if no controller
  has told it of any within five seconds: librdkafka 2.10 and later forget all brokers after an answer
  without brokers.
- A topic needs DESCRIBE, a new one also CREATE on the topic or on the cluster: TOPIC_AUTHORIZATION_FAILED
  otherwise, by id without the name. A list of all topics has those that the client may describe.
- v5 has the offline replicas. v8 answers with the authorized operations, if the client asks for them.
DescribeTopicPartitions describes topics in pages of `response_partition_limit` partitions, at least one, with
a cursor for the next page. A cursor with a negative partition, or with a topic that is not requested, is
INVALID_REQUEST for every topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial

from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.controller.validation import check_topic_name
from tidelog.errors import BrokerNotAvailable, ErrorCode, InvalidTopic, KafkaError
from tidelog.metadata.state import NO_LEADER, PartitionState, TopicState
from tidelog.network.request import Request
from tidelog.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.protocol.wire import ZERO_UUID
from tidelog.server.apis.api import Api
from tidelog.server.apis.authorization import (
    CLUSTER,
    CREATE,
    DESCRIBE,
    TOPIC,
    authorized_operations,
    is_allowed,
)
from tidelog.server.services import Services
from tidelog.slices import Slices, finished, mapped

NOT_ASKED_FOR = -2147483648

METADATA, LATEST = 3, 13
BROKERS_SECONDS = 5.0
"""How long a client waits for a broker that starts and knows no broker yet."""
EVENTS_SECONDS = 0.002
"""How long an answer with leaders waits in a cluster. The connections of a process that dies end together."""
OPERATIONS_FROM = 8
"""The first version that has the authorized operations of topics."""
LISTENER_NOT_FOUND_FROM = 6
"""The first version whose clients know LISTENER_NOT_FOUND."""


def metadata(
    services: Services, request: Request, body: MetadataRequest
) -> Slices[MetadataResponse] | Coroutine[None, None, MetadataResponse]:
    brokers = services.metadata.snapshot.brokers
    if not brokers:
        return _metadata_with_brokers(services, request, body)
    if len(brokers) > 1 and body.topics != []:
        return _metadata_after_events(services, request, body)
    return _metadata(services, request, body)


async def _metadata_after_events(
    services: Services, request: Request, body: MetadataRequest
) -> MetadataResponse:
    """Let this broker notice first that a leader is lost: that is why clients ask."""
    await asyncio.sleep(EVENTS_SECONDS)
    return await finished(_metadata(services, request, body))


async def _metadata_with_brokers(
    services: Services, request: Request, body: MetadataRequest
) -> MetadataResponse:
    await wait_for_brokers(services, request)
    return await finished(_metadata(services, request, body))


async def wait_for_brokers(services: Services, request: Request) -> None:
    """Wait until this broker knows brokers. Closes the connection and raises BrokerNotAvailable without."""
    request.waiting()
    if not await services.metadata.wait_for_brokers(BROKERS_SECONDS):
        request.close_connection("this broker has not heard of a controller yet")
        raise BrokerNotAvailable("this broker has not heard of a controller yet")


def _metadata(services: Services, request: Request, body: MetadataRequest) -> Slices[MetadataResponse]:
    wanted = body.topics
    view = ListenerView(services.metadata, request)
    state = view.state
    if wanted and request.api_version in (10, 11) and not all(_goes_by_name(topic) for topic in wanted):
        return MetadataResponse(topics=[_refused(topic) for topic in wanted])
    access = TopicAccess(services, request)
    if wanted is None or (request.api_version == 0 and not wanted):
        described = yield from mapped(
            lambda topic: _describe(topic, body, view, access) if access.may_list(topic.name) else None,
            state.topics.values(),
        )
        topics = [topic for topic in described if topic is not None]
    else:
        # As in Kafka, a topic that occurs twice is described once.
        once = {(topic.name, topic.topic_id): topic for topic in wanted}
        topics = yield from mapped(
            lambda topic: _find(services, view, topic, body, request, access), once.values()
        )
    return MetadataResponse(
        brokers=[
            MetadataResponse.MetadataResponseBroker(
                node_id=broker.broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack
            )
            for broker in state.brokers.values()
            if (endpoint := broker.endpoint(request.listener)) is not None
        ],
        cluster_id=state.cluster_id,
        controller_id=state.controller_id,
        topics=topics,
        cluster_authorized_operations=(
            cluster_operations(services, request)
            if request.api_version in (8, 9, 10) and body.include_cluster_authorized_operations
            else NOT_ASKED_FOR
        ),
    )


def cluster_operations(services: Services, request: Request) -> int:
    """What the client may do on the cluster, one bit for each operation; 0 if it may not describe it."""
    if not is_allowed(services, request, DESCRIBE, CLUSTER, tell_denied=False):
        return 0
    return authorized_operations(services, request, CLUSTER)


class TopicAccess:
    """What the client of a request may see of topics, and may do with them."""

    __slots__ = ("_request", "_services")

    def __init__(self, services: Services, request: Request) -> None:
        self._services = services
        self._request = request

    def may_describe(self, name: str) -> bool:
        return self._services.authorizer is None or is_allowed(
            self._services, self._request, DESCRIBE, TOPIC, name
        )

    def may_create(self, name: str) -> bool:
        """Whether CREATE on the cluster or on the topic allows to create it."""
        services, request = self._services, self._request
        return services.authorizer is None or (
            is_allowed(services, request, CREATE, CLUSTER, tell_denied=False)
            or is_allowed(services, request, CREATE, TOPIC, name)
        )

    def may_list(self, name: str) -> bool:
        """`may_describe` for a topic that the client did not name."""
        return self._services.authorizer is None or is_allowed(
            self._services, self._request, DESCRIBE, TOPIC, name, tell_denied=False
        )

    def operations(self, name: str) -> int:
        return authorized_operations(self._services, self._request, TOPIC, name)


def _goes_by_name(topic: MetadataRequest.MetadataRequestTopic) -> bool:
    return topic.name is not None and topic.topic_id == ZERO_UUID


def _refused(topic: MetadataRequest.MetadataRequestTopic) -> MetadataResponse.MetadataResponseTopic:
    return MetadataResponse.MetadataResponseTopic(
        error_code=ErrorCode.INVALID_REQUEST, name=topic.name or "", topic_id=topic.topic_id
    )


def _find(
    services: Services,
    view: ListenerView,
    wanted: MetadataRequest.MetadataRequestTopic,
    body: MetadataRequest,
    request: Request,
    access: TopicAccess,
) -> MetadataResponse.MetadataResponseTopic:
    state = view.state
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if wanted.topic_id != ZERO_UUID:
        topic = state.topic_by_id(wanted.topic_id)
        if topic is None:
            return MetadataResponse.MetadataResponseTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=wanted.topic_id
            )
        if not access.may_describe(topic.name):
            return MetadataResponse.MetadataResponseTopic(
                error_code=denied, name=None, topic_id=wanted.topic_id
            )
        return _describe(topic, body, view, access)
    name = wanted.name or ""
    if not access.may_describe(name):
        return MetadataResponse.MetadataResponseTopic(error_code=denied, name=name)
    topic = state.topics.get(name)
    if topic is not None:
        return _describe(topic, body, view, access)
    error: int = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        check_topic_name(name)
    except InvalidTopic:
        error = ErrorCode.INVALID_TOPIC_EXCEPTION
    else:
        if services.config.auto_create_topics_enable and (
            request.api_version < 4 or body.allow_auto_topic_creation
        ):
            if not access.may_create(name):
                return MetadataResponse.MetadataResponseTopic(error_code=denied, name=name)
            quota = services.quotas.permissive_mutation_quota(request)
            created = partial(services.audit.changed, request, "Topic", name, "created automatically")
            services.auto_create_topic(name, quota, created)
    missing = MetadataResponse.MetadataResponseTopic(error_code=error, name=name)
    if view.version >= OPERATIONS_FROM and body.include_topic_authorized_operations:
        missing.topic_authorized_operations = access.operations(name)
    return missing


class ListenerView:
    """The partitions of the cluster as a client of one listener may see them."""

    __slots__ = ("_alive", "_hidden", "_reachable", "_version", "state")

    def __init__(self, metadata: MetadataCache, request: Request) -> None:
        self.state = state = metadata.snapshot
        self._hidden = metadata.hidden_leaders()
        self._version = request.api_version if request.api_key == METADATA else LATEST
        self._alive = state.brokers.keys()
        self._reachable = {
            broker_id
            for broker_id, broker in state.brokers.items()
            if broker.endpoint(request.listener) is not None
        }

    @property
    def version(self) -> int:
        return self._version

    def leader(self, partition: PartitionState) -> tuple[int, int]:
        """The error of a partition, and its leader; -1 unless the client can reach the leader."""
        leader = partition.leader
        if leader in self._hidden:
            return ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER
        if leader in self._reachable:
            if self._version == 0 and not self._reachable.issuperset(partition.replicas):
                return ErrorCode.REPLICA_NOT_AVAILABLE, leader
            return ErrorCode.NONE, leader
        if leader in self._alive and self._version >= LISTENER_NOT_FOUND_FROM:
            return ErrorCode.LISTENER_NOT_FOUND, NO_LEADER
        return ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER

    def replicas(self, brokers: list[int]) -> list[int]:
        """The replicas to list: in v0 only those that the client can reach."""
        return brokers if self._version else [broker for broker in brokers if broker in self._reachable]


def _describe(
    topic: TopicState, body: MetadataRequest, view: ListenerView, access: TopicAccess
) -> MetadataResponse.MetadataResponseTopic:
    return MetadataResponse.MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[
            _described_partition(index, partition, view)
            for index, partition in sorted(topic.partitions.items())
        ],
        topic_authorized_operations=(
            access.operations(topic.name)
            if view.version >= OPERATIONS_FROM and body.include_topic_authorized_operations
            else NOT_ASKED_FOR
        ),
    )


def _described_partition(
    index: int, partition: PartitionState, view: ListenerView
) -> MetadataResponse.MetadataResponsePartition:
    error, leader = view.leader(partition)
    return MetadataResponse.MetadataResponsePartition(
        error_code=error,
        partition_index=index,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=view.replicas(partition.replicas),
        isr_nodes=view.replicas(partition.isr),
        offline_replicas=partition.offline_replicas,
    )


def describe_topic_partitions(
    services: Services, request: Request, body: DescribeTopicPartitionsRequest
) -> Slices[DescribeTopicPartitionsResponse]:
    view = ListenerView(services.metadata, request)
    state = view.state
    named = {topic.name for topic in body.topics}
    every = not named
    cursor = body.cursor
    if cursor is not None and (cursor.partition_index < 0 or not (every or cursor.topic_name in named)):
        return DescribeTopicPartitionsResponse(topics=[_refused_page(topic.name) for topic in body.topics])
    access = TopicAccess(services, request)
    denied: list[str] = []
    if every:
        listed = yield from mapped(lambda name: name if access.may_list(name) else None, state.topics)
        named = {name for name in listed if name is not None}
    elif services.authorizer is not None:
        allowed = {name for name in named if access.may_describe(name)}
        denied, named = sorted(named - allowed), allowed
    first_partition = 0
    names = sorted(named)
    if cursor is not None:
        names = [name for name in names if name >= cursor.topic_name]
        if names and names[0] == cursor.topic_name:
            first_partition = cursor.partition_index
    limit = max(1, min(body.response_partition_limit, services.config.max_request_partition_size_limit))
    answer = DescribeTopicPartitionsResponse()
    # As in Kafka, the unknown topics come first.
    unknown = [name for name in names if name not in state.topics]
    answer.topics = [_denied_page(name) for name in denied]
    answer.topics += yield from mapped(lambda name: _unknown(name, access), unknown)
    for name in names:
        topic = state.topics.get(name)
        if topic is None:
            continue
        indexes = [index for index in sorted(topic.partitions) if index >= first_partition]
        first_partition = 0
        if limit <= 0:
            answer.next_cursor = DescribeTopicPartitionsResponse.Cursor(
                topic_name=name, partition_index=indexes[0] if indexes else 0
            )
            break
        answer.topics.append(_page(topic, indexes[:limit], view, access))
        if len(indexes) > limit:
            answer.next_cursor = DescribeTopicPartitionsResponse.Cursor(
                topic_name=name, partition_index=indexes[limit]
            )
            break
        limit -= len(indexes)
    return answer


def _refused_page(name: str) -> DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.INVALID_REQUEST, name=name
    )


def _denied_page(name: str) -> DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name
    )


def _unknown(
    name: str, access: TopicAccess
) -> DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic:
    error: int = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        check_topic_name(name)
    except KafkaError as invalid:
        error = invalid.code
    return DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
        error_code=error, name=name, topic_authorized_operations=access.operations(name)
    )


def _page(
    topic: TopicState, indexes: list[int], view: ListenerView, access: TopicAccess
) -> DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        topic_authorized_operations=access.operations(topic.name),
        partitions=[_paged_partition(index, topic.partitions[index], view) for index in indexes],
    )


def _paged_partition(
    index: int, partition: PartitionState, view: ListenerView
) -> DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition:
    error, leader = view.leader(partition)
    return DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition(
        error_code=error,
        partition_index=index,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.isr,
        eligible_leader_replicas=[],
        last_known_elr=[],
        offline_replicas=partition.offline_replicas,
    )


APIS = (
    Api(
        METADATA,
        0,
        LATEST,
        metadata,
        access=("TOPIC DESCRIBE", "CLUSTER CREATE", "TOPIC CREATE", "CLUSTER DESCRIBE"),
    ),
    Api(75, 0, 0, describe_topic_partitions, access=("TOPIC DESCRIBE",)),
)
