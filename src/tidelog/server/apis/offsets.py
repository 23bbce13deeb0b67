"""ListOffsets (2) v1-11 and OffsetForLeaderEpoch (23) v2-4.

ListOffsets answers with an offset for a time, or for one of the special times:
- -1 the end (the last stable offset for read_committed), -2 the start, -3 the record with the largest
  timestamp (v7), -4 the start of the local log (v8), -5 the end of the tiered log (v9; there is none: -1),
  -6 the earliest offset not yet tiered (v11; -1 as well); other negative times, or one that is newer than
  the request's version, are UNSUPPORTED_VERSION;
- a partition that is named twice is INVALID_REQUEST.
OffsetForLeaderEpoch answers with the end offset of an epoch, for followers and consumers that check
whether their position is still part of the log.
"""

from __future__ import annotations

from collections import Counter

from tidelog.cluster.partition import Partition
from tidelog.errors import InvalidRequest, KafkaError, KafkaStorageError, UnsupportedVersion
from tidelog.network.request import Request
from tidelog.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tidelog.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from tidelog.server.apis.api import Api
from tidelog.server.services import Services

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
# The version from which on a special time may be asked for.
SPECIAL_SINCE = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}

CONSUMER = -1
DEBUGGING_CONSUMER = -2

Found = tuple[int, int, int]  # timestamp, offset, leader epoch
NOT_FOUND: Found = (-1, -1, -1)


def list_offsets(services: Services, request: Request, body: ListOffsetsRequest) -> ListOffsetsResponse:
    named = Counter(
        (topic.name, partition.partition_index) for topic in body.topics for partition in topic.partitions
    )
    answers: list[ListOffsetsResponse.ListOffsetsTopicResponse] = []
    for topic in body.topics:
        partitions = []
        told: set[int] = set()
        for wanted in topic.partitions:
            if wanted.partition_index in told:
                continue
            told.add(wanted.partition_index)
            answer = ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=wanted.partition_index)
            try:
                if named[topic.name, wanted.partition_index] > 1:
                    raise InvalidRequest(f"{topic.name}-{wanted.partition_index} is named more than once")
                partition = services.replicas.partition(topic.name, wanted.partition_index)
                answer.timestamp, answer.offset, leader_epoch = find_offset(
                    partition,
                    wanted.timestamp,
                    wanted.current_leader_epoch,
                    read_committed=body.isolation_level == 1,
                    version=request.api_version,
                )
                if request.api_version >= 4:
                    answer.leader_epoch = leader_epoch
            except KafkaError as error:
                answer.error_code = error.code
            except OSError:
                answer.error_code = KafkaStorageError.code
            partitions.append(answer)
        answers.append(ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
    return ListOffsetsResponse(topics=answers)


def find_offset(
    partition: Partition, timestamp: int, current_leader_epoch: int, *, read_committed: bool, version: int
) -> Found:
    log = partition.leader_log(current_leader_epoch)
    if timestamp < EARLIEST_PENDING_UPLOAD or version < SPECIAL_SINCE.get(timestamp, 0):
        raise UnsupportedVersion(f"version {version} of ListOffsets has no special time {timestamp}")
    limit = log.last_stable_offset if read_committed else log.high_watermark
    if timestamp == LATEST:
        return -1, limit, partition.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return -1, log.log_start_offset, log.leader_epochs.epoch_for_offset(log.log_start_offset)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return NOT_FOUND
    found = log.max_timestamp() if timestamp == MAX_TIMESTAMP else log.offset_for_timestamp(timestamp)
    if found is None or (found[1] >= limit and timestamp != MAX_TIMESTAMP):
        return NOT_FOUND
    return found


def offset_for_leader_epoch(
    services: Services, request: Request, body: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    topics = []
    for topic in body.topics:
        partitions = []
        for wanted in topic.partitions:
            answer = OffsetForLeaderEpochResponse.EpochEndOffset(partition=wanted.partition)
            try:
                partition = services.replicas.partition(topic.topic, wanted.partition)
                log = partition.leader_log(wanted.current_leader_epoch)
                if wanted.leader_epoch == partition.leader_epoch:
                    answer.leader_epoch, answer.end_offset = partition.leader_epoch, log.log_end_offset
                else:
                    answer.leader_epoch, answer.end_offset = log.end_offset_for_epoch(wanted.leader_epoch)
            except KafkaError as error:
                answer.error_code = error.code
            partitions.append(answer)
        topics.append(
            OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic=topic.topic, partitions=partitions)
        )
    return OffsetForLeaderEpochResponse(topics=topics)


APIS = (
    Api(2, 1, 11, list_offsets),
    Api(23, 2, 4, offset_for_leader_epoch),
)
