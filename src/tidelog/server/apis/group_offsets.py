"""OffsetCommit (8) v2-10, OffsetFetch (9) v1-10, TxnOffsetCommit (28) v0-5 and OffsetDelete (47) v0.

OffsetCommit commits the offsets of a group, and answers when they are committed:
- An unknown topic or partition is UNKNOWN_TOPIC_OR_PARTITION. v10 names topics by id: an unknown id is
  UNKNOWN_TOPIC_ID. Metadata longer than `offset.metadata.max.bytes` is OFFSET_METADATA_TOO_LARGE. The other
  partitions of the request are committed.
- Only members commit, and only with their current generation or epoch. An unknown group with a negative
  generation is a simple consumer; its id may be empty. With another generation an unknown group is
  GROUP_ID_NOT_FOUND (ILLEGAL_GENERATION before v9).
- v2-4 may have a retention time, which replaces `offsets.retention.minutes` for these offsets.
OffsetFetch answers -1 for a partition without a committed offset. v2 fetches all topics with null. v7 has
require_stable: an offset in an open transaction is UNSTABLE_OFFSET_COMMIT. v8 fetches the offsets of several
groups, v9 names the member, v10 names topics by id.
TxnOffsetCommit commits offsets in a transaction: they count once the transaction is committed. v3 names the
member. v5 adds the partition of the offsets topic to the transaction.
OffsetDelete deletes offsets. A topic with subscribed members is GROUP_SUBSCRIBED_TO_TOPIC.
Commits need READ on the group and on each topic, in a transaction also WRITE on the transactional id. Fetches
need DESCRIBE on both, and leave out topics that the client did not name. Deletions need DELETE on the group
and READ on each topic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tidelog.coordinator.group.offsets_service import COMMITS_BY_TOPIC_ID
from tidelog.errors import ErrorCode
from tidelog.network.request import Request
from tidelog.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from tidelog.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequest
from tidelog.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from tidelog.server.apis.api import Api
from tidelog.server.apis.authorization import (
    DELETE,
    DESCRIBE,
    GROUP,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    allowed_in_slices,
    allowed_names,
    is_allowed,
)
from tidelog.server.services import Services
from tidelog.slices import Slices, mapped

IN_ONE_GO = 100
"""The topics of a request with more are checked in slices, between other requests."""


def offset_commit(services: Services, request: Request, body: OffsetCommitRequest) -> Slices[None] | None:
    if services.authorizer is None:
        services.groups.offsets.commit(body, request.api_version, partial(services.respond, request))
        return None
    return _at_once(_commit_allowed(services, request, body), len(body.topics))


def _at_once(work: Slices[None], topics: int) -> Slices[None] | None:
    """Do the work of a request with few topics; of others the caller gets it."""
    if topics > IN_ONE_GO:
        return work
    for _ in work:
        pass
    return None


def _commit_allowed(services: Services, request: Request, body: OffsetCommitRequest) -> Slices[None]:
    respond: Callable[[OffsetCommitResponse], None] = partial(services.respond, request)
    by_id = request.api_version >= COMMITS_BY_TOPIC_ID
    if not is_allowed(services, request, READ, GROUP, body.group_id):
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        respond(OffsetCommitResponse(topics=[_refused_commit(topic, code) for topic in body.topics]))
        return
    topics = [(_name(services, topic.topic_id if by_id else topic.name), topic) for topic in body.topics]
    names = [name for name, _ in topics if name is not None]
    allowed = yield from allowed_in_slices(services, request, READ, TOPIC, names)
    denied = [topic for name, topic in topics if name is not None and name not in allowed]
    body.topics = [topic for name, topic in topics if name is None or name in allowed]
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    refused = yield from mapped(lambda topic: _refused_commit(topic, code), denied)
    services.groups.offsets.commit(body, request.api_version, _with_refused_commits(respond, refused))


def _with_refused_commits(
    respond: Callable[[OffsetCommitResponse], None],
    refused: Sequence[OffsetCommitResponse.OffsetCommitResponseTopic],
) -> Callable[[OffsetCommitResponse], None]:
    def done(answer: OffsetCommitResponse) -> None:
        answer.topics = [*answer.topics, *refused]
        respond(answer)

    return done


def _refused_commit(
    topic: OffsetCommitRequest.OffsetCommitRequestTopic, code: int
) -> OffsetCommitResponse.OffsetCommitResponseTopic:
    return OffsetCommitResponse.OffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetCommitResponse.OffsetCommitResponsePartition(
                partition_index=partition.partition_index, error_code=code
            )
            for partition in topic.partitions
        ],
    )


def _name(services: Services, topic: str | bytes) -> str | None:
    """The name of a topic; None if there is no topic with this id."""
    if isinstance(topic, str):
        return topic
    found = services.metadata.snapshot.topic_by_id(topic)
    return None if found is None else found.name


class RequestOffsetAccess:
    """Implements tidelog.coordinator.group.offsets_fetch.OffsetAccess for the client of a request."""

    def __init__(self, services: Services, request: Request) -> None:
        self._services = services
        self._request = request

    def may_describe_group(self, group_id: str) -> bool:
        return is_allowed(self._services, self._request, DESCRIBE, GROUP, group_id)

    def may_describe_topic(self, name: str, *, is_named: bool) -> bool:
        return is_allowed(self._services, self._request, DESCRIBE, TOPIC, name, tell_denied=is_named)


def offset_fetch(services: Services, request: Request, body: OffsetFetchRequest) -> Slices[None]:
    access = None if services.authorizer is None else RequestOffsetAccess(services, request)
    return services.groups.offsets.fetch(
        body, request.api_version, partial(services.respond, request), access
    )


def txn_offset_commit(
    services: Services, request: Request, body: TxnOffsetCommitRequest
) -> Slices[None] | None:
    if services.authorizer is None:
        respond = partial(services.respond, request)
        services.groups.offsets.commit_in_transaction(body, request.api_version, respond)
        return None
    return _at_once(_commit_allowed_in_transaction(services, request, body), len(body.topics))


def _commit_allowed_in_transaction(
    services: Services, request: Request, body: TxnOffsetCommitRequest
) -> Slices[None]:
    respond: Callable[[TxnOffsetCommitResponse], None] = partial(services.respond, request)
    code = 0
    if not is_allowed(services, request, WRITE, TRANSACTIONAL_ID, body.transactional_id):
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif not is_allowed(services, request, READ, GROUP, body.group_id):
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    if code:
        respond(TxnOffsetCommitResponse(topics=[_refused_txn(topic, code) for topic in body.topics]))
        return
    names = [topic.name for topic in body.topics]
    allowed = yield from allowed_in_slices(services, request, READ, TOPIC, names)
    denied = [topic for topic in body.topics if topic.name not in allowed]
    body.topics = [topic for topic in body.topics if topic.name in allowed]
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    refused = yield from mapped(lambda topic: _refused_txn(topic, code), denied)
    services.groups.offsets.commit_in_transaction(
        body, request.api_version, _with_refused_txn(respond, refused)
    )


def _with_refused_txn(
    respond: Callable[[TxnOffsetCommitResponse], None],
    refused: Sequence[TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic],
) -> Callable[[TxnOffsetCommitResponse], None]:
    def done(answer: TxnOffsetCommitResponse) -> None:
        answer.topics = [*answer.topics, *refused]
        respond(answer)

    return done


def _refused_txn(
    topic: TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic, code: int
) -> TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic:
    return TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(
        name=topic.name,
        partitions=[
            TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(
                partition_index=partition.partition_index, error_code=code
            )
            for partition in topic.partitions
        ],
    )


def offset_delete(services: Services, request: Request, body: OffsetDeleteRequest) -> None:
    respond: Callable[[OffsetDeleteResponse], None] = partial(services.respond, request)
    if services.authorizer is not None:
        if not is_allowed(services, request, DELETE, GROUP, body.group_id):
            respond(OffsetDeleteResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED))
            return
        allowed = allowed_names(services, request, READ, TOPIC, [topic.name for topic in body.topics])
        refused = [_refused_deletion(topic) for topic in body.topics if topic.name not in allowed]
        body.topics = [topic for topic in body.topics if topic.name in allowed]
        if refused and not body.topics:
            respond(OffsetDeleteResponse(topics=refused))
            return
        respond = _with_refused_deletions(respond, refused)

    def done(answer: OffsetDeleteResponse) -> None:
        deleted = [
            (topic.name, partition.partition_index)
            for topic in answer.topics
            for partition in topic.partitions
            if not (answer.error_code or partition.error_code)
        ]
        if deleted:
            change = f"offsets deleted of {len(deleted)} partitions"
            services.audit.changed(request, "Group", body.group_id, change)
        respond(answer)

    services.groups.offsets.delete(body, done)


def _with_refused_deletions(
    respond: Callable[[OffsetDeleteResponse], None],
    refused: Sequence[OffsetDeleteResponse.OffsetDeleteResponseTopic],
) -> Callable[[OffsetDeleteResponse], None]:
    def done(answer: OffsetDeleteResponse) -> None:
        if not answer.error_code:
            answer.topics = [*answer.topics, *refused]
        respond(answer)

    return done


def _refused_deletion(
    topic: OffsetDeleteRequest.OffsetDeleteRequestTopic,
) -> OffsetDeleteResponse.OffsetDeleteResponseTopic:
    return OffsetDeleteResponse.OffsetDeleteResponseTopic(
        name=topic.name,
        partitions=[
            OffsetDeleteResponse.OffsetDeleteResponsePartition(
                partition_index=partition.partition_index, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
            )
            for partition in topic.partitions
        ],
    )


APIS = (
    Api(8, 2, 10, offset_commit, access=("GROUP READ", "TOPIC READ")),
    Api(9, 1, 10, offset_fetch, access=("GROUP DESCRIBE", "TOPIC DESCRIBE")),
    Api(28, 0, 5, txn_offset_commit, access=("TRANSACTIONAL_ID WRITE", "GROUP READ", "TOPIC READ")),
    Api(47, 0, 0, offset_delete, access=("GROUP DELETE", "TOPIC READ")),
)
