"""A client that says exactly what it wants and believes only what it is told: for tests of faults."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.support.raw import RawConnection
from tidelog.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from tidelog.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from tidelog.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from tidelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from tidelog.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from tidelog.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.protocol.messages.produce import ProduceRequest, ProduceResponse
from tidelog.protocol.offset_specs import EARLIEST, LATEST
from tidelog.records.batch import BatchHeader, Record, build_batch, crc_is_valid, iter_batches, read_records

TOPIC, BROKER, BROKER_LOGGER = 2, 4, 8
SET, DELETE = 0, 1


class Produced(NamedTuple):
    error: int
    offset: int


class Stored(NamedTuple):
    """One batch as the broker gave it back."""

    header: BatchHeader
    values: list[bytes | None]


def batch_of(
    *values: bytes, timestamp: int | None = None, producer: tuple[int, int, int] = (-1, -1, -1)
) -> bytes:
    """A batch of records without keys; `producer` is id, epoch and first sequence."""
    now = int(time.time() * 1000) if timestamp is None else timestamp
    producer_id, epoch, sequence = producer
    return build_batch(
        [Record(at, now, None, value) for at, value in enumerate(values)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def produce_request(topic: str, partition: int, records: bytes | None, acks: int = -1) -> ProduceRequest:
    return ProduceRequest(
        acks=acks,
        timeout_ms=30_000,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name=topic,
                partition_data=[ProduceRequest.PartitionProduceData(index=partition, records=records)],
            )
        ],
    )


def fetch_request(
    topic: str, partition: int, offset: int, *, max_bytes: int = 1 << 20, max_wait_ms: int = 0
) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        topics=[
            FetchRequest.FetchTopic(
                topic=topic,
                partitions=[
                    FetchRequest.FetchPartition(
                        partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes
                    )
                ],
            )
        ],
    )


class Client(RawConnection):
    """What a test asks of a broker, by topic and partition."""

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> int:
        topic = CreateTopicsRequest.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[
                CreateTopicsRequest.CreatableTopicConfig(name=key, value=value)
                for key, value in (configs or {}).items()
            ],
        )
        answer = self.ask(CreateTopicsRequest(topics=[topic]), CreateTopicsResponse, 5)
        return answer.topics[0].error_code

    def delete_topic(self, name: str) -> int:
        answer = self.ask(DeleteTopicsRequest(topic_names=[name]), DeleteTopicsResponse, 5)
        return answer.responses[0].error_code

    def grow_topic(self, name: str, partitions: int) -> int:
        topic = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=partitions, assignments=None)
        answer = self.ask(CreatePartitionsRequest(topics=[topic]), CreatePartitionsResponse, 3)
        return answer.results[0].error_code

    def partitions(self) -> dict[str, int]:
        """How many partitions each topic has."""
        answer = self.ask(MetadataRequest(topics=None), MetadataResponse, 9)
        return {topic.name or "": len(topic.partitions) for topic in answer.topics}

    def partition_errors(self, topic: str) -> dict[int, int]:
        wanted = MetadataRequest.MetadataRequestTopic(name=topic)
        answer = self.ask(
            MetadataRequest(topics=[wanted], allow_auto_topic_creation=False), MetadataResponse, 9
        )
        return {partition.partition_index: partition.error_code for partition in answer.topics[0].partitions}

    def produce(self, topic: str, partition: int, records: bytes | None, acks: int = -1) -> Produced:
        request = produce_request(topic, partition, records, acks)
        answer = self.ask(request, ProduceResponse, 9)
        outcome = answer.responses[0].partition_responses[0]
        return Produced(outcome.error_code, outcome.base_offset)

    def fetch(
        self, topic: str, partition: int, offset: int, *, max_bytes: int = 1 << 20, max_wait_ms: int = 0
    ) -> FetchResponse.PartitionData:
        request = fetch_request(topic, partition, offset, max_bytes=max_bytes, max_wait_ms=max_wait_ms)
        return self.ask(request, FetchResponse, 11, 10 + max_wait_ms / 1000).responses[0].partitions[0]

    def read_all(self, topic: str, partition: int) -> list[Stored]:
        """Every batch from the log's start to its end; each is whole, valid and follows the one before."""
        offset, end = self.offset(topic, partition, EARLIEST), self.offset(topic, partition, LATEST)
        found: list[Stored] = []
        while offset < end:
            answer = self.fetch(topic, partition, offset)
            assert answer.error_code == 0
            data = answer.records
            assert isinstance(data, bytes | bytearray | memoryview)
            assert data, f"{topic}-{partition} gives nothing at {offset}, its end is {end}"
            for position, header in iter_batches(data):
                assert crc_is_valid(data, position, header)
                if found:
                    assert header.base_offset == found[-1].header.next_offset
                offset = header.next_offset
                found.append(Stored(header, [record.value for record in read_records(data, position)]))
        return found

    def offset(self, topic: str, partition: int, timestamp: int) -> int:
        wanted = ListOffsetsRequest.ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        named = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[wanted])
        answer = self.ask(ListOffsetsRequest(replica_id=-1, topics=[named]), ListOffsetsResponse, 7)
        found = answer.topics[0].partitions[0]
        assert found.error_code == 0, f"ListOffsets of {topic}-{partition} gives {found.error_code}"
        return found.offset

    def delete_records(self, topic: str, partition: int, offset: int) -> tuple[int, int]:
        """Error and low watermark."""
        wanted = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=partition, offset=offset)
        named = DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[wanted])
        answer = self.ask(DeleteRecordsRequest(topics=[named], timeout_ms=5000), DeleteRecordsResponse, 2)
        result = answer.topics[0].partitions[0]
        return result.error_code, result.low_watermark

    def producer_id(self) -> int:
        answer = self.ask(
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000),
            InitProducerIdResponse,
            4,
        )
        assert answer.error_code == 0
        return answer.producer_id

    def set_configs(self, kind: int, name: str, configs: Mapping[str, str | None]) -> int:
        """Change settings; None takes one back to its default."""
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[
                IncrementalAlterConfigsRequest.AlterableConfig(
                    name=key, config_operation=DELETE if value is None else SET, value=value
                )
                for key, value in configs.items()
            ],
        )
        request = IncrementalAlterConfigsRequest(resources=[resource])
        return self.ask(request, IncrementalAlterConfigsResponse, 1).responses[0].error_code

    def config(self, kind: int, name: str, setting: str) -> str | None:
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=[setting]
        )
        answer = self.ask(DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse, 4)
        return answer.results[0].configs[0].value

    def broker_id(self) -> str:
        answer = self.ask(MetadataRequest(topics=[]), MetadataResponse, 9)
        return str(answer.brokers[0].node_id)

    def folders(self) -> dict[str, int]:
        """The error of each log folder, by its path."""
        answer = self.ask(DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse, 4)
        return {result.log_dir: result.error_code for result in answer.results}


def resident_bytes(pid: int) -> int:
    """Memory that a process holds now."""
    return _memory(pid, "VmRSS")


def peak_bytes(pid: int) -> int:
    """The most memory that a process ever held."""
    return _memory(pid, "VmHWM")


def _memory(pid: int, name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert match is not None
    return int(match[1]) * 1024


def surprises(log: str, expected: Iterable[str] = ()) -> list[str]:
    """Lines of a broker's log that tell of an error nobody caused on purpose."""
    lines = [
        line
        for line in log.splitlines()
        if "level=error" in line or "level=critical" in line or "Traceback" in line
    ]
    return [line for line in lines if not any(text in line for text in expected)]
