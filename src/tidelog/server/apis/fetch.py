"""Fetch (1) v4-18: records of partitions, as slices of the log files.

- `min_bytes` and `max_wait_ms`: the answer waits in the purgatory for enough bytes or the end of the time.
- `max_bytes` of the request and of each partition: the first batch is always complete, so that consumers make
  progress.
- v7 has fetch sessions: an incremental answer has only changed partitions. A session without partitions ends.
  For another principal than the one that made it, it is FETCH_SESSION_ID_NOT_FOUND, other than in Kafka.
  A waiting request gets INVALID_FETCH_SESSION_EPOCH when the next request of its session comes.
- v12 checks the last fetched epoch and answers with the epoch and end offset where the logs diverge. v13
  names topics by id. v15 moves the replica id. v16 answers NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH
  with the present leader and its endpoint.
- A fetch with a replica id is of a follower: it reads up to the log end, and says how far the follower's log
  goes. A broker without a replica is UNKNOWN_LEADER_EPOCH, or NOT_LEADER_OR_FOLLOWER if the fetch has no
  leader epoch. Followers are exempt from the limits of the request queue. Over
  leader.replication.throttled.rate, a follower that is not in sync gets no records of throttled replicas.
- A consumer over its quota gets an answer without partitions and the throttle time, and no session.
- v11 names the rack of the consumer: with a replica selector the answer names a follower in this rack, and
  has no records. Followers serve consumers from v11 on, up to their own high watermark.
- read_committed ends at the last stable offset and lists the aborted transactions. As in Kafka, an unknown
  isolation level is UNKNOWN_SERVER_ERROR, below v13 also for each partition.
- Consumers need READ on each topic, followers CLUSTER_ACTION: TOPIC_AUTHORIZATION_FAILED otherwise.
- In a session, a topic id is UNKNOWN_TOPIC_OR_PARTITION after its topic was deleted, and
  INCONSISTENT_TOPIC_ID after a new topic took the name. An id that was never known is UNKNOWN_TOPIC_ID.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import cast

from tidelog.cluster.fetch import NONE_UNKNOWN, READ_COMMITTED, READ_UNCOMMITTED, FetchParams, Unknown
from tidelog.cluster.fetch_session import (
    INVALID_SESSION_ID,
    FetchContext,
    FetchedPartition,
    FetchPartition,
    PartitionKey,
)
from tidelog.cluster.followers import Replica
from tidelog.cluster.partition import Partition
from tidelog.errors import TopicAuthorizationFailed, UnknownServerError
from tidelog.network.request import Part, Request
from tidelog.protocol.headers import response_header
from tidelog.protocol.message import encode_parts
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.records.loops import parse_one_fetch
from tidelog.server.apis.api import Answer, Api
from tidelog.server.apis.authorization import (
    CLUSTER,
    CLUSTER_ACTION,
    READ,
    REMEMBERED_TOPICS,
    TOPIC,
    allowed_names,
    is_allowed,
    topic_name,
)
from tidelog.server.apis.current_leader import CurrentLeaders
from tidelog.server.apis.fetch_answer import FetchAnswerWriter, writer_for
from tidelog.server.services import Services
from tidelog.slices import Slices

EMPTY = b""

SIZE_BYTES = 4

LEADERS_FROM = 16
"""The first version whose answer names the present leaders."""

RACKS_FROM = 11
"""The first version that names the rack of the consumer; consumers may read from followers from it on."""

IN_ONE_GO = 1_000
"""A request with more partitions is handled in slices, between other requests."""


def fetch(services: Services, request: Request, body: FetchRequest) -> Answer:
    version = request.api_version
    by_id = version >= 13
    if body.isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
        return _refused(body, by_id)
    wanted = [
        FetchPartition(
            topic.topic_id if by_id else topic.topic,
            partition.partition,
            partition.fetch_offset,
            partition.partition_max_bytes,
            partition.current_leader_epoch,
            partition.last_fetched_epoch,
            partition.log_start_offset,
        )
        for topic in body.topics
        for partition in topic.partitions
    ]
    forgotten: list[PartitionKey] = [
        (topic.topic_id if by_id else topic.topic, index)
        for topic in body.forgotten_topics_data
        for index in topic.partitions
    ]
    follower = body.replica_state
    replica_id = body.replica_id if follower is None else follower.replica_id
    if replica_id >= 0:
        request.set_metrics("FetchFollower")
        if not request.channel.is_exempt:
            _exempt_follower(services, request)
    context = services.sessions.context(
        body.session_id,
        body.session_epoch,
        wanted,
        forgotten,
        principal=request.principal,
        from_follower=replica_id >= 0,
        uses_topic_ids=by_id,
    )
    if context.error:
        return FetchResponse(error_code=context.error)
    params = _params(
        services,
        request,
        replica_id,
        -1 if follower is None else follower.replica_epoch,
        body.max_wait_ms,
        body.min_bytes,
        body.max_bytes,
        body.isolation_level,
        body.rack_id,
    )
    return _read(services, request, context, params)


def quick_fetch(services: Services, request: Request) -> bool:
    """Answer a fetch of one partition, or the next fetch of a session without partitions in the request.

    Returns False to leave any other fetch to `fetch`.
    """
    version = request.api_version
    found = parse_one_fetch(request.buffer, request.body_start, version)
    if found is None:
        return False
    (
        replica_id,
        replica_epoch,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        session_id,
        epoch,
        rack,
        wanted,
    ) = found
    if isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
        return False
    context = services.sessions.context_of_one(
        session_id,
        epoch,
        wanted,
        principal=request.channel.principal,
        uses_topic_ids=version >= 13,
    )
    if context is None:
        return False
    if replica_id >= 0:
        request.set_metrics("FetchFollower")
        if not request.channel.is_exempt:
            _exempt_follower(services, request)
    params = _params(
        services, request, replica_id, replica_epoch, max_wait_ms, min_bytes, max_bytes, isolation_level, rack
    )
    slices = _read(services, request, context, params)
    if slices is not None:
        services.respond(request, slices)
    return True


def _params(
    services: Services,
    request: Request,
    replica_id: int,
    replica_epoch: int,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    isolation_level: int,
    rack: str,
) -> FetchParams:
    most = services.config.fetch_max_bytes
    if replica_id >= 0:
        return _follower_params(
            replica_id,
            replica_epoch,
            max_wait_ms,
            min_bytes,
            max_bytes if max_bytes < most else most,
            isolation_level,
            request.channel.listener,
        )
    max_bytes = max(0, min(max_bytes, most))
    if services.quotas.is_active:
        max_bytes = min(max_bytes, services.quotas.fetch_max_bytes(request))
    return FetchParams(
        max_wait_ms,
        min(min_bytes, max_bytes),
        max_bytes,
        isolation_level,
        replica_id,
        replica_epoch,
        rack if request.api_version >= RACKS_FROM else None,
        request.channel.listener,
    )


@lru_cache(256)
def _follower_params(
    replica_id: int,
    replica_epoch: int,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    isolation_level: int,
    listener: str,
) -> FetchParams:
    """A follower fetches again and again with the same limits. Followers have no rack here."""
    most = max(0, max_bytes)
    return FetchParams(
        max_wait_ms, min(min_bytes, most), most, isolation_level, replica_id, replica_epoch, None, listener
    )


def _read(
    services: Services, request: Request, context: FetchContext, params: FetchParams
) -> Slices[None] | None:
    """Read the partitions that are due, and answer now or later."""
    is_follower = params.replica_id >= 0

    def done(answers: list[FetchedPartition]) -> None:
        if services.quotas.is_active and not is_follower:
            _answer_within_quota(services, request, context, answers)
        else:
            _answer(services, request, context, answers)

    denied: Unknown = NONE_UNKNOWN
    if services.authorizer is not None:
        denied = _denied(services, request, context, is_follower=is_follower)
    if context.due_count > IN_ONE_GO:
        return _fetch_many(services, request, context, params, done, denied)
    if not services.fetcher.fetch(context, params, done, partial(services.failed, request), denied):
        request.waiting()
    return None


def _denied(services: Services, request: Request, context: FetchContext, *, is_follower: bool) -> Unknown:
    """The answers for partitions that the client may not read, except those of unknown topic ids."""
    authorizer = services.authorizer
    assert authorizer is not None
    if is_follower and is_allowed(services, request, CLUSTER_ACTION, CLUSTER):
        return NONE_UNKNOWN
    generation = authorizer.generation
    context.session.check_all(generation, request.channel.connection_id)
    if not is_follower and generation is not None and _is_remembered(services, request, context, generation):
        return NONE_UNKNOWN
    due = context.due()
    names = {wanted.topic: topic_name(services, wanted.topic) for wanted in due}
    allowed: set[str] = set()
    if not is_follower:
        allowed = allowed_names(
            services, request, READ, TOPIC, [name for name in names.values() if name is not None]
        )
    denied: dict[FetchPartition, FetchedPartition] = {}
    for wanted in due:
        name = names[wanted.topic]
        if name is not None and name not in allowed:
            denied[wanted] = answer = FetchedPartition(wanted)
            answer.error = TopicAuthorizationFailed(f"{request.principal} may not read the topic")
            answer.aborted = []
    if generation is not None and not services.audit.tells_allowed:
        remembered = request.channel.allowed_reads
        if len(remembered) > REMEMBERED_TOPICS:
            remembered.clear()
        for topic, name in names.items():
            if name in allowed and name in services.replicas.topics:
                remembered[topic] = generation
    return denied


def _is_remembered(services: Services, request: Request, context: FetchContext, generation: int) -> bool:
    """Whether this connection remembers that it may read all topics of a fetch."""
    session, remembered = context.session, request.channel.allowed_reads
    topic: str | bytes | None = None
    count = 0
    for wanted in session.dirty if context.incremental else session.partitions.values():
        if wanted.topic != topic:
            topic = wanted.topic
            count += 1
            if remembered.get(topic, -1) != generation:
                return False
    services.audit.allowed += count
    return True


def _exempt_follower(services: Services, request: Request) -> None:
    """Exempt the connection of a follower from the limits of the request queue and from quotas.

    The queue may be full of produces that wait for this follower. The client needs the right to be a
    follower.
    """
    if services.cluster is None or request.listener not in services.cluster.listeners:
        return
    if services.authorizer is None or is_allowed(
        services, request, CLUSTER_ACTION, CLUSTER, tell_denied=False, tell_allowed=False
    ):
        request.exempt_connection()


def _fetch_many(
    services: Services,
    request: Request,
    context: FetchContext,
    params: FetchParams,
    done: Callable[[list[FetchedPartition]], None],
    denied: Unknown,
) -> Slices[None]:
    """Read a fetch with many partitions, after the unknown ones among them are found in slices."""
    unknown = yield from services.fetcher.unknown_of(context.due())
    if len(unknown) <= IN_ONE_GO:
        unknown = {}  # so few may wait in the purgatory, and the fetcher looks for them again after the wait
    refused = {**unknown, **denied} if denied else unknown
    if not services.fetcher.fetch(context, params, done, partial(services.failed, request), refused):
        request.waiting()


def _refused(body: FetchRequest, by_id: bool) -> FetchResponse:
    error = UnknownServerError.code
    topics = [] if by_id else body.topics
    return FetchResponse(
        error_code=error,
        responses=[
            FetchResponse.FetchableTopicResponse(
                topic=topic.topic,
                partitions=[
                    FetchResponse.PartitionData(
                        partition_index=partition.partition,
                        error_code=error,
                        high_watermark=-1,
                        records=EMPTY,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in topics
        ],
    )


def _answer(
    services: Services, request: Request, context: FetchContext, answers: list[FetchedPartition]
) -> None:
    """Update the metrics, then encode the answer in the request's version and send it."""
    if len(answers) > IN_ONE_GO:
        services.respond(request, _answer_in_slices(services, request, context, answers))
        return
    if context.error:
        request.count_error(context.error)
    leaders = None
    for answer in answers:
        if _count_partition(services, request, answer) and leaders is None:
            leaders = _leaders(services, request)
    version = request.api_version
    header = response_header(request.api_key, version, request.correlation_id)
    writer = writer_for(version)
    if len(answers) == 1:
        frame = writer.frame_of_one(header, context.error, context.session_id, answers[0])
        if frame is not None:
            request.channel.send_frame(request, frame)
            return
    request.respond(writer.write(header, context.error, context.session_id, answers, leaders))


