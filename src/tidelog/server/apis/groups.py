"""FindCoordinator (10) v0-6, JoinGroup (11) v0-9, Heartbeat (12) v0-4, LeaveGroup (13) v0-5,
SyncGroup (14) v0-5, DescribeGroups (15) v0-6, ListGroups (16) v0-5 and DeleteGroups (42) v0-2.

- FindCoordinator: v1 adds the coordinators of transactional ids. v4 takes many keys. v6 is for share groups,
  which are not served (INVALID_REQUEST). The first request of a key type creates the internal topic of the
  coordinators, and waits for it.
- JoinGroup: waits until every member has joined. v0 uses the session time-out as rebalance time-out. From v4
  on a member without an id gets one with MEMBER_ID_REQUIRED, and joins again with it. v5 adds static members,
  v7 the protocol type in the answer, v8 a reason for the log, v9 skip_assignment for static leaders.
- SyncGroup: waits for the leader's assignment, and until it is written. v5 has the protocol type and name. If
  the group has others, the answer is INCONSISTENT_GROUP_PROTOCOL.
- Heartbeat: REBALANCE_IN_PROGRESS asks the member to join again.
- LeaveGroup: v3 takes many members, and answers with an error for each; v5 takes a reason for each.
- DescribeGroups: classic groups. An unknown group has the state Dead, and from v6 on GROUP_ID_NOT_FOUND.
- ListGroups: groups of every type. v4 filters by state, v5 by type; upper and lower case are equal.
- Members need READ on the group, descriptions and coordinators DESCRIBE, deletions DELETE:
  GROUP_AUTHORIZATION_FAILED otherwise. ListGroups leaves out the groups that the client may not describe.
- DeleteGroups: deletes groups without members (NON_EMPTY_GROUP) and their offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tidelog.controller.interface import NewTopic
from tidelog.coordinator.group.classic_state import Client
from tidelog.coordinator.group.coordinator import OFFSETS_TOPIC
from tidelog.coordinator.runtime import partition_count
from tidelog.endpoints import Endpoint
from tidelog.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    GroupAuthorizationFailed,
    GroupIdNotFound,
    InconsistentGroupProtocol,
    InvalidRequest,
    KafkaError,
)
from tidelog.network.request import Request
from tidelog.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from tidelog.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from tidelog.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from tidelog.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from tidelog.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tidelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from tidelog.records.partitioning import partition_for_id
from tidelog.server.apis.api import Api
from tidelog.server.apis.authorization import (
    CLUSTER,
    DELETE,
    DENIED,
    DESCRIBE,
    GROUP,
    READ,
    TRANSACTIONAL_ID,
    allowed_in_slices,
    authorized_operations,
    is_allowed,
)
from tidelog.server.services import Services
from tidelog.slices import Slices, mapped

TRANSACTIONS_TOPIC = "__transaction_state"
GROUP_KEY, TRANSACTION_KEY = 0, 1
BATCHED = 4
NULLABLE_PROTOCOL = 7
MANY_MEMBERS = 3
TELLS_NOT_FOUND = 6
NAMES_PROTOCOL = 5
NOT_ASKED_FOR = -(2**31)
KEYS_PER_TURN = 500
"""After so many keys of a request, other requests get a turn."""

# -- FindCoordinator -----------------------------------------------------------------------------------


async def find_coordinator(
    services: Services, request: Request, body: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    batched = request.api_version >= BATCHED
    keys = body.coordinator_keys if batched else [body.key]
    found = []
    for number, key in enumerate(keys, 1):
        denied = _denied_key(services, request, body.key_type, key)
        found.append(denied or await _coordinator(services, request, body.key_type, key))
        if number % KEYS_PER_TURN == 0:
            await asyncio.sleep(0)
    if batched:
        return FindCoordinatorResponse(coordinators=found)
    (only,) = found
    return FindCoordinatorResponse(
        error_code=only.error_code,
        error_message=only.error_message or "NONE",
        node_id=only.node_id,
        host=only.host,
        port=only.port,
    )


def _denied_key(
    services: Services, request: Request, key_type: int, key: str
) -> FindCoordinatorResponse.Coordinator | None:
    """The answer for a group or a transactional id that the client may not describe."""
    if services.authorizer is None:
        return None
    code = None
    if key_type == GROUP_KEY and not is_allowed(services, request, DESCRIBE, GROUP, key):
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    elif key_type == TRANSACTION_KEY and not is_allowed(services, request, DESCRIBE, TRANSACTIONAL_ID, key):
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if code is None:
        return None
    return FindCoordinatorResponse.Coordinator(
        key=key, node_id=-1, port=-1, error_code=code, error_message=DENIED
    )


async def _coordinator(
    services: Services, request: Request, key_type: int, key: str
) -> FindCoordinatorResponse.Coordinator:
    try:
        broker_id, endpoint = await _leader_of(services, request, key_type, key)
    except KafkaError as error:
        return FindCoordinatorResponse.Coordinator(
            key=key, node_id=-1, port=-1, error_code=error.code, error_message=str(error)
        )
    return FindCoordinatorResponse.Coordinator(
        key=key, node_id=broker_id, host=endpoint.host, port=endpoint.port, error_message=""
    )


async def _leader_of(
    services: Services, request: Request, key_type: int, key: str
) -> tuple[int, Endpoint]:
    topic = _topic_of(services, key_type)
    if topic.name not in services.metadata.snapshot.topics:
        # It does not count as in progress: a full request queue would hold up the controller's requests, and
        # without these the topic never becomes known here.
        request.waiting()
        await services.internal_topics.ensure(topic, services.quotas.permissive_mutation_quota(request))
    state = services.metadata.snapshot
    found = state.topics.get(topic.name)
    if found is None:
        raise CoordinatorNotAvailable(f"{topic.name} is not there yet")
    partition = found.partitions.get(partition_for_id(key, partition_count(found)))
    if partition is None:
        raise CoordinatorNotAvailable(f"the partition of {key} in {topic.name} is not known yet")
    broker = state.brokers.get(partition.leader)
    endpoint = None if broker is None else broker.endpoint(request.listener)
    if endpoint is None:
        raise CoordinatorNotAvailable(f"the coordinator of {key} cannot be reached over {request.listener}")
    return partition.leader, endpoint


def _topic_of(services: Services, key_type: int) -> NewTopic:
    """The internal topic of a key type, with the settings to create it."""
    config = services.config
    if key_type == GROUP_KEY:
        settings = services.groups.settings
        return NewTopic(
            OFFSETS_TOPIC,
            settings.offsets_topic_num_partitions,
            settings.offsets_topic_replication_factor,
            configs=[
                ("cleanup.policy", "compact"),
                ("compression.type", "producer"),
                ("segment.bytes", str(settings.offsets_topic_segment_bytes)),
            ],
        )
    if key_type == TRANSACTION_KEY:
        partitions = config["transaction.state.log.num.partitions"]
        assert isinstance(partitions, int)
        return NewTopic(
            TRANSACTIONS_TOPIC,
            partitions,
            config.transaction_state_log_replication_factor,
            configs=[
                ("cleanup.policy", "compact"),
                ("compression.type", "uncompressed"),
                ("min.insync.replicas", str(config.transaction_state_log_min_isr)),
                ("segment.bytes", str(config["transaction.state.log.segment.bytes"])),
                ("unclean.leader.election.enable", "false"),
            ],
        )
    raise InvalidRequest(f"there are no coordinators of kind {key_type}: 0 is for groups, 1 for transactions")


# -- members of classic groups -------------------------------------------------------------------------


def join_group(services: Services, request: Request, body: JoinGroupRequest) -> None:
    version = request.api_version
    if _is_denied(services, request, body.group_id):
        denied = JoinGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED, generation_id=-1)
        denied.protocol_name = None if version >= NULLABLE_PROTOCOL else ""
        services.respond(request, denied)
        return

    def done(answer: JoinGroupResponse) -> None:
        if answer.protocol_name is None and version < NULLABLE_PROTOCOL:
            answer.protocol_name = ""
        services.respond(request, answer)

    client = Client(request.client_id or "", client_host(request), version)
    services.groups.classic.join(body, client, done)
    if not request.done:
        request.waiting()


def sync_group(services: Services, request: Request, body: SyncGroupRequest) -> None:
    def done(answer: SyncGroupResponse) -> None:
        services.respond(request, answer)

    if _is_denied(services, request, body.group_id):
        raise GroupAuthorizationFailed(DENIED)
    if request.api_version >= NAMES_PROTOCOL and None in (body.protocol_type, body.protocol_name):
        raise InconsistentGroupProtocol("protocol type and protocol have to be named")
    services.groups.classic.sync(body, done)
    if not request.done:
        request.waiting()


def heartbeat(services: Services, request: Request, body: HeartbeatRequest) -> HeartbeatResponse:
    if _is_denied(services, request, body.group_id):
        raise GroupAuthorizationFailed(DENIED)
    return HeartbeatResponse(error_code=services.groups.classic.heartbeat(body))


def leave_group(services: Services, request: Request, body: LeaveGroupRequest) -> None:
    if _is_denied(services, request, body.group_id):
        raise GroupAuthorizationFailed(DENIED)
    many = request.api_version >= MANY_MEMBERS
    leaving: Sequence[LeaveGroupRequest.MemberIdentity] = body.members
    if not many:
        leaving = [LeaveGroupRequest.MemberIdentity(member_id=body.member_id)]

    def done(answer: LeaveGroupResponse) -> None:
        if not many and answer.members:
            answer = LeaveGroupResponse(error_code=answer.members[0].error_code)
        services.respond(request, answer)

    services.groups.classic.leave(body.group_id, leaving, done)
    if not request.done:
        request.waiting()


def _is_denied(services: Services, request: Request, group_id: str) -> bool:
    """Whether the client may not be a member of a group."""
    return services.authorizer is not None and not is_allowed(services, request, READ, GROUP, group_id)


def client_host(request: Request) -> str:
    """The client's address in Java's format: with a slash in front."""
    return f"/{request.client_address}"


# -- groups as a whole ---------------------------------------------------------------------------------


def describe_groups(
    services: Services, request: Request, body: DescribeGroupsRequest
) -> Slices[DescribeGroupsResponse]:
    groups = yield from mapped(
        lambda group_id: _described(services, request, group_id), dict.fromkeys(body.groups)
    )
    if body.include_authorized_operations:
        for group in groups:
            if group.error_code == 0:
                group.authorized_operations = authorized_operations(services, request, GROUP, group.group_id)
            yield
    return DescribeGroupsResponse(groups=groups)


def _described(
    services: Services, request: Request, group_id: str
) -> DescribeGroupsResponse.DescribedGroup:
    try:
        if services.authorizer is not None and not is_allowed(services, request, DESCRIBE, GROUP, group_id):
            raise GroupAuthorizationFailed(DENIED)
        return services.groups.describe_classic(group_id)
    except GroupIdNotFound as error:
        missing = DescribeGroupsResponse.DescribedGroup(group_id=group_id, group_state="Dead")
        if request.api_version >= TELLS_NOT_FOUND:
            missing.error_code, missing.error_message = error.code, error.message
        return missing
    except KafkaError as error:
        return DescribeGroupsResponse.DescribedGroup(group_id=group_id, error_code=error.code)


def list_groups(
    services: Services, request: Request, body: ListGroupsRequest
) -> Slices[ListGroupsResponse]:
    groups = yield from services.groups.list_groups(body.states_filter, body.types_filter)
    if services.authorizer is None or is_allowed(services, request, DESCRIBE, CLUSTER, tell_denied=False):
        return ListGroupsResponse(groups=groups)
    visible = []
    for group in groups:
        if is_allowed(services, request, DESCRIBE, GROUP, group.group_id, tell_denied=False):
            visible.append(group)
        yield
    return ListGroupsResponse(groups=visible)


def delete_groups(services: Services, request: Request, body: DeleteGroupsRequest) -> Slices[None]:
    names = list(dict.fromkeys(body.groups_names))
    codes: dict[str, int] = {}
    allowed = set(names)
    if services.authorizer is not None:
        allowed = yield from allowed_in_slices(services, request, DELETE, GROUP, names)

    def answer() -> None:
        results = [DeleteGroupsResponse.DeletableGroupResult(group_id=n, error_code=codes[n]) for n in names]
        services.respond(request, DeleteGroupsResponse(results=results))

    def delete(name: str) -> None:
        def done(error: KafkaError | None) -> None:
            codes[name] = ErrorCode.NONE if error is None else error.code
            if error is None:
                services.audit.changed(request, "Group", name, "deleted")
            if len(codes) == len(names):
                answer()

        if name in allowed:
            services.groups.delete_group(name, done)
        else:
            done(GroupAuthorizationFailed(DENIED))

    for name in names:
        delete(name)
        yield
    if not names:
        answer()
    elif not request.done:
        request.waiting()


APIS = (
    Api(10, 0, 6, find_coordinator, access=("GROUP DESCRIBE", "TRANSACTIONAL_ID DESCRIBE")),
    Api(11, 0, 9, join_group, access=("GROUP READ",)),
    Api(12, 0, 4, heartbeat, access=("GROUP READ",)),
    Api(13, 0, 5, leave_group, access=("GROUP READ",)),
    Api(14, 0, 5, sync_group, access=("GROUP READ",)),
    Api(15, 0, 6, describe_groups, access=("GROUP DESCRIBE",)),
    Api(16, 0, 5, list_groups, access=("CLUSTER DESCRIBE", "GROUP DESCRIBE")),
    Api(42, 0, 2, delete_groups, access=("GROUP DELETE",)),
)
