"""ConsumerGroupHeartbeat (68) v0-1 and ConsumerGroupDescribe (69) v0-1: the broker assigns the partitions.

A member joins, goes on and leaves with ConsumerGroupHeartbeat:
- With epoch 0 it joins. It sends its rebalance time-out, an empty list of partitions, and its topics or, from
  v1 on, a pattern in RE2's syntax; otherwise the heartbeat is INVALID_REQUEST. A wrong pattern is
  INVALID_REGULAR_EXPRESSION. In v0 the broker makes the member id, from v1 on the client does. A classic
  group that is empty, or has consumers as members, becomes a consumer group if
  `group.consumer.migration.policy` allows it.
- With its own epoch it goes on. It sends changed fields, and its partitions after it revoked some. Another
  epoch is FENCED_MEMBER_EPOCH. The previous epoch is valid too: the last answer may be lost.
- With epoch -1 it leaves. With -2 a static member leaves for a while. A member that joins with an instance
  id in use gets UNRELEASED_INSTANCE_ID; a member whose instance id was taken over gets FENCED_INSTANCE_ID.
- The answer has the assignment if it changed, or if the member sent all fields.
- A member needs READ on the group, and DESCRIBE on the topics that it names. A pattern leaves out topics that
  the member may not describe.
ConsumerGroupDescribe needs DESCRIBE on the group and on all topics of its members. It answers with the state,
the epochs, and the members with their current and target assignments. An unknown or classic group is
GROUP_ID_NOT_FOUND. v1 adds the protocol of each member.
"""

from __future__ import annotations

from functools import partial

from tidelog.coordinator.group.classic_state import Client
from tidelog.errors import (
    GroupAuthorizationFailed,
    InvalidGroupId,
    KafkaError,
    TopicAuthorizationFailed,
)
from tidelog.network.request import Request
from tidelog.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from tidelog.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tidelog.server.apis.api import Api
from tidelog.server.apis.authorization import (
    DENIED,
    DESCRIBE,
    GROUP,
    READ,
    TOPIC,
    allowed_names,
    authorized_operations,
    is_allowed,
)
from tidelog.server.apis.groups import client_host
from tidelog.server.services import Services
from tidelog.slices import Slices, mapped


def consumer_group_heartbeat(
    services: Services, request: Request, body: ConsumerGroupHeartbeatRequest
) -> None:
    if services.authorizer is not None:
        check_heartbeat(services, request, body)
    client = Client(request.client_id or "", client_host(request), request.api_version)
    visible = None
    if services.authorizer is not None and body.subscribed_topic_regex:
        # As in Kafka 4.3, a pattern finds what the member may describe whose heartbeat has it resolved.
        visible = partial(allowed_names, services, request, DESCRIBE, TOPIC, tell_denied=False)
    services.groups.consumer.heartbeat(body, client, partial(services.respond, request), visible)


def check_heartbeat(services: Services, request: Request, body: ConsumerGroupHeartbeatRequest) -> None:
    """Raise the error of a member that may not read the group, or not describe a topic that it names."""
    if not is_allowed(services, request, READ, GROUP, body.group_id):
        raise GroupAuthorizationFailed(DENIED)
    names = dict.fromkeys(body.subscribed_topic_names or ())
    if len(allowed_names(services, request, DESCRIBE, TOPIC, names)) < len(names):
        raise TopicAuthorizationFailed(DENIED)


def consumer_group_describe(
    services: Services, request: Request, body: ConsumerGroupDescribeRequest
) -> Slices[ConsumerGroupDescribeResponse]:
    groups = yield from mapped(
        lambda group_id: _described(services, request, group_id, body.include_authorized_operations),
        dict.fromkeys(body.group_ids),
    )
    return ConsumerGroupDescribeResponse(groups=groups)


def _described(
    services: Services, request: Request, group_id: str, with_operations: bool
) -> ConsumerGroupDescribeResponse.DescribedGroup:
    try:
        if services.authorizer is not None and not is_allowed(services, request, DESCRIBE, GROUP, group_id):
            raise GroupAuthorizationFailed(DENIED)
        if not group_id:
            raise InvalidGroupId("a group without an id cannot be described")
        group = services.groups.consumer.describe(group_id)
        if services.authorizer is not None:
            topics = _topics(group)
            if len(allowed_names(services, request, DESCRIBE, TOPIC, topics)) < len(topics):
                raise TopicAuthorizationFailed(DENIED)
    except KafkaError as error:
        return ConsumerGroupDescribeResponse.DescribedGroup(
            group_id=group_id, error_code=error.code, error_message=str(error)
        )
    if with_operations:
        group.authorized_operations = authorized_operations(services, request, GROUP, group_id)
    return group


def _topics(group: ConsumerGroupDescribeResponse.DescribedGroup) -> set[str]:
    """The topics that the description of a group names."""
    topics: set[str] = set()
    for member in group.members:
        topics.update(member.subscribed_topic_names)
        for assignment in (member.assignment, member.target_assignment):
            if assignment is not None:
                topics.update(assigned.topic_name for assigned in assignment.topic_partitions)
    return topics


APIS = (
    Api(68, 0, 1, consumer_group_heartbeat, access=("GROUP READ", "TOPIC DESCRIBE")),
    Api(69, 0, 1, consumer_group_describe, access=("GROUP DESCRIBE", "TOPIC DESCRIBE")),
)
