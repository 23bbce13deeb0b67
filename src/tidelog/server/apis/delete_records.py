"""DeleteRecords (21) v0-2: moves the log start offset of partitions forward.

The offset -1 means the high watermark. Other offsets below 0 or above the high watermark are
OFFSET_OUT_OF_RANGE. The answer has the low watermark, and waits until every replica has deleted the records
(REQUEST_TIMED_OUT). Topics whose cleanup.policy has no delete are POLICY_VIOLATION. A topic needs DELETE
(TOPIC_AUTHORIZATION_FAILED).
"""

from __future__ import annotations

from collections import Counter
from functools import partial

from tidelog.errors import KafkaError, PolicyViolation, TopicAuthorizationFailed
from tidelog.network.request import Request
from tidelog.partitions import PartitionKey
from tidelog.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from tidelog.server.apis.api import Api
from tidelog.server.apis.authorization import DELETE, TOPIC, allowed_in_slices
from tidelog.server.services import Services
from tidelog.slices import Slices

Results = dict[PartitionKey, tuple[int, KafkaError | None]]


def delete_records(services: Services, request: Request, body: DeleteRecordsRequest) -> Slices[None]:
    offsets: dict[PartitionKey, int] = {}
    refused: Results = {}
    allowed = None
    if services.authorizer is not None:
        names = [topic.name for topic in body.topics]
        allowed = yield from allowed_in_slices(services, request, DELETE, TOPIC, names)
    for topic in body.topics:
        for wanted in topic.partitions:
            key = (topic.name, wanted.partition_index)
            try:
                if allowed is not None and topic.name not in allowed:
                    raise TopicAuthorizationFailed(f"{request.principal} may not delete records")
                _check_deletable(services, *key)
            except KafkaError as error:
                refused[key] = (-1, error)
            else:
                offsets[key] = wanted.offset
            yield
        yield

    def done(results: Results) -> None:
        for name, count in Counter(key[0] for key, (_, error) in results.items() if error is None).items():
            services.audit.changed(request, "Topic", name, f"records deleted from {count} partitions")
        services.respond(request, _answer(body, {**results, **refused}))

    services.replicas.delete_records(offsets, body.timeout_ms, done, partial(services.failed, request))
    if not request.done:
        request.waiting()


def _check_deletable(services: Services, topic: str, index: int) -> None:
    hosted = services.replicas.topics.get(topic)
    log = next((partition.log for partition in hosted.partitions.values()), None) if hosted else None
    if log is not None and "delete" not in log.config.cleanup_policy:
        raise PolicyViolation(f"topic {topic} keeps its records: cleanup.policy has no delete")
    services.replicas.partition(topic, index)


def _answer(body: DeleteRecordsRequest, results: Results) -> Slices[DeleteRecordsResponse]:
    topics = []
    for topic in body.topics:
        partitions = []
        for wanted in topic.partitions:
            low_watermark, error = results[topic.name, wanted.partition_index]
            partitions.append(
                DeleteRecordsResponse.DeleteRecordsPartitionResult(
                    partition_index=wanted.partition_index,
                    low_watermark=low_watermark,
                    error_code=0 if error is None else error.code,
                )
            )
            yield
        topics.append(DeleteRecordsResponse.DeleteRecordsTopicResult(name=topic.name, partitions=partitions))
        yield
    return DeleteRecordsResponse(topics=topics)


APIS = (Api(21, 0, 2, delete_records, access=("TOPIC DELETE",)),)