def _answer_within_quota(
    services: Services, request: Request, context: FetchContext, answers: list[FetchedPartition]
) -> None:
    """Answer a consumer; one over its quota gets no partitions, and fetches them again."""
    version = request.api_version
    size = _size(writer_for(version), answers)
    throttle_ms = services.quotas.throttle_fetch(request, size)
    if not throttle_ms:
        _answer(services, request, context, answers)
        return
    services.sessions.throttled(context, answers)
    answer = FetchResponse(
        throttle_time_ms=throttle_ms,
        error_code=context.error,
        session_id=context.session_id if context.incremental else INVALID_SESSION_ID,
    )
    if context.error:
        request.count_error(context.error)
    header = response_header(request.api_key, version, request.correlation_id)
    request.respond(cast("list[Part]", encode_parts(answer, version, header)))


def _size(writer: FetchAnswerWriter, answers: list[FetchedPartition]) -> int:
    """The size of an answer as Kafka counts it: its body, with its records, and the field of its size."""
    if len(answers) > IN_ONE_GO:  # their records alone are counted: all their fields take too long
        return sum(0 if answer.records is None else answer.records.size for answer in answers)
    return SIZE_BYTES + writer.size(answers)


def _answer_in_slices(
    services: Services, request: Request, context: FetchContext, answers: list[FetchedPartition]
) -> Slices[None]:
    for answer in answers:
        _count_partition(services, request, answer)
        yield
    version = request.api_version
    header = response_header(request.api_key, version, request.correlation_id)
    writer = writer_for(version)
    leaders = _leaders(services, request)
    parts = yield from writer.write_in_slices(header, context.error, context.session_id, answers, leaders)
    request.respond(parts)


