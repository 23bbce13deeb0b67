"""ListOffsets (2) v1-11 and OffsetForLeaderEpoch (23) v2-4.

ListOffsets answers with the offset of a timestamp, or of a special timestamp:
- -1 is the end of the log (the last stable offset for read_committed), -2 its start, -3 the record with the
  largest timestamp (v7), -4 the start of the local log (v8), -5 the end of the tiered log (v9), -6 the
  earliest offset that is not yet tiered (v11). There is no tiered log: -5 and -6 answer -1. Other negative
  timestamps, or one of a later version, are UNSUPPORTED_VERSION.
- After an election the high watermark may be lower than before, until followers have fetched. The log end and
  times after the high watermark are OFFSET_NOT_AVAILABLE meanwhile (LEADER_NOT_AVAILABLE before v5).
- Clients see records up to the high watermark, followers (and tools with replica id -2) up to the log end.
  Followers answer tools alone.
- A partition that occurs twice is INVALID_REQUEST. As in Kafka, an unknown isolation level is
  UNKNOWN_SERVER_ERROR.
OffsetForLeaderEpoch answers with the end offset of an epoch. Followers and consumers check with it whether
their position is still part of the log.
In both, a topic needs DESCRIBE (TOPIC_AUTHORIZATION_FAILED); followers may have CLUSTER_ACTION instead.
In both, a current leader epoch of -1 means none, and a lower one is FENCED_LEADER_EPOCH.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

from tidelog.clock import Scheduler
from tidelog.cluster.fetch import READ_COMMITTED, READ_UNCOMMITTED
from tidelog.cluster.partition import Partition
from tidelog.errors import (
    FencedLeaderEpoch,
    InvalidRequest,
    KafkaError,
    KafkaStorageError,
    LeaderNotAvailable,
    OffsetNotAvailable,
    TopicAuthorizationFailed,
    UnknownServerError,
    UnsupportedVersion,
)
from tidelog.network.request import Request
from tidelog.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tidelog.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from tidelog.protocol.offset_specs import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    SINCE_VERSION,
)
from tidelog.server.apis.api import Answer, Api
from tidelog.server.apis.authorization import (
    CLUSTER,
    CLUSTER_ACTION,
    DESCRIBE,
    TOPIC,
    allowed_in_slices,
    is_allowed,
)
from tidelog.server.services import Services
from tidelog.slices import Slices, mapped
from tidelog.storage.leader_epoch_file_cache import NO_EPOCH
from tidelog.storage.log import Log
from tidelog.storage.reads import CACHED, CachedReads, NotCached, bring_in

CONSUMER = -1
DEBUGGING_CONSUMER = -2

NOT_AVAILABLE_SINCE = 5
"""The first version of ListOffsets whose clients know OFFSET_NOT_AVAILABLE."""

# Lookups by timestamp let other requests run after this time.
SECONDS_A_TURN = 0.0002

Found = tuple[int, int, int]  # timestamp, offset, leader epoch
NOT_FOUND: Found = (-1, -1, -1)
Lookups = Iterator[Callable[[CachedReads], None] | None]


def list_offsets(services: Services, request: Request, body: ListOffsetsRequest) -> Answer:
    answer = ListOffsetsResponse()
    lookups = _lookups(services, request, body, answer)
    if any(_reads_records(partition.timestamp) for topic in body.topics for partition in topic.partitions):
        return _list_by_time(services.replicas.scheduler, lookups, answer)
    return _list(lookups, answer)


def _list(lookups: Lookups, answer: ListOffsetsResponse) -> Slices[ListOffsetsResponse]:
    for lookup in lookups:
        if lookup is not None:
            lookup(CACHED)
        yield
    return answer


def _reads_records(timestamp: int) -> bool:
    return timestamp >= 0 or timestamp == MAX_TIMESTAMP


async def _list_by_time(
    scheduler: Scheduler, lookups: Lookups, answer: ListOffsetsResponse
) -> ListOffsetsResponse:
    """Run the lookups, and let other requests run in between: each lookup may decompress a batch or two."""
    clock = scheduler.clock
    turn_ends = clock.monotonic() + SECONDS_A_TURN
    for lookup in lookups:
        if lookup is not None:
            await _when_cached(scheduler, lookup)
        if clock.monotonic() >= turn_ends:
            await asyncio.sleep(0)
            turn_ends = clock.monotonic() + SECONDS_A_TURN
    return answer


async def _when_cached(scheduler: Scheduler, lookup: Callable[[CachedReads], None]) -> None:
    """Run the lookup; if it misses bytes in the page cache, read them from the disk and run it again."""
    reads = CACHED
    while True:
        try:
            return lookup(reads)
        except NotCached as cold:
            missing = cold
        reads = await _brought_in(scheduler, missing, reads)


async def _brought_in(scheduler: Scheduler, cold: NotCached, reads: CachedReads) -> CachedReads:
    brought: asyncio.Future[CachedReads] = asyncio.get_running_loop().create_future()

    def tell(reads: CachedReads) -> None:
        if not brought.done():  # the broker may have stopped meanwhile
            brought.set_result(reads)

    bring_in(scheduler, cold, reads, tell)
    return await brought


def _lookups(
    services: Services, request: Request, body: ListOffsetsRequest, answer: ListOffsetsResponse
) -> Lookups:
    """One call for each partition, which adds its result to the answer, and None for each check and topic.

    A call that raises NotCached may be repeated. The None counts work that is not for a partition.
    """
    named = Counter(
        (topic.name, partition.partition_index) for topic in body.topics for partition in topic.partitions
    )
    allowed = None
    if services.authorizer is not None:
        allowed = set()
        for name in dict.fromkeys(topic.name for topic in body.topics):
            if is_allowed(services, request, DESCRIBE, TOPIC, name):
                allowed.add(name)
            yield None
    for topic in body.topics:
        topic_answer = ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name)
        answer.topics.append(topic_answer)
        yield None
        if allowed is not None and topic.name not in allowed:
            topic_answer.partitions = [
                ListOffsetsResponse.ListOffsetsPartitionResponse(
                    partition_index=partition.partition_index, error_code=TopicAuthorizationFailed.code
                )
                for partition in topic.partitions
            ]
            continue
        listed: set[int] = set()
        for partition in topic.partitions:
            if partition.partition_index not in listed:
                listed.add(partition.partition_index)
                is_twice = named[topic.name, partition.partition_index] > 1
                yield partial(
                    _find, services, request, body, topic.name, partition, is_twice, topic_answer.partitions
                )


def _find(
    services: Services,
    request: Request,
    body: ListOffsetsRequest,
    topic: str,
    partition: ListOffsetsRequest.ListOffsetsPartition,
    is_twice: bool,
    answers: list[ListOffsetsResponse.ListOffsetsPartitionResponse],
    reads: CachedReads,
) -> None:
    answer = ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=partition.partition_index)
    try:
        if body.isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
            raise UnknownServerError(f"there is no isolation level {body.isolation_level}")
        if is_twice:
            raise InvalidRequest(f"{topic}-{partition.partition_index} is named more than once")
        answer.timestamp, answer.offset, leader_epoch = find_offset(
            services.replicas.partition(topic, partition.partition_index),
            partition.timestamp,
            partition.current_leader_epoch,
            replica_id=body.replica_id,
            read_committed=body.isolation_level == READ_COMMITTED,
            version=request.api_version,
            reads=reads,
        )
        if request.api_version >= 4:
            answer.leader_epoch = leader_epoch
    except OffsetNotAvailable as error:
        is_known = request.api_version >= NOT_AVAILABLE_SINCE
        answer.error_code = error.code if is_known else LeaderNotAvailable.code
    except KafkaError as error:
        answer.error_code = error.code
    except OSError:
        answer.error_code = KafkaStorageError.code
    answers.append(answer)


def find_offset(
    partition: Partition,
    timestamp: int,
    current_leader_epoch: int,
    *,
    replica_id: int,
    read_committed: bool,
    version: int,
    reads: CachedReads,
) -> Found:
    log = _local_log(partition, current_leader_epoch, only_leader=replica_id != DEBUGGING_CONSUMER)
    if timestamp < EARLIEST_PENDING_UPLOAD or version < SINCE_VERSION.get(timestamp, 0):
        raise UnsupportedVersion(f"version {version} of ListOffsets has no special time {timestamp}")
    is_client = replica_id == CONSUMER
    is_uncertain = is_client and partition.has_uncertain_offsets
    if is_client:
        limit = log.last_stable_offset if read_committed else log.high_watermark
    else:
        limit = log.log_end_offset
    if timestamp == LATEST:
        if is_uncertain:
            raise _not_available(partition)
        return -1, limit, partition.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return -1, log.log_start_offset, log.leader_epochs.epoch_for_offset(log.log_start_offset)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return NOT_FOUND
    if timestamp == MAX_TIMESTAMP:
        found = log.max_timestamp(reads)
    else:
        found = log.offset_for_timestamp(timestamp, reads=reads)
    if found is None or found[1] >= limit:
        if is_uncertain:
            raise _not_available(partition)
        return NOT_FOUND
    return found


def _not_available(partition: Partition) -> OffsetNotAvailable:
    return OffsetNotAvailable(f"the high watermark of {partition.name} has not reached its leader's epoch")


def _local_log(partition: Partition, current_leader_epoch: int, *, only_leader: bool = True) -> Log:
    if current_leader_epoch < NO_EPOCH:
        raise FencedLeaderEpoch(f"{partition.name} was never led with epoch {current_leader_epoch}")
    return partition.local_log(current_leader_epoch, only_leader=only_leader)


def offset_for_leader_epoch(
    services: Services, request: Request, body: OffsetForLeaderEpochRequest
) -> Slices[OffsetForLeaderEpochResponse]:
    topics = []
    allowed = None
    if services.authorizer is not None and not is_allowed(
        services, request, CLUSTER_ACTION, CLUSTER, tell_denied=False
    ):
        names = [topic.topic for topic in body.topics]
        allowed = yield from allowed_in_slices(services, request, DESCRIBE, TOPIC, names)
    for topic in body.topics:
        is_denied = allowed is not None and topic.topic not in allowed
        work = partial(_denied_epoch if is_denied else _end_of_epoch, services, topic.topic)
        partitions = yield from mapped(work, topic.partitions)
        topics.append(
            OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic=topic.topic, partitions=partitions)
        )
        yield
    return OffsetForLeaderEpochResponse(topics=topics)


def _denied_epoch(
    services: Services, topic: str, wanted: OffsetForLeaderEpochRequest.OffsetForLeaderPartition
) -> OffsetForLeaderEpochResponse.EpochEndOffset:
    return OffsetForLeaderEpochResponse.EpochEndOffset(
        partition=wanted.partition, error_code=TopicAuthorizationFailed.code
    )


def _end_of_epoch(
    services: Services, topic: str, wanted: OffsetForLeaderEpochRequest.OffsetForLeaderPartition
) -> OffsetForLeaderEpochResponse.EpochEndOffset:
    answer = OffsetForLeaderEpochResponse.EpochEndOffset(partition=wanted.partition)
    try:
        partition = services.replicas.partition(topic, wanted.partition)
        log = _local_log(partition, wanted.current_leader_epoch)
        if wanted.leader_epoch == partition.leader_epoch:
            answer.leader_epoch, answer.end_offset = partition.leader_epoch, log.log_end_offset
        else:
            answer.leader_epoch, answer.end_offset = log.end_offset_for_epoch(wanted.leader_epoch)
    except KafkaError as error:
        answer.error_code = error.code
    return answer


APIS = (
    Api(2, 1, 11, list_offsets, access=("TOPIC DESCRIBE",)),
    Api(23, 2, 4, offset_for_leader_epoch, access=("CLUSTER CLUSTER_ACTION", "TOPIC DESCRIBE")),
)
