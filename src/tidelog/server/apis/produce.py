"""Produce (0) v3-13: appends one batch to each named partition.

- ApiVersions lists v0-2, because old librdkafka compresses only if they are there. A request of v0-2 closes
  the connection.
- acks=0 gets no answer, and an error closes the connection. acks=1 answers when the leader has the batch,
  acks=-1 when the high watermark has passed it. Other values are INVALID_REQUIRED_ACKS.
- If a partition occurs more than once, its last batch is appended, and the answer has the partition once.
- v7 allows zstd. v8 answers with the refused records. v10 answers NOT_LEADER_OR_FOLLOWER with the present
  leader and its endpoint. v13 names topics by id.
- A topic needs WRITE, a transactional id WRITE too: TOPIC_AUTHORIZATION_FAILED for the topic, or
  TRANSACTIONAL_ID_AUTHORIZATION_FAILED for all.
- Transactional batches without a transactional id are TRANSACTIONAL_ID_AUTHORIZATION_FAILED. Batches of more
  than one producer are INVALID_PRODUCER_ID_MAPPING.
- A transaction has to contain the partition of a transactional batch. From v12 on the broker adds the
  partition. Before v12 the producer adds it first; otherwise the batch is INVALID_TXN_STATE, in v11
  TRANSACTION_ABORTABLE.

Most requests are small, with one batch for one partition: small_produce.py is their fast path. A worker
checks and writes frames of 64 KB and more.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Collection, Mapping
from functools import partial

from tidelog.cluster.partition import HEAVY_BYTES, Partition
from tidelog.cluster.replica_manager import AppendOutcome, HostedTopic
from tidelog.errors import (
    CorruptMessage,
    ErrorCode,
    InvalidProducerIdMapping,
    InvalidRecord,
    InvalidRequiredAcks,
    InvalidTopic,
    KafkaError,
    KafkaStorageError,
    MessageTooLarge,
    NotLeaderOrFollower,
    RecordLevelError,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
    UnknownServerError,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tidelog.network.request import Request
from tidelog.protocol.messages.produce import ProduceResponse
from tidelog.protocol.wire import ProtocolError
from tidelog.records.batch import TRANSACTIONAL_FLAG
from tidelog.records.check import NotOneBatch
from tidelog.records.loops import parse_produce
from tidelog.server.apis.api import Api
from tidelog.server.apis.authorization import (
    REMEMBERED_TOPICS,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    allowed_names,
    is_allowed,
    topic_name,
)
from tidelog.server.apis.current_leader import CurrentLeaders
from tidelog.server.services import Services
from tidelog.slices import Slices
from tidelog.storage.append import AppendOrigin
from tidelog.storage.producer_state_manager import Verification

log = logging.getLogger("tidelog.server.apis.produce")

# The position in a batch of the low byte of its attributes, which has the flags.
ATTRIBUTES = 22
# The position in a batch of producer id, producer epoch and base sequence.
PRODUCER, _PRODUCER = 43, struct.Struct(">qhi")
# Kafka's own tools write to internal topics under this client id.
ADMIN_CLIENT_ID = "__admin_client"
# These errors occur before the log is used: their answers have no log start offset.
_BEFORE_THE_LOG = (
    NotLeaderOrFollower,
    UnknownTopicOrPartition,
    UnknownTopicId,
    CorruptMessage,
    MessageTooLarge,
    KafkaStorageError,
    InvalidRequiredAcks,
    InvalidTopic,
    TransactionalIdAuthorizationFailed,
    NotOneBatch,
)

# The answer to these errors has a message, for example the size limit of a batch or the error of the disk.
_EXPLAINED = (
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.INVALID_TOPIC_EXCEPTION,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.MESSAGE_TOO_LARGE,
)

Slot = tuple[str | bytes, int]

LEADERS_FROM = 10
"""The first version whose answer names the present leaders."""

REMEMBERED_NAME = 249
"""The longest transactional id that a connection remembers."""

IN_ONE_GO = 1_000
"""A request with more partitions is handled in slices, between other requests."""


def produce(services: Services, request: Request) -> Slices[None] | None:
    try:
        transactional_id, acks, timeout_ms, topics = parse_produce(
            request.buffer, request.body_start, request.api_version
        )
    except ValueError as error:
        raise ProtocolError(str(error)) from error
    work = _produce_any(services, request, transactional_id, acks, timeout_ms, topics)
    if sum(len(partitions) for _, partitions in topics) > IN_ONE_GO:
        return work
    for _ in work:
        pass
    return None


def _produce_any(
    services: Services,
    request: Request,
    transactional_id: str | None,
    acks: int,
    timeout_ms: int,
    topics: list[tuple[str | bytes, list[tuple[int, int, int]]]],
) -> Slices[None]:
    """Append the batches of any number of partitions, of any size."""
    buffer = request.keep()
    # As in Kafka, the last batch of a partition counts.
    batches: dict[Slot, memoryview] = {}
    for topic, partitions in topics:
        for index, start, end in partitions:
            batches[topic, index] = buffer[start:end] if start >= 0 else buffer[:0]
        yield
    slots = list(batches)
    entries: list[tuple[Partition | KafkaError, memoryview]] = []
    refused = None
    if services.authorizer is not None:
        refused = refused_topics(services, request, transactional_id, batches)
    for (topic, index), data in batches.items():
        if refused is not None and (error := refused.get(topic)) is not None:
            entries.append((error, data))
        else:
            entries.append((_target(services, request, topic, index, acks), data))
        yield
    del batches
    # While the answer waits for the disk or for replicas, only the targets stay in memory, not the frame.
    targets: list[tuple[Partition | KafkaError, int]] = []
    is_heavy = len(buffer) >= HEAVY_BYTES

    def done(outcomes: list[AppendOutcome]) -> None:
        answers: list[tuple[Slot, Partition | None, AppendOutcome]] = []
        for slot, (target, size), outcome in zip(slots, targets, outcomes, strict=True):
            partition = target if isinstance(target, Partition) else None
            hosted = None if partition is None else services.replicas.topics.get(partition.topic)
            if hosted is not None and outcome.result is not None and outcome.error is None:
                result = outcome.result
                count(services, hosted, result.last_offset - result.base_offset + 1, size)
            elif hosted is not None and outcome.error is not None:
                count_failed(services, hosted, outcome.error, size)
            answers.append((slot, partition, outcome))
        throttle_ms = services.quotas.throttle_produce(request, acks) if services.quotas.is_active else 0
        send(services, request, acks, answers, throttle_ms)

    def append(errors: Mapping[Partition, KafkaError], guards: Mapping[Partition, Verification]) -> None:
        for slot, (target, data) in enumerate(entries):
            if isinstance(target, Partition) and target in errors:
                entries[slot] = (errors[target], data)
        targets.extend((target, len(data)) for target, data in entries)
        services.replicas.append(
            entries,
            acks=acks,
            timeout_ms=timeout_ms,
            heavy=is_heavy,
            allow_zstd=request.api_version >= 7,
            origin=AppendOrigin.CLIENT,
            done=done,
            guards=guards,
            release=release,
            on_failure=partial(services.failed, request),
        )

    def release() -> None:
        entries.clear()
        request.release_buffer()

    _verify(services, request.api_version, transactional_id, entries, append)
    if not request.done:
        request.waiting()


def refused_topics(
    services: Services,
    request: Request,
    transactional_id: str | None,
    batches: Mapping[Slot, memoryview],
) -> dict[str | bytes, KafkaError]:
    """The errors of topics that the client may not write to, by their names or ids in the request."""
    topics = dict.fromkeys(topic for topic, _ in batches)
    is_transactional = any(
        len(data) > ATTRIBUTES and data[ATTRIBUTES] & TRANSACTIONAL_FLAG for data in batches.values()
    )
    if (
        is_transactional
        and transactional_id
        and not is_allowed(services, request, WRITE, TRANSACTIONAL_ID, transactional_id)
    ):
        refused = TransactionalIdAuthorizationFailed("the client may not use the transactional id")
        return dict.fromkeys(topics, refused)
    names = {topic: topic_name(services, topic) for topic in topics}
    allowed = allowed_names(
        services, request, WRITE, TOPIC, [name for name in names.values() if name is not None]
    )
    _remember(services, request, allowed, transactional_id if is_transactional else None)
    return {
        topic: TopicAuthorizationFailed(f"{request.principal} may not write to the topic")
        for topic, name in names.items()
        if name is not None and name not in allowed
    }


def _remember(
    services: Services, request: Request, topics: Collection[str], transactional_id: str | None
) -> None:
    """Spare the next small produces of this connection the question, until the rules change."""
    authorizer = services.authorizer
    generation = None if authorizer is None else authorizer.generation
    if generation is None or services.audit.tells_allowed:
        return
    remembered = request.channel.allowed_writes
    if len(remembered) + len(topics) > REMEMBERED_TOPICS:
        remembered.clear()
    # Clients may send many and long names, of topics that are not there.
    hosted = services.replicas.topics
    if len(topics) < REMEMBERED_TOPICS:
        remembered.update((topic, generation) for topic in topics if topic in hosted)
        if transactional_id is not None and len(transactional_id) <= REMEMBERED_NAME:
            remembered[transactional_key(transactional_id)] = generation


def transactional_key(transactional_id: str) -> str:
    """The key of a transactional id among the topics that a connection may write to; no topic has a slash."""
    return f"/{transactional_id}"


def _target(
    services: Services, request: Request, topic: str | bytes, index: int, acks: int
) -> Partition | KafkaError:
    try:
        partition = services.replicas.partition(topic, index)
        hosted = services.replicas.hosted_topic(topic)
    except KafkaError as error:
        return error
    if not -1 <= acks <= 1:
        return InvalidRequiredAcks(f"acks is {acks}: 0, 1 and -1 are allowed")
    if hosted.is_internal and request.client_id != ADMIN_CLIENT_ID:
        return InvalidTopic(f"{hosted.name} is an internal topic: clients do not write to it")
    return partition


def _verify(
    services: Services,
    version: int,
    transactional_id: str | None,
    entries: list[tuple[Partition | KafkaError, memoryview]],
    append: Callable[[Mapping[Partition, KafkaError], Mapping[Partition, Verification]], None],
) -> None:
    """Have the transaction coordinator confirm the partitions of transactional batches, then append."""
    found = [
        (target, _PRODUCER.unpack_from(data, PRODUCER) if len(data) >= PRODUCER + _PRODUCER.size else None)
        for target, data in entries
        if len(data) > ATTRIBUTES and data[ATTRIBUTES] & TRANSACTIONAL_FLAG
    ]
    if not found:
        append({}, {})
        return
    producers = {producer[:2] for _, producer in found if producer is not None and producer[0] >= 0}
    refused: KafkaError | None = None
    if not transactional_id:
        refused = TransactionalIdAuthorizationFailed("a transactional batch came without a transactional id")
    elif len(producers) > 1:
        refused = InvalidProducerIdMapping("the batches of a request are of more than one producer")
    if refused is not None:
        entries[:] = [(target if _is_denied(target) else refused, data) for target, data in entries]
    if refused is not None or not producers or transactional_id is None:
        append({}, {})
        return
    ((producer_id, epoch),) = producers
    sequences = {
        target: producer[2]
        for target, producer in found
        if isinstance(target, Partition) and producer is not None and producer[0] >= 0
    }
    services.verification.check_produce(transactional_id, producer_id, epoch, sequences, version, append)


def _is_denied(target: Partition | KafkaError) -> bool:
    return isinstance(target, TopicAuthorizationFailed)


def count(services: Services, hosted: HostedTopic, records: int, size: int, produces: int = 1) -> None:
    topic, every = hosted.metrics, services.replicas.topic_metrics.all
    topic.produces.count += produces
    topic.messages_in.count += records
    topic.bytes_in.count += size
    every.produces.count += produces
    every.messages_in.count += records
    every.bytes_in.count += size


def count_failed(services: Services, hosted: HostedTopic, error: BaseException, size: int) -> None:
    for metrics in (hosted.metrics, services.replicas.topic_metrics.all):
        metrics.produces.count += 1
        metrics.failed_produces.count += 1
        if isinstance(error, MessageTooLarge):
            metrics.bytes_rejected.count += size
        elif isinstance(error, CorruptMessage):
            metrics.invalid_crc.count += 1
        elif isinstance(error, InvalidRecord) and error.record_errors:
            metrics.no_key_compacted.count += len(error.record_errors)


def send(
    services: Services,
    request: Request,
    acks: int,
    answers: list[tuple[Slot, Partition | None, AppendOutcome]],
    throttle_ms: int = 0,
) -> None:
    if acks == 0:
        failed = next((o.error for _, _, o in answers if o.error is not None), None)
        if failed is None:
            request.respond_nothing()
        else:
            # With acks=0 there is no answer: the closed connection makes the producer look for the leader.
            request.close_connection(f"a produce with acks=0 failed: {failed!r}")
        return
    answer = ProduceResponse(throttle_time_ms=throttle_ms)
    leaders = CurrentLeaders(services, request.listener) if request.api_version >= LEADERS_FROM else None
    work = _fill(answer, answers, leaders)
    if len(answers) > IN_ONE_GO:
        services.respond(request, work)
        return
    for _ in work:
        pass
    services.respond(request, answer)


def _fill(
    answer: ProduceResponse,
    answers: list[tuple[Slot, Partition | None, AppendOutcome]],
    leaders: CurrentLeaders | None,
) -> Slices[ProduceResponse]:
    by_topic: dict[str | bytes, list[ProduceResponse.PartitionProduceResponse]] = {}
    for (topic, index), partition, outcome in answers:
        answered = _partition_answer(index, partition, outcome)
        if leaders is not None and answered.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            leader, epoch = leaders.of(topic, index)
            answered.current_leader = ProduceResponse.LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
        by_topic.setdefault(topic, []).append(answered)
        yield
    if leaders is not None:
        answer.node_endpoints = [
            ProduceResponse.NodeEndpoint(
                node_id=node.broker_id, host=node.host, port=node.port, rack=node.rack
            )
            for node in leaders.nodes
        ]
    answer.responses = [
        ProduceResponse.TopicProduceResponse(name=topic, partition_responses=partitions)
        if isinstance(topic, str)
        else ProduceResponse.TopicProduceResponse(topic_id=topic, partition_responses=partitions)
        for topic, partitions in by_topic.items()
    ]
    return answer


def _partition_answer(
    index: int, partition: Partition | None, outcome: AppendOutcome
) -> ProduceResponse.PartitionProduceResponse:
    error, result = outcome.error, outcome.result
    if error is None and result is not None:
        return ProduceResponse.PartitionProduceResponse(
            index=index,
            base_offset=result.base_offset,
            log_append_time_ms=result.log_append_time,
            log_start_offset=result.log_start_offset,
        )
    if not isinstance(error, KafkaError):
        error = UnknownServerError()
    answer = ProduceResponse.PartitionProduceResponse(index=index, error_code=error.code, base_offset=-1)
    if partition is not None and partition.log is not None and not isinstance(error, _BEFORE_THE_LOG):
        answer.log_start_offset = partition.log.log_start_offset
    if isinstance(error, RecordLevelError) and error.record_errors:
        answer.error_message = error.message
        answer.record_errors = [
            ProduceResponse.BatchIndexAndErrorMessage(batch_index=at, batch_index_error_message=text)
            for at, text in error.record_errors
        ]
    elif error.code in _EXPLAINED:
        answer.error_message = error.message
    return answer


APIS = (
    Api(
        0,
        3,
        13,
        produce,
        raw=True,
        announced_min_version=0,
        access=("TOPIC WRITE", "TRANSACTIONAL_ID WRITE"),
    ),
)