def _leaders(services: Services, request: Request) -> CurrentLeaders | None:
    return CurrentLeaders(services, request.listener) if request.api_version >= LEADERS_FROM else None


def _count_partition(services: Services, request: Request, answer: FetchedPartition) -> bool:
    """Count a partition; returns whether its answer is an error."""
    if answer.error is not None:
        request.count_error(answer.error.code)
        _count_failed(services, answer.wanted.topic)
        return True
    if answer.records is not None:
        follower, size = answer.wanted.replica, answer.records.size
        hosted = services.replicas.hosted_topic(answer.wanted.topic)
        for metrics in (hosted.metrics, services.replicas.topic_metrics.all):
            metrics.fetches.count += 1
            if follower is None:
                metrics.bytes_out.count += size
        if follower is not None and answer.source is not None:
            _count_replication(services, follower, answer.source, size)
    return False


def _count_replication(services: Services, follower: Replica, partition: Partition, size: int) -> None:
    metrics = services.replicas.topic_metrics
    metrics.replication_bytes_out.count += size
    quota = services.fetcher.leader_quota
    if quota.limit is not None and quota.is_throttled(partition):
        quota.record(size)
    if follower.broker_id in partition.adding:
        metrics.reassignment_bytes_out.count += size


def _count_failed(services: Services, topic: str | bytes) -> None:
    replicas = services.replicas
    replicas.topic_metrics.all.failed_fetches.count += 1
    hosted = replicas.topics.get(topic) if isinstance(topic, str) else replicas.topics_by_id.get(topic)
    if hosted is not None:  # a topic that is not hosted has no meters
        hosted.metrics.failed_fetches.count += 1


APIS = (Api(1, 4, 18, fetch, quick=quick_fetch, access=("TOPIC READ", "CLUSTER CLUSTER_ACTION")),)
