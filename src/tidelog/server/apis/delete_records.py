"""DeleteRecords (21) v0-2: moves the log start offset of partitions forward.

The offset -1 stands for the high watermark; anything else above it or below 0 is OFFSET_OUT_OF_RANGE.
The answer carries the low watermark and comes when every replica has followed, or with
REQUEST_TIMED_OUT. Topics that are neither deleted from nor compacted by age are POLICY_VIOLATION.
"""

from __future__ import annotations

from functools import partial

from tidelog.cluster.replica_manager import PartitionId
from tidelog.errors import KafkaError, PolicyViolation
from tidelog.network.request import Request
from tidelog.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from tidelog.server.apis.api import Api
from tidelog.server.services import Services

Results = dict[PartitionId, tuple[int, KafkaError | None]]


def delete_records(services: Services, request: Request, body: DeleteRecordsRequest) -> None:
    offsets: dict[PartitionId, int] = {}
    refused: Results = {}
    for topic in body.topics:
        for wanted in topic.partitions:
            key = (topic.name, wanted.partition_index)
            if _may_delete(services, topic.name):
                offsets[key] = wanted.offset
            else:
                refused[key] = (
                    -1,
                    PolicyViolation(f"topic {topic.name} keeps its records: cleanup.policy has no delete"),
                )

    def done(results: Results) -> None:
        services.respond(request, _answer(body, {**results, **refused}))

    services.replicas.delete_records(offsets, body.timeout_ms, done, partial(services.failed, request))
    if not request.done:
        request.waiting()


def _may_delete(services: Services, topic: str) -> bool:
    hosted = services.replicas.topics.get(topic)
    if hosted is None or not hosted.partitions:
        return True  # the lookup of the partition says that it is unknown
    log = next(iter(hosted.partitions.values())).log
    return log is None or "delete" in log.config.cleanup_policy


def _answer(body: DeleteRecordsRequest, results: Results) -> DeleteRecordsResponse:
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
        topics.append(DeleteRecordsResponse.DeleteRecordsTopicResult(name=topic.name, partitions=partitions))
    return DeleteRecordsResponse(topics=topics)


APIS = (Api(21, 0, 2, delete_records),)
