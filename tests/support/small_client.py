"""Small requests over one connection, and the part of their answers that these tests look at."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, Self

from tests.support.raw import RawConnection
from tidelog.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from tidelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.protocol.messages.produce import ProduceRequest, ProduceResponse
from tidelog.records.batch import Record, build_batch


class Fetched(NamedTuple):
    error: int
    size: int


class Client:
    def __init__(self, address: tuple[str, int] | str) -> None:
        self.raw = RawConnection(address)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.raw.close()

    def create(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> int:
        answer = self.raw.ask(
            CreateTopicsRequest(
                topics=[
                    CreateTopicsRequest.CreatableTopic(
                        name=name,
                        num_partitions=partitions,
                        replication_factor=1,
                        configs=[
                            CreateTopicsRequest.CreatableTopicConfig(name=key, value=value)
                            for key, value in (configs or {}).items()
                        ],
                    )
                ],
                timeout_ms=10_000,
            ),
            CreateTopicsResponse,
            5,
        )
        return answer.topics[0].error_code

    def delete(self, name: str) -> int:
        request = DeleteTopicsRequest(topic_names=[name], timeout_ms=10_000)
        return self.raw.ask(request, DeleteTopicsResponse, 5).responses[0].error_code

    def produce(
        self, topic: str, partition: int, value: bytes, *, acks: int = 1
    ) -> ProduceResponse.PartitionProduceResponse:
        answer = self.raw.ask(self.produce_request(topic, partition, value, acks=acks), ProduceResponse, 9)
        return answer.responses[0].partition_responses[0]

    def produce_request(self, topic: str, partition: int, value: bytes, *, acks: int = 1) -> ProduceRequest:
        records = build_batch([Record(0, int(time.time() * 1000), None, value)])
        data = ProduceRequest.PartitionProduceData(index=partition, records=records)
        return ProduceRequest(
            acks=acks,
            timeout_ms=10_000,
            topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
        )

    def fetch(
        self,
        topic: str,
        partitions: Sequence[tuple[int, int, int]],
        *,
        max_bytes: int = 1 << 24,
        min_bytes: int = 1,
        max_wait_ms: int = 0,
    ) -> list[Fetched]:
        """Partitions as (index, offset, max bytes)."""
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            session_id=0,
            session_epoch=-1,
            topics=[
                FetchRequest.FetchTopic(
                    topic=topic,
                    partitions=[
                        FetchRequest.FetchPartition(
                            partition=index, fetch_offset=at, partition_max_bytes=most
                        )
                        for index, at, most in partitions
                    ],
                )
            ],
        )
        answer = self.raw.ask(request, FetchResponse, 12, timeout=max_wait_ms / 1000 + 10)
        return [
            Fetched(partition.error_code, _size(partition.records))
            for found in answer.responses
            for partition in found.partitions
        ]


def _size(records: object) -> int:
    assert records is None or isinstance(records, bytes | bytearray | memoryview)
    return len(records or b"")
