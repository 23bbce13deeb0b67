"""ConsumerGroupHeartbeat (68) v0-1 and ConsumerGroupDescribe (69) v0-1: the broker assigns the partitions.

ConsumerGroupHeartbeat is all that a member ever sends:
- with epoch 0 it joins and tells everything (INVALID_REQUEST otherwise): its rebalance time-out, the topics
  or, from v1 on, the pattern it subscribes to (RE2's syntax, INVALID_REGULAR_EXPRESSION), and no partitions.
  From v1 on it brings its own member id, before the broker makes one; an empty classic group, or one of
  consumers, becomes a consumer group then, as far as `group.consumer.migration.policy` allows it;
- with its epoch it goes on, telling what has changed and, when it has let go of partitions, what it has;
  another epoch is FENCED_MEMBER_EPOCH, save the one before, where the answer may have been lost;
- with epoch -1 it leaves, with -2 a static member leaves for a while. An instance id that is in use is
  UNRELEASED_INSTANCE_ID for who joins with it, FENCED_INSTANCE_ID for who had it;
- the answer brings the assignment when that has changed, or was asked for by telling everything.
ConsumerGroupDescribe tells state, epochs, members with what they have and what they are to have; a group that
is not there or is a classic one is GROUP_ID_NOT_FOUND. v1 adds which protocol a member uses.
"""

from __future__ import annotations

from functools import partial

from tidelog.coordinator.group.classic_state import Client
from tidelog.errors import InvalidGroupId, KafkaError
from tidelog.network.request import Request
from tidelog.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from tidelog.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tidelog.server.apis.api import Api
from tidelog.server.apis.groups import GROUP_OPERATIONS, client_host
from tidelog.server.services import Services
from tidelog.slices import Slices, mapped


def consumer_group_heartbeat(
    services: Services, request: Request, body: ConsumerGroupHeartbeatRequest
) -> None:
    client = Client(request.client_id or "", client_host(request), request.api_version)
    services.groups.consumer.heartbeat(body, client, partial(services.respond, request))


def consumer_group_describe(
    services: Services, request: Request, body: ConsumerGroupDescribeRequest
) -> Slices[ConsumerGroupDescribeResponse]:
    groups = yield from mapped(
        lambda group_id: _described(services, group_id, body.include_authorized_operations),
        dict.fromkeys(body.group_ids),
    )
    return ConsumerGroupDescribeResponse(groups=groups)


def _described(
    services: Services, group_id: str, with_operations: bool
) -> ConsumerGroupDescribeResponse.DescribedGroup:
    try:
        if not group_id:
            raise InvalidGroupId("a group without an id cannot be described")
        group = services.groups.consumer.describe(group_id)
    except KafkaError as error:
        return ConsumerGroupDescribeResponse.DescribedGroup(
            group_id=group_id, error_code=error.code, error_message=str(error)
        )
    if with_operations:
        group.authorized_operations = GROUP_OPERATIONS
    return group


APIS = (
    Api(68, 0, 1, consumer_group_heartbeat),
    Api(69, 0, 1, consumer_group_describe),
)
